//! Payloads in an engine: which are known, which are stored, pages of them, and totals.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

use tokio::sync::MutexGuard;
use tokio::time::Instant;

use super::{Engine, Inner, Known, TOTALS_PAUSE, Totals};
use crate::payload::{Lifetime, Payload, PayloadKey};
use crate::store::page::{MAX_BYTES_READ, PageScan, key_range};
use crate::store::{Cursor, Page, PageQuery, PayloadInfo, Stats, StoreError};

/// How many payloads of all callers, the last used ones, are looked at for a page of one caller's.
const MAX_LISTED_OF_ALL: usize = 2_000;

impl<E: Engine> Inner<E> {
    /// The known keys. After a new connection none are known: what was written may be lost.
    pub(super) async fn known(&self) -> MutexGuard<'_, Known> {
        let (mut known, epoch) = (self.known.lock().await, self.epoch());
        if known.epoch != epoch {
            known.epoch = epoch;
            known.keys.clear();
        }
        known
    }

    /// Filters out the payloads that are known to be stored for as long.
    pub(super) async fn missing(
        &self,
        mut payloads: Vec<(PayloadKey, Payload)>,
        lifetime: Lifetime,
    ) -> Vec<(PayloadKey, Payload)> {
        let (n, now) = (payloads.len(), self.terms.clock.local());
        let within = self.terms.known_for();
        let mut known = self.known().await;
        payloads.retain(|(key, _)| !known.keys.touch_if_written(*key, lifetime, now, within));
        self.counts().known.fetch_add((n - payloads.len()) as u64, Ordering::Relaxed);
        payloads
    }

    /// The keys whose use is to be written.
    pub(super) async fn unknown(&self, mut keys: Vec<PayloadKey>) -> Vec<PayloadKey> {
        let (now, within) = (self.terms.clock.local(), self.terms.known_for());
        let mut known = self.known().await;
        keys.retain(|key| !known.keys.touch_if_written(*key, Lifetime::Usual, now, within));
        keys
    }

    /// Filters out the payloads that the engine has, with a use that need not be written.
    pub(super) async fn not_stored(
        &self,
        payloads: Vec<(PayloadKey, Payload)>,
        lifetime: Lifetime,
    ) -> Result<Vec<(PayloadKey, Payload)>, StoreError> {
        let keys: Vec<_> = payloads.iter().map(|(key, _)| *key).collect();
        let fresh: HashSet<_> = self.engine.fresh(&keys, lifetime).await?.into_iter().collect();
        let now = self.terms.clock.local();
        let mut known = self.known().await;
        for key in &fresh {
            known.keys.insert(*key, lifetime, now, now);
        }
        Ok(payloads.into_iter().filter(|(key, _)| !fresh.contains(key)).collect())
    }

    /// The payloads behind a place, the last used first. A prefix of the handle selects a range of keys.
    pub(super) async fn list(&self, query: &PageQuery, most: usize) -> Result<Vec<PayloadInfo>, StoreError> {
        let prefix = query.prefix.as_deref().filter(|_| query.text.is_none()).unwrap_or_default();
        let Some(keys) = key_range(prefix) else { return Ok(Vec::new()) };
        self.engine.list(query.after.map(Cursor::place), keys, most).await
    }

    pub(super) async fn page(&self, query: PageQuery) -> Result<Page, StoreError> {
        let mut scan: PageScan<'_> = query.scan();
        // The engine cannot tell whose a payload is.
        let most = if query.owner.is_some() { MAX_LISTED_OF_ALL } else { scan.capacity() + 1 };
        let listed = self.list(&query, most).await?;
        let (mut searched, mut n_bytes) = (Vec::new(), 0);
        for entry in listed {
            let is_candidate = scan.visit(entry);
            if is_candidate && query.text.is_some() && n_bytes <= MAX_BYTES_READ {
                n_bytes += entry.bytes;
                searched.push(entry.key);
            }
        }
        let mut bodies = HashMap::new();
        for (key, body) in self.engine.bodies(&searched).await? {
            bodies.insert(key, self.decode(&body)?.bytes());
        }
        scan.finish(|key| Ok(bodies.get(&key).cloned()))
    }

    /// Totals of the engine, and counts of this process. Totals that take long to count are not counted each time.
    pub(super) async fn stats(&self) -> Result<Stats, StoreError> {
        let mut last = self.totals.lock().await;
        let totals = match *last {
            Some(totals) if totals.at.elapsed() < totals.took * TOTALS_PAUSE && totals.took.as_millis() > 100 => totals,
            _ => {
                let began = Instant::now();
                let stats = self.engine.totals().await?;
                *last.insert(Totals { stats, at: began, took: began.elapsed() })
            }
        };
        Ok(self.counts().stats(totals.stats))
    }
}
