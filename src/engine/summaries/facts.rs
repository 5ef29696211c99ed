//! Facts besides summaries: names of the requests that were sent, as [`crate::draft::sent`] makes them, and of those in which
//! results were cleared because the prompt cache had expired.
//!
//! The store has the facts among the summaries, where a later process finds them, and so do other processes. Such clearings
//! are made only where this process sees each request of a conversation: of a store that others use too, it does not know
//! when a cache was used last. The name of a request that cannot be stored is known to this process alone.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use serde::Serialize;

use super::{Status, Summaries, USE_INTERVAL};
use crate::engine::disks::PersistError;
use crate::payload::{ChainKey, Place};
use crate::plan::SentNames;
use crate::planner::SentIndex;
use crate::store::Store;
use crate::summary::SummaryIndex;

/// A fact that a name alone tells.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Mark {
    ColdPass(bool),
    Sent(bool),
}

/// A fact as it is stored.
#[derive(Serialize)]
struct StoredFact<'a, T> {
    #[serde(flatten)]
    fact: &'a T,
    /// Not read by the engine: by it, a fact is copied to a shared store.
    root: ChainKey,
}

/// A fact about a conversation with this root, as it is stored.
pub(in crate::engine) fn stored(fact: &impl Serialize, root: ChainKey) -> Bytes {
    serde_json::to_vec(&StoredFact { fact, root }).unwrap_or_default().into()
}

impl Summaries {
    /// Whether passes are made because the prompt cache has expired.
    pub(in crate::engine) fn has_cold_passes(&self) -> bool {
        self.has_store() && !self.is_shared()
    }

    /// Stores where such a pass is made. False if that fails, and it is not made.
    pub(in crate::engine) async fn remember_cold_pass(&self, Place { root, beginning }: Place) -> bool {
        self.put_mark(&Mark::ColdPass(true), root, root).await
            && self.put_mark(&Mark::ColdPass(true), root, beginning).await
    }

    /// Remembers the names of what was sent, durably if there is a store that takes them.
    pub(crate) async fn remember_sent(&self, sent: &SentNames) {
        let Some(root) = sent.root else { return };
        let new: Vec<_> = sent.names.iter().copied().filter(|name| self.sent.get(name).is_none()).collect();
        for name in &new {
            self.sent.insert(*name, ());
        }
        let new = new.into_iter().filter(|name| !self.is_stored(*name));
        // All at once, so that the store writes them together.
        join_all(new.map(|name| self.put_mark(&Mark::Sent(true), root, name))).await;
    }

    /// The fact about a beginning that the store has, or else this one, which it has from now on; none without a store. It is one
    /// operation, so a request waits for the store once.
    pub(in crate::engine) async fn settle_fact(
        &self,
        place: Place,
        fact: Bytes,
    ) -> Result<Option<Bytes>, PersistError> {
        let settling = |store: Arc<dyn Store>| async move {
            Ok(match store.summary(place.beginning).await? {
                Some(stored) => stored,
                None => store.offer_summary(place, fact.clone()).await?.unwrap_or(fact),
            })
        };
        self.disks.ask(settling).await
    }

    /// Stores a fact that plans look up here. False if it is not durable.
    async fn put_mark(&self, fact: &Mark, root: ChainKey, beginning: ChainKey) -> bool {
        // The store logs its failures.
        let place = Place { root, beginning };
        let is_stored = self.has_store() && self.offer_fact(place, stored(fact, root)).await.is_ok();
        if is_stored {
            self.set(beginning, Status::Stored);
        }
        is_stored
    }
}

impl SentIndex for Summaries {
    fn is_empty(&self) -> bool {
        self.sent.is_empty() && SummaryIndex::is_empty(self)
    }

    fn is_shared(&self) -> bool {
        self.is_shared()
    }

    fn has(&self, name: ChainKey) -> bool {
        let is_stored = self.is_stored(name);
        if is_stored {
            self.note_use(name, USE_INTERVAL);
        }
        is_stored || self.sent.get(&name).is_some()
    }
}
