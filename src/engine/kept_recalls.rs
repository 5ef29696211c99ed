//! Recalls that the model has made beside calls of the client, and that the client therefore does not have: kept in the store
//! under the name of the conversation up to there and of the client's calls, and put back into its next requests.

use std::sync::Arc;

use bytes::Bytes;
use quick_cache::sync::Cache;
use serde::{Deserialize, Serialize};

use super::breaker::DiskBreaker;
use crate::payload::{ChainKey, Place};
use crate::store::Store;

/// The recalls of all conversations.
#[derive(Debug)]
pub struct KeptRecalls {
    store: Option<Arc<dyn Store>>,
    breaker: DiskBreaker,
    // The turns that are known to have none. They are kept before the client has the turn, so none comes later.
    absent: Cache<ChainKey, ()>,
}

/// The recalls of one turn.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct TurnRecalls {
    /// The calls, each with its result, as a request has them.
    pub recalls: Vec<(String, String)>,
}

/// How many turns are remembered.
const MAX_ABSENT: usize = 8 << 10;

impl KeptRecalls {
    pub(super) fn new(store: Option<Arc<dyn Store>>, breaker: DiskBreaker) -> Self {
        Self { store, breaker, absent: Cache::new(MAX_ABSENT) }
    }

    /// Keeps the recalls of a turn. When it returns they are durable, or the store has failed.
    pub async fn keep(&self, turn: ChainKey, recalls: &TurnRecalls) {
        let (Some(store), Ok(json)) = (self.store.clone(), serde_json::to_vec(recalls)) else { return };
        let place = Place { root: turn, beginning: turn };
        let keeping = async move { store.offer_summary(place, json.into()).await };
        // The store logs its failures.
        let _kept = self.breaker.call(keeping).await;
    }

    /// The recalls of a turn.
    pub async fn get(&self, turn: ChainKey) -> Option<TurnRecalls> {
        let store = self.store.clone().filter(|_| self.absent.get(&turn).is_none())?;
        let stored: Option<Bytes> =
            self.breaker.call(async move { store.whole_summary(turn).await }).await.ok()?.ok()?;
        let recalls = stored.and_then(|json| serde_json::from_slice(&json).ok());
        if recalls.is_none() {
            self.absent.insert(turn, ());
        }
        recalls
    }
}
