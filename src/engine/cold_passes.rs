//! Passes that were made because the prompt cache had expired.
//!
//! The store has the names of the requests that they were made in, and of the roots of their conversations, among the
//! summaries. They are made only where this process sees each request of a conversation: of a store that others use too, it
//! does not know when a cache was used last.

use std::sync::Arc;

use quick_cache::sync::Cache;
use serde::Serialize;
use tokio::time::Instant;

use super::summaries::Summaries;
use crate::payload::{ChainKey, Place};
use crate::planner::ColdPassIndex;

/// The memory of them. Each process has one instance.
#[derive(Debug)]
pub(super) struct ColdPasses {
    summaries: Arc<Summaries>,
    /// When their use was last noted in the store.
    noted: Cache<ChainKey, Instant>,
}

/// One as it is stored.
#[derive(Serialize)]
struct StoredColdPass {
    cold_pass: bool,
    /// Not read by this module: by it, it is copied to a shared store.
    root: ChainKey,
}

/// Of how many the last use is remembered.
const MAX_NOTED: usize = 4096;

impl ColdPasses {
    pub(super) fn new(summaries: Arc<Summaries>) -> Self {
        Self { summaries, noted: Cache::new(MAX_NOTED) }
    }

    /// Whether they are made.
    pub(super) fn are_made(&self) -> bool {
        self.summaries.has_store() && !self.summaries.is_shared()
    }

    /// Stores where one is made. False if that fails, and it is not made.
    pub(super) async fn remember(&self, Place { root, beginning }: Place) -> bool {
        let json = serde_json::to_vec(&StoredColdPass { cold_pass: true, root }).unwrap_or_default();
        for beginning in [root, beginning] {
            if !self.summaries.put_fact(Place { root, beginning }, json.clone().into()).await {
                return false;
            }
        }
        true
    }
}

impl ColdPassIndex for ColdPasses {
    fn has(&self, name: ChainKey) -> bool {
        self.summaries.is_used(name, &self.noted)
    }
}

#[cfg(test)]
mod tests;
