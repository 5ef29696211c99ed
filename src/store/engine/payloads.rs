//! Payloads in an engine: how bodies are kept, compressed, and then encrypted if the settings say so; which are known, which
//! are stored, and pages of them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::MutexGuard;

use super::writer::NewRow;
use super::{Engine, EngineResult, Inner, Known, closed, count};
use crate::payload::{Lifetime, Payload, PayloadKey};
use crate::store::codec::{LARGE, Name, Unreadable, decode, encode};
use crate::store::page::{MAX_BYTES_READ, PageScan, key_range};
use crate::store::{NamedPayloads, Op, Page, PageQuery, PayloadInfo, StoreResult};
use crate::tasks::run_blocking_from;

/// How many payloads of all callers, the last used ones, are looked at for a page of one caller's.
const MAX_LISTED_OF_ALL: usize = 2_000;

/// How many bodies are read at a time to tell which secret listed payloads were named under.
pub(super) const NAMED_AT_ONCE: usize = 32;

/// How many damaged payloads are remembered until they are sent again.
const MAX_DAMAGED: usize = 4096;

// === bodies ===

impl<E: Engine> Inner<E> {
    /// The rows of payloads.
    pub(super) async fn encode_all(&self, payloads: NamedPayloads, lifetime: Lifetime) -> StoreResult<Vec<NewRow>> {
        let n_bytes = payloads.iter().map(|(_, payload)| payload.len()).sum();
        let seal = Arc::clone(&self.seal);
        let new = move |(key, payload): (PayloadKey, Payload)| {
            let name = Name::of_payload(key);
            let body = seal.seal(&name, encode(&name, &payload))?;
            let (row, owner) = (seal.row(key), seal.owner(key));
            Ok(NewRow { key, row, body, bytes: count(payload.len() as u64), lifetime, owner })
        };
        self.encode_sized(n_bytes, move || payloads.into_iter().map(new).collect()).await
    }

    pub(super) async fn encode(&self, name: Name, bytes: Bytes) -> StoreResult<Vec<u8>> {
        let seal = Arc::clone(&self.seal);
        self.encode_sized(bytes.len(), move || seal.seal(&name, encode(&name, &bytes.into()))).await
    }

    /// A payload of the engine; `None` if a later version has stored it in a way that this one does not know.
    pub(super) fn decode_payload(&self, key: PayloadKey, stored: &[u8]) -> StoreResult<Option<Payload>> {
        let name = Name::of_payload(key);
        self.counts().payload(name, self.open(name, stored))
    }

    /// Anything else of the engine. A summary of a later version cannot be read, and is not made anew.
    pub(super) fn decode_value(&self, name: Name, stored: &[u8]) -> StoreResult<Bytes> {
        self.counts().value(name, self.open(name, stored))
    }

    /// Decrypts and decodes what is stored under a name.
    pub(super) fn open(&self, name: Name, stored: &[u8]) -> Result<Payload, Unreadable> {
        decode(&name, &self.seal.open(&name, stored)?)
    }

    /// Encodes values of so many bytes together.
    async fn encode_sized<T: Send + 'static>(
        &self,
        n_bytes: usize,
        work: impl FnOnce() -> EngineResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        let done = run_blocking_from(LARGE + 1, n_bytes, work).await.map_err(|_| closed(Op::Write))?;
        done.map_err(|error| self.engine.links().fails(Op::Write, error))
    }
}

// === payloads ===

impl<E: Engine> Inner<E> {
    /// The known keys. After a new connection none are known: everything that was written may be lost.
    pub(super) async fn known(&self) -> MutexGuard<'_, Known> {
        let (mut known, epoch) = (self.known.lock().await, self.epoch());
        if known.epoch != epoch {
            known.epoch = epoch;
            known.keys.clear();
            known.damaged.clear();
        }
        known
    }

    /// Those whose keys are not known to be stored for as long, with a use that need not be written.
    pub(super) async fn unknown<T>(&self, mut all: Vec<T>, lifetime: Lifetime, key: fn(&T) -> PayloadKey) -> Vec<T> {
        let now = self.terms.local_time();
        let mut known = self.known().await;
        all.retain(|one| !known.keys.touch(key(one), lifetime, now));
        all
    }

    /// The row of a payload, its body, and whether its use is to be written.
    pub(super) async fn find(&self, key: PayloadKey) -> StoreResult<Option<(PayloadKey, Vec<u8>, bool)>> {
        for row in self.seal.rows(key) {
            if let Some((body, is_stale)) = self.engine.get(row).await? {
                return Ok(Some((row, body, is_stale)));
            }
        }
        Ok(None)
    }

    /// Notes that a payload is damaged: the next put writes it anew.
    pub(super) async fn note_damage(&self, key: PayloadKey) {
        let mut known = self.known().await;
        known.keys.forget(key);
        if known.damaged.len() < MAX_DAMAGED {
            known.damaged.insert(key);
        }
    }

    /// Removes the payloads among these whose rows were found to be damaged, so that they can be written anew.
    pub(super) async fn remove_damaged(&self, payloads: &[(PayloadKey, Payload)]) -> StoreResult<()> {
        for (key, _) in payloads {
            let was_damaged = self.known().await.damaged.remove(key);
            if !was_damaged {
                continue;
            }
            // Another process may have written the row again since, so only the damaged body is removed.
            if let Some((row, body, _)) = self.find(*key).await?
                && self.open(Name::of_payload(*key), &body) == Err(Unreadable::Damaged)
            {
                self.engine.remove(row, &body).await?;
            }
        }
        Ok(())
    }

    /// Filters out the payloads that the engine has, with a use that need not be written.
    pub(super) async fn not_stored(&self, payloads: NamedPayloads, lifetime: Lifetime) -> StoreResult<NamedPayloads> {
        let rows: Vec<_> = payloads.iter().map(|(key, _)| self.seal.row(*key)).collect();
        let fresh: HashSet<_> = self.engine.fresh(&rows, lifetime).await?.into_iter().collect();
        let now = self.terms.local_time();
        let mut known = self.known().await;
        let mut missing = Vec::new();
        for (payload, row) in payloads.into_iter().zip(rows) {
            if fresh.contains(&row) {
                known.keys.insert(payload.0, lifetime, now, now);
            } else {
                missing.push(payload);
            }
        }
        Ok(missing)
    }

    /// The payloads after a place, the last used first, after the names of their rows. A prefix of the handle selects a
    /// range of keys.
    pub(super) async fn list(&self, query: &PageQuery, most: usize) -> StoreResult<Vec<(PayloadKey, PayloadInfo)>> {
        let is_range = query.text.is_none() && !self.seal.is_on();
        let prefix = query.prefix.as_deref().filter(|_| is_range).unwrap_or_default();
        let Some(rows) = key_range(prefix) else { return Ok(Vec::new()) };
        let listed = self.engine.list(query.after, rows, most).await?;
        let mut named = Vec::new();
        for infos in listed.chunks(NAMED_AT_ONCE) {
            let rows = infos.iter().map(|info| info.key);
            let unnamed: Vec<_> = rows.filter(|row| self.seal.handle(*row).is_none()).collect();
            let bodies: HashMap<_, _> = self.engine.bodies(&unnamed).await?.into_iter().collect();
            // Those that no secret opens have no handle, and are left out.
            named.extend(infos.iter().filter_map(|info| {
                let by_body = || self.seal.handle_by_body(info.key, bodies.get(&info.key)?);
                let handle = self.seal.handle(info.key).or_else(by_body)?;
                Some((info.key, PayloadInfo { key: handle, ..*info }))
            }));
        }
        Ok(named)
    }

    pub(super) async fn page(&self, query: PageQuery) -> StoreResult<Page> {
        let mut scan: PageScan<'_> = query.scan();
        // The engine cannot tell whose a payload is, nor, of an encrypted one, how its handle begins.
        let is_sieved = query.owner.is_some() || (query.prefix.is_some() && self.seal.is_on());
        let most = if is_sieved { MAX_LISTED_OF_ALL } else { scan.capacity.saturating_add(1) };
        let listed = self.list(&query, most).await?;
        let (mut searched, mut n_bytes) = (HashMap::new(), 0);
        for (row, entry) in listed {
            let is_candidate = scan.visit(row, entry);
            if is_candidate && (query.text.is_some() || query.previews) && n_bytes <= MAX_BYTES_READ {
                n_bytes += entry.bytes;
                searched.insert(row, entry.key);
            }
        }
        let rows: Vec<_> = searched.keys().copied().collect();
        let mut bodies = HashMap::new();
        for (row, body) in self.engine.bodies(&rows).await? {
            // What cannot be read is not found.
            let payload = searched.get(&row).and_then(|key| self.decode_payload(*key, &body).ok()?);
            bodies.extend(payload.map(|payload| (row, payload.bytes())));
        }
        scan.finish(|row| Ok(bodies.get(&row).cloned()))
    }
}
