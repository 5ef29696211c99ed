//! The changes of the most recent edited requests, in bounded memory, and which conversations and tools stored texts are of, as
//! far as these changes tell.

use std::collections::{HashMap, HashSet, VecDeque};

use serde::Serialize;

use super::History;
use crate::inspect::Changes;
use crate::payload::{ChainKey, PayloadKey};

/// How many requests are kept, and how many changes of all of them together, at about 300 bytes each.
const MAX_REQUESTS: usize = 200;
const MAX_CHANGES: usize = 20_000;

/// Where a text was taken out.
#[derive(Clone, Debug, Serialize)]
pub struct Origin {
    /// The tool whose result or input it is.
    pub tool: Option<String>,
    /// The name of the conversation.
    pub conversation: Option<ChainKey>,
    /// Its title, where `[inspect]` allows content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The program that has sent it.
    pub client: String,
}

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

    pub(super) fn get(&self, id: &str) -> Option<&Changes> {
        self.kept.iter().rev().find(|(known, _)| known == id).map(|(_, changes)| changes)
    }
}

impl History {
    /// Where the texts with these handles were taken out last.
    pub fn origins(&self, of: &HashSet<PayloadKey>) -> HashMap<PayloadKey, Origin> {
        self.0.with(|state| {
            let mut last = HashMap::new();
            for (id, changes) in &state.changes.kept {
                for change in &changes.changes {
                    let handles = change.handle.iter().chain(&change.more_handles).copied();
                    last.extend(
                        handles.filter(|handle| of.contains(handle)).map(|handle| (handle, (id, &change.tool))),
                    );
                }
            }
            let entries: HashMap<_, _> = state.entries.iter().map(|entry| (entry.id.as_str(), entry)).collect();
            let origin = |(handle, (id, tool)): (_, (&String, &Option<String>))| {
                let (tool, entry) = (tool.clone(), entries.get(id.as_str())?);
                let (conversation, client) = (entry.conversation, entry.client.clone());
                Some((handle, Origin { tool, conversation, title: state.title(conversation), client }))
            };
            last.into_iter().filter_map(origin).collect()
        })
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
