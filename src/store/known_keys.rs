//! The keys that are known to be in the store, so that a request whose payloads were all seen before does not access
//! the file.
//!
//! Bounded by two generations: when the young one is full it becomes the old one, and the keys of the previous old one
//! are forgotten. A key that is used moves to the young generation, so it stays as long as it is used.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use super::Time;
use crate::payload::Lifetime;

/// How many keys one generation of a store holds: seven of eight places of a table, which is doubled when it has more.
pub(super) const PER_GENERATION: usize = 28_672;

/// Stored keys, and when they were used.
pub(super) struct KnownKeys<K> {
    young: HashMap<K, Use>,
    old: HashMap<K, Use>,
    generation_size: usize,
    // A use is written only if the one in the file is older than this.
    resolution: Duration,
    // A key is known only while the use that was written is younger than this.
    known_for: Duration,
}

/// When a key was last used, its last use in the file, and a lifetime that it has in the file.
#[derive(Clone, Copy, Debug)]
struct Use {
    used: Time,
    written: Time,
    lifetime: Lifetime,
}

// === impl KnownKeys ===

impl<K: Copy + Eq + Hash> KnownKeys<K> {
    /// Creates an empty set of at most `2 * generation_size` keys.
    pub(super) fn new(generation_size: usize, resolution: Duration, known_for: Duration) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), generation_size, resolution, known_for }
    }

    /// Notes a use; `false` if the key is not known to be stored with this lifetime or a longer one.
    pub(super) fn touch(&mut self, key: K, lifetime: Lifetime, now: Time) -> bool {
        let known_for = self.known_for;
        let is_known = |of: Use| of.lifetime >= lifetime && now.since(of.written) < known_for;
        if let Some(known) = self.young.get_mut(&key) {
            known.used = known.used.max(now);
            return is_known(*known);
        }
        let Some(known) = self.old.remove(&key) else { return false };
        self.insert_use(key, Use { used: known.used.max(now), ..known });
        is_known(known)
    }

    /// Adds a key. Only the writer knows that a key is stored: its use at `written` is in the file, and it is used now.
    pub(super) fn insert(&mut self, key: K, lifetime: Lifetime, written: Time, now: Time) {
        let before = self.young.get(&key).copied().or(self.old.remove(&key));
        let lifetime = before.map_or(lifetime, |before| before.lifetime.max(lifetime));
        self.insert_use(key, Use { used: now.max(written), written, lifetime });
    }

    /// Notes a use of a key that may be stored. It is written, however recent the one in the file is.
    pub(super) fn note(&mut self, key: K, now: Time) {
        self.old.remove(&key);
        self.insert_use(key, Use { used: now, written: Time::default(), lifetime: Lifetime::Usual });
    }

    /// Sets uses that are later than `now` to `now`, after the clock was set back.
    pub(super) fn clamp_times(&mut self, now: Time) {
        for known in self.young.values_mut().chain(self.old.values_mut()) {
            (known.used, known.written) = (known.used.min(now), known.written.min(now));
        }
    }

    /// Removes a key that is not stored any more.
    pub(super) fn forget(&mut self, key: K) {
        self.young.remove(&key);
        self.old.remove(&key);
    }

    /// Removes all keys: the file may be different.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.generation_size, self.resolution, self.known_for);
    }

    /// When the key was last used, if this process knows.
    pub(super) fn last_use(&self, key: K) -> Option<Time> {
        self.young.get(&key).or_else(|| self.old.get(&key)).map(|known| known.used)
    }

    /// Returns the uses that are to be written to the file, and marks them as written.
    pub(super) fn take_unwritten(&mut self) -> Vec<(K, Time)> {
        let mut uses = Vec::new();
        let resolution = self.resolution;
        for (key, known) in self.young.iter_mut().chain(self.old.iter_mut()) {
            if known.used > known.written && known.used.since(known.written) >= resolution {
                known.written = known.used;
                uses.push((*key, known.used));
            }
        }
        uses
    }

    fn insert_use(&mut self, key: K, of: Use) {
        if self.young.len() >= self.generation_size {
            // Uses of forgotten keys that are not written are lost: their payloads expire a little early.
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, of);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::PayloadKey;

    fn key(n: u8) -> PayloadKey {
        PayloadKey::from_bytes([n; 16])
    }

    #[test]
    fn unused_keys_are_forgotten() {
        let mut known = KnownKeys::new(2, Duration::from_secs(10), Duration::MAX);
        known.insert(key(1), Lifetime::Usual, Time(0), Time(50));
        for n in 2..=6 {
            known.insert(key(n), Lifetime::Usual, Time(50), Time(50));
        }
        assert!(!known.touch(key(1), Lifetime::Usual, Time(60)));
        assert!(known.touch(key(6), Lifetime::Usual, Time(51)));
        assert_eq!(known.last_use(key(1)), None);
        assert_eq!(known.take_unwritten(), []);
    }

    #[test]
    fn used_keys_stay_known() {
        let mut known = KnownKeys::new(2, Duration::ZERO, Duration::MAX);
        known.insert(key(0), Lifetime::Usual, Time(0), Time(0));
        for n in 1..100 {
            known.insert(key(n), Lifetime::Usual, Time(0), Time(0));
            assert!(known.touch(key(0), Lifetime::Usual, Time(u64::from(n))));
        }
    }

    #[test]
    fn a_use_is_written_once_and_only_if_it_is_newer_by_the_resolution() {
        let mut known = KnownKeys::new(8, Duration::from_secs(10), Duration::MAX);
        known.insert(key(1), Lifetime::Usual, Time(100), Time(100));
        known.touch(key(1), Lifetime::Usual, Time(109));
        assert_eq!(known.take_unwritten(), []);
        known.touch(key(1), Lifetime::Usual, Time(110));
        assert_eq!(known.take_unwritten(), [(key(1), Time(110))]);
        assert_eq!(known.take_unwritten(), []);
    }

    #[test]
    fn a_key_is_known_for_the_lifetimes_that_it_was_stored_with() {
        let mut known = KnownKeys::new(1, Duration::ZERO, Duration::MAX);
        known.insert(key(1), Lifetime::Usual, Time(0), Time(0));
        assert!(known.touch(key(1), Lifetime::Usual, Time(1)));
        assert!(!known.touch(key(1), Lifetime::Chained, Time(2)), "the file is to be told");
        assert_eq!(known.last_use(key(1)), Some(Time(2)));
        known.insert(key(1), Lifetime::Chained, Time(2), Time(2));
        known.insert(key(1), Lifetime::Usual, Time(3), Time(3));
        // It moves from one generation to the next with its lifetime.
        known.insert(key(2), Lifetime::Usual, Time(3), Time(3));
        assert!(known.touch(key(1), Lifetime::Chained, Time(4)));
        assert!(known.touch(key(1), Lifetime::Usual, Time(4)));
    }
}
