//! `clear_tool_results`: replaces the texts of old results by a placeholder when the conversation has grown large.
//!
//! # What it does
//! When the `trigger` holds, all results after the frontier but the newest, which `keep` spares, are cleared: each text
//! becomes a `placeholder`, and the text that the client sent is stored. With `clear_media`, so do images, files and sound.
//! If `clear_tool_inputs` says so, the arguments of the calls become `{}`, and if `reasoning.ended_turns` does, the reasoning of
//! the turns that have ended is left out with a pass that is made anyway. A pass that would free less than `clear_at_least`
//! tokens is not made. Where that is not set, a sticky frontier waits for a seventh of what the trigger asks for: the texts
//! and arguments that are never cleared may reach the trigger alone, and then each new result would make a pass. With
//! `"auto"` a pass is made when it pays, by the prices of tokens.
//!
//! # When it acts
//! With `frontier = "sticky"` it finds out by replay: the conversation is walked from its beginning, and at each place
//! where a model was called, what this edit did then is done again. So what was cleared once stays cleared, and all else
//! stays as it was sent, until the trigger holds again. Messages are not fewer when results are cleared, so a condition
//! that asks for these alone holds again when as many have come since. With `"sliding"` one pass is made at the end, each
//! time anew.
//!
//! With `when = "turn"` a pass is made where a user's turn begins, from three eighths of the trigger on, and between turns
//! only from the trigger on. Where a turn begins is seen in the messages before the call, so that replay finds it again.
//!
//! Where prices decide, a pass is also made after a pause in which the prompt cache has expired, as all is written again then.
//! That is remembered outside of the messages, so that later requests find it again.
//!
//! With `recall.controls`, the model calls a tool to pin a result, which is then not cleared, or to have a pass made at the next
//! model call. Both are found in the messages. Pins end where the context window would not hold the request.
//!
//! Results are ordered by when they came. A result that arrives late is with its old call, and is the newest all the same;
//! before it came, its placeholder counts. What `filter_tool_calls` has left out counts till then.
//!
//! # What the model sees
//! Which tool it was, how many bytes it said, and how to read them again; before that, what a handler says of the text, if
//! one is asked. The words depend on the text, the settings, the tools that the request offers and the answer of the handler,
//! which is made once for a text, so they stay the same from request to request. What is cleared, and when, does not depend
//! on handlers, except for what one leaves as it is.
//!
//! # What it never touches
//! Results that the model has not read yet; results of `exclude_tools`, which use up places in `keep` all the same, and of
//! tools whose own settings say `clear = false`; texts that are not longer, in tokens, than what would replace them,
//! unless `growth_guard` is off; of the newest `keep_reads` file reads, those whose files are as they were read; what cannot
//! be stored, unless `offload` is off; texts that edits have written in place of results, and the arguments of a call whose
//! result is missing.

use std::sync::Arc;

use self::regrets::CallCache;
use self::replay::{ClearedResults, Replay, controls::has_controls};
use super::own_texts::OwnTexts;
use super::trigger::{Moment, Part};
use super::{Edit, SharedSettings, tools};
use crate::draft::{Draft, Pass, ProposedEdit, Question, ReplaceOptions, ResultText, Row, TextCut};
use crate::handler::{Answer, MAX_ANSWER};
use crate::plan::{Action, SkipReason};
use crate::tokens::{models::MediaLimits, prices::PriceList};

pub use self::settings::{AtLeast, Frontier, Inputs, Settings};

mod ended_turns;
mod media;
mod reads;
mod regrets;
mod rent;
mod replay;
mod settings;

/// The least that a pass frees, as a part of the least tokens at which the trigger holds.
const WORTH_A_PASS: usize = 7;

/// The part of the trigger from which passes are made where a user's turn begins: of 80,000 tokens it is 30,000.
const TURN: Part = Part(3, 8);

/// The part of the window from which a pass need not pay, and takes file reads too: beyond it comes a summary, or a refusal
/// of the upstream.
const NEARLY_FULL: Part = Part(4, 5);

/// Its name, as handlers are told it.
const NAME: &str = "clear_tool_results";
/// The label of its changes.
const LABEL: &str = "clear";

/// The edit.
#[derive(Debug)]
pub struct ClearToolResults {
    settings: Settings,
    shared: Arc<SharedSettings>,
    prices: PriceList,
    media_limits: Option<&'static MediaLimits>,
    calls: CallCache,
    /// A shorter body has nothing to clear, whatever the model.
    least_bytes: usize,
}

/// The edits that clear one result and the arguments of its call.
#[derive(Debug, Default)]
struct Clearing {
    result: Option<ProposedEdit>,
    input: Option<ProposedEdit>,
    /// How many tokens it frees, if that is needed.
    freed: usize,
}

impl ClearToolResults {
    /// The edit with its settings and the prices at the upstream.
    pub fn new(settings: &Settings, prices: PriceList, shared: &Arc<SharedSettings>) -> Self {
        let media_limits = MediaLimits::of_host(&prices.upstream).filter(|_| settings.clear_media);
        let (shared, calls) = (Arc::clone(shared), CallCache::default());
        let mut this = Self { settings: settings.clone(), shared, prices, media_limits, calls, least_bytes: 0 };
        this.least_bytes = this.early(settings.trigger.least_bytes());
        this
    }

    /// The size from which the edit may act, in bytes or tokens, where its trigger holds from `least` on.
    fn early(&self, least: usize) -> usize {
        if self.settings.moment() == Moment::Turn { TURN.of(least) } else { least }
    }

    /// Whether results of a tool may be cleared.
    fn clears(&self, tool: &str) -> bool {
        let own = self.shared.tools.find(tool, |settings| settings.clear);
        own.unwrap_or_else(|| !tools::any_fits(&self.settings.exclude_tools, tool))
    }

    /// Whether the arguments of calls of a tool are cleared.
    fn clears_input(&self, tool: &str) -> bool {
        match &self.settings.clear_tool_inputs {
            Inputs::Whether(whether) => *whether,
            Inputs::Of(tools) => tools::any_fits(tools, tool),
        }
    }

    /// The handler that is asked about a result.
    fn handler(&self, draft: &Draft<'_>, row: &Row) -> Option<&Arc<str>> {
        let tool = draft.tool_of(row.call);
        let of_tool = || self.shared.tools.find(tool, |settings| settings.clear_handler.clone());
        self.shared.handler(self.settings.handler.as_deref(), of_tool)
    }

    /// The placeholder of a text, an image or a file of a tool.
    fn words(&self, text: &ResultText<'_, '_>, tool: &str) -> String {
        let OwnTexts { cleared, cleared_media, .. } = &self.shared.own_texts;
        let placeholder = if text.media.is_some() { cleared_media } else { cleared };
        placeholder.about(text, tool, "", self.shared.language)
    }

    /// The edits that clear one result, with the answer of a handler where one is asked; none if nothing is to be cleared. A call
    /// whose result is missing, or is left by a handler, keeps its arguments, too.
    fn clearing(&self, draft: &Draft<'_>, row: &Row, count: bool, handler: Option<&Arc<str>>) -> Option<Clearing> {
        let Settings { offload: stored, growth_guard: smaller, clear_media: media, .. } = self.settings;
        let options = ReplaceOptions { stored, smaller, media };
        let tool = draft.tool_of(row.call);
        let (mut is_missing, mut is_left) = (false, false);
        let result = draft.propose_result(row.unit?, options, |text| {
            let is_text = text.media.is_none();
            if is_text && self.shared.own_texts.may_have(text.len, || text.text()) {
                is_missing = text.n_texts == 1 && self.shared.own_texts.missing.may_have_made(text.text());
                return None; // it is quoted, or was edited before us
            }
            let mut words = self.words(text, tool);
            let room = if smaller { text.len.saturating_sub(words.len() + 2) } else { MAX_ANSWER };
            let most_bytes = room.min(MAX_ANSWER);
            let answer = handler
                .filter(|_| is_text)
                .map_or(Answer::Default, |handler| text.answer(Question { edit: NAME, handler, most_bytes }));
            match answer {
                Answer::Replace { text } => words = text + "\n" + &words,
                Answer::Default | Answer::Failed => {}
                Answer::Leave => {
                    is_left = true;
                    return None;
                }
            }
            Some(TextCut { from: 0, to: text.len, words })
        });
        if is_missing || (is_left && result.is_err()) {
            return None;
        }
        let call = row.call.filter(|_| self.clears_input(tool) && !draft.is_further(row));
        let input = call.and_then(|call| draft.propose_input(call, options).ok());
        let mut clearing = Clearing { result: result.ok(), input, ..Clearing::default() };
        if count {
            clearing.freed = clearing.proposed_edits().map(|proposed| draft.gain(proposed)).sum();
        }
        (clearing.result.is_some() || clearing.input.is_some()).then_some(clearing)
    }

    fn clear_old_results(&self, draft: &mut Draft<'_>) {
        // What the trigger held for once stays cleared, also where less is sent now.
        let n_bytes = draft.n_bytes_at_most();
        let may_act = |draft: &Draft<'_>| {
            draft.has_sent_pass(Pass::Clear) || draft.prompt_limit().is_some() || has_controls(draft)
        };
        if n_bytes < self.least_bytes && !may_act(draft) {
            return;
        }
        let limits = self.settings.trigger.limits(draft);
        let lowest = if self.settings.moment() == Moment::Turn { &limits.at(TURN) } else { &limits };
        let n_messages = draft.n_messages_at_most();
        if !lowest.hold(n_bytes, n_messages) && !may_act(draft) {
            return;
        }
        if let Some(why) = draft.skip_reason(Pass::Clear) {
            return draft.skip_change(LABEL, None, why);
        }
        let keep = self.settings.keep.resolved(draft);
        let ClearedResults { cleared, reasoning_left, too_little, passes, cold_at, regrets } =
            Replay::new(self, draft, limits, keep).run();
        draft.leave_reasoning_out(reasoning_left);
        for (model_call, fact) in passes {
            match fact {
                Some(fact) => draft.pass_made(fact, model_call),
                None => draft.prefix_changes(model_call),
            }
        }
        draft.report.regrets = regrets;
        for (unit, clearing) in cleared {
            if let Some(proposed) = clearing.result {
                draft.apply(LABEL, Action::Clear { message: unit.get() }, proposed);
            }
            if let Some(proposed) = clearing.input {
                draft.apply(LABEL, Action::ClearInput { message: proposed.unit.get() }, proposed);
            }
        }
        if let Some(model_call) = cold_at {
            draft.offer_cold_pass(model_call);
        }
        if too_little {
            draft.skip_change(LABEL, None, SkipReason::TooLittle);
        }
    }
}

impl Clearing {
    fn proposed_edits(&self) -> impl Iterator<Item = &ProposedEdit> {
        self.result.iter().chain(&self.input)
    }
}

impl Edit for ClearToolResults {
    fn counts_from(&self, window: Option<usize>) -> usize {
        let room = window.map_or(usize::MAX, |window| window / 2);
        self.early(self.settings.trigger.least_bytes_within(window)).min(room)
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        draft.offers_control = self.shared.recall.controls;
        self.clear_old_results(draft);
        self.fit_media(draft);
    }
}

#[cfg(test)]
mod tests;
