//! Counts that are remembered by the fingerprint of what was counted. What a collision does is a wrong count.

use super::tiktoken::Encoding;
use crate::payload::Fingerprint;
use crate::payload::cache::{self, Cache};

/// The bytes that a remembered count takes, with its share of the tables around it.
const SLOT_BYTES: usize = 48;

/// What is counted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Countable {
    /// A text.
    Text,
    /// The beginning of a text, known by the name of the whole.
    Beginning,
    /// An element of the array of a dialect.
    Element,
    /// A part of a content.
    Part,
    /// A call: what it adds to the element that it is in.
    Call,
    /// The tools of a request.
    Tools,
    /// The format that a request asks the answer to have.
    Format,
    /// The instructions of a request that stand outside the array.
    Instructions,
}

/// What was counted, and the tag of the dialect that it is in. The same bytes count differently as each.
#[derive(Clone, Copy, Debug)]
pub struct Subject(pub Countable, pub u8);

/// A bounded number of counts. It takes memory as it fills, and none before.
#[derive(Debug)]
pub(super) struct Memo {
    counts: Cache<Key, u32>,
}

/// The halves of a fingerprint, and in the first one what was counted and how.
type Key = [u64; 2];

// === impl Memo ===

impl Memo {
    /// A memo of at most this many bytes; with none it remembers nothing.
    pub(super) fn new(bytes: usize) -> Self {
        Self { counts: cache::with_slots(bytes / SLOT_BYTES) }
    }

    /// The count of what is known by `fingerprint`, out of memory or else made now.
    pub(super) fn get_or_count(
        &self,
        subject: Subject,
        encoding: Encoding,
        fingerprint: Fingerprint,
        count: impl FnOnce() -> usize,
    ) -> usize {
        if let Some(known) = self.get(subject, encoding, fingerprint) {
            return known;
        }
        let new = count();
        if let Ok(new) = u32::try_from(new) {
            self.counts.insert(key(subject, encoding, fingerprint), new);
        }
        new
    }

    /// The count of what is known by `fingerprint`, if it is remembered.
    pub(super) fn get(&self, subject: Subject, encoding: Encoding, fingerprint: Fingerprint) -> Option<usize> {
        let known = self.counts.get(&key(subject, encoding, fingerprint))?;
        usize::try_from(known).ok()
    }
}

fn key(subject: Subject, encoding: Encoding, fingerprint: Fingerprint) -> Key {
    let [first, second] = fingerprint.halves();
    [first ^ (subject.code() << 8 | encoding as u64), second]
}

impl Subject {
    /// A text, which is the same in each dialect.
    pub(super) const TEXT: Self = Self(Countable::Text, 0);

    fn code(self) -> u64 {
        u64::from(self.1) << 8 | self.0 as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(memo: &Memo, n: u32) {
        for n in 0..n {
            memo.get_or_count(Subject::TEXT, Encoding::O200kBase, Fingerprint::of(&n.to_le_bytes()), || 7);
        }
    }

    #[test]
    fn takes_no_more_than_it_may() {
        for bytes in [0, 100, 10_000, 1 << 20, 8 << 20] {
            let memo = Memo::new(bytes);
            fill(&memo, 300_000);
            let used = memo.counts.memory_used();
            assert!(used.entries + used.map <= bytes.max(4096), "{bytes}: {used:?}");
            let least = if bytes < 10_000 { 0 } else { bytes / 3 };
            assert!(memo.counts.len() * SLOT_BYTES >= least, "{bytes}: {} counts", memo.counts.len());
        }
    }

    #[test]
    fn takes_nothing_before_it_is_used() {
        let used = Memo::new(1 << 30).counts.memory_used();
        assert_eq!((used.entries, used.map), (0, 0));
    }

    #[test]
    fn counts_once() {
        let memo = Memo::new(1 << 20);
        let of = Fingerprint::of;
        let count = |bytes, count| memo.get_or_count(Subject::TEXT, Encoding::O200kBase, of(bytes), || count);
        assert_eq!([count(b"a", 1), count(b"b", 2), count(b"a", 3), count(b"b", 4)], [1, 2, 1, 2]);
        assert_eq!(memo.get_or_count(Subject::TEXT, Encoding::Cl100kBase, of(b"a"), || 5), 5);
        assert_eq!(memo.get_or_count(Subject(Countable::Tools, 0), Encoding::O200kBase, of(b"a"), || 6), 6);
    }

    #[test]
    fn what_is_used_stays_longest() {
        let memo = Memo::new(100_000);
        fill(&memo, 500);
        fill(&memo, 500);
        fill(&memo, 2000);
        let again = |n: u32| {
            memo.get_or_count(Subject::TEXT, Encoding::O200kBase, Fingerprint::of(&n.to_le_bytes()), || 0) == 7
        };
        assert!((0..500).filter(|&n| again(n)).count() > 400);
    }
}
