//! Finds runs of lines that an earlier text has.
//!
//! The pointers of a result depend on the messages before it alone. So those of the beginning of a conversation are cached, and
//! only results that came since are searched. Of earlier texts, only those windows of lines are indexed that a new text may have.

use std::cell::LazyCell;
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::hash::BuildHasher as _;
use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxBuildHasher;
use smart_default::SmartDefault;

use super::DeduplicateToolResults;
use super::lines::{TextLines, windows};
use crate::conversation::{BlockIndex, Role, Unit, UnitIndex};
use crate::draft::Draft;
use crate::edit::file_use::FileUse;
use crate::payload::cache::{self, By, WeighedCache};
use crate::payload::{Caller, Fingerprint};
use crate::raw::{self, Fields};

/// The pointers of one result.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Pointers {
    pub(super) unit: UnitIndex,
    /// In the order of the texts.
    pub(super) runs: Vec<Run>,
    /// The call that the result answers, by its tool and arguments.
    call: Fingerprint,
    /// The file that it reads.
    file: Option<String>,
    /// Whether its call asks again for a result with pointers: it is whole, and so are all later results of the call.
    asks_again: bool,
}

/// Lines that are left out, because an earlier text has them: a run without its first and last line.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct Run {
    /// The text of the result that has them.
    pub(super) text: usize,
    lines: Range<usize>,
    /// Their bytes.
    pub(super) cut: Range<usize>,
    /// The pointer, without its end.
    pub(super) words: String,
}

/// The pointers of the beginnings of conversations.
#[derive(Debug, SmartDefault)]
pub(super) struct PointerCache(
    #[default(cache::weighted(EXPECTED_ENTRIES, MAX_BYTES, By(weight)))] WeighedCache<(Caller, Fingerprint), Known>,
);

#[derive(Clone, Debug, Default)]
struct Known {
    pointers: Arc<[Pointers]>,
    /// What they follow from besides the messages, if any run was found.
    basis: Option<u64>,
}

/// The most bytes of all entries.
const MAX_BYTES: u64 = 2 << 20;

/// The expected number of entries, which decides into how many shards the cache is split.
const EXPECTED_ENTRIES: usize = 256;

/// The bytes of an entry besides its runs.
const ENTRY_BYTES: u64 = 256;

/// If more messages than these are new, all results are searched.
const MAX_NEW: usize = 32;

/// A longer message, in bytes, has no pointers, and none leads to it.
const MAX_MESSAGE: usize = 1 << 20;

/// Messages after so many bytes of results and calls have no pointers: no context window takes as much.
const MAX_TEXTS: usize = 4 << 20;

/// The fewest bytes that a pointer replaces.
const LEAST_CUT: usize = 200;

/// How many results before a read are checked for edits of its file.
const MAX_BACK: usize = 64;

/// How many adjacent lines of a file that were left out of one read are not left out of another.
const READ_AGAIN: usize = 3;

/// A result or a message with calls, whose lines are compared.
#[derive(Debug)]
struct Message {
    unit: UnitIndex,
    /// The calls whose arguments are compared; none for a result.
    calls: Option<Range<BlockIndex>>,
    fingerprint: Fingerprint,
    /// That of the conversation up to here.
    beginning: Fingerprint,
}

/// Hashes of windows.
type Windows = HashSet<u64, FxBuildHasher>;

/// The first occurrence of each window.
type Index = HashMap<u64, Occurrence, FxBuildHasher>;

/// An occurrence of a window in a text.
#[derive(Clone, Copy, Debug)]
struct Occurrence {
    message: usize,
    text: usize,
    /// Its first line, and how many lines the model sees before that.
    line: usize,
    n_shown: usize,
    /// The end of the lines that are sent from there on.
    end: usize,
}

/// The search for the pointers of one request.
#[derive(Debug)]
struct Search<'s, 'd> {
    edit: &'s DeduplicateToolResults,
    draft: &'s Draft<'d>,
    messages: &'s [Message],
    texts: Vec<Arc<[TextLines]>>,
    index: Index,
    /// The calls whose results have pointers, and those of them that were made again.
    calls: HashSet<Fingerprint>,
    repeated_calls: HashSet<Fingerprint>,
    /// The windows of the lines that pointers have left out of reads, by file.
    left_out: HashMap<String, Windows>,
    /// The use that calls make of files, and whether it has failed, by their results.
    file_uses: HashMap<UnitIndex, Option<(FileUse, bool)>>,
    /// Whether any run was found, also one that does not make its text smaller.
    has_runs: bool,
}

fn weight(known: &Known) -> u64 {
    let of_run = |run: &Run| size_of::<Run>() + run.words.len();
    let bytes = |pointers: &Pointers| size_of::<Pointers>() + 64 + pointers.runs.iter().map(of_run).sum::<usize>();
    ENTRY_BYTES + known.pointers.iter().map(bytes).sum::<usize>() as u64
}

impl DeduplicateToolResults {
    /// The pointers of all results.
    pub(super) fn pointers(&self, draft: &Draft<'_>) -> Arc<[Pointers]> {
        let messages = self.messages(draft);
        let caller = draft.context.caller;
        let basis = LazyCell::new(|| FxBuildHasher.hash_one(draft.basis()));
        let cached = |n: usize| {
            let known = self.cache.0.get(&(caller, messages.get(n)?.beginning))?;
            known.basis.is_none_or(|of| of == *basis).then_some((n + 1, known))
        };
        let newest = messages.len().saturating_sub(MAX_NEW)..messages.len();
        let (n_known, mut known) = newest.rev().find_map(cached).unwrap_or_default();
        let Some(last) = messages.last().filter(|_| n_known < messages.len()) else { return known.pointers };
        let may_have = |text: &TextLines| text.lines.len() >= self.settings.min_lines || text.has_pointers();
        let is_searched =
            |message: &Message| message.calls.is_none() && self.texts(draft, message).iter().any(may_have);
        let searched = messages.iter().enumerate().skip(n_known).rfind(|(_, message)| is_searched(message));
        if let Some(messages) = searched.and_then(|(n, _)| messages.get(..=n)) {
            let (pointers, has_runs) = Search::new(self, draft, messages).run(n_known, &known.pointers);
            known = Known { pointers: pointers.into(), basis: known.basis.or_else(|| has_runs.then(|| *basis)) };
        }
        self.cache.0.insert((caller, last.beginning), known.clone());
        known.pointers
    }

    /// The messages whose lines are compared, in order; none if there is nothing to compare.
    fn messages(&self, draft: &Draft<'_>) -> Vec<Message> {
        let lengths = self.settings.min_bytes..=MAX_MESSAGE;
        let is_compared = |index: UnitIndex, unit: &Unit| match unit.role {
            Role::Assistant => !unit.blocks.is_empty(),
            Role::Tool => !draft.is_for_program(index),
            _ => false,
        };
        let has_lines =
            |(index, unit): &(UnitIndex, &Unit)| lengths.contains(&unit.span.len()) && is_compared(*index, unit);
        let units = || draft.conversation.indexed_units();
        if units().filter(has_lines).nth(1).is_none() {
            return Vec::new();
        }
        let (mut beginning, mut n_bytes, mut messages) = (Fingerprint::default(), 0, Vec::new());
        for (index, unit) in units().filter(|(index, unit)| is_compared(*index, unit) && draft.is_in_sight(*index)) {
            let fingerprint = draft.fingerprint(index);
            beginning = beginning.mixed(index.get(), 0).then(fingerprint);
            if lengths.contains(&unit.span.len()) {
                n_bytes += unit.span.len();
                if n_bytes > MAX_TEXTS {
                    break;
                }
                let calls = (unit.role == Role::Assistant).then(|| unit.blocks.clone());
                messages.push(Message { unit: index, calls, fingerprint, beginning });
            }
        }
        if messages.len() > 1 { messages } else { Vec::new() }
    }

    /// The texts of a message, each with its lines.
    fn texts(&self, draft: &Draft<'_>, message: &Message) -> Arc<[TextLines]> {
        let read = || match &message.calls {
            None => draft.result_texts(message.unit).iter().map(|text| TextLines::of(text)).collect(),
            Some(calls) => BlockIndex::each(calls).enumerate().flat_map(|(n, call)| written(draft, call, n)).collect(),
        };
        let key = (draft.context.caller, message.fingerprint);
        let Ok(lines) = self.lines.0.get_or_insert_with(&key, || Ok::<_, Infallible>(read()));
        lines
    }
}

impl<'s, 'd> Search<'s, 'd> {
    fn new(edit: &'s DeduplicateToolResults, draft: &'s Draft<'d>, messages: &'s [Message]) -> Self {
        Self {
            edit,
            draft,
            messages,
            texts: messages.iter().map(|message| edit.texts(draft, message)).collect(),
            index: Index::default(),
            calls: HashSet::new(),
            repeated_calls: HashSet::new(),
            left_out: HashMap::new(),
            file_uses: HashMap::new(),
            has_runs: false,
        }
    }

    /// The pointers of all results, where those of the first `n_known` messages are known, and whether any run was found.
    fn run(mut self, n_known: usize, known: &[Pointers]) -> (Vec<Pointers>, bool) {
        // Where all results are searched, all windows may be asked for.
        let searched = (n_known > 0).then(|| self.windows_from(n_known));
        let mut all = Vec::with_capacity(known.len());
        let mut known = known.iter().peekable();
        for (n, message) in self.messages.iter().enumerate() {
            let pointers = if n < n_known {
                known.next_if(|pointers| pointers.unit == message.unit).cloned()
            } else {
                self.pointers_of(n, message)
            };
            if let Some(pointers) = &pointers {
                self.note(n, pointers);
            }
            self.add_to_index(n, pointers.as_ref().map_or(&[], |pointers| &pointers.runs), searched.as_ref());
            all.extend(pointers);
        }
        (all, self.has_runs)
    }

    /// Notes the call and the file of a result with pointers, or the call that asks for it again.
    fn note(&mut self, n: usize, pointers: &Pointers) {
        let Pointers { runs, call, file, asks_again, .. } = pointers;
        if *asks_again {
            self.repeated_calls.insert(*call);
            return;
        }
        self.calls.insert(*call);
        if let (Some(file), Some(texts)) = (file, self.texts.get(n)) {
            let lines = runs.iter().filter_map(|run| texts.get(run.text)?.lines.get(run.lines.clone()));
            let left_out = lines.flat_map(|lines| windows(lines, READ_AGAIN)).map(|(_, window)| window);
            self.left_out.entry(file.clone()).or_default().extend(left_out);
        }
    }

    /// The windows of the results after the first `n_known` messages.
    fn windows_from(&self, n_known: usize) -> Windows {
        let new = self.messages.iter().zip(&self.texts).skip(n_known).filter(|(message, _)| message.calls.is_none());
        let texts = new.flat_map(|(_, texts)| texts.iter());
        texts.flat_map(|text| windows(&text.lines, self.edit.settings.min_lines)).map(|(_, window)| window).collect()
    }

    /// Adds the lines of a message that are sent.
    fn add_to_index(&mut self, message: usize, runs: &[Run], searched: Option<&Windows>) {
        let Self { index, texts, edit, .. } = self;
        for (text, TextLines { lines, .. }) in texts.get(message).into_iter().flat_map(|texts| texts.iter()).enumerate()
        {
            for (range, n_shown) in sent_ranges(runs.iter().filter(|run| run.text == text), lines.len()) {
                let sent = lines.get(range.clone()).unwrap_or_default();
                for (at, window) in windows(sent, edit.settings.min_lines) {
                    if searched.is_none_or(|searched| searched.contains(&window)) {
                        let (line, n_shown, end) = (range.start + at, n_shown + at, range.end);
                        index.entry(window).or_insert(Occurrence { message, text, line, n_shown, end });
                    }
                }
            }
        }
    }

    /// The pointers of a result, if it gets any. One that came with pointers gets no others, but counts as one with pointers.
    fn pointers_of(&mut self, n: usize, message: &Message) -> Option<Pointers> {
        let texts = self.texts.get(n).filter(|_| message.calls.is_none())?;
        let has_pointers = texts.iter().any(TextLines::has_pointers);
        let runs = if has_pointers { Vec::new() } else { self.runs(texts) };
        if (runs.is_empty() && !has_pointers) || !self.edit.may_have_pointers(self.draft, message.unit) {
            return None;
        }
        let call = self.draft.pairing().answered_block(message.unit)?;
        let tool = Fingerprint::of(self.draft.conversation.tool_name(call).as_bytes());
        let arguments = self.draft.request().arguments(call).unwrap_or_default();
        let call = tool.then(Fingerprint::of(arguments.as_bytes()));
        let file = match self.checked_use(message.unit) {
            Some((FileUse::Read { path, .. }, _)) => Some(path),
            _ => None,
        };
        let was_edited = file.as_deref().map_or(Some(false), |file| self.edited_since_read(message.unit, file))?;
        if self.repeated_calls.contains(&call) {
            return None;
        }
        let asks_again = !was_edited && self.calls.contains(&call);
        let file_read = file.as_deref().filter(|_| !was_edited);
        let runs = match file_read.and_then(|file| self.without_left_out(file, n)) {
            _ if asks_again => Vec::new(),
            Some(texts) => self.runs(&texts),
            None => runs,
        };
        self.has_runs |= !runs.is_empty();
        // A text that its pointers do not make smaller stays whole.
        let is_smaller = |runs: &&[Run]| self.edit.proposed(self.draft, message.unit, runs).is_ok();
        let runs =
            runs.chunk_by(|run, next| run.text == next.text).filter(is_smaller).flatten().cloned().collect::<Vec<_>>();
        let has_some = asks_again || has_pointers || !runs.is_empty();
        has_some.then_some(Pointers { unit: message.unit, runs, call, file, asks_again })
    }

    /// The texts of a read of a file without the lines that were left out of earlier reads; none if it has none of them.
    fn without_left_out(&self, file: &str, n: usize) -> Option<Vec<TextLines>> {
        let left_out = self.left_out.get(file)?;
        let mut without = self.texts.get(n)?.to_vec();
        let mut has_some = false;
        for text in &mut without {
            let found: Vec<_> =
                windows(&text.lines, READ_AGAIN).filter(|(_, window)| left_out.contains(window)).collect();
            has_some |= !found.is_empty();
            for (first, _) in found {
                text.forget(first..first + READ_AGAIN);
            }
        }
        has_some.then_some(without)
    }

    /// The runs that earlier texts have.
    fn runs(&self, texts: &[TextLines]) -> Vec<Run> {
        let mut runs = Vec::new();
        for (n, text) in texts.iter().enumerate() {
            let mut from = 0;
            for (first, window) in windows(&text.lines, self.edit.settings.min_lines) {
                let occurrence = self.index.get(&window).filter(|_| first >= from);
                if let Some(run) = occurrence.and_then(|occurrence| self.run_at(n, text, first, *occurrence)) {
                    from = run.lines.end;
                    runs.push(run);
                }
            }
        }
        runs
    }

    /// The run that begins with a line and an occurrence of its window, if it is long enough.
    fn run_at(&self, n: usize, text: &TextLines, first: usize, occurrence: Occurrence) -> Option<Run> {
        let source = self.texts.get(occurrence.message)?.get(occurrence.text)?;
        let there = source.lines.get(occurrence.line..occurrence.end)?;
        let here = text.lines.get(first..)?.iter();
        let n_lines =
            here.zip(there).take_while(|(here, there)| here.hash.is_some() && here.hash == there.hash).count();
        let settings = &self.edit.settings;
        let lines = first + 1..(first + n_lines).checked_sub(1)?;
        let cut = text.start(lines.start)..text.start(lines.end);
        let n_bytes = text.start(first + n_lines) - text.start(first);
        if n_lines < settings.min_lines || n_bytes < settings.min_bytes || cut.len() < LEAST_CUT {
            return None; // the hashes of windows may collide
        }
        let message = self.messages.get(occurrence.message)?;
        let written_by = message.calls.as_ref().map(|calls| calls.start.plus(source.call));
        let call = written_by.or_else(|| self.draft.pairing().answered_block(message.unit))?;
        // The first of the lines that are left out, from 1 on.
        let from = occurrence.n_shown + 2;
        let words = self.edit.words(self.draft, call, written_by.is_some(), from..from + lines.len());
        Some(Run { text: n, lines, cut, words })
    }

    /// Whether a file was edited between this result and the last read before it; none if an edit of it has failed.
    fn edited_since_read(&mut self, unit: UnitIndex, file: &str) -> Option<bool> {
        let conversation = self.draft.conversation;
        let is_result = |unit: &UnitIndex| conversation.unit(*unit).is_some_and(|unit| unit.role == Role::Tool);
        let mut was_edited = false;
        for earlier in UnitIndex::each(&(UnitIndex::default()..unit)).rev().filter(is_result).take(MAX_BACK) {
            match self.checked_use(earlier) {
                Some((FileUse::Read { path, .. }, _)) if path == file => break,
                Some((FileUse::Edit(paths), failed)) if paths.iter().any(|path| path == file) => {
                    if failed {
                        return None;
                    }
                    was_edited = true;
                }
                _ => {}
            }
        }
        Some(was_edited)
    }

    /// The use that the call of a result makes of files, and whether the result says that it failed; determined once.
    fn checked_use(&mut self, unit: UnitIndex) -> Option<(FileUse, bool)> {
        let (edit, draft) = (self.edit, self.draft);
        let check = || {
            let file_use = edit.file_use(draft, draft.pairing().answered_block(unit)?)?;
            let failed = matches!(file_use, FileUse::Edit(_)) && super::says_failure(draft, unit);
            Some((file_use, failed))
        };
        self.file_uses.entry(unit).or_insert_with(check).clone()
    }
}

/// The ranges of lines of a text that are sent, each with the number of lines that the model sees before it. A pointer is a line.
fn sent_ranges<'r>(runs: impl Iterator<Item = &'r Run>, n_lines: usize) -> Vec<(Range<usize>, usize)> {
    let (mut start, mut n_shown, mut ranges) = (0, 0, Vec::new());
    for Run { lines, .. } in runs {
        ranges.push((start..lines.start, n_shown));
        n_shown += lines.start - start + 1;
        start = lines.end;
    }
    ranges.push((start..n_lines, n_shown));
    ranges
}

/// The texts in the arguments of a call, which is the call `n` of its message.
fn written(draft: &Draft<'_>, call: BlockIndex, n: usize) -> Vec<TextLines> {
    let Some(arguments) = draft.request().arguments(call) else { return Vec::new() };
    let lines = |text: &str| TextLines { call: n, ..TextLines::of(text) };
    let Some(fields) = Fields::of(&arguments) else { return vec![lines(&arguments)] };
    fields.iter().filter_map(|(_, value)| raw::string(value)).map(|text| lines(&text)).collect()
}
