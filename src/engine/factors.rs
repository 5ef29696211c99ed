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

use super::disks::PersistError;
use super::summaries::{Summaries, stored};
use crate::held::Held;
use crate::payload::{ChainKey, Place};
use crate::planner::FactorIndex;
use crate::tokens::factor::{Bill, Factor, LearntFactor, LearntFactors};

/// The known factors. There is one instance per process.
#[derive(Debug)]
pub struct Factors {
    /// Has the factors in the store.
    summaries: Arc<Summaries>,
    /// The factors of conversations, each with the time when the store is to be asked again.
    known: Cache<ChainKey, (Factor, Instant)>,
    learnt: Held<LearntFactors>,
}

/// A factor as it is stored.
#[derive(Deserialize, Serialize)]
struct StoredFactor {
    token_factor: Factor,
}

/// How many conversations are remembered, in about 1 MB. The factors of others are read again.
const MAX_KNOWN: usize = 16 << 10;

/// The store is asked again after this time, which counts as a use there.
const USE_INTERVAL: Duration = Duration::from_hours(1);

/// After a failure the store is asked again after this time.
const BACKOFF: Duration = Duration::from_secs(10);

impl Factors {
    pub(super) fn new(summaries: Arc<Summaries>) -> Self {
        Self { summaries, known: Cache::new(MAX_KNOWN), learnt: Held::default() }
    }

    /// The factor of a conversation. If the store has none, it is the learnt one from now on; if the store cannot be asked,
    /// the one of the table.
    pub(super) async fn settle(&self, beginning: ChainKey, learnt: Factor, table: Factor) -> Factor {
        let pinned = self.known.get(&beginning).map(|(factor, _)| factor);
        let offered = stored(&StoredFactor { token_factor: pinned.unwrap_or(learnt) }, beginning);
        let settled = self.summaries.settle_fact(Place { root: beginning, beginning }, offered).await;
        let stored = read(settled);
        let factor = stored.or(pinned).unwrap_or(table);
        let ask_at = Instant::now() + if stored.is_some() { USE_INTERVAL } else { BACKOFF };
        self.known.insert(beginning, (factor, ask_at));
        factor
    }

    /// The factor that a conversation has, or would have. Nothing is stored.
    pub(super) async fn expected(&self, beginning: ChainKey, learnt: Factor) -> Factor {
        let pinned = self.known.get(&beginning).map(|(factor, _)| factor);
        self.stored(beginning).await.or(pinned).unwrap_or(learnt)
    }

    /// The factor that a conversation has in the store.
    pub(super) async fn stored(&self, beginning: ChainKey) -> Option<Factor> {
        read(self.summaries.fact(beginning).await)
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

/// A factor that the store was asked for, if it has one. The store logs its failures.
fn read(asked: Result<Option<Bytes>, PersistError>) -> Option<Factor> {
    let StoredFactor { token_factor } = serde_json::from_slice(&asked.ok()??).ok()?;
    Some(token_factor)
}

impl FactorIndex for Factors {
    fn factor(&self, beginning: ChainKey) -> Option<Factor> {
        let (factor, ask_at) = self.known.get(&beginning)?;
        (Instant::now() < ask_at).then_some(factor)
    }
}

#[cfg(test)]
mod tests;
