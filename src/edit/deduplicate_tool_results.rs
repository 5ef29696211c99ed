//! `deduplicate_tool_results`: replaces lines that an earlier message has with a pointer to them.
//!
//! # What it does
//! A run of at least `min_lines` lines and `min_bytes` bytes of a result that an earlier result or the arguments of an earlier
//! call have becomes a pointer: how many lines, of which call, and which of its lines they are. The first and the last line of
//! the run stay. The whole result is stored first. Lines are compared without line numbers and trailing blanks.
//!
//! # When it acts
//! On sight, because the model has the same lines before it. It runs after the edits that take something out, and uses only
//! messages that are sent as they came: if the lines that a pointer leads to are cleared, removed or summarised, the text is
//! back in the results that stay. Everything after such a change is written anew at that moment, and never between two of them.
//!
//! # What the model sees
//! The lines around the run, its first and last line, and between them the pointer; the first pointer of a text says how to
//! read all of it. Lines are counted as the model sees them.
//!
//! # What it never touches
//! Results of `exclude_tools`, recalls, results for programs, and texts that another edit has written. The read of a file after an
//! edit of it that failed stays whole. If a call is made again after a result with pointers, its results stay whole from then on.
//! Lines that were left out of one read of a file are not left out of another, until the file is edited.

use std::{borrow::Cow, mem, ops::Range, sync::Arc};

use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use self::lines::LineCache;
use self::runs::{PointerCache, Pointers, Run};
use super::file_use::{self, FileUse};
use super::{Edit, Language, SharedSettings, tools};
use crate::conversation::{BlockIndex, UnitIndex};
use crate::draft::{Draft, NotApplicable, Offload, ProposedEdit, ReplaceOptions, ResultText, TextCut, TruncationCache};
use crate::plan::Action;

mod lines;
mod runs;

/// `[deduplicate_tool_results]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The fewest lines of a run that becomes a pointer; 0 for no pointers, which is what `policy.goal = "careful"` sets.
    /// Allowed: 0 to 10000.
    #[default(6)]
    pub min_lines: usize,
    /// The fewest bytes of such a run.
    #[default(300)]
    pub min_bytes: usize,
    /// Tools whose results get no pointers, by name or pattern: `*` matches any characters, `?` one.
    pub exclude_tools: Vec<String>,
}

/// The label of its changes.
const LABEL: &str = "deduplicate";

/// The edit.
#[derive(Debug)]
pub struct DeduplicateToolResults {
    settings: Settings,
    shared: Arc<SharedSettings>,
    lines: LineCache,
    cache: PointerCache,
    proposed: TruncationCache,
}

/// The longest result that reports a failure.
const MAX_FAILURE: usize = 4096;

/// The longest path that a pointer names.
const MAX_PATH: usize = 200;

impl DeduplicateToolResults {
    /// The edit with its settings.
    pub fn new(settings: &Settings, shared: &Arc<SharedSettings>) -> Self {
        let (lines, cache, proposed) = (LineCache::default(), PointerCache::default(), TruncationCache::default());
        Self { settings: settings.clone(), shared: Arc::clone(shared), lines, cache, proposed }
    }

    /// Whether a result may get pointers.
    fn may_have_pointers(&self, draft: &Draft<'_>, unit: UnitIndex) -> bool {
        let is_excluded = |tool: &str| tools::any_fits(&self.settings.exclude_tools, tool);
        let call = draft.pairing().answered_block(unit);
        call.is_some_and(|call| !is_excluded(draft.conversation.tool_name(call))) && !draft.is_recall(unit)
    }

    /// The use that a call makes of files.
    fn file_use(&self, draft: &Draft<'_>, call: BlockIndex) -> Option<FileUse> {
        let arguments = || draft.request().arguments(call).map(Cow::into_owned);
        file_use::of_call(&self.shared.tools, draft.conversation.tool_name(call), arguments)
    }

    /// The pointer to these lines of a result, or of the arguments of a call, from 1 on. The way to the whole text and the end
    /// of the pointer are added later.
    fn words(&self, draft: &Draft<'_>, call: BlockIndex, is_written: bool, lines: Range<usize>) -> String {
        let tool = self.shared.language.tool_name(draft.conversation.tool_name(call));
        let path = match self.file_use(draft, call) {
            Some(FileUse::Read { path, .. }) => Some(path),
            Some(FileUse::Edit(paths)) => paths.into_iter().next(),
            None => None,
        };
        let path = path.filter(|path| path.len() <= MAX_PATH && !path.contains(char::is_control));
        let (n, from, to) = (lines.len(), lines.start, lines.end - 1);
        match self.shared.language {
            Language::En => {
                let of = if is_written { "arguments" } else { "result" };
                let path = path.map_or_else(String::new, |path| format!(" for {path}"));
                format!("[{n} lines left out: lines {from}-{to} of the {of} of {tool}{path} above.")
            }
            Language::Zh => {
                let of = if is_written { "参数" } else { "结果" };
                let path = path.map_or_else(String::new, |path| format!("（{path}）"));
                format!("[此处省略 {n} 行：与上文 {tool}{path} {of}的第 {from} 至 {to} 行相同。")
            }
        }
    }

    /// The end of a pointer, with the way to read the whole text if there is one.
    fn end(&self, how: &str) -> String {
        let whole = self.shared.language.choose(" The whole result: ", "完整结果：");
        if how.is_empty() { "]\n".to_owned() } else { format!("{whole}{how}]\n") }
    }

    /// A result with these pointers, if that makes it smaller.
    fn proposed(&self, draft: &Draft<'_>, unit: UnitIndex, runs: &[Run]) -> Result<ProposedEdit, NotApplicable> {
        let options = ReplaceOptions { stored: true, smaller: true, media: false };
        let call = draft.pairing().answered_block(unit);
        draft.cached(&self.proposed, unit, draft.tool_of(call), runs, || {
            let mut texts = 0..;
            draft.propose_result(unit, options, |text| self.cut(draft, runs, texts.next()?, text))
        })
    }

    /// The cut of the text `n` of a result: from its first run to its last, with what is between them.
    fn cut(&self, draft: &Draft<'_>, runs: &[Run], n: usize, text: &ResultText<'_, '_>) -> Option<TextCut> {
        let runs = || runs.iter().filter(|run| run.text == n);
        let (first, last) = (runs().next()?, runs().next_back()?);
        // The first pointer says how to read the whole text, unless a tool would be added for what is in sight.
        let mut how = if draft.lacks_way() || draft.may_add_tool() { "" } else { text.retrieval().1 };
        let (mut words, mut at) = (String::new(), first.cut.start);
        for run in runs() {
            words += text.text().get(at..run.cut.start)?;
            words += &run.words;
            words += &self.end(mem::take(&mut how));
            at = run.cut.end;
        }
        Some(TextCut { from: first.cut.start, to: last.cut.end, words })
    }
}

/// Whether a result says that an edit has failed.
fn says_failure(draft: &Draft<'_>, unit: UnitIndex) -> bool {
    draft.content_len(unit) <= MAX_FAILURE && draft.result_texts(unit).iter().any(|text| file_use::says_failure(text))
}

impl Edit for DeduplicateToolResults {
    fn apply(&self, draft: &mut Draft<'_>) {
        let is_elsewhere = draft.conversation.traits.history_elsewhere;
        if self.settings.min_lines == 0 || draft.context.offload == Offload::Impossible || is_elsewhere {
            return;
        }
        for Pointers { unit, runs, .. } in self.pointers(draft).iter().filter(|pointers| !pointers.runs.is_empty()) {
            if let Ok(proposed) = self.proposed(draft, *unit, runs) {
                draft.apply(LABEL, Action::Deduplicate { message: unit.get() }, proposed);
            }
        }
    }
}

#[cfg(test)]
mod tests;
