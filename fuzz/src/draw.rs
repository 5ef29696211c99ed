//! Numbers that look drawn and depend on a seed alone.

/// A generator of such numbers: splitmix64.
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// Begins at a seed.
    pub fn seeded(seed: [u8; 4]) -> Self {
        Self(u64::from(u32::from_le_bytes(seed)))
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// One of a few.
    pub fn one_of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }
}
