//! What processes tell each other through a store in memory: claims, and notes.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;

use super::{Inner, MemoryStore};
use crate::payload::{ChainKey, Lifetime, Payload, PayloadKey, Place};
use crate::store::engine::EngineError;
use crate::store::shared::{Claimant, MAX_SEEN, Note, Seen, SeenState, SharedStore};
use crate::store::{Op, Store as _, StoreError, Time};

/// Claims, and notes.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    pub(super) claims: HashMap<ChainKey, Claimed>,
    /// The conversations of summaries and claims.
    pub(super) roots: HashMap<ChainKey, ChainKey>,
    pub(super) notes: Vec<(Note, Time)>,
}

/// A claim, or the time after a claim in which there is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claimed {
    /// None: it could not be made.
    token: Option<i64>,
    until: Time,
}

impl Inner {
    /// Returns what is known of a beginning besides its summary.
    fn claimed(&self, beginning: ChainKey, now: Time) -> Option<Claimed> {
        self.exchange.claims.get(&beginning).copied().filter(|claimed| claimed.until > now)
    }

    fn seen(&self, beginning: ChainKey, now: Time) -> Option<Seen> {
        let state = if self.summaries.contains_key(&beginning) {
            SeenState::Stored
        } else {
            let Claimed { token, until } = self.claimed(beginning, now)?;
            token.map_or(SeenState::NotNow(until.since(now)), |_| SeenState::UnderWay(until.since(now)))
        };
        Some(Seen { beginning, state })
    }
}

#[async_trait]
impl SharedStore for MemoryStore {
    async fn put_again(&self, payloads: Vec<(PayloadKey, Payload)>, lifetime: Lifetime) -> Result<(), StoreError> {
        self.put(payloads, lifetime).await
    }

    async fn look(&self, root: ChainKey) -> Result<Vec<Seen>, StoreError> {
        self.with_lock(Op::Read, move |inner, now| {
            let of_root = inner.exchange.roots.iter().filter(|(_, other)| **other == root);
            let mut seen: Vec<_> = of_root.filter_map(|(beginning, _)| inner.seen(*beginning, now)).collect();
            let used = |seen: &Seen| inner.summaries.get(&seen.beginning).map(|(_, used)| *used);
            seen.sort_by_key(|seen| std::cmp::Reverse(used(seen)));
            seen.truncate(MAX_SEEN);
            seen
        })
        .await
    }

    async fn claim(&self, place: Place, claimant: Claimant) -> Result<Option<SeenState>, StoreError> {
        self.with_lock(Op::Write, move |inner, now| {
            let Place { root, beginning } = place;
            let is_own = |claimed: Claimed| claimed.token == Some(claimant.token);
            if let Some(seen) = inner.seen(beginning, now)
                && !inner.claimed(beginning, now).is_some_and(is_own)
            {
                return Some(seen.state);
            }
            let claimed = Claimed { token: Some(claimant.token), until: now.later(claimant.lease) };
            inner.exchange.claims.insert(beginning, claimed);
            inner.exchange.roots.insert(beginning, root);
            None
        })
        .await
    }

    async fn release(&self, place: Place, claimant: Claimant, not_before: Option<Duration>) -> Result<(), StoreError> {
        self.with_lock(Op::Write, move |inner, now| {
            let claims = &mut inner.exchange.claims;
            if claims.get(&place.beginning).is_none_or(|claimed| claimed.token != Some(claimant.token)) {
                return;
            }
            let until = now.later(not_before.unwrap_or_default());
            claims.insert(place.beginning, Claimed { token: None, until });
        })
        .await
    }

    fn epoch(&self) -> u64 {
        1
    }

    fn engine(&self) -> &'static str {
        "memory"
    }

    fn secret(&self) -> Option<[u8; 32]> {
        None
    }

    async fn promise(&self) -> String {
        "nothing survives a crash".to_owned()
    }

    fn state(&self) -> Result<(), EngineError> {
        Ok(())
    }
}
