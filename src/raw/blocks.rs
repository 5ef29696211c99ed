//! The bytes of a string 64 at a time: which of them are a quote, a backslash or a control character, as bits of one number.
//!
//! So the end of a string is found without a look at each of its quotes and backslashes. The bits say which quotes are
//! escaped in the way of simdjson ("Parsing Gigabytes of JSON per Second", Langdale and Lemire, 2019).

use memchr::memchr2;
use wide::u8x16;

/// The bytes of a lane.
pub(super) const LANE: usize = 16;

/// The most lanes in which a quote is near: the ids of calls have 29 bytes.
const NEAR_LANES: usize = 2;

/// The bytes of a block.
const BLOCK: usize = 64;

/// Behind so many blocks without a quote or a backslash, the next one is found by `memchr`, which is quicker where there are
/// few.
const PLAIN_BLOCKS: usize = 4;

/// The bits of the second byte, the fourth, and so on.
const ODD: u64 = 0xAAAA_AAAA_AAAA_AAAA;

/// 16 bytes.
#[derive(Clone, Copy)]
pub(super) struct Lane(u8x16);

impl Lane {
    #[inline]
    pub(super) fn new(bytes: [u8; LANE]) -> Self {
        Self(u8x16::new(bytes))
    }

    #[inline]
    fn equal(self, byte: u8) -> u64 {
        self.0.simd_eq(u8x16::splat(byte)).to_bitmask().into()
    }

    #[inline]
    fn controls(self) -> u64 {
        self.are_controls().to_bitmask().into()
    }

    #[inline]
    fn are_controls(self) -> u8x16 {
        self.0.min(u8x16::splat(0x1f)).simd_eq(self.0)
    }

    /// How many bytes there are before the first one that does not represent itself in a string: a quote, a backslash or a
    /// control character.
    #[inline]
    pub(super) fn plain(self) -> usize {
        let quotes_and_backslashes = self.0.simd_eq(u8x16::splat(b'"')) | self.0.simd_eq(u8x16::splat(b'\\'));
        let specials = (quotes_and_backslashes | self.are_controls()).to_bitmask();
        (specials | 1 << LANE).trailing_zeros() as usize
    }
}

/// 64 bytes.
#[derive(Clone, Copy)]
struct Block([Lane; 4]);

impl Block {
    /// The block at an offset, with blanks where the bytes have ended; none at their end.
    #[inline]
    fn at(bytes: &[u8], at: usize) -> Option<Self> {
        let bytes = bytes.get(at..)?;
        match bytes.as_chunks().0.first_chunk() {
            Some(lanes) => Some(Self::new(lanes)),
            None if bytes.is_empty() => None,
            None => Some(Self::last(bytes)),
        }
    }

    #[inline]
    fn new([a, b, c, d]: &[[u8; LANE]; 4]) -> Self {
        Self([Lane::new(*a), Lane::new(*b), Lane::new(*c), Lane::new(*d)])
    }

    #[inline]
    fn last(bytes: &[u8]) -> Self {
        let mut lanes = [[b' '; LANE]; 4];
        for (to, byte) in lanes.as_flattened_mut().iter_mut().zip(bytes) {
            *to = *byte;
        }
        Self::new(&lanes)
    }

    #[inline]
    fn bits(self, of: impl Fn(Lane) -> u64) -> u64 {
        let Self([a, b, c, d]) = self;
        of(a) | (of(b) << 16) | (of(c) << 32) | (of(d) << 48)
    }

    #[inline]
    fn equal(self, byte: u8) -> u64 {
        self.bits(|lane| lane.equal(byte))
    }
}

/// The bytes of a block that are escaped, given its backslashes. `carry` says whether the first byte is escaped by the block
/// before, and is then set for the next block.
#[inline]
fn escaped(backslashes: u64, carry: &mut bool) -> u64 {
    let first = u64::from(std::mem::take(carry));
    if backslashes == 0 {
        return first;
    }
    // A run of backslashes that begins at an even place ends its escapes at odd ones: the subtraction carries through the run.
    let begin = backslashes & !first;
    let ends = ((begin << 1) | ODD).wrapping_sub(begin) ^ ODD;
    let escaped = ends ^ (backslashes | first);
    *carry = ends & backslashes & (1 << 63) != 0;
    escaped
}

/// Where the quote is that ends a string, given what follows its first one; none if it is not near, or an escape precedes it.
/// Most are.
#[inline]
pub(crate) fn near_closing_quote(bytes: &[u8]) -> Option<usize> {
    for (n, lane) in bytes.as_chunks().0.iter().take(NEAR_LANES).enumerate() {
        let lane = Lane::new(*lane);
        let quotes = lane.equal(b'"');
        let specials = quotes | lane.equal(b'\\');
        if specials != 0 {
            let at = quotes.trailing_zeros();
            return (at == specials.trailing_zeros()).then_some(n * LANE + at as usize);
        }
    }
    None
}

/// Where the quote is that ends a string, given what follows its first one. Out of line: most ends are near.
#[inline(never)]
pub(crate) fn closing_quote(bytes: &[u8]) -> Option<usize> {
    find_quote(bytes, &mut false, |_| true)
}

/// The offset of the first quote that is literal and that `accept` takes. It gets the offset of each. `is_escaped` says
/// whether the first byte is escaped by what precedes it, and then, if no quote was taken, whether the byte after the
/// last one is.
#[inline]
pub(crate) fn find_quote(bytes: &[u8], is_escaped: &mut bool, mut accept: impl FnMut(usize) -> bool) -> Option<usize> {
    let (mut at, mut n_plain) = (0, 0);
    while let Some(block) = Block::at(bytes, at) {
        let (quotes, backslashes) = (block.equal(b'"'), block.equal(b'\\'));
        let escaped = escaped(backslashes, is_escaped);
        let mut left = quotes & !escaped;
        while left != 0 {
            let found = at + left.trailing_zeros() as usize;
            if accept(found) {
                return Some(found);
            }
            left &= left - 1;
        }
        let n_left = bytes.len() - at;
        if n_left < BLOCK {
            *is_escaped = (escaped >> n_left) & 1 == 1;
            return None;
        }
        at += BLOCK;
        n_plain = if quotes | backslashes == 0 { n_plain + 1 } else { 0 };
        if n_plain == PLAIN_BLOCKS {
            at += memchr2(b'"', b'\\', bytes.get(at..)?)?;
            n_plain = 0;
        }
    }
    None
}

/// The offset of the first escaped byte that `is_valid` refuses. It gets the offset of each; where the last backslash escapes
/// nothing, that is the length.
pub(crate) fn find_escaped(bytes: &[u8], mut is_valid: impl FnMut(usize) -> bool) -> Option<usize> {
    let (mut at, mut carry) = (0, false);
    while let Some(block) = Block::at(bytes, at) {
        let mut left = escaped(block.equal(b'\\'), &mut carry);
        while left != 0 {
            let found = at + left.trailing_zeros() as usize;
            if !is_valid(found) {
                return Some(found);
            }
            left &= left - 1;
        }
        at += BLOCK;
    }
    (carry && !is_valid(bytes.len())).then_some(bytes.len())
}

/// Near where the first control character is, if there is one.
pub(crate) fn control(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(block) = Block::at(bytes, at) {
        if block.bits(Lane::controls) != 0 {
            return Some(at);
        }
        at += BLOCK;
    }
    None
}

#[cfg(test)]
mod tests;
