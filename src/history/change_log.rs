//! The changes of the most recent edited requests, in bounded memory.

use std::collections::VecDeque;

use crate::inspect::{ChangeEntry, Changes};

/// How many requests are kept, and how many changes of all of them together, at about 300 bytes each.
const MAX_REQUESTS: usize = 200;
const MAX_CHANGES: usize = 20_000;

/// Changes of requests, oldest first.
#[derive(Debug, Default)]
pub(super) struct ChangeLog {
    kept: VecDeque<(String, Changes)>,
    n_changes: usize,
}

impl ChangeLog {
    pub(super) fn push(&mut self, id: String, changes: Changes) {
        self.n_changes += changes.len();
        self.kept.push_back((id, changes));
        while self.kept.len() > MAX_REQUESTS || self.n_changes > MAX_CHANGES {
            let Some((_, gone)) = self.kept.pop_front() else { break };
            self.n_changes -= gone.len();
        }
    }

    /// All changes, oldest first, and the request of each.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &ChangeEntry)> {
        self.kept.iter().flat_map(|(id, of)| of.changes.iter().map(move |change| (id.as_str(), change)))
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
    fn the_change_log_is_bounded() {
        let change = |n| Change {
            edit: "patch",
            action: Action::Drop { message: n },
            call_id: "é".repeat(1000),
            tool_name: None,
            bytes: Sizes::default(),
            tokens: None,
            handles: Vec::new(),
            why: None,
        };
        let report = |n| Changes::of(&Report { changes: (0..n).map(change).collect(), ..Report::default() });
        let mut log = ChangeLog::default();
        for n in 0..MAX_REQUESTS + 5 {
            log.push(n.to_string(), report(1));
        }
        assert_eq!((log.kept.len(), log.n_changes), (MAX_REQUESTS, MAX_REQUESTS));
        assert!(log.get("4").is_none() && log.get("5").is_some());
        let large = report(10_000);
        assert_eq!((large.changes.len(), large.n_changes, large.changes[0].call_id.len()), (500, 10_000, 200));
        for n in 0..MAX_REQUESTS {
            log.push(n.to_string(), large.clone());
        }
        assert!(log.n_changes <= MAX_CHANGES && log.kept.len() == MAX_CHANGES / 500, "{}", log.kept.len());
    }
}
