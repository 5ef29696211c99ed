//! `truncate_tool_results`: cuts the middle out of results that are too long.
//!
//! # What it does
//! A result of more than `max_bytes` keeps its beginning and its end; between them a notice says what is missing and how to
//! read it. Each text of a result may have an equal share of `max_bytes`; parts that are not text stay, and so do texts that
//! edits have written in their place, which do not count. The whole text is stored first.
//!
//! # When it acts
//! On sight, wherever the result stands: a new one is cut before the model sees it, an old one as it was cut then. What is
//! left depends on the text and the settings alone, and on the answer of a handler, which is made once for a text. Where the
//! window of the model is known, what comes together may take a quarter of it: the module `batch` says how.
//!
//! # What the model sees
//! Whole lines of the beginning and of the end, where there are any, and the `notice` between them; or what a handler says,
//! and the notice after it.
//!
//! # What it never touches
//! Results of `exclude_tools` and of tools with `truncate = false` in their own settings. Without a store, nothing.
//! `max_bytes` does not hold for the results of the reader tools of `[recall]`, nor for a call whose arguments name a stored
//! text: that call reads it back, and its result would be truncated again and again. Such results are cut only if the window
//! requires it and cutting the others is not enough. The text of a result is not searched for handles, else any output that
//! names a handle would stay whole, at any size.

use std::collections::BTreeMap;
use std::{cell::OnceCell, sync::Arc};

use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use self::batch::CutRule;
use super::own_texts::Template;
use super::tools::{self, Limits, Tool, Truncate};
use super::{Edit, Language, SharedSettings};
use crate::conversation::{BlockKind, UnitIndex};
use crate::draft::{Draft, NotApplicable, Question, ReplaceOptions, ResultText, TextCut, TruncationCache};
use crate::handler::{Answer, MAX_ANSWER};
use crate::payload::HANDLE_LEN;
use crate::plan::{Action, SkipReason};
use crate::recall;

mod batch;

/// `[truncate_tool_results]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The length in bytes that a longer result is cut to. The whole result goes to the store. The least value is the
    /// length of the longest notice, and depends on `notice`, `language` and the way to read the rest. Where the window of
    /// the model is known, results that come together are cut to a quarter of it. Allowed: 180 or more.
    #[default(50_000)]
    pub max_bytes: usize,
    /// Tools whose results stay whole, by name or pattern: `*` matches any characters, `?` one.
    pub exclude_tools: Vec<String>,
    /// The text in place of what is cut out. `{tool_name}`, `{left_out}`, `{bytes}`, `{handle}` and `{how}` are filled
    /// in.
    ///
    /// Not set: a text in `language`.
    ///
    /// Example: `"\n[{left_out} of {bytes} bytes left out here. {how}]\n"`
    pub notice: Option<String>,
    /// The handler of `[handlers]` that says what replaces a result that is longer, with the notice after it.
    ///
    /// Not set: the two ends are there.
    ///
    /// Example: `"tests"`
    pub handler: Option<String>,
}

impl Settings {
    /// The text that replaces what is cut out.
    pub(crate) fn template(&self, language: Language) -> Template {
        let usual = language.choose(
            "\n[{left_out} of {bytes} bytes left out here. {how}]\n",
            "\n[此处省略 {left_out} 字节，共 {bytes} 字节。{how}]\n",
        );
        let places = ["tool_name", "left_out", "bytes", "handle", "how"];
        Template::new(self.notice.as_deref().unwrap_or(usual), &places)
    }

    /// The length in bytes of the longest notice: results cannot be cut to fewer. No name of a tool has more than 64 bytes, and
    /// no body more than 2 GiB.
    pub fn longest_notice(&self, recall: &recall::Settings, language: Language) -> usize {
        let how = recall.longest_words(language);
        let [name, number, handle] = [64, "2147483648".len(), HANDLE_LEN].map(|length| "-".repeat(length));
        let longest = self.template(language).fill(|place| match place {
            "tool_name" => &name,
            "left_out" | "bytes" => &number,
            "handle" => &handle,
            _ => &how,
        });
        longest.len()
    }
}

/// Its name, as handlers are told it.
const NAME: &str = "truncate_tool_results";
/// The label of its changes.
const LABEL: &str = "truncate";

/// The edit.
#[derive(Debug)]
pub struct TruncateToolResults {
    settings: Settings,
    shared: Arc<SharedSettings>,
    truncation_cache: TruncationCache,
}

impl TruncateToolResults {
    /// The edit with its settings.
    pub fn new(settings: &Settings, shared: &Arc<SharedSettings>) -> Self {
        let truncation_cache = TruncationCache::default();
        Self { settings: settings.clone(), shared: Arc::clone(shared), truncation_cache }
    }

    /// A shorter result is never truncated.
    fn least_bytes(&self) -> usize {
        let of_tools = self.shared.tools.all(|tool| limits(tool)?.max_bytes);
        of_tools.chain([self.settings.max_bytes]).min().unwrap_or_default()
    }

    /// When a result of a tool may be cut.
    fn cut_rule(&self, draft: &Draft<'_>, unit: UnitIndex) -> CutRule {
        let tool = draft.tool_of(draft.pairing().answered_block(unit));
        let own = self.shared.tools.find(tool, |tool| tool.truncate);
        let (is_excluded, reads) = match own {
            Some(Truncate::Whether(whether)) => (!whether, false),
            Some(Truncate::To(_)) => (false, false),
            None => (
                tools::any_fits(&self.settings.exclude_tools, tool),
                tools::any_fits(&self.shared.recall.reader_tools, tool),
            ),
        };
        match (is_excluded || draft.is_for_program(unit), reads || draft.is_recall(unit)) {
            (true, _) => CutRule::Never,
            (false, true) => CutRule::LastResort,
            (false, false) => CutRule::Usual,
        }
    }

    /// The handler that is asked about a result.
    fn handler(&self, tool: &str) -> Option<&Arc<str>> {
        let of_tool = || self.shared.tools.find(tool, |tool| tool.truncate_handler.clone());
        self.shared.handler(self.settings.handler.as_deref(), of_tool)
    }

    /// What a tool says of the length of its results.
    fn limits(&self, tool: &str) -> Limits {
        let own = |key: fn(Limits) -> Option<usize>| self.shared.tools.find(tool, |tool| limits(tool).and_then(key));
        Limits { max_bytes: own(|of| of.max_bytes), head: own(|of| of.head), tail: own(|of| of.tail) }
    }

    /// Returns what is cut out of a text that may have `share` bytes, or what a handler says replaces it.
    fn cut(&self, text: &ResultText<'_, '_>, tool: &str, limits: Limits, share: usize) -> Option<TextCut> {
        // No notice is longer than the one that says that all of it is left out.
        let left = share.saturating_sub(self.notice(text, tool, text.len).len());
        if let Some(handler) = self.handler(tool) {
            match text.answer(Question { edit: NAME, handler, most_bytes: left.min(MAX_ANSWER) }) {
                Answer::Replace { text: answer } => {
                    let notice = self.notice(text, tool, text.len - answer.len());
                    return Some(TextCut { from: 0, to: text.len, words: answer + &notice });
                }
                Answer::Leave => return None,
                Answer::Default | Answer::Failed => {}
            }
        }
        // What one end does not take, the other may.
        let most_tail = limits.tail.unwrap_or(if limits.head.is_some() { left } else { left - left / 2 });
        let head = limits.head.unwrap_or(left.saturating_sub(most_tail)).min(left);
        let tail = most_tail.min(left - head);
        let (from, to) = (head_end(text.text(), head), tail_start(text.text(), tail));
        (from < to).then(|| TextCut { from, to, words: self.notice(text, tool, to - from) })
    }

    /// How many bytes of a text may stay, if it is too long. `counted` remembers, for all texts of one result, how many
    /// count and their bytes.
    fn share(&self, text: &ResultText<'_, '_>, most: usize, counted: &OnceCell<(usize, usize)>) -> Option<usize> {
        if text.n_bytes <= most || text.len <= most / text.n_texts {
            return None;
        }
        let is_counted = |len, read: &dyn Fn() -> _| !self.shared.own_texts.may_have(len, read);
        let (n_texts, n_bytes) = *counted.get_or_init(|| text.count_texts(is_counted));
        let share = most / n_texts.max(1);
        let is_short = n_bytes <= most || text.len <= share;
        // Else someone quotes us, or has edited before us.
        (!is_short && is_counted(text.len, &|| text.text())).then_some(share)
    }

    fn notice(&self, text: &ResultText<'_, '_>, tool: &str, left_out: usize) -> String {
        self.shared.own_texts.truncated.about(text, tool, &left_out.to_string(), self.shared.language)
    }

    /// Truncates a result to what the settings say, and to `most` bytes.
    fn truncate(&self, draft: &mut Draft<'_>, unit: UnitIndex, most: Option<usize>) {
        let tool = draft.tool_of(draft.pairing().answered_block(unit));
        let limits = self.limits(tool);
        let max_bytes = match self.cut_rule(draft, unit) {
            CutRule::Never => return,
            CutRule::Usual => limits.max_bytes.unwrap_or(self.settings.max_bytes).min(most.unwrap_or(usize::MAX)),
            CutRule::LastResort => most.unwrap_or(usize::MAX),
        };
        let length = draft.content_len(unit);
        // A text that cannot be read again is cut only if the window requires it.
        let may_cut = |most: Option<usize>| most.is_some_and(|most| length > most);
        if length <= max_bytes || (draft.lacks_way() && !may_cut(most)) {
            return;
        }
        let max_bytes = most.filter(|_| draft.lacks_way()).unwrap_or(max_bytes);
        let options = ReplaceOptions { stored: true, smaller: true, media: false };
        let propose = || {
            let (mut longer, counted) = (false, OnceCell::new());
            let proposed = draft.propose_result(unit, options, |text| {
                let share = self.share(text, max_bytes, &counted)?;
                let cut = self.cut(text, tool, limits, share)?;
                // The draft compares tokens, of which rare characters have more than bytes of a notice; the limit is one of bytes.
                let is_longer = cut.words.len() >= cut.to - cut.from;
                longer |= is_longer;
                (!is_longer).then_some(cut)
            });
            match proposed {
                Err(NotApplicable::Nothing) if longer => Err(NotApplicable::NotSmaller),
                proposed => proposed,
            }
        };
        let proposed = match self.handler(tool) {
            // Answers become known.
            Some(_) => propose(),
            None => draft.cached(&self.truncation_cache, unit, tool, max_bytes, propose),
        };
        match proposed {
            Ok(proposed) => drop(draft.apply(LABEL, Action::Truncate { message: unit.get() }, proposed)),
            Err(NotApplicable::NotSmaller) => draft.skip_change(LABEL, Some(unit), SkipReason::NotSmaller),
            Err(NotApplicable::Nothing) => {}
        }
    }
}

/// The table in which a tool says what is left of its results.
fn limits(tool: &Tool) -> Option<Limits> {
    match tool.truncate {
        Some(Truncate::To(limits)) => Some(limits),
        _ => None,
    }
}

/// Where a beginning of at most `most` bytes ends: after the last line end in its last tenth, if there is one.
fn head_end(text: &str, most: usize) -> usize {
    let end = text.floor_char_boundary(most);
    let from = text.floor_char_boundary(end - end / 10);
    let line_end = text.get(from..end).and_then(|last| last.rfind('\n'));
    line_end.map_or(end, |at| from + at + 1)
}

/// Where an end of at most `most` bytes begins: after the first line end in its first tenth, if there is one.
fn tail_start(text: &str, most: usize) -> usize {
    let start = text.ceil_char_boundary(text.len().saturating_sub(most));
    let to = text.ceil_char_boundary(start + most / 10);
    // The line end before the first byte counts, too.
    let before = start.saturating_sub(1);
    let line_end = text.as_bytes().get(before..to).and_then(|first| memchr::memchr(b'\n', first));
    line_end.map_or(start, |at| (before + at + 1).max(start))
}

impl Edit for TruncateToolResults {
    fn counts_from(&self, window: Option<usize>) -> usize {
        window.map_or(usize::MAX, batch::least_bytes).min(self.least_bytes())
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        let least = self.least_bytes();
        // What came together is not known where calls are missing.
        let has_calls = draft.context.in_place.is_none();
        let shares = if has_calls { batch::shares(draft, |unit| self.cut_rule(draft, unit)) } else { BTreeMap::new() };
        let conversation = draft.conversation;
        for block in &conversation.blocks {
            let share = shares.get(&block.unit).copied();
            let is_long = share.is_some() || draft.content_len(block.unit) > least;
            if is_long && matches!(block.kind, BlockKind::ToolResult { .. }) {
                self.truncate(draft, block.unit, share);
            }
        }
    }
}

#[cfg(test)]
mod tests;
