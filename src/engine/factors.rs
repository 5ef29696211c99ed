//! The factors that conversations are counted with: each conversation keeps the one that it begins with.
//!
//! The store has the factor of a conversation, under the name of its beginning. The first request whose tokens are
//! counted stores it, unless there is one: all processes, and all later requests, use the one that is stored. If the
//! store cannot be asked, the conversation is counted with the factor of the built-in table, and this process stores
//! that one as soon as it can, unless the store has another one by then.

use std::sync::Arc;
use std::time::Duration;

use quick_cache::sync::Cache;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

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
        let pinned = self.known.get(&beginning).map(|known| known.factor);
        let stored = self.ask(beginning, Some(pinned.unwrap_or(learnt))).await;
        let factor = stored.or(pinned).unwrap_or(table);
        let ask_at = Instant::now() + if stored.is_some() { USE_INTERVAL } else { BACKOFF };
        self.known.insert(beginning, KnownFactor { factor, ask_at });
        factor
    }

    /// The factor that a conversation has, or would have. Nothing is stored.
    pub(super) async fn expected(&self, beginning: ChainKey, learnt: Factor) -> Factor {
        let pinned = self.known.get(&beginning).map(|known| known.factor);
        self.ask(beginning, None).await.or(pinned).unwrap_or(learnt)
    }

    /// Whether a conversation has a factor in the store.
    pub(super) async fn is_stored(&self, beginning: ChainKey) -> bool {
        self.ask(beginning, None).await.is_some()
    }

    /// Returns what the store has of a conversation, after it was offered a factor; `None` if it has none or fails.
    async fn ask(&self, beginning: ChainKey, offered: Option<Factor>) -> Option<Factor> {
        // The store logs its failures.
        let mut fact = self.summaries.fact(beginning).await.ok()?;
        if let Some(token_factor) = offered.filter(|_| fact.is_none() && self.summaries.has_store()) {
            let (place, offered) =
                (Place { root: beginning, beginning }, stored(&StoredFactor { token_factor }, beginning));
            fact = Some(self.summaries.offer_fact(place, offered).await.ok()?);
        }
        serde_json::from_slice(&fact?).ok().map(|StoredFactor { token_factor }| token_factor)
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
