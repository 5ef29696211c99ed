//! The journal: all decisions of the edits, in the order in which they were made.
//!
//! It is append-only. A decision that makes an earlier one moot is an entry of its own, and the report is derived at the
//! end.

use crate::plan::{Change, SkippedChange};

/// The decisions on one draft.
#[derive(Debug, Default)]
pub(super) struct Journal {
    entries: Vec<Entry>,
}

/// Names a change in the journal.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct ChangeId(usize);

#[derive(Debug)]
enum Entry {
    /// A change was made.
    Made(Change),
    /// Nothing is left of an earlier change.
    Revoked(ChangeId),
    /// A change was not made.
    Skipped(SkippedChange),
}

impl Journal {
    /// Notes a change.
    pub(super) fn make(&mut self, change: Change) -> ChangeId {
        self.entries.push(Entry::Made(change));
        ChangeId(self.entries.len() - 1)
    }

    /// Notes that nothing is left of a change.
    pub(super) fn revoke(&mut self, change: ChangeId) {
        self.entries.push(Entry::Revoked(change));
    }

    /// Notes that a change was not made.
    pub(super) fn skip(&mut self, skipped: SkippedChange) {
        self.entries.push(Entry::Skipped(skipped));
    }

    /// The changes that hold, and those that were not made.
    pub(super) fn outcome(self) -> (Vec<Change>, Vec<SkippedChange>) {
        let mut holds = vec![true; self.entries.len()];
        for entry in &self.entries {
            if let Entry::Revoked(ChangeId(change)) = entry
                && let Some(holds) = holds.get_mut(*change)
            {
                *holds = false;
            }
        }
        let (mut changes, mut skipped) = (Vec::new(), Vec::new());
        for (entry, holds) in self.entries.into_iter().zip(holds) {
            match entry {
                Entry::Made(change) if holds => changes.push(change),
                Entry::Skipped(change) => skipped.push(change),
                Entry::Made(_) | Entry::Revoked(_) => {}
            }
        }
        (changes, skipped)
    }
}
