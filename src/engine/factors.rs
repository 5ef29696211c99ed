//! The factors that conversations are counted with: each conversation keeps the one that it begins with.
//!
//! The store has the factor of a conversation, under the name of its beginning. The first request whose tokens are
//! counted stores it, unless there is one: all processes, and all later requests, use the one that is stored. If the
//! store cannot be asked, the conversation is counted with the factor of the built-in table, and this process stores
//! that one as soon as it can, unless the store has another one by then.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quick_cache::sync::Cache;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::breaker::DiskBreaker;
use crate::held::Held;
use crate::payload::{ChainKey, Place};
use crate::planner::FactorIndex;
use crate::store::{Offered, Store, StoreError};
use crate::tokens::factor::{Bill, Factor, LearntFactor, LearntFactors};

/// The known factors. There is one instance per process.
#[derive(Debug)]
pub struct Factors {
    store: Option<Arc<dyn Store>>,
    breaker: DiskBreaker,
    known: Cache<ChainKey, KnownFactor>,
    learnt: Held<LearntFactors>,
}

/// The factor of a conversation, as far as this process knows.
#[derive(Clone, Copy, Debug)]
struct KnownFactor {
    factor: Factor,
    /// When the store is to be asked again.
    ask_at: Instant,
}

/// A factor as it is stored.
#[derive(Deserialize, Serialize)]
struct StoredFactor {
    token_factor: Factor,
    /// Not read by this module: by it, a factor is copied to a shared store.
    root: ChainKey,
}

/// The factor that a conversation is counted with if the store has none of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstFactor {
    /// If it can be stored.
    pub(super) learnt: Factor,
    /// If the store cannot be asked.
    pub(super) known: Factor,
}

/// How many conversations are remembered, in about 1 MB. The factors of others are read again.
const MAX_KNOWN: usize = 16 << 10;

/// The store is asked again after this time, which counts as a use there.
const USE_INTERVAL: Duration = Duration::from_hours(1);

/// After a failure the store is asked again after this time.
const BACKOFF: Duration = Duration::from_secs(10);

impl Factors {
    pub(super) fn new(store: Option<Arc<dyn Store>>, breaker: DiskBreaker) -> Self {
        Self { store, breaker, known: Cache::new(MAX_KNOWN), learnt: Held::default() }
    }

    /// Whether conversations can keep a factor other than the built-in one.
    pub(super) fn are_kept(&self) -> bool {
        self.store.is_some()
    }

    /// The factor of a conversation, which it has from now on if it has none.
    pub(super) async fn settle(&self, beginning: ChainKey, first: FirstFactor) -> Factor {
        let pinned = self.known.get(&beginning).map(|known| known.factor);
        let stored = self.ask(beginning, Some(pinned.unwrap_or(first.learnt))).await;
        let factor = stored.or(pinned).unwrap_or(first.known);
        let ask_at = Instant::now() + if stored.is_some() { USE_INTERVAL } else { BACKOFF };
        self.known.insert(beginning, KnownFactor { factor, ask_at });
        factor
    }

    /// The factor that a conversation has, or would have. Nothing is stored.
    pub(super) async fn expected(&self, beginning: ChainKey, first: FirstFactor) -> Factor {
        let pinned = self.known.get(&beginning).map(|known| known.factor);
        self.ask(beginning, None).await.or(pinned).unwrap_or(first.learnt)
    }

    /// Whether a conversation has a factor in the store.
    pub(super) async fn is_stored(&self, beginning: ChainKey) -> bool {
        self.ask(beginning, None).await.is_some()
    }

    /// Returns what the store has of a conversation, after it was offered a factor; `None` if it has none or fails.
    async fn ask(&self, beginning: ChainKey, offered: Option<Factor>) -> Option<Factor> {
        let store = Arc::clone(self.store.as_ref()?);
        let asking = async move {
            let stored = store.whole_summary(beginning).await?;
            let (None, Some(token_factor)) = (&stored, offered) else {
                return Ok::<_, StoreError>(stored);
            };
            let json = serde_json::to_vec(&StoredFactor { token_factor, root: beginning }).unwrap_or_default();
            let json = Bytes::from(json);
            let place = Place { root: beginning, beginning };
            Ok(Some(match store.offer_summary(place, json.clone()).await? {
                Offered::Stored => json,
                Offered::Theirs(theirs) => theirs,
            }))
        };
        // The store logs its failures.
        let stored = self.breaker.call(asking).await.ok()?.ok()??;
        serde_json::from_slice(&stored).ok().map(|StoredFactor { token_factor, .. }| token_factor)
    }

    /// What bills have shown of a model.
    pub(super) fn learnt(&self, upstream: &str, model: &str) -> Option<Factor> {
        self.learnt.with(|learnt| learnt.get(upstream, model))
    }

    /// Learns from a bill.
    pub fn learn(&self, upstream: &str, model: &str, bill: Bill) {
        self.learnt.with(|learnt| learnt.learn(upstream, model, bill));
    }

    /// Returns what was learnt of all models.
    pub fn all_learnt(&self) -> Vec<LearntFactor> {
        self.learnt.with(|learnt| learnt.all().to_vec())
    }
}

impl FactorIndex for Factors {
    fn factor(&self, beginning: ChainKey) -> Option<Factor> {
        let KnownFactor { factor, ask_at } = self.known.get(&beginning)?;
        (Instant::now() < ask_at).then_some(factor)
    }
}

#[cfg(test)]
mod tests;
