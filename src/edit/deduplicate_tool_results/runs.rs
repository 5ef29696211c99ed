//! Which runs of lines stand in an earlier text.
//!
//! What is decided for a message depends on the messages before it alone, so what was decided for the beginning of a
//! conversation is remembered, and only what has come since is decided. Of the texts before, only those lines are indexed
//! that may be the beginning of a run in a new text.

use std::{collections::HashMap, fmt, hash::BuildHasherDefault, ops::Range, sync::Arc};

use quick_cache::{Weighter, sync::Cache};
use rustc_hash::FxHasher;

use super::{
    DeduplicateToolResults,
    lines::{Line, TextLines},
};
use crate::{
    conversation::{BlockIndex, Role, UnitIndex},
    draft::Draft,
    payload::{Caller, Fingerprint},
    raw::{self, Fields},
};

/// The pointers of one result.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Decided {
    pub(super) unit: UnitIndex,
    pub(super) runs: Vec<Run>,
    /// What its call is known by.
    call: Fingerprint,
    /// The file that was read.
    file: Option<String>,
}

/// Lines that stand elsewhere.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Run {
    /// Which text of the result has them.
    pub(super) text: usize,
    /// The bytes of those between the first and the last line.
    pub(super) cut: Range<usize>,
    /// How many lines these are.
    pub(super) n_lines: usize,
    /// The lines of the text that stay whole there: the run without its first and last line.
    lines: Range<usize>,
    /// Where they stand.
    pub(super) source: Source,
}

/// Where lines stand.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Source {
    pub(super) unit: UnitIndex,
    /// The call whose arguments have them, if no result does.
    pub(super) call: Option<BlockIndex>,
    /// The first of them, from 0 on.
    pub(super) line: usize,
}

/// What was decided for the beginnings of conversations.
pub(super) struct DecisionCache(Cache<(Caller, Fingerprint), Arc<[Decided]>, Weight>);

#[derive(Clone, Debug)]
struct Weight;

/// The most bytes of all entries.
const MAX_BYTES: u64 = 2 << 20;

/// The expected number of entries, which decides into how many shards the cache is split.
const EXPECTED_ENTRIES: usize = 256;

/// The bytes of an entry beside its runs.
const ENTRY_BYTES: u64 = 256;

/// So many of the newest messages may be new for what was decided before to be found.
const MAX_NEW: usize = 32;

/// A longer message, in bytes, has no pointers and is the source of none.
const MAX_MESSAGE: usize = 1 << 20;

/// Messages behind so many bytes of results and calls have no pointers: no context window takes as much.
const MAX_TEXTS: usize = 4 << 20;

/// A window of lines begins no run if all but its last line have fewer bytes.
const LEAST_WINDOW: usize = 24;

/// A cut of fewer bytes is not worth a pointer.
const LEAST_CUT: usize = 200;

/// A message with lines.
#[derive(Debug)]
struct Item {
    unit: UnitIndex,
    /// The calls whose arguments they are; none for a result.
    calls: Option<Range<BlockIndex>>,
    known_as: Fingerprint,
    /// What the conversation is known by up to here.
    beginning: Fingerprint,
}

/// The windows of lines that are looked for, as a set that may have more.
#[derive(Debug)]
struct Wanted(Box<[u64; WANTED_WORDS]>);

const WANTED_WORDS: usize = 1024;

/// Where windows of lines stand first.
type Index = HashMap<u64, Place, BuildHasherDefault<FxHasher>>;

/// A place in a text.
#[derive(Clone, Copy, Debug)]
struct Place {
    item: usize,
    text: usize,
    line: usize,
    /// Behind the last line that is in sight from here on.
    end: usize,
}

impl Weighter<(Caller, Fingerprint), Arc<[Decided]>> for Weight {
    fn weight(&self, _: &(Caller, Fingerprint), decided: &Arc<[Decided]>) -> u64 {
        let bytes = |decided: &Decided| size_of::<Decided>() + decided.runs.len() * size_of::<Run>() + 64;
        ENTRY_BYTES + decided.iter().map(bytes).sum::<usize>() as u64
    }
}

impl Default for DecisionCache {
    fn default() -> Self {
        Self(Cache::with_weighter(EXPECTED_ENTRIES, MAX_BYTES, Weight))
    }
}

impl fmt::Debug for DecisionCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecisionCache").field("n", &self.0.len()).finish_non_exhaustive()
    }
}

impl Decided {
    /// What the pointers are known by.
    pub(super) fn fingerprint(&self) -> Fingerprint {
        self.runs.iter().fold(Fingerprint::default(), |known, run| {
            let Source { unit, call, line } = run.source;
            let call = call.map_or(usize::MAX, BlockIndex::get);
            known
                .then(Fingerprint::of_numbers(run.cut.start, run.cut.end))
                .then(Fingerprint::of_numbers(unit.get(), line))
                .then(Fingerprint::of_numbers(call, run.text))
        })
    }

    /// The lines of one of its texts that are in sight.
    fn in_sight(decided: Option<&Self>, text: usize, n_lines: usize) -> Vec<Range<usize>> {
        let mut start = 0;
        let runs = decided.into_iter().flat_map(|decided| &decided.runs).filter(|run| run.text == text);
        let mut ranges: Vec<_> = runs
            .map(|run| {
                let range = start..run.lines.start;
                start = run.lines.end;
                range
            })
            .collect();
        ranges.push(start..n_lines);
        ranges
    }
}

impl Wanted {
    fn new() -> Self {
        Self(Box::new([0; WANTED_WORDS]))
    }

    fn place(window: u64) -> (usize, u64) {
        (usize::try_from(window >> 6).unwrap_or_default() % WANTED_WORDS, 1 << (window % 64))
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

/// The windows of so many lines, each with the number of its first line; none of those whose lines are all the same, as blank
/// ones are, which stand anywhere.
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
    pub(super) fn decide(&self, draft: &Draft<'_>) -> Arc<[Decided]> {
        let items = self.items(draft);
        let caller = draft.caller();
        let remembered =
            |n: usize| self.decisions.0.get(&(caller, items.get(n)?.beginning)).map(|known| (n + 1, known));
        let newest = items.len().saturating_sub(MAX_NEW)..items.len();
        let (n_known, known) = newest.rev().find_map(remembered).unwrap_or_else(|| (0, Arc::new([])));
        let Some(last) = items.last().filter(|_| n_known < items.len()) else { return known };
        let decided: Arc<[Decided]> = self.decide_new(draft, &items, n_known, &known).into();
        self.decisions.0.insert((caller, last.beginning), Arc::clone(&decided));
        decided
    }

    /// The messages with lines, in order.
    fn items(&self, draft: &Draft<'_>) -> Vec<Item> {
        let (mut beginning, mut n_bytes) = (Fingerprint::default(), 0);
        let mut items = Vec::new();
        for (index, unit) in draft.conversation().indexed_units() {
            if !draft.is_in_sight(index) {
                beginning = beginning.then(Fingerprint::default());
                continue;
            }
            let known_as = draft.known_as(index);
            beginning = beginning.then(known_as);
            let calls = match unit.role {
                Role::Assistant if !unit.blocks.is_empty() => Some(unit.blocks.clone()),
                Role::Tool if !draft.is_for_program(index) => None,
                _ => continue,
            };
            if (self.settings.min_bytes..=MAX_MESSAGE).contains(&unit.span.len()) {
                n_bytes += unit.span.len();
                if n_bytes > MAX_TEXTS {
                    break;
                }
                items.push(Item { unit: index, calls, known_as, beginning });
            }
        }
        items
    }

    /// The pointers of all results, those of the first `n_known` messages being known.
    fn decide_new(&self, draft: &Draft<'_>, items: &[Item], n_known: usize, known: &[Decided]) -> Vec<Decided> {
        let min_lines = self.settings.min_lines;
        let mut wanted = Wanted::new();
        let mut last = 0;
        for (n, item) in items.iter().enumerate().skip(n_known).filter(|(_, item)| item.calls.is_none()) {
            let texts = self.texts(draft, item);
            let mut windows = texts.iter().flat_map(|text| windows(&text.lines, min_lines)).peekable();
            if windows.peek().is_some() || texts.iter().any(TextLines::has_pointers) {
                last = n;
            }
            windows.for_each(|(_, window)| wanted.add(window));
        }
        let (mut decided, mut index) = (known.to_vec(), Index::default());
        for (n, item) in items.iter().enumerate().take(last + 1) {
            let texts = self.texts(draft, item);
            if n >= n_known && item.calls.is_none() {
                decided.extend(self.decide_one(draft, item, &texts, &index, items, &decided));
            }
            let of_this = decided.iter().rev().find(|decided| decided.unit == item.unit);
            for (text, lines) in texts.iter().enumerate() {
                for range in Decided::in_sight(of_this, text, lines.lines.len()) {
                    let in_sight = lines.lines.get(range.clone()).unwrap_or_default();
                    for (at, window) in windows(in_sight, min_lines).filter(|(_, window)| wanted.may_have(*window)) {
                        let place = Place { item: n, text, line: range.start + at, end: range.end };
                        index.entry(window).or_insert(place);
                    }
                }
            }
        }
        decided
    }

    /// The pointers of a result, if it has any.
    fn decide_one(
        &self,
        draft: &Draft<'_>,
        item: &Item,
        texts: &[TextLines],
        index: &Index,
        items: &[Item],
        decided: &[Decided],
    ) -> Option<Decided> {
        // One whose pointers have come back to us gets no others, and counts as one that has them.
        let has_pointers = texts.iter().any(TextLines::has_pointers);
        let find = |(n, text): (usize, &TextLines)| self.runs(draft, n, text, index, items);
        let runs: Vec<_> = texts.iter().enumerate().filter(|_| !has_pointers).flat_map(find).collect();
        if (runs.is_empty() && !has_pointers) || !self.may_have_pointers(draft, item.unit) {
            return None;
        }
        let (call, file) = self.asks_for(draft, item.unit);
        let is_same = |other: &Decided| other.call == call || (file.is_some() && other.file == file);
        let follows_failure = || file.as_deref().is_some_and(|file| self.follows_failure(draft, item.unit, file));
        if decided.iter().any(is_same) || follows_failure() {
            return None;
        }
        Some(Decided { unit: item.unit, runs, call, file })
    }

    /// The runs of a text that stand elsewhere.
    fn runs(&self, draft: &Draft<'_>, n: usize, text: &TextLines, index: &Index, items: &[Item]) -> Vec<Run> {
        let min_lines = self.settings.min_lines;
        let (mut runs, mut from) = (Vec::new(), 0);
        for (first, window) in windows(&text.lines, min_lines) {
            let Some(place) = index.get(&window).filter(|_| first >= from) else { continue };
            let Some(item) = items.get(place.item) else { continue };
            let texts = self.texts(draft, item);
            let there =
                texts.get(place.text).and_then(|text| text.lines.get(place.line..place.end)).unwrap_or_default();
            let here = text.lines.get(first..).unwrap_or_default().iter();
            let n_lines =
                here.zip(there).take_while(|(here, there)| here.hash.is_some() && here.hash == there.hash).count();
            let last = (first + n_lines).saturating_sub(1);
            let cut = text.start(first + 1)..text.start(last);
            if n_lines < min_lines
                || text.start(last + 1) - text.start(first) < self.settings.min_bytes
                || cut.len() < LEAST_CUT
            {
                continue;
            }
            let call = item.calls.as_ref().and_then(|calls| call_of_text(draft, calls, place.text));
            let source = Source { unit: item.unit, call, line: place.line + 1 };
            runs.push(Run { text: n, cut, n_lines: last - first - 1, lines: first + 1..last, source });
            from = last;
        }
        runs
    }

    /// The texts of a message, each with its lines.
    fn texts(&self, draft: &Draft<'_>, item: &Item) -> Arc<[TextLines]> {
        self.lines.of(draft.caller(), item.known_as, || match &item.calls {
            None => draft.result_texts(item.unit).iter().map(|text| TextLines::of(text)).collect(),
            Some(calls) => BlockIndex::each(calls).flat_map(|call| written(draft, call)).collect(),
        })
    }
}

/// The call among these that has the text of this number.
fn call_of_text(draft: &Draft<'_>, calls: &Range<BlockIndex>, text: usize) -> Option<BlockIndex> {
    let mut n_before = 0;
    BlockIndex::each(calls).find(|call| {
        n_before += written(draft, *call).len();
        text < n_before
    })
}

/// The texts that the arguments of a call have.
fn written(draft: &Draft<'_>, call: BlockIndex) -> Vec<TextLines> {
    let Some(arguments) = draft.arguments(call) else { return Vec::new() };
    let Some(fields) = Fields::of(&arguments) else { return vec![TextLines::of(&arguments)] };
    fields.iter().filter_map(|(_, value)| raw::string(value)).map(|text| TextLines::of(&text)).collect()
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
