//! Finds runs of lines that an earlier text has.
//!
//! The pointers of a result depend on the messages before it alone. So those of the beginning of a conversation are cached, and
//! only results that came since are searched. Of earlier texts, only those windows of lines are indexed that a new text may have.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    hash::BuildHasherDefault,
    ops::Range,
    sync::Arc,
};

use quick_cache::{Weighter, sync::Cache};
use rustc_hash::FxHasher;

use super::{
    DeduplicateToolResults,
    lines::{Line, TextLines},
};
use crate::{
    conversation::{BlockIndex, Role, Unit, UnitIndex},
    draft::Draft,
    edit::file_use::FileUse,
    payload::{Caller, Fingerprint},
    raw::{self, Fields},
};

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
    /// Whether it asks again for what pointers stand for: it is whole, and so are all later results of its call and file.
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
pub(super) struct PointerCache(Cache<(Caller, Fingerprint), Arc<[Pointers]>, Weight>);

#[derive(Clone, Debug)]
struct Weight;

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

/// The fewest bytes of a window of lines without its last line.
const LEAST_WINDOW: usize = 24;

/// The fewest bytes that a pointer replaces.
const LEAST_CUT: usize = 200;

/// How many results before a read are checked for an edit that failed.
const MAX_BACK: usize = 64;

/// How many adjacent lines that were left out of a read of a file make another read of it one that asks for them again.
const ASKED_AGAIN: usize = 3;

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

/// The windows of new texts, as a Bloom filter of one hash.
#[derive(Debug)]
struct WindowFilter(Box<[u64; FILTER_WORDS]>);

const FILTER_WORDS: usize = 1024;

/// The first occurrence of each window.
type Index = HashMap<u64, Occurrence, BuildHasherDefault<FxHasher>>;

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
    /// The calls and files of results with pointers.
    calls: HashSet<Fingerprint>,
    files: HashMap<String, LeftOut>,
    /// The calls and files that were asked for again.
    whole_calls: HashSet<Fingerprint>,
    whole_files: HashSet<String>,
    /// The use that calls make of files, by their results.
    file_uses: HashMap<UnitIndex, CheckedUse>,
}

/// The lines of a file that pointers stand for.
#[derive(Debug, Default)]
struct LeftOut {
    /// The results whose pointers have not been added to the windows, by message, with their runs.
    new: Vec<(usize, Vec<Run>)>,
    windows: HashSet<u64, BuildHasherDefault<FxHasher>>,
}

/// What has happened to a file since it was last read.
#[derive(Clone, Copy, Debug, Default)]
struct SinceRead {
    changed: bool,
    /// Whether an edit of it has failed.
    failed: bool,
}

/// The use that a call makes of files, and whether its result says that it failed.
#[derive(Clone, Debug)]
struct CheckedUse {
    file_use: Option<FileUse>,
    failed: bool,
}

impl Weighter<(Caller, Fingerprint), Arc<[Pointers]>> for Weight {
    fn weight(&self, _: &(Caller, Fingerprint), pointers: &Arc<[Pointers]>) -> u64 {
        let of_run = |run: &Run| size_of::<Run>() + run.words.len();
        let bytes = |pointers: &Pointers| size_of::<Pointers>() + 64 + pointers.runs.iter().map(of_run).sum::<usize>();
        ENTRY_BYTES + pointers.iter().map(bytes).sum::<usize>() as u64
    }
}

impl Default for PointerCache {
    fn default() -> Self {
        Self(Cache::with_weighter(EXPECTED_ENTRIES, MAX_BYTES, Weight))
    }
}

impl fmt::Debug for PointerCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PointerCache").field("n", &self.0.len()).finish_non_exhaustive()
    }
}

impl WindowFilter {
    fn new() -> Self {
        Self(Box::new([0; FILTER_WORDS]))
    }

    fn place(window: u64) -> (usize, u64) {
        (usize::try_from(window >> 6).unwrap_or_default() % FILTER_WORDS, 1 << (window % 64))
    }

    fn add(&mut self, window: u64) {
        let (word, bit) = Self::place(window);
        if let Some(word) = self.0.get_mut(word) {
            *word |= bit;
        }
    }

    fn may_have(&self, window: u64) -> bool {
        let (word, bit) = Self::place(window);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }
}

/// The hash of each window of `n` lines, with the number of its first line. Windows with a pointer, those of equal lines, such as
/// blank ones, and very short ones are left out.
fn windows(lines: &[Line], n: usize) -> impl Iterator<Item = (usize, u64)> {
    const BASE: u64 = 0x9E37_79B9_7F4A_7C15;
    let leaving = (0..n).fold(1_u64, |power, _| power.wrapping_mul(BASE));
    let (mut hash, mut since) = (0_u64, 0);
    let (mut before, mut n_same) = (None, 0);
    lines.iter().enumerate().filter_map(move |(at, line)| {
        let Some(new) = line.hash else {
            (hash, since) = (0, 0);
            return None;
        };
        since += 1;
        n_same = if before.replace(new) == Some(new) { n_same + 1 } else { 1 };
        hash = hash.wrapping_mul(BASE).wrapping_add(new.get());
        if since > n {
            let old = lines.get(at - n).and_then(|line| line.hash).map_or(0, std::num::NonZeroU64::get);
            hash = hash.wrapping_sub(old.wrapping_mul(leaving));
        }
        let first = lines.get((at + 1).saturating_sub(n)).map_or(0, |first| first.start);
        (since >= n && n_same < n && line.start - first >= LEAST_WINDOW).then(|| (at + 1 - n, hash ^ (hash >> 29)))
    })
}

impl DeduplicateToolResults {
    /// The pointers of all results.
    pub(super) fn pointers(&self, draft: &Draft<'_>) -> Arc<[Pointers]> {
        let messages = self.messages(draft);
        let caller = draft.caller();
        let cached =
            |n: usize| self.cache.0.get(&(caller, messages.get(n)?.beginning)).map(|pointers| (n + 1, pointers));
        let newest = messages.len().saturating_sub(MAX_NEW)..messages.len();
        let (n_known, known) = newest.rev().find_map(cached).unwrap_or_else(|| (0, Arc::new([])));
        let Some(last) = messages.last().filter(|_| n_known < messages.len()) else { return known };
        let may_have = |text: &TextLines| text.lines.len() >= self.settings.min_lines || text.has_pointers();
        let is_searched =
            |message: &Message| message.calls.is_none() && self.texts(draft, message).iter().any(may_have);
        let searched = messages.iter().enumerate().skip(n_known).rfind(|(_, message)| is_searched(message));
        let pointers = match searched.and_then(|(n, _)| messages.get(..=n)) {
            Some(messages) => Search::new(self, draft, messages).run(n_known, &known).into(),
            None => known,
        };
        self.cache.0.insert((caller, last.beginning), Arc::clone(&pointers));
        pointers
    }

    /// The messages whose lines are compared, in order; none if there is nothing to compare.
    fn messages(&self, draft: &Draft<'_>) -> Vec<Message> {
        let lengths = self.settings.min_bytes..=MAX_MESSAGE;
        let has_lines = |(index, unit): &(UnitIndex, &Unit)| {
            let may_have = match unit.role {
                Role::Assistant => !unit.blocks.is_empty(),
                Role::Tool => !draft.is_for_program(*index),
                _ => false,
            };
            may_have && lengths.contains(&unit.span.len()) && draft.is_in_sight(*index)
        };
        let units = || draft.conversation().indexed_units();
        if units().filter(has_lines).nth(1).is_none() {
            return Vec::new();
        }
        let (mut beginning, mut n_bytes, mut messages) = (Fingerprint::default(), 0, Vec::new());
        for (index, unit) in units() {
            let is_sent = draft.is_in_sight(index);
            let fingerprint = if is_sent { draft.fingerprint(index) } else { Fingerprint::default() };
            beginning = beginning.then(fingerprint);
            if has_lines(&(index, unit)) {
                n_bytes += unit.span.len();
                if n_bytes > MAX_TEXTS {
                    break;
                }
                let calls = (unit.role == Role::Assistant).then(|| unit.blocks.clone());
                messages.push(Message { unit: index, calls, fingerprint, beginning });
            }
        }
        messages
    }

    /// The texts of a message, each with its lines.
    fn texts(&self, draft: &Draft<'_>, message: &Message) -> Arc<[TextLines]> {
        self.lines.of(draft.caller(), message.fingerprint, || match &message.calls {
            None => draft.result_texts(message.unit).iter().map(|text| TextLines::of(text)).collect(),
            Some(calls) => BlockIndex::each(calls).enumerate().flat_map(|(n, call)| written(draft, call, n)).collect(),
        })
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
            files: HashMap::new(),
            whole_calls: HashSet::new(),
            whole_files: HashSet::new(),
            file_uses: HashMap::new(),
        }
    }

    /// The pointers of all results, where those of the first `n_known` messages are known.
    fn run(mut self, n_known: usize, known: &[Pointers]) -> Vec<Pointers> {
        let filter = self.filter(n_known);
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
            self.add_to_index(n, pointers.as_ref().map_or(&[], |pointers| &pointers.runs), &filter);
            all.extend(pointers);
        }
        all
    }

    /// Notes the call and the file of a result with pointers, or of one that asks again for what they stand for.
    fn note(&mut self, n: usize, pointers: &Pointers) {
        let Pointers { runs, call, file, asks_again, .. } = pointers.clone();
        if asks_again {
            self.whole_calls.insert(call);
            self.whole_files.extend(file);
            return;
        }
        self.calls.insert(call);
        if let Some(file) = file {
            self.files.entry(file).or_default().new.push((n, runs));
        }
    }

    /// The windows of the results that are searched.
    fn filter(&self, n_known: usize) -> WindowFilter {
        let mut filter = WindowFilter::new();
        let new = self.messages.iter().zip(&self.texts).skip(n_known).filter(|(message, _)| message.calls.is_none());
        for text in new.flat_map(|(_, texts)| texts.iter()) {
            windows(&text.lines, self.edit.settings.min_lines).for_each(|(_, window)| filter.add(window));
        }
        filter
    }

    /// Adds the lines of a message that are sent.
    fn add_to_index(&mut self, message: usize, runs: &[Run], filter: &WindowFilter) {
        let Self { index, texts, edit, .. } = self;
        for (text, TextLines { lines, .. }) in texts.get(message).into_iter().flat_map(|texts| texts.iter()).enumerate()
        {
            for (range, n_shown) in sent_ranges(runs.iter().filter(|run| run.text == text), lines.len()) {
                let sent = lines.get(range.clone()).unwrap_or_default();
                for (at, window) in windows(sent, edit.settings.min_lines) {
                    if filter.may_have(window) {
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
        let tool = Fingerprint::of(self.draft.conversation().tool_name(call).as_bytes());
        let arguments = self.draft.arguments(call).unwrap_or_default();
        let call = tool.then(Fingerprint::of(arguments.as_bytes()));
        let file = match self.checked_use(message.unit).file_use {
            Some(FileUse::Read { path, .. }) => Some(path),
            _ => None,
        };
        let since = file.as_deref().map_or_else(SinceRead::default, |file| self.since_read(message.unit, file));
        let is_whole =
            self.whole_calls.contains(&call) || file.as_ref().is_some_and(|file| self.whole_files.contains(file));
        if is_whole || since.failed {
            return None;
        }
        let asks_again = !since.changed
            && (self.calls.contains(&call) || file.as_deref().is_some_and(|file| self.has_left_out(file, n)));
        let runs = if asks_again { Vec::new() } else { runs };
        Some(Pointers { unit: message.unit, runs, call, file, asks_again })
    }

    /// Whether a message has lines of a file that pointers stand for.
    fn has_left_out(&mut self, file: &str, n: usize) -> bool {
        let Self { texts, files, .. } = self;
        let Some(LeftOut { new, windows: left_out }) = files.get_mut(file) else { return false };
        for (message, runs) in new.drain(..) {
            for run in runs {
                let text = texts.get(message).and_then(|texts| texts.get(run.text));
                let lines = text.and_then(|text| text.lines.get(run.lines)).unwrap_or_default();
                left_out.extend(windows(lines, ASKED_AGAIN).map(|(_, window)| window));
            }
        }
        let texts = texts.get(n).into_iter().flat_map(|texts| texts.iter());
        texts.flat_map(|text| windows(&text.lines, ASKED_AGAIN)).any(|(_, window)| left_out.contains(&window))
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

    /// What has happened to a file since it was last read before this result.
    fn since_read(&mut self, unit: UnitIndex, file: &str) -> SinceRead {
        let is_result =
            |unit: &UnitIndex| self.draft.conversation().unit(*unit).is_some_and(|unit| unit.role == Role::Tool);
        let earlier: Vec<_> =
            UnitIndex::each(&(UnitIndex::default()..unit)).rev().filter(is_result).take(MAX_BACK).collect();
        let mut since = SinceRead::default();
        for earlier in earlier {
            match self.checked_use(earlier) {
                CheckedUse { file_use: Some(FileUse::Read { path, .. }), .. } if path == file => break,
                CheckedUse { file_use: Some(FileUse::Edit(paths)), failed }
                    if paths.iter().any(|path| path == file) =>
                {
                    since.failed |= failed;
                    since.changed |= !failed;
                }
                _ => {}
            }
        }
        since
    }

    /// The use that the call of a result makes of files, determined once.
    fn checked_use(&mut self, unit: UnitIndex) -> CheckedUse {
        let (edit, draft) = (self.edit, self.draft);
        let check = || {
            let call = draft.pairing().answered_block(unit);
            let file_use = call.and_then(|call| edit.file_use(draft, call));
            let failed = matches!(file_use, Some(FileUse::Edit(_))) && super::says_failure(draft, unit);
            CheckedUse { file_use, failed }
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
    let Some(arguments) = draft.arguments(call) else { return Vec::new() };
    let lines = |text: &str| TextLines { call: n, ..TextLines::of(text) };
    let Some(fields) = Fields::of(&arguments) else { return vec![lines(&arguments)] };
    fields.iter().filter_map(|(_, value)| raw::string(value)).map(|text| lines(&text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_the_same_wherever_the_lines_stand() {
        let line = |line: &&str| if line.len() > 1 { (*line).to_owned() } else { format!("a longer line with {line}") };
        let text = |lines: &[&str]| TextLines::of(&lines.iter().map(line).collect::<Vec<_>>().join("\n"));
        let hashes = |lines: &[&str], n: usize| windows(&text(lines).lines, n).collect::<Vec<_>>();
        let all = hashes(&["a", "b", "c", "d", "e", "f"], 3);
        assert_eq!(all.iter().map(|(first, _)| *first).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(hashes(&["x", "c", "d", "e"], 3)[1].1, all[2].1);
        assert_ne!(hashes(&["d", "c", "e"], 3)[0].1, all[2].1, "another order");
        assert_eq!(hashes(&["a", "b"], 3), []);
        assert_eq!(hashes(&["{{", "}}", "]]"], 3), [], "too short");
        assert_eq!(hashes(&["a", "a", "a", "a", "b"], 3).iter().map(|(first, _)| *first).collect::<Vec<_>>(), [2]);
        let pointer = "[4 lines left out here: lines 1 to 4 of x]";
        assert_eq!(hashes(&["a", "b", pointer, "c", "d", "e"], 3), [(3, all[2].1)]);
    }
}
