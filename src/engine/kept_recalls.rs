//! Recalls that the model has made beside calls of the client, and that the client therefore does not have: kept in the store
//! under the name of the conversation up to there and of the client's calls, and put back into its next requests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::summaries::Summaries;
use crate::payload::cache::{Cache, with_slots};
use crate::payload::{Caller, ChainKey, Place};

/// The recalls of all conversations.
#[derive(Debug)]
pub struct KeptRecalls {
    summaries: Arc<Summaries>,
    // The turns that are known to have none. They are kept before the client has the turn, so none comes later.
    absent: Cache<ChainKey, ()>,
    // The callers that have some; and those that had none, and when that was looked up. Two sets, as a look-up may end after
    // the first recall of a caller is kept.
    callers: Cache<Caller, ()>,
    without: Cache<Caller, Instant>,
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
    /// The caller, and the key of the caller's mark. A caller without a stored mark has no recalls.
    pub caller: (Caller, ChainKey),
}

/// How many turns and how many callers are remembered.
const MAX_ABSENT: usize = 8 << 10;
const MAX_CALLERS: usize = 1 << 10;

/// How long another process that shares the store may have kept a caller's first recall unseen.
const UNSEEN: Duration = Duration::from_secs(1);

impl KeptRecalls {
    pub(super) fn new(summaries: Arc<Summaries>) -> Self {
        let (callers, without) = (with_slots(MAX_CALLERS), with_slots(MAX_CALLERS));
        Self { summaries, absent: with_slots(MAX_ABSENT), callers, without }
    }

    /// Keeps the recalls of a turn. When it returns they are durable, or the store has failed.
    pub async fn keep(&self, place: TurnPlace, recalls: &[KeptRecall]) {
        let Ok(json) = serde_json::to_vec(recalls) else { return };
        let (caller, mark) = place.caller;
        self.callers.insert(caller, ());
        for (key, value) in [(mark, Bytes::from_static(b"[]")), (place.turn, json.into())] {
            // The store logs its failures.
            let _kept = self.summaries.offer_fact(Place { root: key, beginning: key }, value).await;
        }
    }

    /// Whether it is known that a caller has none.
    pub fn has_none(&self, caller: Caller) -> bool {
        let is_shared = || self.summaries.is_shared();
        let is_known = |looked_up: Instant| !is_shared() || looked_up.elapsed() < UNSEEN;
        self.without.get(&caller).is_some_and(is_known) && self.callers.get(&caller).is_none()
    }

    /// Whether a caller may have any. Where none has, no request need be read for them.
    pub async fn may_have(&self, caller: Caller, mark: impl FnOnce() -> ChainKey) -> bool {
        if self.callers.get(&caller).is_some() {
            return true;
        }
        if self.has_none(caller) {
            return false;
        }
        let Ok(found) = self.summaries.fact(mark()).await else { return false };
        match found {
            Some(_) => self.callers.insert(caller, ()),
            None => self.without.insert(caller, Instant::now()),
        }
        found.is_some()
    }

    /// The recalls of a turn.
    pub async fn get(&self, turn: ChainKey) -> Option<Vec<KeptRecall>> {
        if self.absent.get(&turn).is_some() {
            return None;
        }
        let recalls = self.summaries.fact(turn).await.ok()?.and_then(|json| serde_json::from_slice(&json).ok());
        if recalls.is_none() {
            self.absent.insert(turn, ());
        }
        recalls
    }
}
