//! The keys that are known to be kept, so that a request whose payloads were all seen before asks no file.
//!
//! Bounded by two generations: when the younger one is full it becomes the older one, and what the older one held is
//! forgotten. A key that is used moves to the younger one, so it stays as long as it is used.

use std::collections::HashMap;
use std::time::Duration;

use super::Time;
use crate::payload::PayloadKey;

/// Keys that are kept, and when they were used.
#[derive(Debug)]
pub(super) struct Known {
    young: HashMap<PayloadKey, Use>,
    old: HashMap<PayloadKey, Use>,
    // Uses of forgotten keys, which are still to be written down.
    forgotten: HashMap<PayloadKey, Time>,
    most: usize,
    // A use is written down only if the one in the file is older than this.
    grain: Duration,
}

/// When a key was used, and when it was as far as the file says.
#[derive(Clone, Copy, Debug)]
struct Use {
    used: Time,
    written: Time,
}

// === impl Known ===

impl Known {
    /// Nothing is known yet; of at most `2 * most` keys it ever will be.
    pub(super) fn new(most: usize, grain: Duration) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), forgotten: HashMap::new(), most, grain }
    }

    /// Notes a use; false if the key is not known to be kept.
    pub(super) fn touch(&mut self, key: PayloadKey, now: Time) -> bool {
        if let Some(known) = self.young.get_mut(&key) {
            known.used = known.used.max(now);
            return true;
        }
        let Some(known) = self.old.remove(&key) else { return false };
        self.insert(key, Use { used: known.used.max(now), ..known });
        true
    }

    /// A key is kept, as the writer knows and nobody else can: its use at `written` is in the file, and it is used now.
    pub(super) fn learn(&mut self, key: PayloadKey, written: Time, now: Time) {
        self.old.remove(&key);
        self.forgotten.remove(&key);
        self.insert(key, Use { used: now.max(written), written });
    }

    /// The clock was set back: what was used later than now was used now.
    pub(super) fn set_back(&mut self, now: Time) {
        for known in self.young.values_mut().chain(self.old.values_mut()) {
            *known = Use { used: known.used.min(now), written: known.written.min(now) };
        }
        for used in self.forgotten.values_mut() {
            *used = now.min(*used);
        }
    }

    /// A key is no longer kept.
    pub(super) fn forget(&mut self, key: PayloadKey) {
        self.young.remove(&key);
        self.old.remove(&key);
        self.forgotten.remove(&key);
    }

    /// Nothing is known any more: the file may be another one.
    pub(super) fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
        self.forgotten.clear();
    }

    /// When the key was last used, if this process knows.
    pub(super) fn used(&self, key: PayloadKey) -> Option<Time> {
        let known = self.young.get(&key).or_else(|| self.old.get(&key)).map(|known| known.used);
        known.or_else(|| self.forgotten.get(&key).copied())
    }

    /// The uses that are to be written down, and from now on count as written.
    pub(super) fn unwritten(&mut self) -> Vec<(PayloadKey, Time)> {
        let mut uses: Vec<_> = self.forgotten.drain().collect();
        let grain = self.grain;
        for (key, known) in self.young.iter_mut().chain(self.old.iter_mut()) {
            if known.is_unwritten(grain) {
                known.written = known.used;
                uses.push((*key, known.used));
            }
        }
        uses
    }

    fn insert(&mut self, key: PayloadKey, of: Use) {
        if self.young.len() >= self.most {
            let forgotten = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
            // Were there ever too many, their payloads would age a little early; they would not be lost unused.
            let room = self.most.saturating_sub(self.forgotten.len());
            let unwritten = forgotten.into_iter().filter(|(_, known)| known.is_unwritten(self.grain)).take(room);
            self.forgotten.extend(unwritten.map(|(key, known)| (key, known.used)));
        }
        self.young.insert(key, of);
    }
}

impl Use {
    fn is_unwritten(self, grain: Duration) -> bool {
        self.used > self.written && self.used.since(self.written) >= grain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> PayloadKey {
        PayloadKey::from_bytes([n; 16])
    }

    #[test]
    fn forgets_what_is_not_used_but_not_its_use() {
        let mut known = Known::new(2, Duration::from_secs(10));
        known.learn(key(1), Time(0), Time(50));
        for n in 2..=6 {
            known.learn(key(n), Time(50), Time(50));
        }
        assert!(!known.touch(key(1), Time(60)));
        assert!(known.touch(key(6), Time(51)));
        assert_eq!(known.used(key(1)), Some(Time(50)));
        assert_eq!(known.unwritten(), [(key(1), Time(50))]);
        assert_eq!(known.unwritten(), []);
    }

    #[test]
    fn what_is_used_stays_known() {
        let mut known = Known::new(2, Duration::ZERO);
        known.learn(key(0), Time(0), Time(0));
        for n in 1..100 {
            known.learn(key(n), Time(0), Time(0));
            assert!(known.touch(key(0), Time(u64::from(n))));
        }
    }

    #[test]
    fn a_use_is_written_down_once_and_only_if_it_says_something_new() {
        let mut known = Known::new(8, Duration::from_secs(10));
        known.learn(key(1), Time(100), Time(100));
        known.touch(key(1), Time(109));
        assert_eq!(known.unwritten(), []);
        known.touch(key(1), Time(110));
        assert_eq!(known.unwritten(), [(key(1), Time(110))]);
        assert_eq!(known.unwritten(), []);
    }
}
