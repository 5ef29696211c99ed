//! Counts by the variants of an enum.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use strum::VariantArray;

/// A count for each variant of an enum.
#[derive(Debug)]
pub struct Tally<K>(Box<[AtomicU64]>, PhantomData<K>);

impl<K: VariantArray> Default for Tally<K> {
    fn default() -> Self {
        Self(K::VARIANTS.iter().map(|_| AtomicU64::new(0)).collect(), PhantomData)
    }
}

impl<K: VariantArray + Copy + Eq + Into<&'static str>> Tally<K> {
    /// Counts one. Returns how many there are with it.
    pub fn count(&self, kind: K) -> u64 {
        let place = K::VARIANTS.iter().position(|known| *known == kind);
        place.and_then(|place| self.0.get(place)).map_or(0, |count| count.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The name of each variant, and its count.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        K::VARIANTS.iter().zip(&self.0).map(|(kind, count)| ((*kind).into(), count.load(Ordering::Relaxed)))
    }
}
