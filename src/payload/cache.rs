//! Caches of a bounded number of entries, whose tables take no more memory than these entries need.

use std::hash::Hash;

use quick_cache::sync::{self, DefaultLifecycle};
use quick_cache::{UnitWeighter, Weighter};
use rustc_hash::FxBuildHasher;

/// A cache whose keys are hashes of a seed or a key that no one else knows, so that a plain hash of them will do. The
/// keys of a small cache may be names, too.
pub(crate) type Cache<K, V, W = UnitWeighter> = sync::Cache<K, V, W, FxBuildHasher>;

/// Such a cache whose entries are weighed by their values.
pub(crate) type WeighedCache<K, V> = Cache<K, V, By<V>>;

/// Weighs entries by their values.
#[derive(Clone, Debug)]
pub(crate) struct By<V>(pub(crate) fn(&V) -> u64);

impl<K, V> Weighter<K, V> for By<V> {
    fn weight(&self, _: &K, value: &V) -> u64 {
        (self.0)(value)
    }
}

/// Such a cache of about so many entries, whose weights are at most `capacity` together.
pub(crate) fn weighted<K: Eq + Hash, V: Clone, W: Weighter<K, V> + Clone>(
    estimate: usize,
    capacity: u64,
    weighter: W,
) -> Cache<K, V, W> {
    Cache::with(estimate, capacity, weighter, FxBuildHasher, DefaultLifecycle::default())
}

/// A cache of so many slots, or of the next lower power of two. It takes memory as it fills.
///
/// Slots are added by doubling. Besides entries they hold the hashes of some that had to leave, by default of half as many,
/// so that a power of two entries would come to take twice as many slots. Here seven of eight slots are for entries, and
/// nearly all others for such hashes.
pub(crate) fn with_slots<K: Eq + Hash, V: Clone>(slots: usize) -> Cache<K, V> {
    let slots = slots.checked_ilog2().map_or(0, |log| 1 << log);
    let most = u64::try_from(slots / 8 * 7).unwrap_or(u64::MAX);
    // Half of this estimate is how many hashes are kept.
    let estimate = slots / 32 * 7;
    weighted(estimate, most, UnitWeighter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_come_and_gone_takes_no_more_slots() {
        let of_one = {
            let cache = with_slots(64);
            cache.insert([0_u64; 2], 0_u32);
            cache.memory_used().entries
        };
        for slots in [64, 1 << 10, 1 << 15, 3 << 14] {
            let cache = with_slots::<[u64; 2], u32>(slots);
            for n in 0..200_000_u32 {
                cache.insert([n.into(); 2], n);
                let again = n / 2;
                cache.get(&[again.into(); 2]);
            }
            let power = 1 << slots.ilog2();
            assert!(cache.len() * 4 > power * 3, "{slots}: {}", cache.len());
            assert!(cache.len() * 8 <= power * 7, "{slots}: {}", cache.len());
            assert!(cache.memory_used().entries <= power * of_one, "{slots}: {:?}", cache.memory_used());
        }
    }

    #[test]
    fn without_slots_there_are_no_entries() {
        let cache = with_slots(0);
        cache.insert(1, 1);
        assert_eq!(cache.get(&1), None);
    }
}
