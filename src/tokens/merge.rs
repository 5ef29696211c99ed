//! Byte pair encoding of a pre-token: of all neighbours, those become one which make the token of the lowest rank, the first
//! of equals, until no two make a token.

use std::{cmp::Reverse, collections::BinaryHeap};

/// From this length on, in bytes, the next pair is found with a heap: looking at all pairs takes the square of the length.
const LONG: usize = 48;

/// The longest pre-tokens whose counts are remembered, in bytes, and how many are: 70 kB in all.
const REMEMBERED_BYTES: usize = 15;
const REMEMBERED: usize = 4096;

/// No token.
const NONE: u32 = u32::MAX;

/// What encodes one pre-token after the other, in the same memory.
#[derive(Debug, Default)]
pub(super) struct Merge {
    parts: Vec<Part>,
    links: Vec<Link>,
    /// The rank of each pair, and below it, in the lower half, where the pair begins.
    pairs: BinaryHeap<Reverse<u64>>,
    /// Counts, as texts have the same names again and again. The hash of a pre-token says where its count is; a later one
    /// takes its place.
    remembered: Box<[Remembered]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Remembered {
    pretoken: [u8; REMEMBERED_BYTES],
    length: u8,
    n_tokens: u8,
}

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

impl Merge {
    /// How many tokens a pre-token is that is known by its hash. `rank` says what rank the token between two places in it
    /// has.
    pub(super) fn count(&mut self, pretoken: &[u8], hash: u64, rank: impl Fn(usize, usize) -> Option<u32>) -> usize {
        let mut known = Remembered::default();
        let (Some(bytes), Ok(length)) = (known.pretoken.get_mut(..pretoken.len()), u8::try_from(pretoken.len())) else {
            return self.merged(pretoken.len(), rank);
        };
        bytes.copy_from_slice(pretoken);
        known.length = length;
        if self.remembered.is_empty() {
            self.remembered = vec![Remembered::default(); REMEMBERED].into();
        }
        let place = usize::try_from(hash % REMEMBERED as u64).unwrap_or_default();
        let same = |there: &&Remembered| there.length == known.length && there.pretoken == known.pretoken;
        if let Some(there) = self.remembered.get(place).filter(same) {
            return there.n_tokens.into();
        }
        let n_tokens = self.merged(pretoken.len(), rank);
        known.n_tokens = u8::try_from(n_tokens).unwrap_or(length);
        if let Some(there) = self.remembered.get_mut(place) {
            *there = known;
        }
        n_tokens
    }

    fn merged(&mut self, length: usize, rank: impl Fn(usize, usize) -> Option<u32>) -> usize {
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
