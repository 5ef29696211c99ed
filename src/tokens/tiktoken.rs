//! Counting with OpenAI's encodings, in pieces.
//!
//! A text is counted in pieces of one to four kilobytes, cut where a token is likely to end, so that others get their turn
//! and a long run of one kind takes no longer than another text. A cut through a token makes one token more, so a count can
//! only be too high, and that by less than one in a thousand. Where a piece ends is decided by what stands there, so that
//! two texts that have much in common, such as a result and what is left of it, have pieces in common.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    TokenCounter,
    vocabulary::{self, Vocabulary},
};

/// The longest piece, in bytes.
const PIECE: usize = 4096;

/// From this length on, in bytes, a piece may end before [`PIECE`].
const SHORT_PIECE: usize = 1024;

/// One in so many line breaks may end a piece.
const BREAKS_TO_AN_END: u64 = 4;

/// From this length on, in bytes, a piece has taken long enough to let others have a turn.
const WORTH_A_TURN: usize = 256;

/// A way to split text into tokens. Each vocabulary is built once in the process, when it is first needed.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub enum Encoding {
    /// GPT-4o and later, the o series, and models whose encoding is not published.
    #[default]
    #[serde(rename = "o200k_base")]
    O200kBase,
    /// gpt-oss: the vocabulary of `o200k_base` with other control tokens.
    #[serde(rename = "o200k_harmony")]
    O200kHarmony,
    /// GPT-4 and GPT-3.5.
    #[serde(rename = "cl100k_base")]
    Cl100kBase,
    /// The code models before them.
    #[serde(rename = "p50k_base")]
    P50kBase,
    /// GPT-3 and GPT-2.
    #[serde(rename = "r50k_base")]
    R50kBase,
}

impl Encoding {
    /// Builds the vocabulary if it is not built yet.
    pub(super) fn load(self) {
        self.vocabulary();
    }

    /// How many tokens a text is: the sum of what `count` returns for each of its pieces.
    pub(super) fn count_pieces(text: &str, count: impl FnMut(&str) -> usize) -> usize {
        pieces(text).map(count).sum()
    }

    /// How many tokens a piece is, which takes some 100 µs at most. Then others get their turn.
    pub(super) fn count_piece(self, piece: &str, yield_now: fn()) -> usize {
        let n_tokens = self.vocabulary().count(piece);
        if piece.len() >= WORTH_A_TURN {
            yield_now();
        }
        n_tokens
    }

    fn vocabulary(self) -> &'static Vocabulary {
        match self {
            Self::O200kBase | Self::O200kHarmony => &vocabulary::O200K_BASE,
            Self::Cl100kBase => &vocabulary::CL100K_BASE,
            Self::P50kBase => &vocabulary::P50K_BASE,
            Self::R50kBase => &vocabulary::R50K_BASE,
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The name that settings have for it.
        self.serialize(f)
    }
}

impl TokenCounter for Encoding {
    fn count(&self, text: &str) -> usize {
        Self::count_pieces(text, |piece| self.count_piece(piece, || ()))
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

/// Where the first piece of a text ends: behind a line break that [`is_end`] takes, else behind the last line break that
/// fits, else before the last blank, else before the last character that does not fit.
fn cut(text: &str) -> usize {
    if text.len() <= SHORT_PIECE {
        return text.len();
    }
    let most = text.floor_char_boundary(PIECE);
    let fitting = text.as_bytes().get(..most).unwrap_or_default();
    let behind = memchr::memchr_iter(b'\n', fitting).map(|at| at + 1).filter(|end| *end >= SHORT_PIECE);
    if let Some(end) = behind.into_iter().find(|end| is_end(text.as_bytes(), *end)) {
        return end;
    }
    if text.len() <= PIECE {
        return text.len();
    }
    let line = memchr::memrchr(b'\n', fitting).map(|at| at + 1);
    // A token begins with its blank, so the blank goes to the next piece; one at the very beginning parts nothing.
    line.or_else(|| memchr::memrchr(b' ', fitting).filter(|&at| at > 0)).unwrap_or(most)
}

/// Whether a piece may end behind a line break: no token goes on there, and the bytes before it are one in
/// [`BREAKS_TO_AN_END`].
fn is_end(text: &[u8], end: usize) -> bool {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let before = text.get(..end).and_then(<[u8]>::last_chunk).copied().map_or(0, u64::from_le_bytes);
    let goes_on = text.get(end).is_none_or(|next| matches!(next, b'\n' | b'\r' | b'/'));
    !goes_on && before.wrapping_mul(FACTOR) < u64::MAX / BREAKS_TO_AN_END
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

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
        let lines = lines.concat();
        let (head, tail) = (lines.get(..10_000).unwrap(), lines.get(lines.len() - 20_000..).unwrap());
        let cut = format!("{head}\n[cut]\n{tail}");
        let whole: Vec<_> = pieces(&lines).collect();
        assert!(
            whole.iter().all(|piece| (SHORT_PIECE..=PIECE).contains(&piece.len()) || *piece == whole[whole.len() - 1])
        );
        let new = pieces(&cut).filter(|piece| !whole.contains(piece)).map(str::len).sum::<usize>();
        assert!(new < 4 * PIECE, "{new}");
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
        let lengths = [WORTH_A_TURN - 1, WORTH_A_TURN, PIECE, 2 * PIECE + WORTH_A_TURN];
        assert_eq!(lengths.map(|n| turns(&"x".repeat(n))), [0, 1, 1, 3]);
    }
}
