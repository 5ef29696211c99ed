//! The lines of texts, each known by a hash, which is remembered by the content of the text; and windows: so many adjacent lines.

use std::{num::NonZeroU64, ops::Range, sync::Arc};

use smart_default::SmartDefault;

use crate::payload::cache::{self, By, WeighedCache};
use crate::payload::{Caller, Fingerprint};

/// The lines of one text.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct TextLines {
    /// Which call of the message has the text in its arguments; 0 in a result.
    pub(super) call: usize,
    pub(super) lines: Box<[Line]>,
    /// The bytes of the text.
    pub(super) len: usize,
}

/// A line of a text.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Line {
    /// The hash of its text without a line number and trailing blanks; none of a line that equals no other, such as a pointer.
    pub(super) hash: Option<NonZeroU64>,
    /// The byte at which it begins.
    pub(super) start: usize,
}

/// The lines of the texts of units, by their content.
#[derive(Debug, SmartDefault)]
pub(super) struct LineCache(
    #[default(cache::weighted(EXPECTED_ENTRIES, MAX_BYTES, By(weight)))]
    pub(super)  WeighedCache<(Caller, Fingerprint), Arc<[TextLines]>>,
);

/// The most bytes of all entries: about half a million lines.
const MAX_BYTES: u64 = 8 << 20;

/// The expected number of entries, which decides into how many shards the cache is split.
const EXPECTED_ENTRIES: usize = 1024;

/// The bytes of an entry beside its lines.
const ENTRY_BYTES: u64 = 256;

/// The fewest bytes of a window of lines without its last line.
const LEAST_WINDOW: usize = 24;

fn weight(texts: &Arc<[TextLines]>) -> u64 {
    ENTRY_BYTES + texts.iter().map(|text| size_of_val(&*text.lines) as u64 + 32).sum::<u64>()
}

impl TextLines {
    /// The lines of a text.
    pub(super) fn of(text: &str) -> Self {
        let mut start = 0;
        let (mut before, mut lines) = (None, text.split_inclusive('\n').peekable());
        let mut found = Vec::new();
        while let Some(line) = lines.next() {
            let number = number(line).map(|(number, _)| number);
            let follows = number.is_some() && number == before;
            before = number.map(|number| number + 1);
            let mut precedes =
                || lines.peek().and_then(|next| self::number(next)).is_some_and(|(next, _)| Some(next) == before);
            let said = match self::number(line).filter(|_| follows || precedes()) {
                Some((_, said)) => said,
                None => line.trim_end(),
            };
            found.push(Line { hash: (!is_pointer(line)).then(|| hash(said)), start });
            start += line.len();
        }
        Self { call: 0, lines: found.into(), len: text.len() }
    }

    /// Whether one of the lines is a pointer.
    pub(super) fn has_pointers(&self) -> bool {
        self.lines.iter().any(|line| line.hash.is_none())
    }

    /// Makes lines equal no others.
    pub(super) fn forget(&mut self, lines: Range<usize>) {
        for line in self.lines.get_mut(lines).into_iter().flatten() {
            line.hash = None;
        }
    }

    /// The byte at which a line begins; after the last one, the length of the text.
    pub(super) fn start(&self, line: usize) -> usize {
        self.lines.get(line).map_or(self.len, |line| line.start)
    }
}

/// The number that a tool puts before a line of a file, with an arrow, a colon, a bar or a tab after it, and the rest of the
/// line. It is a line number only if the line before or after has the adjacent one.
fn number(line: &str) -> Option<(u32, &str)> {
    let numbered = line.trim_start();
    let said = numbered.trim_start_matches(|c: char| c.is_ascii_digit());
    let number = numbered.strip_suffix(said)?.parse().ok()?;
    Some((number, said.strip_prefix(['→', ':', '|', '\t'])?.trim_end()))
}

/// Whether a line is a pointer.
fn is_pointer(line: &str) -> bool {
    line.starts_with('[') && (line.contains(" lines left out: lines ") || line.starts_with("[此处省略 "))
}

fn hash(said: &str) -> NonZeroU64 {
    let [half, _] = Fingerprint::of(said.as_bytes()).halves();
    NonZeroU64::new(half).unwrap_or(NonZeroU64::MIN)
}

/// The hash of each window of `n` lines, with the number of its first line. Windows with a pointer, those of equal lines, such as
/// blank ones, and very short ones are left out.
pub(super) fn windows(lines: &[Line], n: usize) -> impl Iterator<Item = (usize, u64)> {
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
            let old = lines.get(at - n).and_then(|line| line.hash).map_or(0, NonZeroU64::get);
            hash = hash.wrapping_sub(old.wrapping_mul(leaving));
        }
        let first = lines.get((at + 1).saturating_sub(n)).map_or(0, |first| first.start);
        (since >= n && n_same < n && line.start - first >= LEAST_WINDOW).then(|| (at + 1 - n, hash ^ (hash >> 29)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_compared_without_numbers_and_trailing_blanks() {
        let hashes = |text: &str| TextLines::of(text).lines.iter().map(|line| line.hash).collect::<Vec<_>>();
        let plain = hashes("fn main() {\n    go();\n}\n");
        for same in [
            "     1→fn main() {\n     2→    go();\n     3→}",
            "1:fn main() {  \n2:    go();\r\n3:}\n",
            "  7\tfn main() {\n  8\t    go();\n  9\t}\n",
            "7|fn main() {\n8|    go();\n9|}\n",
        ] {
            assert_eq!(hashes(same), plain, "{same}");
        }
        assert_ne!(hashes("fn main() {\n  go();\n}\n"), plain, "other blanks before a line");
        assert_ne!(hashes("7: one\n7: two\n7: three\n"), hashes("8: one\n8: two\n8: three\n"), "no numbers of lines");
        assert_eq!(hashes("[9 lines left out: lines 1-9 of x]\n"), [None]);
        let lines = TextLines::of("a\nbc\n\nd");
        assert_eq!((0..6).map(|line| lines.start(line)).collect::<Vec<_>>(), [0, 2, 5, 6, 7, 7]);
        assert_eq!(TextLines::of("").lines.len(), 0);
    }

    #[test]
    fn the_cache_has_a_limit() {
        let cache = LineCache::default();
        let caller = crate::payload::Keys::well_known().caller(&[]);
        for n in 0..4000_usize {
            cache.0.insert((caller, Fingerprint::of_numbers(n, n)), [TextLines::of(&"a line\n".repeat(1000))].into());
            assert!(cache.0.weight() <= MAX_BYTES, "{n}");
        }
    }

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
        let pointer = "[4 lines left out: lines 1-4 of x]";
        assert_eq!(hashes(&["a", "b", pointer, "c", "d", "e"], 3), [(3, all[2].1)]);
    }
}
