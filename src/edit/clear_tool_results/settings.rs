//! `[clear_tool_results]` of `proxy.toml`.

use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::edit::Language;
use crate::edit::own_texts::Template;
use crate::edit::trigger::{Condition, Keep, Moment, Trigger};

/// `[clear_tool_results]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// When a pass clears old results: a condition, or a list of conditions of which one must hold. All keys of a
    /// condition must hold (`>=`): `tokens`, `messages` (the length of the array), `fraction` (of the model's context
    /// window; does not hold where that is not known). Clearing removes no messages, so a condition with `messages` alone
    /// holds again when as many have come since the last pass.
    #[default(Trigger(vec![Condition::tokens(80_000), Condition::fraction(0.5)]))]
    pub trigger: Trigger,
    /// The results that a pass spares, counted backwards from the result that came last: exactly one of `results`, `rounds`, `tokens`,
    /// `fraction`.
    #[default(Keep::Results(3))]
    pub keep: Keep,
    /// Of the newest so many results that were read from files, those are spared whose files were neither written nor read
    /// again since, however old they are, unless the request takes four fifths of the model's window without what else may
    /// be cleared. 0 spares none for that. `[tools]` names tools that read and write files besides those that are known.
    #[default(8)]
    pub keep_reads: usize,
    /// Where passes are made. With `"turn"`, the beginning of a user's turn needs three eighths of the trigger. `"turn"`
    /// needs `frontier = "sticky"`.
    ///
    /// Not set: `"turn"`, and `"any"` with `frontier = "sliding"`.
    ///
    /// Example: `"any"`
    pub when: Option<Moment>,
    /// The fewest tokens that a pass must free; a pass that would free fewer is not made. `"auto"` decides by `[[prices]]`:
    /// results that may be cleared add up what it costs to read them with each request, and a pass is made when that
    /// reaches what the pass costs, as the prompt cache loses what follows it. From four fifths of the model's
    /// window on a seventh of the trigger is enough, whatever it costs. After a pause in which the upstream's prompt cache
    /// has lost the conversation, a pass is also made from three eighths of the trigger on: all is written to the cache again
    /// then, so the pass costs nothing. How long a cache keeps a prompt is learnt from the tokens that answers report as
    /// cached. Without a store, or with one that other processes use too, there are no such passes. Where reading costs nothing, `"auto"` is a seventh
    /// of the trigger, and with `when = "turn"` passes are made from the trigger on only. It needs `frontier = "sticky"`.
    ///
    /// Not set: `"auto"` with `when = "turn"`; with `"any"` a seventh of the least number of tokens at which the trigger
    /// holds, and 0 with `frontier = "sliding"`.
    ///
    /// Example: `14285`
    pub clear_at_least: Option<AtLeast>,
    /// Also replaces the arguments of the calls with `{}`: of all tools, of none, or of the listed tools.
    #[default(Inputs::Whether(false))]
    pub clear_tool_inputs: Inputs,
    /// Tools whose results are never cleared, by name or pattern. They take up places in `keep` all the same.
    pub exclude_tools: Vec<String>,
    /// Also clears the images, files and sound in results whose data is in the request: what is in base64 is stored as the
    /// bytes that it encodes, and recalled with its type. What is only named by a URL or an id stays. With `false`, parts
    /// that are not text stay, and a text in base64 is stored as the text that it is. Where the host is known to refuse more
    /// images or bytes than a request has, the oldest images in results are cleared whether `trigger` holds or not, down to
    /// half of the images or three quarters of the bytes.
    #[default(true)]
    pub clear_media: bool,
    /// The text in place of a result. `{tool_name}`, `{bytes}`, `{media_type}`, `{handle}` and `{how}` are filled in.
    ///
    /// Allowed: a text with more than blanks.
    ///
    /// Not set: a text in `language`.
    ///
    /// Example: `"[Cleared: {bytes} bytes of output of {tool_name}. {how}]"`
    pub placeholder: Option<String>,
    /// The handler of `[handlers]` that says what takes the place of a cleared result, with the placeholder after it.
    ///
    /// Not set: the placeholder alone is there.
    ///
    /// Example: `"digests"`
    pub handler: Option<String>,
    /// Stores what is cleared. With `false`, the text is lost, and the placeholder does not say how to read it.
    #[default(true)]
    pub offload: bool,
    /// Leaves a text in place that has no more tokens than its placeholder.
    #[default(true)]
    pub growth_guard: bool,
    /// Whether what was cleared once stays cleared.
    pub frontier: Frontier,
}

/// The fewest tokens that a pass must free.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase", expecting = "expected a number of tokens or \"auto\"")]
pub enum AtLeast {
    /// As many as make the pass pay.
    Auto,
    /// So many.
    #[serde(untagged)]
    Tokens(usize),
}

/// `true`, `false`, or a list of tools by name or pattern.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(untagged, expecting = "expected true, false or a list of tool names")]
pub enum Inputs {
    /// Of all tools, or of none.
    Whether(bool),
    /// Tools, by name or pattern.
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
    /// Each request gets one pass to itself; for upstreams without a prompt cache.
    Sliding,
}

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

    /// Whether a pass clears all that the model has read.
    pub(super) fn spares_nothing(&self) -> bool {
        let is_any_size = self.at_least() == Some(AtLeast::Tokens(0));
        self.keep == Keep::Results(0) && self.keep_reads == 0 && is_any_size && self.frontier == Frontier::Sliding
    }

    /// The text that replaces a result, and the one that replaces an image, a file or sound in a result.
    pub(crate) fn templates(&self, language: Language) -> [Template; 2] {
        let en = "[Cleared: {bytes} bytes of output of {tool_name}. {how}]";
        let text = language.choose(en, "[已清除：{tool_name} 的输出，共 {bytes} 字节。{how}]");
        let en = "[Cleared: {media_type} of {bytes} bytes from {tool_name}. {how}]";
        let media = language.choose(en, "[已清除：{tool_name} 输出的 {media_type}，共 {bytes} 字节。{how}]");
        let places = ["tool_name", "bytes", "media_type", "handle", "how"];
        [text, media].map(|usual| Template::new(self.placeholder.as_deref().unwrap_or(usual), &places))
    }
}
