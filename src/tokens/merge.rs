//! Byte pair encoding of a pre-token: of all neighbours, those become one which make the token of the lowest rank, the first
//! of equals, until no two make a token.

use std::{cmp::Reverse, collections::BinaryHeap};

/// From this length on, in bytes, the next pair is found with a heap: looking at all pairs takes the square of the length.
const LONG: usize = 48;

/// How many counts of pre-tokens are remembered, as a power of two: 256 kB in all.
const REMEMBERED: u32 = 14;

/// No token.
const NONE: u32 = u32::MAX;

/// What encodes one pre-token after the other, in the same memory.
#[derive(Debug, Default)]
pub(super) struct Merge {
    parts: Vec<Part>,
    links: Vec<Link>,
    /// The rank of each pair, and below it, in the lower half, where the pair begins.
    pairs: BinaryHeap<Reverse<u64>>,
    /// Short pre-tokens and their counts, as texts have the same words again and again. A later one takes the place of
    /// another of the same hash.
    remembered: Box<[u128]>,
}

/// A pre-token of at most 15 bytes as a number: the bytes, above them their number in four bits, and four bits for a count.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShortPretoken(u128);

/// What will be a token, or a part of one.
#[derive(Clone, Copy, Debug)]
struct Part {
    start: usize,
    /// The rank of the token that it makes with the next one.
    rank: u32,
}

/// The same in a list, at the place of its first byte.
#[derive(Clone, Copy, Debug)]
struct Link {
    previous: usize,
    end: usize,
    rank: u32,
}

impl ShortPretoken {
    const N_TOKENS: u32 = 124;

    /// The first bytes of a text, if they are few enough.
    #[inline]
    pub(super) fn first(text: &[u8], length: usize) -> Option<Self> {
        let n = u32::try_from(length).ok().filter(|n| *n < 16)?;
        let first = text.first_chunk().map_or_else(|| padded(text), |first| u128::from_le_bytes(*first));
        let beyond = u128::MAX.unbounded_shl(8 * n);
        Some(Self(first & !beyond | u128::from(n) << 120))
    }

    #[inline]
    fn place(self) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is what is wanted")]
        let (lower, upper) = (self.0 as u64, (self.0 >> 64) as u64);
        let mixed = (lower ^ upper.wrapping_mul(FACTOR)).wrapping_mul(FACTOR);
        usize::try_from(mixed >> (u64::BITS - REMEMBERED)).unwrap_or_default()
    }
}

const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

#[cold]
fn padded(text: &[u8]) -> u128 {
    text.iter().take(15).rev().fold(0, |number, byte| number << 8 | u128::from(*byte))
}

impl Merge {
    /// How many tokens a pre-token is, if it is remembered.
    #[inline]
    pub(super) fn remembered(&self, pretoken: ShortPretoken) -> Option<usize> {
        let there = self.remembered.get(pretoken.place())?;
        let n_tokens = there >> ShortPretoken::N_TOKENS;
        (there ^ n_tokens << ShortPretoken::N_TOKENS == pretoken.0).then_some(n_tokens as usize)
    }

    /// Remembers how many tokens a pre-token is.
    pub(super) fn remember(&mut self, pretoken: ShortPretoken, n_tokens: usize) {
        if self.remembered.is_empty() {
            self.remembered = vec![0; 1 << REMEMBERED].into();
        }
        if let Some(there) = self.remembered.get_mut(pretoken.place()) {
            *there = pretoken.0 | (n_tokens as u128) << ShortPretoken::N_TOKENS;
        }
    }

    /// How many tokens a pre-token is. `rank` says what rank the token between two places in it has.
    pub(super) fn merged(&mut self, length: usize, rank: impl Fn(usize, usize) -> Option<u32>) -> usize {
        if length < LONG { self.merge_short(length, rank) } else { self.merge_long(length, rank) }
    }

    fn merge_short(&mut self, length: usize, rank: impl Fn(usize, usize) -> Option<u32>) -> usize {
        let parts = &mut self.parts;
        let rank = |start, end| if end > length { NONE } else { rank(start, end).unwrap_or(NONE) };
        parts.clear();
        parts.extend((0..=length).map(|start| Part { start, rank: rank(start, start + 2) }));
        while let Some((at, _)) =
            parts.iter().enumerate().min_by_key(|(_, part)| part.rank).filter(|(_, part)| part.rank != NONE)
        {
            parts.remove(at + 1);
            for at in at.saturating_sub(1)..=at {
                let end = parts.get(at + 2).map_or(usize::MAX, |end| end.start);
                if let Some(part) = parts.get_mut(at) {
                    part.rank = rank(part.start, end);
                }
            }
        }
        parts.len() - 1
    }

    fn merge_long(&mut self, length: usize, rank: impl Fn(usize, usize) -> Option<u32>) -> usize {
        self.links.clear();
        self.links.extend((0..length).map(|at| Link { previous: at.saturating_sub(1), end: at + 1, rank: NONE }));
        self.pairs.clear();
        for start in 0..length {
            self.rank_pair(&rank, start);
        }
        let mut n_tokens = length;
        while let Some(Reverse(pair)) = self.pairs.pop() {
            let start = usize::try_from(pair & u64::from(u32::MAX)).unwrap_or_default();
            let lowest = pair >> 32;
            let Some(&left) = self.links.get(start).filter(|left| u64::from(left.rank) == lowest) else { continue };
            let Some(right) = self.links.get_mut(left.end) else { continue };
            right.rank = NONE;
            let end = right.end;
            if let Some(next) = self.links.get_mut(end) {
                next.previous = start;
            }
            if let Some(left) = self.links.get_mut(start) {
                left.end = end;
            }
            n_tokens -= 1;
            self.rank_pair(&rank, start);
            if start > 0 {
                self.rank_pair(&rank, left.previous);
            }
        }
        n_tokens
    }

    /// Finds the rank of what begins at `start` together with what follows it.
    fn rank_pair(&mut self, rank: impl Fn(usize, usize) -> Option<u32>, start: usize) {
        let Some(&left) = self.links.get(start) else { return };
        let rank = self.links.get(left.end).and_then(|right| rank(start, right.end));
        if let Some(left) = self.links.get_mut(start) {
            left.rank = rank.unwrap_or(NONE);
        }
        self.pairs.extend(rank.map(|rank| Reverse(u64::from(rank) << 32 | start as u64)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Merge {
        /// The tokens that a pre-token is.
        pub(in crate::tokens) fn tokens<'p>(
            &mut self,
            pretoken: &'p [u8],
            rank: impl Fn(usize, usize) -> Option<u32>,
        ) -> Vec<&'p [u8]> {
            self.merged(pretoken.len(), rank);
            let mut tokens = Vec::new();
            let mut start = 0;
            while start < pretoken.len() {
                let short = || self.parts.iter().map(|part| part.start).find(|next| *next > start).unwrap();
                let end = if pretoken.len() < LONG { short() } else { self.links[start].end };
                tokens.push(&pretoken[start..end]);
                start = end;
            }
            tokens
        }
    }
}
