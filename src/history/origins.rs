//! Which conversations and tools stored texts are of, as far as the most recent requests tell.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use super::History;
use crate::payload::{ChainKey, PayloadKey};

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

impl History {
    /// Where the texts with these handles were taken out last.
    pub fn origins(&self, of: &HashSet<PayloadKey>) -> HashMap<PayloadKey, Origin> {
        self.0.with(|state| {
            let mut last = HashMap::new();
            for (id, change) in state.changes.iter() {
                let handles = change.handle.iter().chain(&change.more_handles);
                last.extend(handles.filter(|handle| of.contains(handle)).map(|handle| (*handle, (id, change))));
            }
            let entries: HashMap<_, _> = state.entries.iter().map(|entry| (entry.id.as_str(), entry)).collect();
            let origin = |(handle, (id, change)): (_, (&str, &crate::inspect::ChangeEntry))| {
                let entry = entries.get(id)?;
                let (conversation, client) = (entry.conversation, entry.client.clone());
                let origin =
                    Origin { tool: change.tool.clone(), conversation, title: state.title(conversation), client };
                Some((handle, origin))
            };
            last.into_iter().filter_map(origin).collect()
        })
    }
}
