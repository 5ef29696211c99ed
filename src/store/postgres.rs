//! A store in PostgreSQL, or in what speaks its protocol, that many processes use at once.
//!
//! A payload is durable in the engine before the request that names it goes on. What this process has written or seen there
//! is remembered for half a grain, an eighth of `keep_for`, and what is remembered is asked for and written no more. So each
//! key that is in use costs one small write a grain, whoever uses it, and what is known has at least seven eighths of
//! `keep_for` left.

use std::fmt;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, sleep};
use tokio_postgres::types::{ToSql, Type};

use super::codec::Encoded;
use super::counts::Counts;
use super::known_keys::KnownKeys;
use super::secret::Secrets;
use super::{
    Clock, Offered, Op, Page, PageQuery, PayloadInfo, Settings, SharedStore, Stats, Store, StoreCounters, StoreError,
    StoreFuture, SweepResult, Time,
};
use crate::payload::{ChainKey, Lifetime, Payload, PayloadKey, Place};
use crate::tasks::{Tasks, run_blocking};

mod calls;
pub mod error;
mod exchange;
mod identity;
pub mod init;
mod link;
mod payloads;
mod sql;
mod sweep;
mod tls;
mod writer;

pub use error::{OpenError, PostgresError};
use identity::Identity;
use link::{Link, Parameters};
use tls::Tls;
use writer::{Job, NewRow};

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// The URL, with several hosts if need be.
    pub url: String,
    /// The settings.
    pub settings: Settings,
    /// The secrets of the settings.
    pub secrets: Secrets,
    /// Tells the engine's time, or a test's.
    pub clock: EngineClock,
    /// The secret that tables without one get; `None` for a random one.
    pub fresh: Option<[u8; 32]>,
}

/// Whose time counts.
#[derive(Clone, Debug)]
pub enum EngineClock {
    /// The engine's.
    Engine(Instant),
    /// A test's.
    Test(Clock),
}

/// A store in PostgreSQL.
pub struct PostgresStore {
    inner: Arc<Inner>,
    jobs: mpsc::Sender<Job>,
}

/// What calls and the writer share.
struct Inner {
    settings: Settings,
    prefix: String,
    clock: EngineClock,
    identity: Arc<Identity>,
    // A connection for writes and one for reads, as an engine answers the calls of one connection in turn.
    writes: Arc<Link>,
    reads: Arc<Link>,
    known: Mutex<Known>,
    is_full: AtomicBool,
    totals: Mutex<Option<Totals>>,
    counts: Counts,
}

/// The keys that are known to be in the engine, since it was connected to for the last time.
#[derive(Debug)]
struct Known {
    keys: KnownKeys,
    epoch: u64,
}

/// Totals of all that is stored, when they were counted, and how long that took.
#[derive(Clone, Copy, Debug)]
struct Totals {
    stats: Stats,
    at: Instant,
    took: Duration,
}

/// How many puts may be queued for the writer; further requests wait for a place.
const QUEUE_LEN: usize = 64;

/// How many keys one generation of [`KnownKeys`] holds.
const KNOWN_PER_GENERATION: usize = 32_768;

/// Payloads that together are longer than this are encoded on a blocking thread, and the engine is asked which of them it
/// has before they are sent.
const LARGE: usize = 64 * 1024;

/// At start, the engine is asked again after this time.
const START_PAUSE: Duration = Duration::from_secs(1);

/// Totals that took time `t` to count are counted again after this many times `t`.
const TOTALS_PAUSE: u32 = 100;

// === impl EngineClock ===

impl EngineClock {
    /// The engine's clock.
    pub fn engine() -> Self {
        Self::Engine(Instant::now())
    }

    /// The first parameter of a statement that needs the time.
    fn parameter(&self) -> Option<i64> {
        match self {
            Self::Engine(_) => None,
            Self::Test(clock) => Some(count(clock.now().0)),
        }
    }

    /// A time for spans of time in this process.
    fn local(&self) -> Time {
        match self {
            Self::Engine(began) => Time(began.elapsed().as_secs()),
            Self::Test(clock) => clock.now(),
        }
    }
}

// === impl PostgresStore ===

impl PostgresStore {
    /// Connects. Without a secret in the settings this waits until the engine has given its own; with one it returns while
    /// the engine is away. An engine that can be reached and is not this fleet's is an error.
    pub async fn open(options: Options) -> Result<Self, OpenError> {
        // Apart from the tasks of requests, which end before the store is closed.
        let tasks = Tasks::default();
        let Options { url, settings, secrets, clock, fresh } = options;
        let timeout = settings.timeout.0;
        let hosts = link::hosts(&url, timeout)?;
        let tls = Tls::new(settings.ca_file.as_deref())?;
        let fresh = fresh.map_or_else(new_secret, Ok)?;
        let prefix = settings.table_prefix();
        let may_wait = secrets.current().is_none();
        let identity = Arc::new(Identity::new(prefix.clone(), secrets, fresh));
        let connect = || Link::start(hosts.clone(), tls.clone(), Arc::clone(&identity), timeout, &tasks);
        let (writes, reads) = (connect(), connect());
        let mut outcome = writes.first_attempt().await;
        let mut n_failures = 0_u32;
        while let Err(error) = &outcome {
            if !error.may_pass() {
                writes.close();
                reads.close();
                return Err(error.clone().into());
            }
            if n_failures == 0 {
                tracing::error!(%error, waiting = may_wait, "the store's engine is away");
            }
            if !may_wait {
                break;
            }
            n_failures += 1;
            sleep(START_PAUSE).await;
            outcome = writes.state();
        }
        if outcome.is_ok() {
            reads.connected().await;
        }
        let known = KnownKeys::new(KNOWN_PER_GENERATION, Duration::MAX);
        let inner = Arc::new(Inner {
            settings,
            prefix,
            clock,
            identity,
            writes,
            reads,
            known: Mutex::new(Known { keys: known, epoch: 0 }),
            is_full: AtomicBool::new(false),
            totals: Mutex::default(),
            counts: Counts::default(),
        });
        let (jobs, queue) = mpsc::channel(QUEUE_LEN);
        tasks.spawn(writer::run(Arc::clone(&inner), queue, tasks.clone()));
        Ok(Self { inner, jobs })
    }

    /// The secret that names are made with.
    pub fn secret(&self) -> Option<[u8; 32]> {
        self.inner.identity.secret()
    }

    /// What the engine promises of what it has confirmed, in words.
    pub async fn promise(&self) -> String {
        let asked = self.inner.reads.query(sql::PROMISE, &[]).await;
        let row = asked.as_ref().ok().and_then(|rows| rows.first());
        let said = row.and_then(|row| Some((row.try_get::<_, String>(0).ok()?, row.try_get::<_, i64>(1).ok()?)));
        match said {
            Some((commit, _)) if commit == "off" => {
                "synchronous_commit is off, so a crash of the engine may lose what it has just confirmed".to_owned()
            }
            Some((commit, 1..)) if commit != "local" => {
                "what it has confirmed is on two machines, and survives the loss of one".to_owned()
            }
            Some(_) => "what it has confirmed survives a crash, and not the loss of its disk".to_owned(),
            None => "it does not say what survives a crash".to_owned(),
        }
    }

    /// Why there is no connection, if there is none.
    pub fn state(&self) -> Result<(), PostgresError> {
        self.inner.writes.state()
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("state", &self.state()).finish_non_exhaustive()
    }
}

impl Store for PostgresStore {
    fn put(&self, payloads: Vec<(PayloadKey, Payload)>, lifetime: Lifetime) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let missing = self.inner.missing(payloads, lifetime).await;
            if missing.is_empty() {
                return Ok(());
            }
            if self.inner.is_full.load(Ordering::Relaxed) {
                self.inner.counts.failures.fetch_add(1, Ordering::Relaxed);
                return Err(StoreError::new(Op::Put, PostgresError::Full.kind(), PostgresError::Full));
            }
            let began = Instant::now();
            let n_bytes: usize = missing.iter().map(|(_, payload)| payload.len()).sum();
            let missing = if n_bytes > LARGE { self.inner.not_stored(missing, lifetime).await? } else { missing };
            let extra = self.inner.extra(lifetime);
            let rows = encode_all(missing, lifetime, extra, n_bytes).await?;
            let stored = if rows.is_empty() { Ok(()) } else { writer::submit(&self.jobs, rows).await };
            self.inner.counts.waits.observe_time(began.elapsed());
            stored
        })
    }

    fn load(&self, key: PayloadKey) -> StoreFuture<'_, Option<Payload>> {
        Box::pin(async move {
            let (now, grain) = (self.inner.clock.parameter(), self.inner.half_grain());
            let bytes = key.as_bytes().as_slice();
            let found = self.inner.rows(Op::Get, sql::GET, &[int(&now), blob(&bytes), int(&grain)]).await?;
            let Some(row) = found.first() else { return Ok(None) };
            let payload = self.inner.payload(row, 0)?;
            self.inner.counts.recalled.fetch_add(1, Ordering::Relaxed);
            if self.inner.cell(row, 1)? {
                // The payload is returned even if its use cannot be noted.
                let _noted = self.touch(vec![key]).await;
            }
            Ok(Some(payload))
        })
    }

    fn was_swept(&self, key: PayloadKey) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let key = key.as_bytes().as_slice();
            self.inner.first(Op::Get, sql::WAS_SWEPT, &[blob(&key)]).await
        })
    }

    fn touch(&self, keys: Vec<PayloadKey>) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let unknown = self.inner.unknown(keys).await;
            let (now, grain) = (self.inner.clock.parameter(), self.inner.half_grain());
            let keys: Vec<_> = unknown.iter().map(|key| key.as_bytes().as_slice()).collect();
            if !keys.is_empty() {
                self.inner.execute(Op::Put, sql::TOUCH, &[int(&now), blobs(&keys), int(&grain)]).await?;
            }
            Ok(())
        })
    }

    fn offer_summary(&self, place: Place, summary: Bytes) -> StoreFuture<'_, Offered> {
        Box::pin(self.inner.offer(place, summary))
    }

    fn summary(&self, beginning: ChainKey) -> StoreFuture<'_, Option<Bytes>> {
        Box::pin(self.inner.summary(beginning))
    }

    fn summaries(&self) -> StoreFuture<'_, Vec<ChainKey>> {
        Box::pin(async move {
            let found = self.inner.rows(Op::Get, sql::SUMMARIES, &[]).await?;
            found.iter().map(|row| Ok(ChainKey::from_bytes(self.inner.key(row, 0)?))).collect()
        })
    }

    fn touch_summaries(&self, beginnings: Vec<ChainKey>) -> StoreFuture<'_, ()> {
        Box::pin(self.inner.touch_summaries(beginnings))
    }

    fn put_inspected(&self, id: String, seen: Bytes, most: usize) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let (now, body) = (self.inner.clock.parameter(), encode(seen).await?);
            let parameters: Parameters<'_> = &[int(&now), (&id, Type::TEXT), blob(&body)];
            self.inner.execute(Op::Put, sql::PUT_INSPECTED, parameters).await?;
            self.inner.trim_inspected(most).await
        })
    }

    fn inspected(&self, id: String) -> StoreFuture<'_, Option<Bytes>> {
        Box::pin(async move {
            let found = self.inner.rows(Op::Get, sql::INSPECTED, &[(&id, Type::TEXT)]).await?;
            found.first().map(|row| self.inner.body(row, 0)).transpose()
        })
    }

    fn trim_inspected(&self, most: usize) -> StoreFuture<'_, ()> {
        Box::pin(self.inner.trim_inspected(most))
    }

    fn sweep(&self) -> StoreFuture<'_, SweepResult> {
        Box::pin(self.inner.sweep_all())
    }

    fn maintain(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.inner.maintain())
    }

    /// The engine does that by itself.
    fn compact(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn list(&self, most: usize) -> StoreFuture<'_, Vec<PayloadInfo>> {
        Box::pin(async move { self.inner.list(&PageQuery::default(), most).await })
    }

    fn page(&self, query: PageQuery) -> StoreFuture<'_, Page> {
        Box::pin(self.inner.page(query))
    }

    fn stats(&self) -> StoreFuture<'_, Stats> {
        Box::pin(self.inner.stats())
    }

    fn counters(&self) -> StoreCounters {
        self.inner.counts.counters()
    }

    fn is_failing(&self) -> bool {
        self.state().is_err() || self.inner.counts.is_failing.load(Ordering::Relaxed)
    }

    fn shared(&self) -> Option<&dyn SharedStore> {
        Some(self)
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async {
            self.inner.writes.close();
            self.inner.reads.close();
            Ok(())
        })
    }
}

// === helpers ===

type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// A number, or none, as a parameter.
fn int<T: ToSql + Sync>(number: &T) -> Parameter<'_> {
    (number, Type::INT8)
}

fn blob<T: ToSql + Sync>(bytes: &T) -> Parameter<'_> {
    (bytes, Type::BYTEA)
}

fn blobs<T: ToSql + Sync>(all: &T) -> Parameter<'_> {
    (all, Type::BYTEA_ARRAY)
}

fn new_secret() -> Result<[u8; 32], OpenError> {
    let mut secret = [0; 32];
    getrandom::getrandom(&mut secret).map_err(|error| OpenError::Random(std::io::Error::other(error)))?;
    Ok(secret)
}

/// A number as the engine takes it.
fn count(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

async fn encode_all(
    payloads: Vec<(PayloadKey, Payload)>,
    lifetime: Lifetime,
    extra: i64,
    n_bytes: usize,
) -> Result<Vec<NewRow>, StoreError> {
    let new = move |(key, payload): (PayloadKey, Payload)| NewRow {
        key,
        body: written(&Encoded::of(&payload)),
        bytes: count(payload.len() as u64),
        extra,
        lifetime,
    };
    let encode = move || payloads.into_iter().map(new).collect();
    if n_bytes <= LARGE { Ok(encode()) } else { run_blocking(encode).await.map_err(|_| closed(Op::Put)) }
}

async fn encode(bytes: Bytes) -> Result<Vec<u8>, StoreError> {
    if bytes.len() <= LARGE {
        return Ok(written(&Encoded::new(bytes)));
    }
    run_blocking(move || written(&Encoded::new(bytes))).await.map_err(|_| closed(Op::Put))
}

fn written(encoded: &Encoded) -> Vec<u8> {
    let mut body = vec![0; encoded.len()];
    encoded.write(&mut body);
    body
}

fn closed(op: Op) -> StoreError {
    StoreError::new(op, PostgresError::Closed.kind(), PostgresError::Closed)
}

impl Settings {
    /// How the names of the tables begin.
    fn table_prefix(&self) -> String {
        let namespace = self.namespace.as_deref().map(|name| format!("{name}_"));
        format!("abridge_{}", namespace.unwrap_or_default())
    }
}
