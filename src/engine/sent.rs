//! Remembers facts about the requests that were sent, by the names that [`crate::draft::sent`] makes.
//!
//! The names are in memory, and in the store among the summaries. A later process finds them there, and so do other processes
//! if reasoning is bound. A name that cannot be stored is known to this process alone.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use quick_cache::sync::Cache;
use serde::Serialize;

use super::summaries::Summaries;
use crate::payload::{ChainKey, Place};
use crate::plan::SentNames;
use crate::planner::SentIndex;
use crate::summary::SummaryIndex as _;

/// The names. There is one instance per process.
#[derive(Debug)]
pub(super) struct SentRequests {
    summaries: Arc<Summaries>,
    /// The names that this process has added.
    own: Cache<ChainKey, ()>,
}

/// A name as it is stored.
#[derive(Serialize)]
struct StoredName {
    sent: bool,
    /// Not read by this module: by it, the name is copied to a shared store.
    root: ChainKey,
}

/// How many names are remembered in memory, besides those in the store.
const MAX_OWN: usize = 64 << 10;

impl SentRequests {
    pub(super) fn new(summaries: Arc<Summaries>) -> Self {
        Self { summaries, own: Cache::new(MAX_OWN) }
    }

    /// Remembers these names, durably if there is a store that takes them.
    pub(super) async fn remember(&self, sent: &SentNames) {
        let Some(root) = sent.root else { return };
        let new: Vec<_> = sent.names.iter().copied().filter(|name| self.own.get(name).is_none()).collect();
        for name in &new {
            self.own.insert(*name, ());
        }
        if !self.summaries.has_store() {
            return;
        }
        let fact = Bytes::from(serde_json::to_vec(&StoredName { sent: true, root }).unwrap_or_default());
        let new = new.into_iter().filter(|name| !self.summaries.is_stored(*name));
        // All at once, so that the store writes them together.
        let puts = new.map(|beginning| self.summaries.put_fact(Place { root, beginning }, fact.clone()));
        join_all(puts).await;
    }
}

impl SentIndex for SentRequests {
    fn is_empty(&self) -> bool {
        self.own.is_empty() && self.summaries.is_empty()
    }

    fn is_shared(&self) -> bool {
        self.summaries.is_shared()
    }

    fn has(&self, name: ChainKey) -> bool {
        self.summaries.is_used(name) || self.own.get(&name).is_some()
    }
}
