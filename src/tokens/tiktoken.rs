//! Counting with OpenAI's encodings, in pieces.
//!
//! A text is counted in pieces of a few kilobytes, cut where a token is likely to end, so that others get their turn and a
//! long run of one kind takes no longer than another text. A cut through a token makes one token more, so a count can only
//! be too high, and that by less than one in a thousand.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    TokenCounter,
    vocabulary::{self, Vocabulary},
};

/// The longest piece, in bytes.
const PIECE: usize = 4096;

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

    /// How many tokens the text is. Between two pieces, of which each takes some 100 µs, others get their turn.
    pub(super) fn count_in_turns(self, text: &str, yield_now: fn()) -> usize {
        if text.is_empty() {
            return 0;
        }
        let vocabulary = self.vocabulary();
        let mut tokens = 0;
        for piece in pieces(text) {
            tokens += vocabulary.count(piece);
            if piece.len() >= WORTH_A_TURN {
                yield_now();
            }
        }
        tokens
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
        self.count_in_turns(text, || ())
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

/// Where the first piece of a text ends: behind the last line break that fits, else before the last blank, else before
/// the last character that does not fit.
fn cut(text: &str) -> usize {
    if text.len() <= PIECE {
        return text.len();
    }
    let most = text.floor_char_boundary(PIECE);
    let fitting = text.as_bytes().get(..most).unwrap_or_default();
    let line = memchr::memrchr(b'\n', fitting).map(|at| at + 1);
    // A token begins with its blank, so the blank goes to the next piece; one at the very beginning parts nothing.
    line.or_else(|| memchr::memrchr(b' ', fitting).filter(|&at| at > 0)).unwrap_or(most)
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
    fn behind_each_piece_of_some_length_others_get_a_turn() {
        static TURNS: AtomicUsize = AtomicUsize::new(0);
        let turns = |text: &str| {
            TURNS.store(0, Ordering::Relaxed);
            Encoding::O200kBase.count_in_turns(text, || _ = TURNS.fetch_add(1, Ordering::Relaxed));
            TURNS.load(Ordering::Relaxed)
        };
        let lengths = [WORTH_A_TURN - 1, WORTH_A_TURN, PIECE, 2 * PIECE + WORTH_A_TURN];
        assert_eq!(lengths.map(|n| turns(&"x".repeat(n))), [0, 1, 1, 3]);
    }
}
