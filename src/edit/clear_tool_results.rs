//! `clear_tool_results`: replaces the texts of old results by a placeholder when the conversation has grown large.
//!
//! # What it does
//! When the `trigger` holds, all results behind the frontier but the newest, which `keep` spares, are cleared: each text
//! becomes a `placeholder`, and the text that the client sent is stored. With `clear_media`, so do images, files and sound.
//! If `clear_tool_inputs` says so, the arguments of the calls become `{}`. A pass that would free less than `clear_at_least`
//! tokens is not made. Where that is not set, a sticky frontier waits for a seventh of what the trigger asks for: the texts
//! and arguments that are never cleared may reach the trigger alone, and then each new result would make a pass. With
//! `"auto"` a pass is made when it pays, by the prices of tokens.
//!
//! # When it acts
//! With `frontier = "sticky"` it finds out by replay: the conversation is walked from its beginning, and at each place
//! where a model was called, what this edit did then is done again. So what was cleared once stays cleared, and all else
//! stays as it was sent, until the trigger holds again. Messages are no fewer when results are cleared, so a condition
//! that asks for these alone holds again when as many have come since. With `"sliding"` one pass is made at the end, each
//! time anew.
//!
//! With `when = "turn"` a pass is made where a user's turn begins, from three eighths of the trigger on, and between turns
//! only from the trigger on. Where a turn begins is seen in the messages before the call, so that replay finds it again.
//!
//! What is newest is so by when it came. A result that comes late stands with its old call, and is the newest all the
//! same; before it came, what stood there for it counts. What `filter_tool_calls` has left out counts till then.
//!
//! # What the model sees
//! Which tool it was, how many bytes it said, and how to read them again. The words depend on the text, the settings and
//! the tools that the request offers, so they stay the same from request to request.
//!
//! # What it never touches
//! Results that the model has not read yet; results of `exclude_tools`, which use up places in `keep` all the same, and of
//! tools whose own settings say `clear = false`; texts that are not longer, in tokens, than what would stand for them,
//! unless `growth_guard` is off; of the newest `keep_reads` file reads, those whose files are as they were read; what cannot
//! be stored, unless `offload` is off; texts that edits have written in place of results, and the arguments of a call whose
//! result is missing.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, SeqAccess, Unexpected, Visitor},
};

use self::{
    rent::Rent,
    replay::{ClearedResults, Replay},
};
use super::{
    Edit, Language,
    keep::Keep,
    names,
    own_texts::OwnTexts,
    template::Template,
    tools::Tools,
    trigger::{Condition, Limits, Moment, Part, Trigger},
};
use crate::{
    conversation::UnitIndex,
    draft::{Draft, Pass, ProposedEdit, ReplaceOptions, Row, TextCut},
    payload::MediaType,
    plan::{Action, SkipReason, Stale},
    tokens::prices::PriceList,
    units::Fraction,
};

mod reads;
mod regrets;
mod rent;
mod replay;

/// `[clear_tool_results]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// When a pass clears old results: a condition, or a list of conditions of which one must hold. All keys of a
    /// condition must hold (`>=`): `tokens`, `messages` (the length of the array), `fraction` (of the model's context
    /// window; does not hold where that is not known). Clearing removes no messages, so a condition with `messages` alone
    /// holds again when as many have come since the last pass.
    pub trigger: Trigger,
    /// What a pass spares, counted backwards from the result that came last: exactly one of `results`, `rounds`, `tokens`,
    /// `fraction`.
    pub keep: Keep,
    /// Of the newest so many results that were read from files, those are spared whose files were neither written nor read
    /// again since, however old they are, unless the request takes four fifths of the model's window without what else may
    /// be cleared. 0 spares none for that. `[tools]` names tools that read and write files besides those that are known.
    pub keep_reads: usize,
    /// Where passes are made. With `"turn"`, the beginning of a user's turn needs three eighths of the trigger. `"turn"`
    /// needs `frontier = "sticky"`.
    ///
    /// Not set: `"turn"`, and `"any"` with `frontier = "sliding"`.
    ///
    /// Example: `"any"`
    pub when: Option<Moment>,
    /// The fewest tokens that a pass must free; a pass that would free fewer is not made. `"auto"` decides by `[prices]`:
    /// results that may be cleared add up what it costs to read them with each request, and a pass is made when that
    /// reaches what the pass costs, as the prompt cache loses what stands behind it. From four fifths of the model's
    /// window on a seventh of the trigger is enough, whatever it costs. Where reading costs nothing, `"auto"` is a seventh
    /// of the trigger, and with `when = "turn"` passes are made from the trigger on only. It needs `frontier = "sticky"`.
    ///
    /// Not set: `"auto"` with `when = "turn"`; with `"any"` a seventh of the least number of tokens at which the trigger
    /// holds, and 0 with `frontier = "sliding"`.
    ///
    /// Example: `14285`
    pub clear_at_least: Option<AtLeast>,
    /// Also replaces the arguments of the calls with `{}`: of all tools, of none, or of the listed tools.
    pub clear_tool_inputs: Inputs,
    /// Tools whose results are never cleared, by name or pattern. They take up places in `keep` all the same.
    pub exclude_tools: Vec<String>,
    /// Also clears the images, files and sound in results whose data is in the request: what is in base64 is stored as the
    /// bytes that it stands for, and recalled with its type. What is only named by a URL or an id stays. With `false`, parts
    /// that are no text stay, and a text in base64 is stored as the text that it is.
    pub clear_media: bool,
    /// The text in place of a result. `{tool_name}`, `{bytes}`, `{media_type}`, `{handle}` and `{how}` are filled in.
    ///
    /// Allowed: a text with more than blanks, also where a name in it stands for nothing.
    ///
    /// Not set: a text in `language`.
    ///
    /// Example: `"[Cleared: {bytes} bytes of output of {tool_name}. {how}]"`
    pub placeholder: Option<String>,
    /// Stores what is cleared. With `false`, the text is lost, and the placeholder does not say how to read it.
    pub offload: bool,
    /// Leaves a text in place that has no more tokens than its placeholder.
    pub growth_guard: bool,
    /// Whether what was cleared once stays cleared.
    pub frontier: Frontier,
}

/// The fewest tokens that a pass must free.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AtLeast {
    /// So many.
    Tokens(usize),
    /// As many as make the pass pay.
    Auto,
}

/// `true`, `false`, or a list of tools by name or pattern.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Inputs {
    /// Of all tools, or of none.
    Whether(bool),
    /// Of these, by name or pattern.
    Of(Vec<String>),
}

/// Whether what was cleared once stays cleared.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Frontier {
    /// It stays cleared, and nothing else is cleared until the trigger holds again, so that a prompt cache keeps its
    /// prefix.
    #[default]
    Sticky,
    /// Each request gets one pass of its own; for upstreams without a prompt cache.
    Sliding,
}

/// How [`AtLeast::Auto`] is written.
const AUTO: &str = "auto";

impl Default for Settings {
    fn default() -> Self {
        let tokens = Condition { tokens: Some(80_000), ..Condition::default() };
        let half = Condition { fraction: Fraction::new(0.5), ..Condition::default() };
        Self {
            trigger: Trigger(vec![tokens, half]),
            keep: Keep::Results(3),
            keep_reads: 10,
            when: None,
            clear_at_least: None,
            clear_tool_inputs: Inputs::Whether(false),
            exclude_tools: Vec::new(),
            clear_media: true,
            placeholder: None,
            offload: true,
            growth_guard: true,
            frontier: Frontier::default(),
        }
    }
}

/// The least that a pass frees, as a part of the least tokens at which the trigger holds.
const WORTH_A_PASS: usize = 7;

/// What is filled in in a placeholder.
const PLACES: [&str; 5] = ["tool_name", "bytes", "media_type", "handle", "how"];

/// The part of the trigger from which passes are made where a user's turn begins: of 80,000 tokens it is 30,000.
const TURN: Part = Part(3, 8);

/// The part of the window from which a pass need not pay, and takes file reads too: beyond it comes a summary, or a refusal of the upstream.
const NEARLY_FULL: Part = Part(4, 5);

impl Settings {
    /// Where passes are made.
    pub fn moment(&self) -> Moment {
        self.when.unwrap_or(match self.frontier {
            Frontier::Sticky => Moment::Turn,
            Frontier::Sliding => Moment::Any,
        })
    }

    /// The fewest tokens that a pass must free; none for a part of the trigger.
    pub fn at_least(&self) -> Option<AtLeast> {
        self.clear_at_least.or(match (self.frontier, self.moment()) {
            (Frontier::Sliding, _) => Some(AtLeast::Tokens(0)),
            (Frontier::Sticky, Moment::Turn) => Some(AtLeast::Auto),
            (Frontier::Sticky, Moment::Any) => None,
        })
    }

    /// The same settings with what follows from others written out.
    #[must_use]
    pub fn written_out(&self) -> Self {
        Self { when: Some(self.moment()), clear_at_least: self.at_least(), ..self.clone() }
    }

    /// The text that stands for a result.
    pub(crate) fn template(&self, language: Language) -> Template {
        let placeholder = self.placeholder.as_deref().unwrap_or(match language {
            Language::En => "[Cleared: {bytes} bytes of output of {tool_name}. {how}]",
            Language::Zh => "[已清除：{tool_name} 的输出，共 {bytes} 字节。{how}]",
        });
        Template::new(placeholder, &PLACES)
    }

    /// The text that stands for an image, a file or sound in a result.
    pub(crate) fn media_template(&self, language: Language) -> Template {
        let placeholder = self.placeholder.as_deref().unwrap_or(match language {
            Language::En => "[Cleared: {media_type} of {bytes} bytes from {tool_name}. {how}]",
            Language::Zh => "[已清除：{tool_name} 输出的 {media_type}，共 {bytes} 字节。{how}]",
        });
        Template::new(placeholder, &PLACES)
    }

    /// Whether a result may be cleared to a text of nothing but blanks, which some upstreams refuse.
    pub fn may_clear_to_blank(&self, language: Language) -> bool {
        let filled = self.template(language).fill(|place| match place {
            "handle" if self.offload => "handle",
            "handle" | "how" => "", // not every request has a way to read what was stored
            _ => "value",
        });
        filled.trim().is_empty()
    }
}

/// The edit.
#[derive(Debug)]
pub struct ClearToolResults {
    settings: Settings,
    tools: Tools,
    placeholder: Template,
    media_placeholder: Template,
    own_texts: OwnTexts,
    prices: PriceList,
    language: Language,
}

/// When a pass is made of one request.
#[derive(Debug)]
struct Rules {
    /// The conditions that hold for a pass anywhere.
    limits: Limits,
    /// The conditions for a pass where a user's turn begins, if they are others.
    turn: Option<Limits>,
    /// The fewest tokens that a pass frees where their price does not decide.
    at_least: usize,
    /// From so many tokens on neither their price nor a file read that is kept prevents a pass.
    nearly_full: Option<usize>,
    keep: Keep,
}

/// What clearing one result and the arguments of its call would do.
#[derive(Debug, Default)]
struct Clearing {
    result: Option<ProposedEdit>,
    input: Option<ProposedEdit>,
    /// How many tokens it frees, if anybody needs to know.
    freed: usize,
    /// What has happened to the file that the result was read from.
    why: Option<Stale>,
}

impl ClearToolResults {
    /// The edit with its settings, those of single tools, the texts that it leaves alone, and the prices at the upstream.
    pub fn new(
        settings: &Settings,
        tools: &Tools,
        own_texts: &OwnTexts,
        prices: PriceList,
        language: Language,
    ) -> Self {
        Self {
            prices,
            placeholder: settings.template(language),
            media_placeholder: settings.media_template(language),
            settings: settings.clone(),
            tools: tools.clone(),
            own_texts: own_texts.clone(),
            language,
        }
    }

    /// A shorter body never has anything to clear.
    pub fn least_bytes(&self) -> usize {
        let least = self.settings.trigger.least_bytes();
        if self.settings.moment() == Moment::Turn { TURN.of(least) } else { least }
    }

    /// When a pass is made, and the rent that decides if prices do.
    fn rules(&self, draft: &mut Draft<'_>, limits: Limits) -> (Rules, Option<Rent>) {
        let (moment, at_least) = (self.settings.moment(), self.settings.at_least());
        let by_price = at_least == Some(AtLeast::Auto);
        let prices = by_price.then(|| self.prices.of_model(draft.conversation().model.as_deref()));
        let prices = prices.filter(|prices| !prices.read.is_free());
        let rent = prices.map(|prices| Rent::new(prices, draft.base_tokens()));
        let at_least = match at_least {
            Some(AtLeast::Tokens(tokens)) => tokens,
            Some(AtLeast::Auto) | None => limits.least_tokens() / WORTH_A_PASS,
        };
        let turn = (moment == Moment::Turn && (!by_price || rent.is_some())).then(|| limits.at(TURN));
        let asks_for_window = rent.is_some() || self.settings.keep_reads > 0;
        let nearly_full = asks_for_window.then(|| draft.window()).flatten().map(|window| NEARLY_FULL.of(window));
        let keep = self.settings.keep.resolved(draft);
        (Rules { limits, turn, at_least, nearly_full, keep }, rent)
    }

    /// Whether results of a tool may be cleared.
    fn clears(&self, tool: &str) -> bool {
        let own = self.tools.find(tool, |settings| settings.clear);
        own.map_or_else(|| !names::any_fits(&self.settings.exclude_tools, tool), |(_, clear)| clear)
    }

    /// Whether the arguments of calls of a tool are cleared.
    fn clears_input(&self, tool: &str) -> bool {
        match (self.tools.find(tool, |settings| settings.clear_inputs), &self.settings.clear_tool_inputs) {
            (Some((_, clear)), _) => clear,
            (None, Inputs::Whether(whether)) => *whether,
            (None, Inputs::Of(tools)) => names::any_fits(tools, tool),
        }
    }

    /// What clearing one result would do; none if nothing. A call whose result is missing keeps its arguments, too.
    fn clearing(&self, draft: &Draft<'_>, row: &Row, count: bool) -> Option<Clearing> {
        let Settings { offload: stored, growth_guard: smaller, clear_media: media, .. } = self.settings;
        let options = ReplaceOptions { stored, smaller, media };
        let conversation = draft.conversation();
        let tool = row.call.map_or("", |call| conversation.tool_name(call));
        let mut is_missing = false;
        let result = draft.propose_result(row.unit?, options, |text| {
            if text.media.is_none() && self.own_texts.may_have(text.len, || text.text()) {
                is_missing = text.n_texts == 1 && self.own_texts.may_be_missing(text.text());
                return None; // somebody quotes us, or has edited before us
            }
            let (handle, how) = text.retrieval();
            let bytes = text.len.to_string();
            let placeholder = if text.media.is_some() { &self.media_placeholder } else { &self.placeholder };
            let words = placeholder.fill(|place| match place {
                "tool_name" if tool.is_empty() => self.language.unnamed_tool(),
                "tool_name" => tool,
                "bytes" => &bytes,
                "media_type" => text.media.unwrap_or(MediaType::Text).name(),
                "handle" => handle,
                _ => how,
            });
            Some(TextCut { from: 0, to: text.len, words })
        });
        if is_missing {
            return None;
        }
        let input =
            row.call.filter(|_| self.clears_input(tool)).and_then(|call| draft.propose_input(call, options).ok());
        let mut clearing = Clearing { result: result.ok(), input, ..Clearing::default() };
        if count {
            clearing.freed = clearing.proposed_edits().map(|proposed| draft.gain(proposed)).sum();
        }
        let something = clearing.proposed_edits().next().is_some();
        something.then_some(clearing)
    }

    fn clear(&self, draft: &mut Draft<'_>, unit: UnitIndex, clearing: Clearing) {
        if let Some(proposed) = clearing.result {
            draft.apply(self.label(), Action::Clear { message: unit.get() }, proposed.because(clearing.why));
        }
        if let Some(proposed) = clearing.input {
            let unit = proposed.unit().get();
            draft.apply(self.label(), Action::ClearInput { message: unit }, proposed);
        }
    }
}

impl Clearing {
    fn proposed_edits(&self) -> impl Iterator<Item = &ProposedEdit> {
        self.result.iter().chain(&self.input)
    }
}

impl Edit for ClearToolResults {
    fn name(&self) -> &'static str {
        "clear_tool_results"
    }

    fn label(&self) -> &'static str {
        "clear"
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        // What the trigger held for once stays cleared, also where less is sent now.
        let n_bytes = draft.n_bytes_at_most();
        if n_bytes < self.least_bytes() {
            return;
        }
        let limits = self.settings.trigger.limits(draft);
        let lowest = if self.settings.moment() == Moment::Turn { &limits.at(TURN) } else { &limits };
        if !lowest.may_hold(n_bytes, draft.conversation().elements.len() + draft.n_added()) {
            return;
        }
        if let Some(why) = draft.skip_reason(Pass::Clear) {
            return draft.skip_change(self.label(), None, why);
        }
        let (rules, rent) = self.rules(draft, limits);
        let ClearedResults { cleared, too_little, last_pass, regrets } = Replay::new(self, draft, &rules, rent).run();
        draft.prefix_changes(last_pass);
        draft.note_regrets(regrets);
        for (unit, clearing) in cleared {
            self.clear(draft, unit, clearing);
        }
        if too_little {
            draft.skip_change(self.label(), None, SkipReason::TooLittle);
        }
    }
}

impl Serialize for AtLeast {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Tokens(tokens) => tokens.serialize(to),
            Self::Auto => AUTO.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for AtLeast {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = AtLeast;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a number of tokens or {AUTO:?}")
            }

            fn visit_u64<E: Error>(self, tokens: u64) -> Result<AtLeast, E> {
                Ok(AtLeast::Tokens(usize::try_from(tokens).unwrap_or(usize::MAX)))
            }

            fn visit_i64<E: Error>(self, tokens: i64) -> Result<AtLeast, E> {
                let tokens = u64::try_from(tokens).map_err(|_| E::invalid_value(Unexpected::Signed(tokens), &self))?;
                self.visit_u64(tokens)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<AtLeast, E> {
                if text == AUTO { Ok(AtLeast::Auto) } else { Err(E::invalid_value(Unexpected::Str(text), &self)) }
            }
        }

        from.deserialize_any(Either)
    }
}

impl Serialize for Inputs {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Whether(whether) => to.serialize_bool(*whether),
            Self::Of(tools) => tools.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Inputs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Inputs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or a list of tool names")
            }

            fn visit_bool<E: Error>(self, whether: bool) -> Result<Inputs, E> {
                Ok(Inputs::Whether(whether))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Inputs, A::Error> {
                let mut tools = Vec::new();
                while let Some(tool) = list.next_element()? {
                    tools.push(tool);
                }
                Ok(Inputs::Of(tools))
            }
        }

        from.deserialize_any(Either)
    }
}

#[cfg(test)]
mod tests;
