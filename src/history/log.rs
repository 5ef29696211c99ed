//! The changes of the last edited requests, in bounded memory.

use std::collections::VecDeque;

use crate::inspect::Changes;

/// So many requests are kept, and so many changes of all of them together, at some 300 bytes each.
const MOST: usize = 200;
const MOST_CHANGES: usize = 20_000;

/// Changes of requests, oldest first.
#[derive(Debug, Default)]
pub(super) struct Log {
    kept: VecDeque<(String, Changes)>,
    n_changes: usize,
}

impl Log {
    pub(super) fn push(&mut self, id: String, changes: Changes) {
        self.n_changes += changes.len();
        self.kept.push_back((id, changes));
        while self.kept.len() > MOST || self.n_changes > MOST_CHANGES {
            let Some((_, gone)) = self.kept.pop_front() else { break };
            self.n_changes -= gone.len();
        }
    }

    pub(super) fn get(&self, id: &str) -> Option<&Changes> {
        self.kept.iter().rev().find(|(known, _)| known == id).map(|(_, changes)| changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Action, Change, Report, Sizes};

    #[test]
    fn no_more_is_kept_than_may_be() {
        let change = |n| Change {
            edit: "patch",
            action: Action::Drop { message: n },
            call_id: "é".repeat(1000),
            tool_name: None,
            bytes: Sizes::default(),
            tokens: None,
            handles: Vec::new(),
        };
        let report = |n| Changes::of(&Report { changes: (0..n).map(change).collect(), ..Report::default() });
        let mut log = Log::default();
        for n in 0..MOST + 5 {
            log.push(n.to_string(), report(1));
        }
        assert_eq!((log.kept.len(), log.n_changes), (MOST, MOST));
        assert!(log.get("4").is_none() && log.get("5").is_some());
        let large = report(10_000);
        assert_eq!((large.changes.len(), large.n_changes, large.changes[0].call_id.len()), (500, 10_000, 200));
        for n in 0..MOST {
            log.push(n.to_string(), large.clone());
        }
        assert!(log.n_changes <= MOST_CHANGES && log.kept.len() == MOST_CHANGES / 500, "{}", log.kept.len());
    }
}
