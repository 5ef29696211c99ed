//! A store in an engine that many processes use at once: all of it that does not depend on which engine it is.
//!
//! A payload is durable in the engine before the request that names it goes on. What this process has written or seen there
//! is remembered for half a grain, an eighth of `keep_for`, and what is remembered is asked for and written no more. So each
//! key that is in use costs one small write a grain, whoever uses it, and what is known has at least seven eighths of
//! `keep_for` left.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;

use super::codec::{LARGE, Name, Unreadable};
use super::known_keys::{self, KnownKeys};
use super::secret::{Identity, Secrets, random};
use super::shared::{Claimant, Note, NoteGroup, NoteKind, Seen, SeenState, SharedStore};
use super::{
    Clock, Counts, Cursor, NamedPayloads, Op, Page, PageQuery, Settings, Stats, Store, StoreEngine, StoreError,
    StoreResult, SweepResult, Verified,
};
use crate::held::Held;
use crate::payload::{ChainKey, Lifetime, Payload, PayloadKey, Place};
use crate::tasks::Tasks;

mod interface;
pub(super) mod link;
mod payloads;
mod seal;
mod sweep;
pub(super) mod tls;
pub(super) mod writer;

pub use super::engine_error::{EngineError, EngineResult, OpenError, Refusal, UrlError};
pub(super) use interface::{Engine, Stale, Terms, count};
use payloads::NAMED_AT_ONCE;
use seal::Seal;
use writer::Job;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// The URL, with several hosts if need be.
    pub url: String,
    /// The settings.
    pub settings: Settings,
    /// The secrets of the settings.
    pub secrets: Secrets,
    /// A test's clock, in place of the engine's.
    pub clock: Option<Clock>,
    /// The secret that an engine without one gets; `None` for a random one.
    pub fresh: Option<[u8; 32]>,
}

/// A store in an engine.
#[expect(private_bounds, reason = "the engines are the store's own")]
#[derive(derive_more::Debug)]
#[debug("{}({:?})", E::NAME, self.state())]
pub struct EngineStore<E: Engine> {
    inner: Arc<Inner<E>>,
    jobs: mpsc::Sender<Job>,
}

/// What calls and the writer share.
struct Inner<E> {
    engine: E,
    terms: Terms,
    identity: Arc<Identity>,
    seal: Arc<Seal>,
    known: Mutex<Known>,
    /// While the store is full, the owners who have more than their share and store no more.
    over_share: Held<HashSet<u16>>,
}

/// The keys that are known to be in the engine, since it was connected to for the last time.
struct Known {
    keys: KnownKeys<PayloadKey>,
    /// Those whose rows were found to be damaged, a bounded number.
    damaged: HashSet<PayloadKey>,
    epoch: u64,
}

/// How many puts may be queued for the writer; further requests wait for a place.
const QUEUE_LEN: usize = 64;

/// Opens the engine of the settings, as [`EngineStore::open`] does.
pub async fn open(options: Options) -> Result<Box<dyn SharedStore>, OpenError> {
    Ok(match options.settings.engine {
        StoreEngine::Redis => Box::new(super::RedisStore::open(options).await?),
        // A file is not an engine.
        StoreEngine::Postgres | StoreEngine::File => Box::new(super::PostgresStore::open(options).await?),
    })
}

// === impl EngineStore ===

#[expect(private_bounds, reason = "the engines are the store's own")]
impl<E: Engine> EngineStore<E> {
    /// Connects. With a secret in the settings it returns a store while the engine is away, too; without one that is an error, and
    /// so is an engine that can be reached and is not this fleet's.
    pub async fn open(options: Options) -> Result<Self, OpenError> {
        // Apart from the tasks of requests, which end before the store is closed.
        let tasks = Tasks::default();
        let Options { url, settings, secrets, clock, fresh } = options;
        let seal = if settings.seal { Seal::new(&secrets).ok_or(OpenError::NoSecret)? } else { Seal::default() };
        let fresh = fresh.map_or_else(random, Ok).map_err(OpenError::Random)?;
        let identity = Arc::new(Identity::new(secrets, settings.seal, fresh));
        let terms = Terms { settings, clock, began: Instant::now() };
        let engine = E::start(&url, terms.clone(), Arc::clone(&identity), &tasks)?;
        let links = engine.links();
        match links.writes.first_attempt().await {
            Ok(()) => links.reads.connected().await,
            Err(error) if error.may_pass() && identity.secret().is_some() => {
                tracing::error!(%error, "the store's engine is away");
            }
            Err(error) => {
                links.close();
                return Err(error.into());
            }
        }
        let known = KnownKeys::new(known_keys::PER_GENERATION, Duration::MAX, terms.known_for());
        let inner = Arc::new(Inner {
            engine,
            terms,
            identity,
            seal: Arc::new(seal),
            known: Mutex::new(Known { keys: known, damaged: HashSet::new(), epoch: 0 }),
            over_share: Held::default(),
        });
        let (jobs, queue) = mpsc::channel(QUEUE_LEN);
        tasks.spawn(writer::run(Arc::clone(&inner), queue, tasks.clone()));
        Ok(Self { inner, jobs })
    }

    /// Stores the payloads that are not known. Of more than `most_unasked` bytes, the engine is asked which it has.
    async fn put_unknown(&self, payloads: NamedPayloads, lifetime: Lifetime, most_unasked: usize) -> StoreResult<()> {
        let n = payloads.len();
        let unknown = self.inner.unknown(payloads, lifetime, |(key, _)| *key).await;
        self.inner.counts().known.fetch_add((n - unknown.len()) as u64, Ordering::Relaxed);
        if unknown.is_empty() {
            return Ok(());
        }
        self.inner.remove_damaged(&unknown).await?;
        let began = Instant::now();
        let n_bytes: usize = unknown.iter().map(|(_, payload)| payload.len()).sum();
        let missing = if n_bytes > most_unasked { self.inner.not_stored(unknown, lifetime).await? } else { unknown };
        let mut stored = Ok(());
        if !missing.is_empty() {
            // What an engine has that is full needs no room.
            if missing.iter().any(|(key, _)| self.inner.is_over_share(*key)) {
                self.inner.counts().failures.fetch_add(1, Ordering::Relaxed);
                return Err(StoreError::new(Op::Write, EngineError::Full.kind(), EngineError::Full));
            }
            let rows = self.inner.encode_all(missing, lifetime).await?;
            stored = writer::submit(&self.jobs, rows).await;
        }
        self.inner.counts().waits.observe(began.elapsed().as_secs_f64());
        stored
    }
}

impl<E: Engine> Inner<E> {
    fn counts(&self) -> &Counts {
        &self.engine.links().counts
    }

    /// Whether the store is full and the owner of this key has more than its share.
    fn is_over_share(&self, key: PayloadKey) -> bool {
        self.over_share.with(|over| !over.is_empty() && over.contains(&self.seal.owner(key)))
    }

    fn epoch(&self) -> u64 {
        self.engine.links().writes.epoch()
    }
}

#[async_trait]
impl<E: Engine> Store for EngineStore<E> {
    async fn put(&self, payloads: NamedPayloads, lifetime: Lifetime) -> StoreResult<()> {
        self.put_unknown(payloads, lifetime, LARGE).await
    }

    async fn load(&self, key: PayloadKey) -> StoreResult<Option<Payload>> {
        let Some((row, body, is_stale)) = self.inner.find(key).await? else { return Ok(None) };
        let decoded = self.inner.decode_payload(key, &body);
        if decoded.as_ref().is_err_and(StoreError::is_damage) {
            self.inner.note_damage(key).await;
        }
        let Some(payload) = decoded? else { return Ok(None) };
        self.inner.counts().recalled.fetch_add(1, Ordering::Relaxed);
        if is_stale {
            // The payload is returned even if its use cannot be noted.
            let _noted = self.inner.engine.touch(&[row]).await;
        }
        Ok(Some(payload))
    }

    async fn was_swept(&self, key: PayloadKey) -> StoreResult<bool> {
        for row in self.inner.seal.rows(key) {
            if self.inner.engine.was_swept(row).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn touch(&self, keys: Vec<PayloadKey>) -> StoreResult<()> {
        let unknown = self.inner.unknown(keys, Lifetime::Usual, |key| *key).await;
        let rows: Vec<_> = unknown.into_iter().flat_map(|key| self.inner.seal.rows(key)).collect();
        if rows.is_empty() { Ok(()) } else { self.inner.engine.touch(&rows).await }
    }

    async fn offer_summary(&self, place: Place, summary: Bytes) -> StoreResult<Option<Bytes>> {
        let name = Name::of_summary(place.beginning);
        let body = self.inner.encode(name, summary).await?;
        loop {
            let Some(theirs) = self.inner.engine.offer(place, &body).await? else { return Ok(None) };
            if self.inner.open(name, &theirs) != Err(Unreadable::Damaged) {
                return self.inner.decode_value(name, &theirs).map(Some);
            }
            self.inner.engine.remove_summary(place.beginning, &theirs).await?;
        }
    }

    async fn summary(&self, beginning: ChainKey) -> StoreResult<Option<Bytes>> {
        let Some((body, is_stale)) = self.inner.engine.summary(beginning).await? else { return Ok(None) };
        let summary = self.inner.decode_value(Name::of_summary(beginning), &body);
        if summary.as_ref().is_err_and(StoreError::is_damage) {
            // While it is there, no process gets a claim to make it anew.
            self.inner.engine.remove_summary(beginning, &body).await?;
            return Ok(None);
        }
        if is_stale {
            // The summary is returned even if its use cannot be noted.
            let _noted = self.inner.engine.touch_summaries(&[beginning]).await;
        }
        summary.map(Some)
    }

    async fn summaries(&self) -> StoreResult<Vec<ChainKey>> {
        self.inner.engine.summaries().await
    }

    async fn verify(&self) -> StoreResult<Verified> {
        let mut verified = Verified::default();
        let mut query = PageQuery::default();
        loop {
            let listed = self.inner.list(&query, NAMED_AT_ONCE).await?;
            let Some((row, last)) = listed.last() else { break };
            query.after = Some(Cursor { used: last.used, row: *row });
            let rows: Vec<_> = listed.iter().map(|(row, _)| *row).collect();
            let bodies: HashMap<_, _> = self.inner.engine.bodies(&rows).await?.into_iter().collect();
            for (row, info) in listed {
                let name = Name::of_payload(info.key);
                if let Some(body) = bodies.get(&row) {
                    verified.count(name, self.inner.open(name, body).err());
                }
            }
        }
        for beginning in self.inner.engine.summaries().await? {
            let name = Name::of_summary(beginning);
            if let Some((body, _)) = self.inner.engine.summary(beginning).await? {
                verified.count(name, self.inner.open(name, &body).err());
            }
        }
        for group in NoteGroup::ALL {
            for (name, value) in self.inner.engine.notes(group).await? {
                match NoteKind::named(&name) {
                    Some((Some(kind), key)) => {
                        let name = Name::of_note(kind, key);
                        verified.count(name, self.inner.open(name, &value).err());
                    }
                    Some((None, _)) => {}
                    None => verified.damaged.push(NAMELESS.to_owned()),
                }
            }
        }
        Ok(verified)
    }

    async fn touch_summaries(&self, beginnings: Vec<ChainKey>) -> StoreResult<()> {
        self.inner.engine.touch_summaries(&beginnings).await
    }

    async fn put_inspected(&self, id: String, seen: Bytes, most: usize) -> StoreResult<()> {
        let body = self.inner.encode(Name::of_inspected(&id), seen).await?;
        self.inner.engine.put_inspected(&id, &body).await?;
        self.inner.engine.trim_inspected(most).await
    }

    async fn inspected(&self, id: String) -> StoreResult<Option<Bytes>> {
        let Some(body) = self.inner.engine.inspected(&id).await? else { return Ok(None) };
        self.inner.decode_value(Name::of_inspected(&id), &body).map(Some)
    }

    async fn trim_inspected(&self, most: usize) -> StoreResult<()> {
        self.inner.engine.trim_inspected(most).await
    }

    async fn note(&self, note: Note, keep: Duration) -> StoreResult<()> {
        let value = self.inner.encode(Name::of_note(note.kind, note.key), note.value).await?.into();
        self.inner.engine.note(Note { value, ..note }, keep).await
    }

    async fn notes(&self, group: NoteGroup) -> StoreResult<Vec<Note>> {
        let notes = self.inner.engine.notes(group).await?;
        // A damaged note is counted, and left out.
        let opened = |(name, value): (Vec<u8>, Vec<u8>)| {
            let Some((kind, key)) = NoteKind::named(&name) else {
                self.inner.counts().damage(&NAMELESS);
                return None;
            };
            let value = self.inner.decode_value(Name::of_note(kind?, key), &value).ok()?;
            Some(Note { kind: kind?, key, value })
        };
        Ok(notes.into_iter().filter_map(opened).collect())
    }

    async fn sweep(&self) -> StoreResult<SweepResult> {
        self.inner.sweep_all().await
    }

    async fn maintain(&self) -> StoreResult<()> {
        self.inner.maintain().await
    }

    async fn page(&self, query: PageQuery) -> StoreResult<Page> {
        self.inner.page(query).await
    }

    async fn stats(&self) -> StoreResult<Stats> {
        Ok(self.inner.counts().stats(Stats::of_totals(self.inner.engine.totals().await?)))
    }

    fn counts(&self) -> &Counts {
        self.inner.counts()
    }

    fn is_failing(&self) -> bool {
        self.state().is_err() || self.inner.counts().is_failing.load(Ordering::Relaxed)
    }

    fn shared(&self) -> Option<&dyn SharedStore> {
        Some(self)
    }

    async fn close(&self) -> StoreResult<()> {
        self.inner.engine.links().close();
        Ok(())
    }
}

#[async_trait]
impl<E: Engine> SharedStore for EngineStore<E> {
    async fn put_again(&self, payloads: NamedPayloads, lifetime: Lifetime) -> StoreResult<()> {
        self.put_unknown(payloads, lifetime, 0).await
    }

    async fn look(&self, root: ChainKey) -> StoreResult<Vec<Seen>> {
        self.inner.engine.look(root).await
    }

    async fn claim(&self, place: Place, claimant: Claimant) -> StoreResult<Option<SeenState>> {
        self.inner.engine.claim(place, claimant).await
    }

    async fn release(&self, place: Place, claimant: Claimant, not_before: Option<Duration>) -> StoreResult<()> {
        self.inner.engine.release(place, claimant, not_before).await
    }

    fn epoch(&self) -> u64 {
        self.inner.epoch()
    }

    fn engine(&self) -> &'static str {
        E::NAME
    }

    fn secret(&self) -> Option<[u8; 32]> {
        self.inner.identity.secret()
    }

    async fn promise(&self) -> String {
        let promise = self.inner.engine.promise().await;
        if self.inner.seal.is_on() { format!("{promise}; texts are encrypted there") } else { promise }
    }

    fn state(&self) -> EngineResult<()> {
        self.inner.engine.links().writes.open().map(drop)
    }
}

// === helpers ===

/// A note that cannot be named, because its name is damaged.
const NAMELESS: &str = "note without a key";

fn closed(op: Op) -> StoreError {
    StoreError::new(op, EngineError::Closed.kind(), EngineError::Closed)
}
