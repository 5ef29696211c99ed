//! Counting with OpenAI's encodings, in pieces.
//!
//! A text is counted in pieces of a quarter to four kilobytes, cut where a token is likely to end, so that others get
//! their turn and a long run of one kind takes no longer than another text. A cut through a token makes one token more, so
//! a count can only be too high, and that by less than one in a thousand. Where a piece ends is decided by what stands
//! there, so that two texts that have much in common, such as a result and what is left of it, have pieces in common.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::vocabulary::{self, Vocabulary};

/// The longest piece, in bytes.
const PIECE: usize = 4096;

/// From this length on, in bytes, a piece may end, and has taken long enough to let others have a turn.
const SHORT_PIECE: usize = 256;

/// How far apart the lines are that a piece may end with, in bytes, in the mean. More than [`SHORT_PIECE`], so that where
/// the pieces of two texts end at different places, both soon end with the same line.
const END_EVERY: u64 = 512;

/// A way to split text into tokens. Each vocabulary is built once in the process, when it is first needed.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Encoding {
    /// GPT-4o and later, the o series, and models whose encoding is not published.
    #[default]
    O200kBase,
    /// gpt-oss: the vocabulary of `o200k_base` with other control tokens.
    O200kHarmony,
    /// GPT-4 and GPT-3.5.
    Cl100kBase,
}

impl Encoding {
    /// How many tokens a text is: at most as many as it has bytes.
    pub fn count(self, text: &str) -> usize {
        Self::count_pieces(text, |piece| self.count_piece(piece, || ()))
    }

    /// How many tokens a text is: the sum of what `count` returns for each of its pieces.
    pub(super) fn count_pieces(text: &str, count: impl FnMut(&str) -> usize) -> usize {
        pieces(text).map(count).sum()
    }

    /// How many tokens a piece is, which takes some 100 µs at most. Then others get their turn.
    pub(super) fn count_piece(self, piece: &str, yield_now: fn()) -> usize {
        let n_tokens = self.vocabulary().count(piece);
        if piece.len() >= SHORT_PIECE {
            yield_now();
        }
        n_tokens
    }

    fn vocabulary(self) -> &'static Vocabulary {
        match self {
            Self::O200kBase | Self::O200kHarmony => &vocabulary::O200K_BASE,
            Self::Cl100kBase => &vocabulary::CL100K_BASE,
        }
    }
}

/// The text in pieces that are not empty and not longer than [`PIECE`].
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (piece, after) = rest.split_at_checked(cut(rest)).filter(|(piece, _)| !piece.is_empty())?;
        rest = after;
        Some(piece)
    })
}

/// Where the first piece of a text ends: after a line that [`is_last`] takes, else after the last line break that
/// fits, else before the last blank, else before the last character that does not fit.
fn cut(text: &str) -> usize {
    if text.len() <= SHORT_PIECE {
        return text.len();
    }
    let most = text.floor_char_boundary(PIECE);
    let fitting = text.as_bytes().get(..most).unwrap_or_default();
    let mut line = 0;
    for end in memchr::memchr_iter(b'\n', fitting).map(|at| at + 1) {
        if end >= SHORT_PIECE && is_last(text.as_bytes(), line..end) {
            return end;
        }
        line = end;
    }
    if text.len() <= PIECE {
        return text.len();
    }
    let line = memchr::memrchr(b'\n', fitting).map(|at| at + 1);
    // A token begins with its blank, so the blank goes to the next piece; one at the very beginning parts nothing.
    line.or_else(|| memchr::memrchr(b' ', fitting).filter(|&at| at > 0)).unwrap_or(most)
}

/// Whether a piece may end with this line: no token goes on after it, and its length and its last bytes are such as to
/// make an end each [`END_EVERY`] bytes.
fn is_last(text: &[u8], line: Range<usize>) -> bool {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let last_bytes = text.get(..line.end).and_then(<[u8]>::last_chunk).copied().map_or(0, u64::from_le_bytes);
    let len = line.len() as u64;
    (last_bytes ^ len).wrapping_mul(FACTOR) < (u64::MAX / END_EVERY).saturating_mul(len) && !goes_on(text, line.end)
}

/// Whether a token that has a line break goes on after it: with a slash, or with blanks up to the next line break.
fn goes_on(text: &[u8], end: usize) -> bool {
    let behind = text.get(end..).unwrap_or_default();
    let next = behind.iter().find(|byte| !matches!(byte, b' ' | b'\t'));
    behind.starts_with(b"/") || next.is_none_or(|next| matches!(next, b'\n' | b'\r'))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn an_encoding_is_shown_by_the_name_that_settings_have_for_it() {
        let names = [
            (Encoding::O200kBase, "o200k_base"),
            (Encoding::O200kHarmony, "o200k_harmony"),
            (Encoding::Cl100kBase, "cl100k_base"),
        ];
        for (encoding, name) in names {
            assert_eq!(
                (&*encoding.to_string(), serde_json::to_string(&encoding).unwrap()),
                (name, format!("{name:?}"))
            );
        }
    }

    #[test]
    fn a_long_text_is_parted_behind_a_line_else_before_a_blank_else_where_it_must_be() {
        let parted = |text: &str| {
            let pieces: Vec<_> = pieces(text).collect();
            assert_eq!(pieces.concat(), text);
            pieces.iter().map(|piece| piece.len()).collect::<Vec<_>>()
        };
        let x = |n| "x".repeat(n);
        assert_eq!(parted(""), [0; 0]);
        assert_eq!(parted(&x(PIECE)), [PIECE]);
        assert_eq!(parted(&format!("{} {}\n{}", x(500), x(500), x(PIECE))), [1002, PIECE]);
        assert_eq!(parted(&format!("{} {} {}", x(500), x(500), x(PIECE - 1))), [1001, PIECE]);
        assert_eq!(parted(&format!(" {}", x(PIECE))), [PIECE, 1], "there is nothing before the blank");
        assert_eq!(parted(&format!("x{}", "é".repeat(PIECE / 2))), [PIECE - 1, 2]);
    }

    #[test]
    fn texts_that_have_lines_in_common_have_pieces_in_common() {
        let lines: Vec<_> = (0..2000).map(|n| format!("line {n} says {}\n", n * n % 1009)).collect();
        let text = lines.concat();
        let whole: Vec<_> = pieces(&text).collect();
        assert!(
            whole.iter().all(|piece| (SHORT_PIECE..=PIECE).contains(&piece.len()) || *piece == whole[whole.len() - 1])
        );
        let mean = text.len() / whole.len();
        assert!((SHORT_PIECE..PIECE / 2).contains(&mean), "{mean}");
        // Wherever the second text goes on with the first, and in the midst of a line too.
        let new = (0..100).map(|n| {
            let cut = format!("{}[cut]\n{}", lines[..500].concat(), text.split_at(20_000 + 77 * n).1);
            pieces(&cut).filter(|piece| !whole.contains(piece)).map(str::len).sum::<usize>()
        });
        let new: Vec<_> = new.collect();
        let mean = new.iter().sum::<usize>() / new.len();
        assert!(mean < PIECE / 2, "{mean} of {new:?}");
    }

    #[test]
    fn a_piece_ends_where_a_token_does() {
        let whole = tiktoken_rs::o200k_base_singleton();
        let behind = ["\n", "\r\n", "  \r\n", "\t \n", "/x", " /x", "  }", "x", "\n\n\n", " \n \n"];
        let line = |n: usize| {
            format!("{n}: a line of some words, of which none is long, ends here;\n{}", behind[n % behind.len()])
        };
        let text: String = (0..5000).map(line).collect();
        let each = pieces(&text).map(|piece| whole.count_ordinary(piece));
        assert_eq!(each.sum::<usize>(), whole.count_ordinary(&text));
    }

    #[test]
    fn behind_each_piece_of_some_length_others_get_a_turn() {
        static TURNS: AtomicUsize = AtomicUsize::new(0);
        let turns = |text: &str| {
            TURNS.store(0, Ordering::Relaxed);
            let count =
                |piece: &str| Encoding::O200kBase.count_piece(piece, || _ = TURNS.fetch_add(1, Ordering::Relaxed));
            Encoding::count_pieces(text, count);
            TURNS.load(Ordering::Relaxed)
        };
        let lengths = [SHORT_PIECE - 1, SHORT_PIECE, PIECE, 2 * PIECE + SHORT_PIECE];
        assert_eq!(lengths.map(|n| turns(&"x".repeat(n))), [0, 1, 1, 3]);
    }
}
