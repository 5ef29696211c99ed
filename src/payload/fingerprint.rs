//! Fingerprints of bytes in this process: they are hashed once, and all that is remembered of them is found by that.
//!
//! The hash is 128 bits of xxh3, which runs as fast as memory is read, with a secret that is new in each process. No one
//! outside sees a hash or the secret. It is not a cryptographic one: where it matters whose bytes they were, the caller is part
//! of a key beside it.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use smart_default::SmartDefault;
use xxhash_rust::xxh3::{Xxh3, xxh3_128_with_secret};

/// The hash of some bytes, or of what is made of some. Halves, as one number of 128 bits would have to lie aligned.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Fingerprint([u64; 2]);

/// The keys of std's hash maps are the randomness that needs no one to be asked. With a seed in its place, each hash of a long
/// text would make the secret anew.
static SECRET: LazyLock<[u8; 192]> = LazyLock::new(|| {
    let random = RandomState::new();
    let mut secret = [0; 192];
    for (n, part) in secret.chunks_exact_mut(8).enumerate() {
        part.copy_from_slice(&random.hash_one(n).to_ne_bytes());
    }
    secret
});

impl Fingerprint {
    /// Of bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self::from_hash(xxh3_128_with_secret(bytes, &*SECRET))
    }

    fn from_hash(hash: u128) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is what is wanted")]
        let lower = hash as u64;
        Self([lower, (hash >> 64) as u64])
    }

    /// Of two numbers, which represent themselves.
    pub fn of_numbers(one: usize, other: usize) -> Self {
        Self([one as u64, other as u64])
    }

    /// Of what this is of, and of what comes next.
    #[must_use]
    pub fn then(self, next: Self) -> Self {
        let ([one, other], [next_one, next_other]) = (self.0, next.0);
        Self::of([one, other, next_one, next_other].map(u64::to_ne_bytes).as_flattened())
    }

    /// The fingerprint combined with two numbers.
    #[must_use]
    pub fn mixed(self, one: usize, other: usize) -> Self {
        let [half, other_half] = self.0;
        Self([half ^ one as u64, other_half ^ other as u64])
    }

    /// Both halves of it.
    pub fn halves(self) -> [u64; 2] {
        self.0
    }
}

/// Hashes bytes that come one part after the other, to the [`Fingerprint`] of all of them.
#[derive(derive_more::Debug, SmartDefault)]
#[debug("Fingerprinter")]
pub struct Fingerprinter(#[default(Xxh3::with_secret(*SECRET))] Xxh3);

impl Fingerprinter {
    /// Hashes the next part.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The fingerprint of all parts.
    pub fn finish(&self) -> Fingerprint {
        Fingerprint::from_hash(self.0.digest128())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_and_another_order_have_other_fingerprints() {
        let [a, b, ab] = [b"a".as_slice(), b"b", b"ab"].map(Fingerprint::of);
        assert_eq!(a, Fingerprint::of(b"a"));
        assert_eq!(a.then(b), a.then(b));
        let all = [a, b, ab, a.then(b), b.then(a), a.then(b).then(b), a.then(b.then(b)), Fingerprint::of_numbers(0, 1)];
        for (n, one) in all.iter().enumerate() {
            assert!(all.iter().skip(n + 1).all(|other| other != one), "{n}");
        }
        for half in 0..2 {
            let [a, b, ab] = [a, b, ab].map(|fingerprint| fingerprint.halves()[half]);
            assert!(a != b && b != ab && ab != a && ![a, b, ab].contains(&0));
        }
        assert_eq!(Fingerprint::of_numbers(3, 4).halves(), [3, 4]);
    }
}
