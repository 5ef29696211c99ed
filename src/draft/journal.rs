//! The journal: all decisions of the edits, in the order in which they were made.
//!
//! It is append-only: what revokes an earlier decision is a decision, too, and the report is derived at the
//! end.

use crate::plan::{Change, SkipReason, SkippedChange};

/// The decisions on one draft.
#[derive(Debug, Default)]
pub(super) struct Journal {
    decisions: Vec<Decision>,
}

/// Names a change in the journal.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct ChangeId(usize);

#[derive(Debug)]
enum Decision {
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
        self.decisions.push(Decision::Made(change));
        ChangeId(self.decisions.len() - 1)
    }

    /// Notes that nothing is left of a change.
    pub(super) fn revoke(&mut self, change: ChangeId) {
        self.decisions.push(Decision::Revoked(change));
    }

    /// Notes that a change was not made.
    pub(super) fn skip(&mut self, change: Change, message: Option<usize>, why: SkipReason) {
        let Change { edit, call_id, tool_name, .. } = change;
        self.decisions.push(Decision::Skipped(SkippedChange { edit, message, call_id, tool_name, why }));
    }

    /// The changes that hold, and those that were not made.
    pub(super) fn outcome(self) -> (Vec<Change>, Vec<SkippedChange>) {
        let holds = self.holds();
        let (mut changes, mut skipped) = (Vec::new(), Vec::new());
        for (decision, holds) in self.decisions.into_iter().zip(holds) {
            match decision {
                Decision::Made(change) if holds => changes.push(change),
                Decision::Skipped(change) => skipped.push(change),
                Decision::Made(_) | Decision::Revoked(_) => {}
            }
        }
        (changes, skipped)
    }

    /// Whether each decision holds.
    fn holds(&self) -> Vec<bool> {
        let mut holds = vec![true; self.decisions.len()];
        for decision in &self.decisions {
            if let Decision::Revoked(ChangeId(change)) = decision
                && let Some(holds) = holds.get_mut(*change)
            {
                *holds = false;
            }
        }
        holds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Action, Sizes};

    #[test]
    fn a_revoked_change_is_not_in_the_outcome() {
        let mut journal = Journal::default();
        let [_, second, _] = [0, 1, 2].map(|message| {
            journal.make(Change {
                edit: "e",
                action: Action::Clear { message },
                call_id: String::new(),
                tool_name: None,
                bytes: Sizes::default(),
                tokens: None,
                handles: Vec::new(),
                why: None,
            })
        });
        journal.revoke(second);
        let (changes, skipped) = journal.outcome();
        let actions: Vec<_> = changes.iter().map(|change| change.action).collect();
        assert_eq!(actions, [Action::Clear { message: 0 }, Action::Clear { message: 2 }]);
        assert!(skipped.is_empty());
    }
}
