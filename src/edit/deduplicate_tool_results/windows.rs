//! Windows: so many adjacent lines of a text, each known by a hash.

use super::lines::Line;

/// The fewest bytes of a window of lines without its last line.
const LEAST_WINDOW: usize = 24;

/// The windows of new texts, as a Bloom filter of one hash.
#[derive(Debug)]
pub(super) struct WindowFilter(Box<[u64; FILTER_WORDS]>);

const FILTER_WORDS: usize = 1024;

impl WindowFilter {
    pub(super) fn new() -> Self {
        Self(Box::new([0; FILTER_WORDS]))
    }

    fn place(window: u64) -> (usize, u64) {
        (usize::try_from(window >> 6).unwrap_or_default() % FILTER_WORDS, 1 << (window % 64))
    }

    pub(super) fn add(&mut self, window: u64) {
        let (word, bit) = Self::place(window);
        if let Some(word) = self.0.get_mut(word) {
            *word |= bit;
        }
    }

    pub(super) fn may_have(&self, window: u64) -> bool {
        let (word, bit) = Self::place(window);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }
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
            let old = lines.get(at - n).and_then(|line| line.hash).map_or(0, std::num::NonZeroU64::get);
            hash = hash.wrapping_sub(old.wrapping_mul(leaving));
        }
        let first = lines.get((at + 1).saturating_sub(n)).map_or(0, |first| first.start);
        (since >= n && n_same < n && line.start - first >= LEAST_WINDOW).then(|| (at + 1 - n, hash ^ (hash >> 29)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edit::deduplicate_tool_results::lines::TextLines;

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
