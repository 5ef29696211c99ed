//! Passes that were made because the prompt cache had expired.
//!
//! The store has the names of the requests that they were made in, and of the roots of their conversations, among the
//! summaries. They are made only where this process sees each request of a conversation: of a store that others use too, it
//! does not know when a cache was used last.

use serde::Serialize;

use super::summaries::Summaries;
use crate::payload::{ChainKey, Place};
use crate::planner::ColdPassIndex;

/// One as it is stored.
#[derive(Serialize)]
struct StoredColdPass {
    cold_pass: bool,
    /// Not read by this module: by it, it is copied to a shared store.
    root: ChainKey,
}

impl Summaries {
    /// Whether passes are made because the prompt cache has expired.
    pub(super) fn has_cold_passes(&self) -> bool {
        self.has_store() && !self.is_shared()
    }

    /// Stores where one is made. False if that fails, and it is not made.
    pub(super) async fn remember_cold_pass(&self, Place { root, beginning }: Place) -> bool {
        let json = serde_json::to_vec(&StoredColdPass { cold_pass: true, root }).unwrap_or_default();
        for beginning in [root, beginning] {
            if !self.put_fact(Place { root, beginning }, json.clone().into()).await {
                return false;
            }
        }
        true
    }
}

impl ColdPassIndex for Summaries {
    fn has(&self, name: ChainKey) -> bool {
        self.is_used(name)
    }
}

#[cfg(test)]
mod tests;
