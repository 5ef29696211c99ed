//! Payloads in the engine: which are known, which are stored, pages of them, and totals.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::MutexGuard;
use tokio::time::Instant;
use tokio_postgres::Row;

use super::error::PostgresError;
use super::link::Parameters;
use super::{Inner, Known, TOTALS_PAUSE, Totals, blob, blobs, count, int, sql};
use crate::payload::{Lifetime, Payload, PayloadKey};
use crate::store::page::{MAX_BYTES_READ, PageScan, key_range};
use crate::store::{Op, Page, PageQuery, PayloadInfo, Stats, StoreError, Time};

impl Inner {
    /// How long a key counts as known: half a grain.
    fn known_for(&self) -> Duration {
        self.settings.keep_for.0 / 16
    }

    /// The same, as the engine takes it: in seconds.
    pub(super) fn half_grain(&self) -> i64 {
        count(self.known_for().as_secs())
    }

    /// By how many seconds payloads of this lifetime are kept longer than for `keep_for`.
    pub(super) fn extra(&self, lifetime: Lifetime) -> i64 {
        count(self.settings.extra_time(lifetime).as_secs())
    }

    /// The known keys. After a new connection none are known: what was written may be lost.
    pub(super) async fn known(&self) -> MutexGuard<'_, Known> {
        let (mut known, epoch) = (self.known.lock().await, self.writes.epoch());
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
        let (n, now) = (payloads.len(), self.clock.local());
        let within = self.known_for();
        let mut known = self.known().await;
        payloads.retain(|(key, _)| !known.keys.touch_if_written(*key, lifetime, now, within));
        self.counts.known.fetch_add((n - payloads.len()) as u64, Ordering::Relaxed);
        payloads
    }

    /// The keys whose use is to be written.
    pub(super) async fn unknown(&self, mut keys: Vec<PayloadKey>) -> Vec<PayloadKey> {
        let (now, within) = (self.clock.local(), self.known_for());
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
        let (now, grain, extra) = (self.clock.parameter(), self.half_grain(), self.extra(lifetime));
        let keys: Vec<_> = payloads.iter().map(|(key, _)| key.as_bytes().as_slice()).collect();
        let found = self.write(Op::Put, sql::FRESH, &[int(&now), blobs(&keys), int(&grain), int(&extra)]).await?;
        let fresh = found.iter().map(|row| Ok(PayloadKey::from_bytes(self.key(row, 0)?)));
        let fresh = fresh.collect::<Result<HashSet<_>, StoreError>>()?;
        let now = self.clock.local();
        let mut known = self.known().await;
        for key in &fresh {
            known.keys.insert(*key, lifetime, now, now);
        }
        Ok(payloads.into_iter().filter(|(key, _)| !fresh.contains(key)).collect())
    }

    /// The payloads behind a place, the last used first. A prefix of the handle selects a range of keys.
    pub(super) async fn list(&self, query: &PageQuery, most: usize) -> Result<Vec<PayloadInfo>, StoreError> {
        let prefix = query.prefix.as_deref().filter(|_| query.text.is_none()).unwrap_or_default();
        let Some([first, last]) = key_range(prefix) else { return Ok(Vec::new()) };
        let (used, key) = query.after.map_or((i64::MAX, first), |after| {
            let (used, key) = after.place();
            (count(used.0), key)
        });
        let (key, first, last) = (key.as_bytes().as_slice(), first.as_bytes().as_slice(), last.as_bytes().as_slice());
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let parameters: Parameters<'_> = &[int(&used), blob(&key), blob(&first), blob(&last), int(&most)];
        let found = self.rows(Op::Get, sql::LIST, parameters).await?;
        found.iter().map(|row| self.info(row)).collect()
    }

    pub(super) fn info(&self, row: &Row) -> Result<PayloadInfo, StoreError> {
        let number = |n| Ok::<u64, StoreError>(u64::try_from(self.cell::<i64>(row, n)?).unwrap_or_default());
        Ok(PayloadInfo {
            key: PayloadKey::from_bytes(self.key(row, 0)?),
            bytes: number(1)?,
            stored_bytes: number(2)?,
            created: Time(number(3)?),
            used: Time(number(4)?),
        })
    }

    pub(super) async fn page(&self, query: PageQuery) -> Result<Page, StoreError> {
        let mut scan: PageScan<'_> = query.scan();
        let listed = self.list(&query, scan.capacity() + 1).await?;
        let (mut searched, mut n_bytes) = (Vec::new(), 0);
        for entry in listed {
            scan.visit(entry);
            if query.text.is_some() && n_bytes <= MAX_BYTES_READ {
                n_bytes += entry.bytes;
                searched.push(*entry.key.as_bytes());
            }
        }
        let keys: Vec<_> = searched.iter().map(<[u8; 16]>::as_slice).collect();
        let found = if keys.is_empty() { Vec::new() } else { self.rows(Op::Get, sql::BODIES, &[blobs(&keys)]).await? };
        let mut bodies = HashMap::new();
        for row in &found {
            bodies.insert(PayloadKey::from_bytes(self.key(row, 0)?), self.body(row, 1)?);
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
                let stats = self.totals().await?;
                *last.insert(Totals { stats, at: began, took: began.elapsed() })
            }
        };
        Ok(self.counts.stats(totals.stats))
    }

    pub(super) async fn totals(&self) -> Result<Stats, StoreError> {
        let found = self.rows(Op::Get, sql::TOTALS, &[]).await?;
        let row = found.first().ok_or_else(|| self.fails(Op::Get, PostgresError::Damaged))?;
        let number = |n| Ok::<u64, StoreError>(u64::try_from(self.cell::<i64>(row, n)?).unwrap_or_default());
        let (stored_bytes, summary_bytes, inspected_bytes) = (number(2)?, number(4)?, number(6)?);
        Ok(Stats {
            payloads: number(0)?,
            bytes: number(1)?,
            stored_bytes,
            summaries: number(3)?,
            summary_bytes,
            inspected: number(5)?,
            inspected_bytes,
            file_bytes: stored_bytes + summary_bytes + inspected_bytes,
            tombstones: number(7)?,
            ..Stats::default()
        })
    }
}
