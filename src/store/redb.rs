//! A store in one file: redb, with one writer thread.
//!
//! Each commit waits for the disk, and one commit for many requests costs as much as one for one request. So all writes
//! go to one thread (`writer`), which puts everything that has queued up into one transaction and then answers all
//! requests. Reads run on blocking threads.
//!
//! While the disk is full or broken, operations fail. The file is reopened automatically, because redb refuses
//! everything after a failed write until it is reopened.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ::redb::{Database, Error};
use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{Mutex, RwLock, Semaphore, mpsc, oneshot};
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::codec::{LARGE, Name, SUMMARY};
use super::error::Fault;
use super::known_keys::{self, KnownKeys};
use super::{
    Clock, Counts, NamedPayloads, Note, NoteGroup, Op, Page, PageQuery, Settings, Stats, Store, StoreError,
    StoreErrorKind, StoreResult, SweepResult, Verified,
};
use crate::held::Held;
use crate::payload::{ChainKey, Lifetime, Payload, PayloadKey, Place};
use crate::tasks::{run_blocking, run_blocking_from, yield_thread};

mod file;
mod others;
mod salvage;
mod tables;
mod whole;
mod writer;

pub use file::{OpenError, aside_of};
use file::{Opener, Secret, kind_of, unwound};
pub use salvage::{SalvageError, Salvaged, salvage, secret};
use tables::NewValue;
use writer::{Job, Reply, Writer, send_reply};

/// How many jobs may be queued for the writer; further requests wait for a place.
const QUEUE_LEN: usize = 64;

/// A use is written if the one in the file is older than this, or than an eighth of `keep_for`.
const USE_RESOLUTION: Duration = Duration::from_hours(1);

/// How long the writer pauses after a failure before it tries again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// How many reads run at a time: a disk that does not answer blocks no more threads than these.
const MAX_READERS: usize = 8;

/// A store in one file.
#[derive(derive_more::Debug)]
#[debug("RedbStore({:?})", shared.path)]
pub struct RedbStore {
    jobs: mpsc::Sender<Job>,
    shared: Arc<Shared>,
    readers: Arc<Semaphore>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// The state that readers and the writer share.
struct Shared {
    path: PathBuf,
    secret: Zeroizing<Secret>,
    settings: Settings,
    clock: Clock,
    // Locked for writing only while the file is compacted or reopened; `None` while it cannot be opened.
    database: RwLock<Option<Database>>,
    known: Mutex<KnownKeys<Name>>,
    counts: Counts,
    // Says that a file was set aside.
    notice: Held<Option<String>>,
}

/// How the file is opened, and how failures are retried.
struct DatabaseOptions {
    opener: Opener,
    retry_pause: Duration,
    // Whether a damaged file is set aside, and a new one is begun; otherwise it is an error.
    sets_aside: bool,
}

// === impl DatabaseOptions ===

impl DatabaseOptions {
    fn of(path: &Path) -> Self {
        Self { opener: file::opener(path), retry_pause: RETRY_PAUSE, sets_aside: false }
    }
}

// === impl RedbStore ===

impl RedbStore {
    /// Opens the file, or creates it. Blocks.
    pub fn open(path: &Path, settings: Settings, clock: Clock) -> Result<Self, OpenError> {
        Self::open_with(path, DatabaseOptions::of(path), settings, clock)
    }

    /// Opens the file, or creates it. A file that is damaged or is not a store is set aside, unless the settings require the
    /// store. Blocks.
    pub fn open_or_set_aside(path: &Path, settings: Settings, clock: Clock) -> Result<Self, OpenError> {
        let sets_aside = !settings.required;
        let options = || DatabaseOptions { sets_aside, ..DatabaseOptions::of(path) };
        let error = match Self::open_with(path, options(), settings.clone(), clock.clone()) {
            Err(error) if error.is_unusable() && sets_aside => error,
            other => return other,
        };
        let Ok(aside) = file::set_aside(path, clock.now(), &error) else { return Err(error) };
        // With the same secret, the same texts get the same handles.
        drop(file::open(path, &file::opener(path), secret(&aside.path))?);
        let store = Self::open_with(path, options(), settings, clock)?;
        store.shared.notice.with(|notice| *notice = Some(aside.notice));
        Ok(store)
    }

    /// Creates a file with this secret. A file that exists must have it.
    pub fn create(path: &Path, settings: Settings, clock: Clock, secret: [u8; 32]) -> Result<Self, OpenError> {
        drop(file::open(path, &file::opener(path), Some(secret))?);
        Self::open(path, settings, clock)
    }

    fn open_with(path: &Path, options: DatabaseOptions, settings: Settings, clock: Clock) -> Result<Self, OpenError> {
        let (db, secret) = file::open(path, &options.opener, None)?;
        file::write_holder(path);
        let resolution = USE_RESOLUTION.min(settings.keep_for.0 / 8);
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            secret: Zeroizing::new(secret),
            settings,
            clock,
            database: RwLock::new(Some(db)),
            known: Mutex::new(KnownKeys::new(known_keys::PER_GENERATION, resolution, Duration::MAX)),
            counts: Counts::default(),
            notice: Held::default(),
        });
        let (jobs, queue) = mpsc::channel(QUEUE_LEN);
        let writer = Writer::new(Arc::clone(&shared), queue, options);
        let writer = thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || writer.run())
            .map_err(|error| OpenError::Io { path: path.to_owned(), source: Arc::new(error.into()) })?;
        Ok(Self { jobs, shared, readers: Arc::new(Semaphore::new(MAX_READERS)), writer: Mutex::new(Some(writer)) })
    }

    /// The secret that was created with the file. Used only to make [`Keys`](crate::payload::Keys).
    pub fn secret(&self) -> [u8; 32] {
        *self.shared.secret
    }

    /// Has the writer do something, and waits for what comes of it.
    async fn run<T: Send + 'static>(
        &self,
        op: Op,
        run: impl FnOnce(&mut Writer) -> StoreResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        self.submit(op, |reply| Job::Run(Box::new(move |writer: &mut Writer| send_reply(reply, run(writer))))).await
    }

    /// Submits a job to the writer and waits for its reply.
    async fn submit<T>(&self, op: Op, job: impl FnOnce(Reply<T>) -> Job) -> StoreResult<T> {
        let (reply, answered) = oneshot::channel();
        self.jobs.send(job(reply)).await.map_err(|_| closed(op))?;
        answered.await.map_err(|_| closed(op))?
    }

    /// Reads on a blocking thread. If that fails, the file is reopened and read once more.
    async fn read<T: Send + 'static>(
        &self,
        read: impl Fn(&Database) -> Result<T, Error> + Send + Sync + 'static,
    ) -> StoreResult<T> {
        let read = Arc::new(read);
        let try_once = || {
            let (shared, read, readers) = (Arc::clone(&self.shared), Arc::clone(&read), Arc::clone(&self.readers));
            async move {
                // The semaphore is never closed. An abandoned read keeps its permit until the disk has answered.
                let place = readers.acquire_owned().await.ok();
                let read = move || {
                    let found = shared.read(&*read);
                    drop(place);
                    found
                };
                run_blocking(read).await.unwrap_or_else(|_| Err(closed(Op::Read)))
            }
        };
        match try_once().await {
            Err(error) if matches!(error.kind, StoreErrorKind::Unavailable | StoreErrorKind::Corrupt) => {
                // This reopens the file if need be.
                self.run(Op::Read, |writer| writer.attempt(Op::Read, |db, _| tables::count_tombstones(db))).await?;
                try_once().await
            }
            other => other,
        }
    }
}

#[async_trait]
impl Store for RedbStore {
    async fn put(&self, payloads: NamedPayloads, lifetime: Lifetime) -> StoreResult<()> {
        let n = payloads.len();
        let missing = self.shared.unknown(payloads, lifetime, |(key, _)| *key).await;
        self.shared.counts.known.fetch_add((n - missing.len()) as u64, Ordering::Relaxed);
        if missing.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        let payloads = encode_all(missing, lifetime).await?;
        let kept = self.submit(Op::Write, |reply| Job::Put { payloads, reply }).await;
        self.shared.counts.waits.observe(began.elapsed().as_secs_f64());
        kept
    }

    async fn load(&self, key: PayloadKey) -> StoreResult<Option<Payload>> {
        let Some(stored) = self.read(move |db| tables::get(db, Name::of_payload(key))).await? else { return Ok(None) };
        let payload = self.shared.counts.payload(Name::of_payload(key), stored);
        if payload.is_err() {
            // The next put writes it anew.
            self.shared.known.lock().await.forget(Name::of_payload(key));
        }
        let Some(payload) = payload? else { return Ok(None) };
        self.shared.counts.recalled.fetch_add(1, Ordering::Relaxed);
        // The payload is returned even if its use cannot be noted.
        let _noted = self.touch(vec![key]).await;
        Ok(Some(payload))
    }

    async fn was_swept(&self, key: PayloadKey) -> StoreResult<bool> {
        self.read(move |db| tables::was_swept(db, key)).await
    }

    async fn touch(&self, keys: Vec<PayloadKey>) -> StoreResult<()> {
        let unknown = self.shared.unknown(keys, Lifetime::Usual, |key| *key).await;
        if unknown.is_empty() { Ok(()) } else { self.run(Op::Write, move |writer| writer.touch(&unknown)).await }
    }

    async fn offer_summary(&self, Place { beginning, .. }: Place, summary: Bytes) -> StoreResult<Option<Bytes>> {
        let new = encode(Name::of_summary(beginning), summary).await?;
        let offer = move |writer: &mut Writer| {
            let offered = writer.offer_summary(&new);
            writer.sweep_if_crowded();
            offered
        };
        self.run(Op::Write, offer).await
    }

    async fn summary(&self, beginning: ChainKey) -> StoreResult<Option<Bytes>> {
        let name = Name::of_summary(beginning);
        let Some(stored) = self.read(move |db| tables::get(db, name)).await? else { return Ok(None) };
        let summary = self.shared.counts.value(name, stored);
        // The next offer replaces a damaged one.
        if summary.as_ref().is_err_and(StoreError::is_damage) {
            return Ok(None);
        }
        self.touch_summaries(vec![beginning]).await?;
        summary.map(Some)
    }

    async fn summaries(&self) -> StoreResult<Vec<ChainKey>> {
        let beginning = |row: Result<(Name, _), Error>| Ok(ChainKey::from_bytes(row?.0.id));
        self.read(move |db| tables::rows(db, tables::of_kind(SUMMARY))?.map(beginning).collect()).await
    }

    async fn touch_summaries(&self, beginnings: Vec<ChainKey>) -> StoreResult<()> {
        let mut known = self.shared.known.lock().await;
        let now = self.shared.clock.now();
        for beginning in beginnings {
            known.note(Name::of_summary(beginning), now);
        }
        Ok(())
    }

    async fn put_inspected(&self, id: String, seen: Bytes, most: usize) -> StoreResult<()> {
        let new = encode(Name::of_inspected(&id), seen).await?;
        self.run(Op::Write, move |writer| writer.put_inspected(&new, &id, most)).await
    }

    async fn inspected(&self, id: String) -> StoreResult<Option<Bytes>> {
        let found = self.read(move |db| others::inspected(db, &id)).await?;
        found.map(|(name, stored)| self.shared.counts.value(name, stored)).transpose()
    }

    async fn trim_inspected(&self, most: usize) -> StoreResult<()> {
        self.run(Op::Write, move |writer| writer.trim_inspected(most)).await
    }

    async fn note(&self, Note { kind, key, value }: Note, keep: Duration) -> StoreResult<()> {
        let new = encode(Name::of_note(kind, key), value).await?;
        self.run(Op::Write, move |writer| writer.note(&new, &kind.name_of(key), keep)).await
    }

    async fn notes(&self, group: NoteGroup) -> StoreResult<Vec<Note>> {
        let now = self.shared.clock.now();
        let notes = self.read(move |db| others::notes(db, group, now)).await?;
        // A damaged note is counted, and left out.
        let opened = |(kind, key, stored)| {
            Some(Note { kind, key, value: self.shared.counts.value(Name::of_note(kind, key), stored).ok()? })
        };
        Ok(notes.into_iter().filter_map(opened).collect())
    }

    async fn sweep(&self) -> StoreResult<SweepResult> {
        self.run(Op::Write, Writer::sweep_now).await
    }

    async fn maintain(&self) -> StoreResult<()> {
        self.run(Op::Write, Writer::maintain).await
    }

    async fn compact(&self) -> StoreResult<()> {
        self.run(Op::Write, Writer::compact).await
    }

    async fn page(&self, query: PageQuery) -> StoreResult<Page> {
        self.read(move |db| {
            let mut scan = query.scan();
            for entry in tables::payloads(db)? {
                let (entry, _) = entry?;
                scan.visit(entry.key, entry);
            }
            // A damaged payload is not found.
            scan.finish(|key| {
                Ok(tables::get(db, Name::of_payload(key))?.and_then(Result::ok).map(|payload| payload.bytes()))
            })
        })
        .await
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.shared.path)
    }

    fn notice(&self) -> Option<String> {
        self.shared.notice.with(|notice| notice.clone())
    }

    async fn backup(&self, to: &Path) -> StoreResult<()> {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());
        let (shared, to, turn) = (Arc::clone(&self.shared), to.to_owned(), ONE_AT_A_TIME.lock().await);
        // A fault of the copy does not count as a failure of the store.
        let copy = move || {
            let _turn = turn;
            let database = shared.database.blocking_read();
            let db = database.as_ref().ok_or_else(|| closed(Op::Read))?;
            unwound(|| file::backup(db, &to)).map_err(|error| failed(Op::Read, error))
        };
        run_blocking(copy).await.unwrap_or_else(|_| Err(closed(Op::Read)))
    }

    async fn verify(&self) -> StoreResult<Verified> {
        self.read(whole::verify).await
    }

    async fn stats(&self) -> StoreResult<Stats> {
        let totals = self.read(others::totals).await?;
        Ok(self.shared.counts.stats(Stats { file_bytes: self.shared.file_len(), ..totals }))
    }

    fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    async fn close(&self) -> StoreResult<()> {
        let Some(writer) = self.writer.lock().await.take() else { return Ok(()) };
        let closed_well = self.submit(Op::Write, |reply| Job::Close { reply }).await;
        run_blocking(move || writer.join()).await.map_err(|_| closed(Op::Write))?.map_err(|_| closed(Op::Write))?;
        closed_well
    }
}

// === impl Shared ===

impl Shared {
    /// Those that are not known to be stored for as long. The others count as used now.
    async fn unknown<T>(&self, mut all: Vec<T>, lifetime: Lifetime, key: fn(&T) -> PayloadKey) -> Vec<T> {
        let mut known = self.known.lock().await;
        let now = self.clock.now();
        all.retain(|one| !known.touch(Name::of_payload(key(one)), lifetime, now));
        all
    }

    /// Reads from the database. Blocks.
    fn read<T>(&self, read: impl Fn(&Database) -> Result<T, Error>) -> StoreResult<T> {
        let database = self.database.blocking_read();
        let db = database.as_ref().ok_or_else(|| closed(Op::Read))?;
        unwound(|| read(db)).map_err(|error| {
            self.counts.failures.fetch_add(1, Ordering::Relaxed);
            failed(Op::Read, error)
        })
    }

    fn file_len(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |file| file.len())
    }
}

// === helpers ===

async fn encode_all(payloads: NamedPayloads, lifetime: Lifetime) -> StoreResult<Vec<NewValue>> {
    let n_bytes = payloads.iter().map(|(_, payload)| payload.len()).sum();
    let new = move |(key, payload)| NewValue::new(Name::of_payload(key), &payload, lifetime);
    let in_turns = payloads.into_iter().map(new).inspect(|_| yield_thread());
    run_blocking_from(LARGE + 1, n_bytes, || in_turns.collect()).await.map_err(|_| closed(Op::Write))
}

async fn encode(name: Name, bytes: Bytes) -> StoreResult<NewValue> {
    let n_bytes = bytes.len();
    let encode = move || NewValue::new(name, &bytes.into(), Lifetime::Usual);
    run_blocking_from(LARGE + 1, n_bytes, encode).await.map_err(|_| closed(Op::Write))
}

fn failed(op: Op, error: Error) -> StoreError {
    StoreError::new(op, kind_of(&error), error)
}

fn closed(op: Op) -> StoreError {
    StoreError::new(op, StoreErrorKind::Unavailable, Fault::Closed)
}

#[cfg(test)]
mod tests;
