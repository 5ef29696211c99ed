//! Edited requests whose messages are kept for `[inspect]`: held while the answer lasts, laid side by side and written behind its
//! end.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::Semaphore;

use super::Proxy;
use crate::body::{Budget, Lease};
use crate::dialect::Dialect;
use crate::engine::EditedBody;
use crate::history::Entry;
use crate::inspect::{self, Changes, Message};
use crate::plan::Report;
use crate::store::{Store, StoreError};
use crate::tasks::blocking;

/// What all requests whose messages are to be kept have in common.
#[derive(Clone, Debug)]
pub(super) struct Inspector {
    store: Option<Arc<dyn Store>>,
    held: Budget,
    // Who lays side by side; more wait.
    places: Arc<Semaphore>,
}

/// One of them. Dropped, nothing is kept of it.
#[derive(Debug)]
pub(super) struct Inspecting {
    keep: usize,
    dialect: &'static dyn Dialect,
    before: Bytes,
    after: Vec<Bytes>,
    store: Arc<dyn Store>,
    places: Arc<Semaphore>,
    _held: Lease,
}

/// What is written, and what `/abridge/requests/{id}` answers.
#[derive(Serialize)]
struct Document<'a> {
    request: &'a Entry,
    #[serde(flatten)]
    changes: Changes,
    content: Option<Content>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

#[derive(Serialize)]
struct Content {
    messages: Vec<Message>,
}

/// The bytes that all of them may hold while their answers last, beside `server.max_buffered`. One for which there is no room is
/// not kept.
const MOST_HELD: usize = 64 << 20;

/// How many are laid side by side at a time.
const PLACES: usize = 1;

/// Why a request is kept without its messages.
const NO_MESSAGES: &str = "its messages were too many to be kept";

impl Inspector {
    pub(super) fn new(store: Option<Arc<dyn Store>>) -> Self {
        Self { store, held: Budget::new(MOST_HELD), places: Arc::new(Semaphore::new(PLACES)) }
    }

    /// Holds what a request was and what it became, if the last `keep` are kept and it was changed.
    pub(super) fn hold(
        &self,
        keep: usize,
        dialect: &'static dyn Dialect,
        text: &Bytes,
        edited: &EditedBody,
    ) -> Option<Inspecting> {
        if keep == 0 || !edited.changed() {
            return None;
        }
        let store = Arc::clone(self.store.as_ref()?);
        let Some(held) = self.held.lease(text.len() + edited.body.iter().map(Bytes::len).sum::<usize>()) else {
            tracing::debug!("the messages of a request are not kept: those that wait hold all the memory they may");
            return None;
        };
        let (before, after) = (text.clone(), edited.body.clone());
        Some(Inspecting { keep, dialect, before, after, store, places: Arc::clone(&self.places), _held: held })
    }
}

impl Inspecting {
    /// Writes it down, beside all requests.
    pub(super) async fn keep(self, entry: Entry, report: Report) -> Result<(), StoreError> {
        let Self { keep, dialect, before, after, store, places, _held } = self;
        // It is never closed.
        let _place = places.acquire().await.ok();
        let id = entry.id.clone();
        let lay = move || {
            let messages = inspect::messages(dialect, &before, &after.concat().into(), &report);
            let reason = messages.is_none().then_some(NO_MESSAGES);
            let content = messages.map(|messages| Content { messages });
            serde_json::to_vec(&Document { request: &entry, changes: Changes::of(&report), content, reason })
        };
        let Ok(Ok(document)) = blocking(lay).await else { return Ok(()) };
        store.put_inspected(id, document.into(), keep).await
    }
}

impl Proxy {
    /// Removes what is kept of requests beyond what the settings say now.
    pub fn trim_inspected(&self) {
        let Some(store) = self.inspector.store.clone() else { return };
        let keep = self.live.load().inspect.keep;
        self.tasks.spawn(async move {
            if let Err(error) = store.trim_inspected(keep).await {
                tracing::warn!(%error, "what inspect.keep does not allow was not removed from the store");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect;
    use crate::plan::{Action, Change, Sizes};
    use crate::store::memory::MemoryStore;
    use crate::store::{Clock, Settings};

    #[test]
    fn what_waits_for_its_end_is_bounded() {
        let inspector = Inspector::new(Some(Arc::new(MemoryStore::new(Settings::default(), Clock::system()))));
        let dialect = dialect::for_path("/v1/chat/completions").unwrap();
        let change = Change {
            edit: "patch",
            action: Action::Drop { message: 1 },
            call_id: String::new(),
            tool_name: None,
            bytes: Sizes::default(),
            tokens: None,
            handles: Vec::new(),
        };
        let text = Bytes::from(vec![b' '; MOST_HELD / 4]);
        let unchanged = EditedBody { report: Some(Report::default()), ..EditedBody::untouched(text.clone()) };
        let changed =
            EditedBody { report: Some(Report { changes: vec![change], ..Report::default() }), ..unchanged.clone() };
        let hold = |keep, edited: &EditedBody| inspector.hold(keep, dialect, &text, edited);
        assert!(hold(0, &changed).is_none() && hold(1, &unchanged).is_none());
        // As it came and as it went on, each takes half of what there is.
        let [first, second] = [hold(1, &changed), hold(1, &changed)];
        assert!(first.is_some() && second.is_some() && hold(1, &changed).is_none());
        drop(first);
        assert!(hold(1, &changed).is_some());
    }
}
