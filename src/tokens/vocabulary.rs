//! The vocabularies of OpenAI's encodings, compiled in, and how many of their tokens a text is.
//!
//! A file in `assets/` is, compressed with brotli: how many ranks there are, in four bytes, the lowest first; for each rank how
//! long its token is, in one byte, nought where no token has that rank; then the tokens, one after the other.
//! `scripts/pack_vocabularies.py` writes them from the lists of tiktoken-rs.
//!
//! In memory a vocabulary is its tokens in the order of their ranks, and a table that finds them by their hash: 3.7 MB for
//! the largest.

use std::sync::LazyLock;

use super::merge::{Merge, ShortPretoken};
use super::pretokens::Pattern;

/// Each is built once in the process, when it is first needed.
pub(super) static O200K_BASE: LazyLock<Vocabulary> =
    LazyLock::new(|| built(include_bytes!("../../assets/o200k_base.br"), Pattern::O200k));
pub(super) static CL100K_BASE: LazyLock<Vocabulary> =
    LazyLock::new(|| built(include_bytes!("../../assets/cl100k_base.br"), Pattern::Cl100k));

/// The tokens that a text may be made of.
pub(super) struct Vocabulary {
    pattern: Pattern,
    /// The tokens by rank, each after its length in one byte.
    tokens: Box<[u8]>,
    /// A hash table with open addressing: where a token lies, in the lower bits, and bits of its hash above them; or
    /// [`EMPTY`].
    slots: Box<[u32]>,
    /// Each for one thread at a time; a further thread makes its own.
    merges: [Tried<Merge>; MERGES],
}

#[expect(clippy::disallowed_types, reason = "it is tried, and nobody waits for it")]
type Tried<T> = std::sync::Mutex<T>;

/// As many threads count with their own lasting memory.
const MERGES: usize = 4;

/// The bits of a slot that say where a token lies. The longest list of tokens has 1.6 MB.
const PLACE: u32 = (1 << 21) - 1;
const EMPTY: u32 = u32::MAX;

#[expect(clippy::expect_used, reason = "what is compiled in is what the tests have read")]
fn built(packed: &[u8], pattern: Pattern) -> Vocabulary {
    Vocabulary::unpack(packed, pattern).expect("a vocabulary that can be read")
}

impl Vocabulary {
    /// The vocabulary of a file. None if that is not one.
    fn unpack(mut packed: &[u8], pattern: Pattern) -> Option<Self> {
        let mut unpacked = Vec::new();
        brotli_decompressor::BrotliDecompress(&mut packed, &mut unpacked).ok()?;
        let (n_ranks, rest) = unpacked.split_first_chunk()?;
        let (lengths, mut rest) = rest.split_at_checked(u32::from_le_bytes(*n_ranks) as usize)?;
        let slots = vec![EMPTY; (lengths.len() * 3 / 2).next_power_of_two()].into();
        let mut tokens = Vec::with_capacity(lengths.len() + rest.len());
        for &length in lengths {
            let (token, behind) = rest.split_at_checked(length.into())?;
            tokens.push(length);
            tokens.extend(token);
            rest = behind;
        }
        let mut vocabulary = Self { pattern, tokens: tokens.into(), slots, merges: Default::default() };
        let mut place = 0;
        for length in lengths.iter().copied().map(usize::from) {
            vocabulary.insert(place, length)?;
            place += 1 + length;
        }
        Some(vocabulary)
    }

    /// Puts a token into the table. No text is the token of no bytes, which is a rank that no token has.
    fn insert(&mut self, place: usize, length: usize) -> Option<()> {
        let (hash, _) = hash(self.tokens.get(place + 1..)?, length)?;
        let (mut at, tag) = self.first_slot(hash);
        while self.slots.get(at).is_some_and(|slot| *slot != EMPTY) {
            at = self.next_slot(at);
        }
        *self.slots.get_mut(at)? = tag | u32::try_from(place).ok()?;
        Some(())
    }

    /// How many tokens a text is.
    pub(super) fn count(&self, text: &str) -> usize {
        match self.merges.iter().find_map(|merge| merge.try_lock().ok()) {
            Some(mut merge) => self.count_with(&mut merge, text),
            None => self.count_with(&mut Merge::default(), text),
        }
    }

    fn count_with(&self, merge: &mut Merge, text: &str) -> usize {
        self.pretokens(text).map(|(text, length)| self.count_pretoken(merge, text.as_bytes(), length)).sum()
    }

    /// The parts of a text of which each is encoded by itself: the text from there on, and the length of the part.
    #[inline]
    fn pretokens<'t>(&self, text: &'t str) -> impl Iterator<Item = (&'t str, usize)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
            let length = self.pattern.first(rest).max(1);
            at += length;
            Some((rest, length))
        })
    }

    /// How many tokens the first bytes of a text are, which are a pre-token.
    #[inline]
    fn count_pretoken(&self, merge: &mut Merge, text: &[u8], length: usize) -> usize {
        if length < 2 {
            return 1;
        }
        let Some(short) = ShortPretoken::first(text, length) else { return self.encode_pretoken(merge, text, length) };
        merge.remembered(short).unwrap_or_else(|| {
            let n_tokens = self.encode_pretoken(merge, text, length);
            merge.remember(short, n_tokens);
            n_tokens
        })
    }

    #[inline(never)]
    fn encode_pretoken(&self, merge: &mut Merge, text: &[u8], length: usize) -> usize {
        if self.place(text, length).is_some() {
            return 1;
        }
        merge.merged(length, |start, end| self.place(text.get(start..)?, end - start))
    }

    /// Where the token of the first bytes of a text lies: of two tokens, that of the lower rank comes first. None if that is
    /// no token.
    #[inline]
    fn place(&self, text: &[u8], length: usize) -> Option<u32> {
        let (hash, word) = hash(text, length)?;
        let (mut at, tag) = self.first_slot(hash);
        loop {
            let slot = self.slots.get(at).copied().filter(|slot| *slot != EMPTY)?;
            if slot & !PLACE == tag && self.lies_at(slot & PLACE, text, length, word) {
                return Some(slot & PLACE);
            }
            at = self.next_slot(at);
        }
    }

    #[inline]
    fn lies_at(&self, place: u32, text: &[u8], length: usize, word: u64) -> bool {
        let Some((&of, token)) = self.tokens.get(place as usize..).and_then(<[u8]>::split_first) else { return false };
        usize::from(of) == length
            && first_word(token, length) == word
            && (length <= 8 || token.get(8..length) == text.get(8..length))
    }

    /// Where the search for a token begins, and what its slot has above the place.
    #[inline]
    fn first_slot(&self, hash: u64) -> (usize, u32) {
        let (at, tag) = ((hash >> 32) as u32, u32::try_from(hash & u64::from(!PLACE)).unwrap_or_default());
        (at as usize & (self.slots.len() - 1), tag)
    }

    #[inline]
    fn next_slot(&self, at: usize) -> usize {
        (at + 1) & (self.slots.len() - 1)
    }
}

/// A hash of the first bytes of a text, and the first eight of the bytes; none if the text is shorter.
#[inline]
fn hash(text: &[u8], length: usize) -> Option<(u64, u64)> {
    let bytes = text.get(..length)?;
    let word = first_word(text, length);
    let mut hash = mixed(word ^ length as u64);
    if let (Some(last), true) = (bytes.last_chunk(), length > 8) {
        for word in bytes.get(8..).unwrap_or_default().as_chunks().0 {
            hash = mixed(hash ^ u64::from_le_bytes(*word));
        }
        hash = mixed(hash ^ u64::from_le_bytes(*last));
    }
    Some((hash, word))
}

/// The first eight of some bytes at the beginning of a text, or all of them and zeros.
#[inline]
fn first_word(text: &[u8], length: usize) -> u64 {
    let mask = u64::MAX.unbounded_shr(64_u32.saturating_sub(8 * u32::try_from(length).unwrap_or(8)));
    match text.first_chunk() {
        Some(word) => u64::from_le_bytes(*word) & mask,
        None => text.iter().take(length).rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// Both halves of a product, of which each bit depends on many.
#[inline]
fn mixed(word: u64) -> u64 {
    const FACTOR: u64 = 0x8bb8_4b93_962e_acc9;
    let word = word ^ 0x2d35_8dcc_aa6c_78a5;
    let upper = (u128::from(word) * u128::from(FACTOR)) >> 64;
    upper as u64 ^ word.wrapping_mul(FACTOR)
}

#[cfg(test)]
mod tests;
