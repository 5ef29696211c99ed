//! A store that is one file: redb, with one thread that writes.
//!
//! Each commit waits for the disk, and waiting for it once for many requests costs what waiting for it once costs. So all
//! writes go to one thread, which takes what has come together in the meantime, makes one transaction of it, and tells
//! everybody (`writer`). Readers need no thread of their own, only one that may block.
//!
//! A disk that is full or broken is an error for those who ask meanwhile. The file is opened again by itself: redb refuses
//! everything after a failed write until somebody does so.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ::redb::{Database, Error};
use bytes::Bytes;
use tokio::sync::{Mutex, RwLock, Semaphore, mpsc, oneshot};
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::known::Known;
use super::{
    Clock, Doing, Entry, Kind, MOST_SUMMARIES, Op, Page, Paged, Settings, Stats, Store, StoreError, Swept, Time, Work,
};
use crate::metrics::histogram::{Histogram, SHORT};
use crate::payload::{ChainKey, Payload, PayloadKey};
use crate::tasks::run_blocking;

mod file;
mod packed;
mod tables;
mod writer;

pub use file::OpenError;
use file::{Opener, SCHEMA, Schema, Secret, kind_of};
use packed::Packed;
use writer::{Answer, Job, Writer};

/// How many jobs may wait for the writer; who comes then waits for a place.
const QUEUE: usize = 64;

/// How many keys are known without asking the file: twice this at most, at some 60 bytes each.
const KNOWN: usize = 32_768;

/// Payloads that together are longer than this are packed on a thread that may block.
const HOP_FROM: usize = 64 * 1024;

/// A use is written down if the one in the file is older than this, or than an eighth of the time that payloads are kept.
const GRAIN: Duration = Duration::from_hours(1);

/// How long the writer rests after a failure, before it tries again.
const REST: Duration = Duration::from_secs(1);

/// So many read at a time, so that a disk that does not answer holds no more threads than these.
const READERS: usize = 8;

/// A store in one file.
pub struct Redb {
    secret: Zeroizing<Secret>,
    jobs: mpsc::Sender<Job>,
    shared: Arc<Shared>,
    readers: Arc<Semaphore>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// What readers and the writer have in common.
struct Shared {
    path: PathBuf,
    settings: Settings,
    clock: Clock,
    // Written to only while the file is compacted or opened again; empty while it cannot be.
    slot: RwLock<Option<Database>>,
    known: Mutex<Known>,
    // When summaries were used, till the next sweep writes it down.
    summaries_used: Mutex<HashMap<ChainKey, Time>>,
    counts: Counts,
}

/// How the file is opened, and by which rules.
struct Way {
    opener: Opener,
    schema: Schema,
    rest: Duration,
}

#[derive(Debug)]
struct Counts {
    commits: AtomicU64,
    written: AtomicU64,
    written_bytes: AtomicU64,
    known: AtomicU64,
    recalled: AtomicU64,
    failures: AtomicU64,
    // It has failed, and was not well since.
    alarmed: AtomicBool,
    waits: Histogram,
}

impl Default for Counts {
    fn default() -> Self {
        let [commits, written, written_bytes, known, recalled, failures] = [const { AtomicU64::new(0) }; 6];
        let alarmed = AtomicBool::new(false);
        let waits = Histogram::of_times(SHORT);
        Self { commits, written, written_bytes, known, recalled, failures, alarmed, waits }
    }
}

/// The store was closed, or its thread has died.
#[derive(Debug, thiserror::Error)]
#[error("it is closed")]
struct Closed;

// === impl Redb ===

impl Redb {
    /// Opens the file, or makes it. Blocks.
    pub fn open(path: &Path, settings: Settings, clock: Clock) -> Result<Self, OpenError> {
        let opener = file::opener(path, settings.cache.as_usize());
        Self::open_as(path, Way { opener, schema: SCHEMA, rest: REST }, settings, clock)
    }

    fn open_as(path: &Path, way: Way, settings: Settings, clock: Clock) -> Result<Self, OpenError> {
        let Way { opener, schema, rest } = way;
        let (db, secret) = file::open(path, &opener, schema, None)?;
        let grain = GRAIN.min(settings.keep_for.0 / 8);
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            settings,
            clock,
            slot: RwLock::new(Some(db)),
            known: Mutex::new(Known::new(KNOWN, grain)),
            summaries_used: Mutex::default(),
            counts: Counts::default(),
        });
        let (jobs, queue) = mpsc::channel(QUEUE);
        let writer = Writer::new(Arc::clone(&shared), queue, Way { opener, schema, rest }, secret);
        let writer = thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || writer.run())
            .map_err(|error| OpenError::Io { path: path.to_owned(), source: Arc::new(error.into()) })?;
        Ok(Self {
            secret: Zeroizing::new(secret),
            jobs,
            shared,
            readers: Arc::new(Semaphore::new(READERS)),
            writer: Mutex::new(Some(writer)),
        })
    }

    /// The secret that was made with the file. It is to make [`Keys`](crate::payload::Keys) of, and for nothing else.
    pub fn secret(&self) -> [u8; 32] {
        *self.secret
    }

    /// Has the writer do something.
    async fn ask<T>(&self, op: Op, job: impl FnOnce(Answer<T>) -> Job) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.jobs.send(job(answer)).await.map_err(|_| closed(op))?;
        answered.await.map_err(|_| closed(op))?
    }

    /// Reads on a thread that may block. Where that fails, the file is opened again, and read once more.
    async fn read<T: Send + 'static>(
        &self,
        read: impl Fn(&Database) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        let read = Arc::new(read);
        let try_once = || {
            let (shared, read, readers) = (Arc::clone(&self.shared), Arc::clone(&read), Arc::clone(&self.readers));
            async move {
                // It is never closed. A read that nobody waits for any more keeps its place till the disk has answered.
                let place = readers.acquire_owned().await.ok();
                let read = move || {
                    let found = shared.read(&*read);
                    drop(place);
                    found
                };
                run_blocking(read).await.unwrap_or_else(|_| Err(closed(Op::Get)))
            }
        };
        match try_once().await {
            Err(error) if error.kind == Kind::Unavailable => {
                self.ask(Op::Get, |answer| Job::Mend { answer }).await?;
                try_once().await
            }
            other => other,
        }
    }
}

impl fmt::Debug for Redb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redb").field("path", &self.shared.path).finish_non_exhaustive()
    }
}

impl Store for Redb {
    fn keep_all(&self, payloads: Vec<(PayloadKey, Payload)>) -> Doing<'_, ()> {
        Box::pin(async move {
            let missing = self.shared.missing(payloads).await;
            if missing.is_empty() {
                return Ok(());
            }
            let began = Instant::now();
            let payloads = pack(missing).await?;
            let kept = self.ask(Op::Put, |answer| Job::Put { payloads, answer }).await;
            self.shared.counts.waits.time(began.elapsed());
            kept
        })
    }

    fn get(&self, key: PayloadKey) -> Doing<'_, Option<Bytes>> {
        Box::pin(async move {
            let Some(payload) = self.read(move |db| tables::get(db, key)).await? else { return Ok(None) };
            self.shared.counts.recalled.fetch_add(1, Ordering::Relaxed);
            // The payload is there, whether its use can be noted or not.
            let _noted = self.touch(vec![key]).await;
            Ok(Some(payload))
        })
    }

    fn was_swept(&self, key: PayloadKey) -> Doing<'_, bool> {
        Box::pin(self.read(move |db| tables::was_swept(db, key)))
    }

    fn touch(&self, keys: Vec<PayloadKey>) -> Doing<'_, ()> {
        Box::pin(async move {
            let unknown: Vec<_> = {
                let mut known = self.shared.known.lock().await;
                let now = self.shared.clock.now();
                keys.into_iter().filter(|key| !known.touch(*key, now)).collect()
            };
            if unknown.is_empty() {
                return Ok(());
            }
            self.ask(Op::Put, |answer| Job::Touch { keys: unknown, answer }).await
        })
    }

    fn keep_summary(&self, beginning: ChainKey, summary: Bytes) -> Doing<'_, ()> {
        Box::pin(async move {
            let packed = pack_one(summary).await?;
            self.ask(Op::Put, |answer| Job::Summary { beginning, packed, answer }).await
        })
    }

    fn summary(&self, beginning: ChainKey) -> Doing<'_, Option<Bytes>> {
        Box::pin(async move {
            let summary = self.read(move |db| tables::summary(db, beginning)).await?;
            self.touch_summaries(vec![beginning]).await?;
            Ok(summary)
        })
    }

    fn summaries(&self) -> Doing<'_, Vec<ChainKey>> {
        Box::pin(self.read(|db| {
            let mut all = Vec::new();
            tables::each_summary(db, |beginning, _, _| all.push(beginning))?;
            Ok(all)
        }))
    }

    fn touch_summaries(&self, beginnings: Vec<ChainKey>) -> Doing<'_, ()> {
        Box::pin(async move {
            let mut used = self.shared.summaries_used.lock().await;
            let now = self.shared.clock.now();
            for beginning in beginnings {
                // Were there ever more, they would age a little early.
                if used.len() < MOST_SUMMARIES || used.contains_key(&beginning) {
                    used.insert(beginning, now);
                }
            }
            Ok(())
        })
    }

    fn keep_inspected(&self, id: String, seen: Bytes, most: usize) -> Doing<'_, ()> {
        Box::pin(async move {
            let packed = pack_one(seen).await?;
            self.ask(Op::Put, |answer| Job::Inspected { id, packed, most, answer }).await
        })
    }

    fn inspected(&self, id: String) -> Doing<'_, Option<Bytes>> {
        Box::pin(self.read(move |db| tables::inspected(db, &id)))
    }

    fn trim_inspected(&self, most: usize) -> Doing<'_, ()> {
        Box::pin(self.ask(Op::Sweep, move |answer| Job::TrimInspected { most, answer }))
    }

    fn sweep(&self) -> Doing<'_, Swept> {
        Box::pin(self.ask(Op::Sweep, |answer| Job::Sweep { answer }))
    }

    fn keep_house(&self) -> Doing<'_, ()> {
        Box::pin(self.ask(Op::Sweep, |answer| Job::KeepHouse { answer }))
    }

    fn compact(&self) -> Doing<'_, ()> {
        Box::pin(self.ask(Op::Compact, |answer| Job::Compact { answer }))
    }

    fn list(&self, most: usize) -> Doing<'_, Vec<Entry>> {
        Box::pin(async move {
            let mut entries = self.read(entries).await?;
            entries.sort_by_key(|entry| (std::cmp::Reverse(entry.used), entry.key));
            entries.truncate(most);
            Ok(entries)
        })
    }

    fn page(&self, page: Page) -> Doing<'_, Paged> {
        Box::pin(self.read(move |db| {
            let mut looking = page.begin();
            tables::each(db, |entry| looking.see(entry))?;
            looking.end(|key| tables::get(db, key))
        }))
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.shared.path)
    }

    fn is_in_trouble(&self) -> bool {
        self.shared.counts.alarmed.load(Ordering::Relaxed)
    }

    fn stats(&self) -> Doing<'_, Stats> {
        Box::pin(async move {
            let mut stats = self.read(totals).await?;
            let counts = &self.shared.counts;
            stats.file_bytes = self.shared.file_len();
            stats.commits = counts.commits.load(Ordering::Relaxed);
            stats.written = counts.written.load(Ordering::Relaxed);
            stats.known = counts.known.load(Ordering::Relaxed);
            stats.recalled = counts.recalled.load(Ordering::Relaxed);
            stats.failures = counts.failures.load(Ordering::Relaxed);
            Ok(stats)
        })
    }

    fn work(&self) -> Work {
        let Counts { commits, written, written_bytes, known, failures, waits, .. } = &self.shared.counts;
        let [commits, written, written_bytes, known, failures] =
            [commits, written, written_bytes, known, failures].map(|count| count.load(Ordering::Relaxed));
        Work { commits, written, written_bytes, known, failures, waits: waits.snapshot() }
    }

    fn close(&self) -> Doing<'_, ()> {
        Box::pin(async move {
            let Some(writer) = self.writer.lock().await.take() else { return Ok(()) };
            let closed_well = self.ask(Op::Close, |answer| Job::Close { answer }).await;
            run_blocking(move || writer.join()).await.map_err(|_| closed(Op::Close))?.map_err(|_| closed(Op::Close))?;
            closed_well
        })
    }
}

// === impl Shared ===

impl Shared {
    /// The payloads that are not known to be kept; the others count as used now.
    async fn missing(&self, mut payloads: Vec<(PayloadKey, Payload)>) -> Vec<(PayloadKey, Payload)> {
        let n = payloads.len();
        let mut known = self.known.lock().await;
        let now = self.clock.now();
        payloads.retain(|(key, _)| !known.touch(*key, now));
        self.counts.known.fetch_add((n - payloads.len()) as u64, Ordering::Relaxed);
        payloads
    }

    /// Reads. Only on threads that may block.
    fn read<T>(&self, read: impl Fn(&Database) -> Result<T, Error>) -> Result<T, StoreError> {
        let slot = self.slot.blocking_read();
        let db = slot.as_ref().ok_or_else(|| closed(Op::Get))?;
        read(db).map_err(|error| {
            self.counts.failures.fetch_add(1, Ordering::Relaxed);
            failed(Op::Get, error)
        })
    }

    fn file_len(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |file| file.len())
    }
}

// === helpers ===

async fn pack(payloads: Vec<(PayloadKey, Payload)>) -> Result<Vec<(PayloadKey, Packed)>, StoreError> {
    let bytes: usize = payloads.iter().map(|(_, payload)| payload.len()).sum();
    let pack = move || payloads.into_iter().map(|(key, payload)| (key, Packed::new(payload.bytes()))).collect();
    if bytes < HOP_FROM { Ok(pack()) } else { run_blocking(pack).await.map_err(|_| closed(Op::Put)) }
}

async fn pack_one(bytes: Bytes) -> Result<Packed, StoreError> {
    if bytes.len() < HOP_FROM {
        return Ok(Packed::new(bytes));
    }
    run_blocking(move || Packed::new(bytes)).await.map_err(|_| closed(Op::Put))
}

fn entries(db: &Database) -> Result<Vec<Entry>, Error> {
    let mut entries = Vec::new();
    tables::each(db, |entry| entries.push(entry))?;
    Ok(entries)
}

fn totals(db: &Database) -> Result<Stats, Error> {
    let mut stats = Stats { tombstones: tables::n_tombstones(db)?, ..Stats::default() };
    tables::each(db, |entry| {
        stats.payloads += 1;
        stats.bytes += entry.bytes;
        stats.stored_bytes += entry.stored_bytes;
    })?;
    tables::each_summary(db, |_, _, stored_bytes| {
        stats.summaries += 1;
        stats.summary_bytes += stored_bytes;
    })?;
    (stats.inspected, stats.inspected_bytes) = tables::n_inspected(db)?;
    Ok(stats)
}

fn failed(op: Op, error: Error) -> StoreError {
    StoreError::new(op, kind_of(&error), error)
}

fn closed(op: Op) -> StoreError {
    StoreError::new(op, Kind::Unavailable, Closed)
}

#[cfg(test)]
mod tests;
