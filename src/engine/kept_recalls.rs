//! Recalls that the model has made beside calls of the client, and that the client therefore does not have: kept in the store
//! under the name of the conversation up to there and of the client's calls, and put back into its next requests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quick_cache::sync::Cache;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::breaker::DiskBreaker;
use crate::payload::{Caller, ChainKey, Place};
use crate::store::Store;

/// The recalls of all conversations.
#[derive(Debug)]
pub struct KeptRecalls {
    store: Option<Arc<dyn Store>>,
    breaker: DiskBreaker,
    // The turns that are known to have none. They are kept before the client has the turn, so none comes later.
    absent: Cache<ChainKey, ()>,
    // Whether a caller has any, and when that was looked up.
    callers: Cache<Caller, (bool, Instant)>,
}

/// A recall of a turn.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct KeptRecall {
    /// How many calls of the client's tools are before it.
    pub n_before: usize,
    /// The call, as a request has it.
    pub call: String,
    /// Its result, as a request has it.
    pub result: String,
}

/// The place of one turn's recalls.
#[derive(Clone, Copy, Debug)]
pub struct TurnPlace {
    /// Names the turn.
    pub turn: ChainKey,
    /// Whose it is, and what that caller's mark is stored under: where it is not, the caller has no recalls.
    pub caller: (Caller, ChainKey),
}

/// How many turns and how many callers are remembered.
const MAX_ABSENT: usize = 8 << 10;
const MAX_CALLERS: usize = 1 << 10;

/// How long another process that shares the store may have kept a caller's first recall unseen.
const UNSEEN: Duration = Duration::from_secs(1);

impl KeptRecalls {
    pub(super) fn new(store: Option<Arc<dyn Store>>, breaker: DiskBreaker) -> Self {
        Self { store, breaker, absent: Cache::new(MAX_ABSENT), callers: Cache::new(MAX_CALLERS) }
    }

    /// Keeps the recalls of a turn. When it returns they are durable, or the store has failed.
    pub async fn keep(&self, place: TurnPlace, recalls: &[KeptRecall]) {
        let Ok(json) = serde_json::to_vec(recalls) else { return };
        let (caller, mark) = place.caller;
        self.callers.insert(caller, (true, Instant::now()));
        for (key, value) in [(mark, Bytes::from_static(b"[]")), (place.turn, json.into())] {
            let Some(store) = self.store.clone() else { return };
            let keeping = async move { store.offer_summary(Place { root: key, beginning: key }, value).await };
            // The store logs its failures.
            let _kept = self.breaker.call(keeping).await;
        }
    }

    /// Whether a caller may have any. Where none has, no request need be read for them.
    pub async fn may_have(&self, caller: Caller, mark: impl FnOnce() -> ChainKey) -> bool {
        let is_shared = || self.store.as_deref().is_some_and(|store| store.shared().is_some());
        match self.callers.get(&caller) {
            Some((true, _)) => return true,
            Some((false, looked_up)) if looked_up.elapsed() < UNSEEN || !is_shared() => return false,
            _ => {}
        }
        let has_any = self.stored(mark()).await.is_some();
        self.callers.insert(caller, (has_any, Instant::now()));
        has_any
    }

    /// The recalls of a turn.
    pub async fn get(&self, turn: ChainKey) -> Option<Vec<KeptRecall>> {
        if self.absent.get(&turn).is_some() {
            return None;
        }
        let recalls = self.stored(turn).await.and_then(|json| serde_json::from_slice(&json).ok());
        if recalls.is_none() {
            self.absent.insert(turn, ());
        }
        recalls
    }

    async fn stored(&self, key: ChainKey) -> Option<Bytes> {
        let store = self.store.clone()?;
        self.breaker.call(async move { store.whole_summary(key).await }).await.ok()?.ok()?
    }
}
