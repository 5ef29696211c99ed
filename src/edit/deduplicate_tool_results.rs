//! `deduplicate_tool_results`: says of lines that are in sight already where they stand.
//!
//! # What it does
//! A run of at least `min_lines` lines and `min_bytes` bytes of a result that stands in an earlier result or in the arguments of an
//! earlier call becomes a pointer: how many lines, of which call, where they stand. The first and the last line of the run stay
//! around it. The whole result is stored first. Lines are compared without the numbers before them and the blanks behind them.
//!
//! # When it acts
//! On sight, as the model has the same lines before it. It runs after the edits that take something out, and looks only at what
//! these leave: where the lines that a pointer stands for are cleared, left out or summarised, the text is back in what stays.
//! All behind such a change is written anew at that moment, and never in between.
//!
//! # What the model sees
//! The lines around the run, its first and last line, and between them the pointer; the first one of a result says how to read
//! all of it.
//!
//! # What it never touches
//! Results of `exclude_tools`, what a recall has read, results for programs, and what another edit has written. The result of a
//! call that is made again, or that reads a file again, after one with pointers stays whole; so does the read of a file behind an
//! edit of it that failed.

use std::{borrow::Cow, sync::Arc};

use serde::{Deserialize, Serialize};

use self::{
    lines::LineCache,
    runs::{Decided, DecisionCache, Source},
};
use super::{
    Edit, Language,
    file_use::{self, FileUse},
    names,
    tools::Tools,
};
use crate::{
    conversation::{BlockIndex, Role, UnitIndex},
    draft::{Draft, ReplaceOptions, ResultText, TextCut, TruncationCache},
    payload::Fingerprint,
    plan::Action,
};

mod lines;
mod runs;

/// `[deduplicate_tool_results]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The fewest lines of a run that becomes a pointer. Allowed: 3 to 10000.
    pub min_lines: usize,
    /// The fewest bytes of such a run.
    pub min_bytes: usize,
    /// Tools whose results get no pointers, by name or pattern: `*` stands for any characters, `?` for one.
    pub exclude_tools: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { min_lines: 6, min_bytes: 300, exclude_tools: Vec::new() }
    }
}

/// The edit.
#[derive(Debug)]
pub struct DeduplicateToolResults {
    settings: Settings,
    tools: Tools,
    language: Language,
    lines: LineCache,
    decisions: DecisionCache,
    proposed: TruncationCache,
}

/// What a failed edit of a file says, in lower case.
const FAILURES: [&str; 8] = [
    "not found",
    "no match",
    "not match",
    "could not find",
    "did not find",
    "failed to find",
    "does not exist in",
    "no occurrence",
];

/// A longer result does not report a failure.
const MAX_FAILURE: usize = 4096;

/// So many results before a read are looked at for an edit that failed.
const MAX_BACK: usize = 64;

/// A longer path is not named.
const MAX_PATH: usize = 200;

impl DeduplicateToolResults {
    /// The edit with its settings and those of single tools.
    pub fn new(settings: &Settings, tools: &Tools, language: Language) -> Self {
        Self {
            settings: settings.clone(),
            tools: tools.clone(),
            language,
            lines: LineCache::default(),
            decisions: DecisionCache::default(),
            proposed: TruncationCache::default(),
        }
    }

    /// Whether a result may get pointers.
    fn may_have_pointers(&self, draft: &Draft<'_>, unit: UnitIndex) -> bool {
        let call = draft.pairing().answered_block(unit);
        let tool = call.map_or("", |call| draft.conversation().tool_name(call));
        call.is_some() && !names::any_fits(&self.settings.exclude_tools, tool) && !draft.is_recall(unit)
    }

    /// What the call of a result does with files.
    fn file_use(&self, draft: &Draft<'_>, unit: UnitIndex) -> Option<FileUse> {
        let call = draft.pairing().answered_block(unit)?;
        let arguments = || draft.arguments(call).map(Cow::into_owned);
        file_use::of_call(&self.tools, draft.conversation().tool_name(call), arguments)
    }

    /// What a call is known by when it is made again, and the file that it reads.
    fn asks_for(&self, draft: &Draft<'_>, unit: UnitIndex) -> (Fingerprint, Option<String>) {
        let call = draft.pairing().answered_block(unit).unwrap_or_default();
        let tool = Fingerprint::of(draft.conversation().tool_name(call).as_bytes());
        let arguments = draft.arguments(call).unwrap_or_default();
        let file = match self.file_use(draft, unit) {
            Some(FileUse::Read { path, .. }) => Some(path),
            _ => None,
        };
        (tool.then(Fingerprint::of(arguments.as_bytes())), file)
    }

    /// Whether an edit of the file has failed since it was read the last time before this result.
    fn follows_failure(&self, draft: &Draft<'_>, unit: UnitIndex, file: &str) -> bool {
        let results = UnitIndex::each(&(UnitIndex::default()..unit)).rev().filter(|unit| draft.is_result(*unit));
        for earlier in results.take(MAX_BACK) {
            match self.file_use(draft, earlier) {
                Some(FileUse::Read { path, .. }) if path == file => return false,
                Some(FileUse::Edit(paths)) if paths.iter().any(|path| path == file) => {
                    let failed = |text: &str| {
                        let text = text.to_lowercase();
                        FAILURES.iter().any(|failure| text.contains(failure))
                    };
                    if draft.content_len(earlier) <= MAX_FAILURE
                        && draft.result_texts(earlier).iter().any(|text| failed(text))
                    {
                        return true;
                    }
                }
                _ => {}
            }
        }
        false
    }

    /// What stands in place of lines.
    fn words(&self, draft: &Draft<'_>, source: &Source, n_lines: usize, how: &str) -> String {
        let conversation = draft.conversation();
        let call = source.call.or_else(|| draft.pairing().answered_block(source.unit));
        let tool = call.map_or("", |call| conversation.tool_name(call));
        let tool = if tool.is_empty() { self.language.unnamed_tool() } else { tool };
        let file = call.and_then(|call| self.file_of(draft, call)).unwrap_or_default();
        let (from, to) = (source.line + 1, source.line + n_lines);
        let is_written = source.call.is_some();
        match self.language {
            Language::En => {
                let of = if is_written { "arguments" } else { "result" };
                let file = if file.is_empty() { file } else { format!(" for {file}") };
                let how = if how.is_empty() { how.to_owned() } else { format!(" The whole result: {how}") };
                format!(
                    "[{n_lines} lines left out here: lines {from} to {to} of the {of} of {tool}{file} above say the same.{how}]\n"
                )
            }
            Language::Zh => {
                let of = if is_written { "参数" } else { "结果" };
                let file = if file.is_empty() { file } else { format!("（{file}）") };
                let how = if how.is_empty() { how.to_owned() } else { format!("完整结果：{how}") };
                format!("[此处省略 {n_lines} 行：与上文 {tool}{file} {of}的第 {from} 至 {to} 行相同。{how}]\n")
            }
        }
    }

    fn file_of(&self, draft: &Draft<'_>, call: BlockIndex) -> Option<String> {
        let arguments = || draft.arguments(call).map(Cow::into_owned);
        let path = match file_use::of_call(&self.tools, draft.conversation().tool_name(call), arguments)? {
            FileUse::Read { path, .. } => path,
            FileUse::Edit(paths) => paths.into_iter().next()?,
        };
        (path.len() <= MAX_PATH && !path.contains(char::is_control)).then_some(path)
    }

    /// Puts the pointers into a result.
    fn point(&self, draft: &mut Draft<'_>, decided: &Decided) {
        let options = ReplaceOptions { stored: true, smaller: true, media: false };
        let call = draft.pairing().answered_block(decided.unit);
        let tool = call.map_or("", |call| draft.conversation().tool_name(call));
        let known_as = decided.fingerprint();
        let proposed = draft.cached(&self.proposed, decided.unit, tool, known_as, || {
            let mut n = 0;
            draft.propose_result(decided.unit, options, |text| {
                n += 1;
                self.cut(draft, decided, n - 1, text)
            })
        });
        if let Ok(proposed) = proposed {
            draft.apply(self.label(), Action::Deduplicate { message: decided.unit.get() }, proposed);
        }
    }

    /// The cut of one text of a result: from the first run to the last, with what stands between them.
    fn cut(&self, draft: &Draft<'_>, decided: &Decided, n: usize, text: &ResultText<'_, '_>) -> Option<TextCut> {
        let runs = || decided.runs.iter().filter(|run| run.text == n);
        let (first, last) = (runs().next()?, runs().next_back()?);
        let mut how = if draft.lacks_way() { "" } else { text.retrieval().1 };
        let (mut words, mut at) = (String::new(), first.cut.start);
        for run in runs() {
            words += text.text().get(at..run.cut.start)?;
            words += &self.words(draft, &run.source, run.n_lines, std::mem::take(&mut how));
            at = run.cut.end;
        }
        Some(TextCut { from: first.cut.start, to: last.cut.end, words })
    }
}

impl Edit for DeduplicateToolResults {
    fn name(&self) -> &'static str {
        "deduplicate_tool_results"
    }

    fn label(&self) -> &'static str {
        "deduplicate"
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        if !draft.can_store() {
            return;
        }
        let decided: Arc<[Decided]> = self.decide(draft);
        for decided in decided.iter() {
            self.point(draft, decided);
        }
    }
}

impl Draft<'_> {
    /// Whether a unit is a result.
    fn is_result(&self, unit: UnitIndex) -> bool {
        self.conversation().unit(unit).is_some_and(|unit| unit.role == Role::Tool)
    }
}

#[cfg(test)]
mod tests;
