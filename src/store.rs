//! The store of what edits take out of conversations: payloads under keys that are hashes of their content.
//!
//! As the key is derived from the content, a payload is written once and never overwritten, and writing it again
//! changes nothing. [`redb`] is a store in one file. `tests::conformance` tests what each method must do in any store, and
//! `tests::memory` is the reference implementation, for tests.

use std::fmt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::payload::{ChainKey, Lifetime, Payload, PayloadKey, Place};
use crate::units::{ByteSize, Period};

mod codec;
pub mod engine;
mod engine_error;
mod error;
mod known_keys;
pub mod page;
pub mod postgres;
pub mod redb;
pub mod redis;
pub mod secret;
pub mod shared;
mod shares;
#[cfg(any(test, feature = "testing"))]
pub mod tests;
mod time;

use error::Fault;
pub use error::{Counts, Op, StoreError, StoreErrorKind, StoreResult};
pub use page::{Cursor, Owner, Page, PageQuery};
pub use postgres::PostgresStore;
pub use redb::{OpenError, RedbStore, Salvaged};
pub use redis::RedisStore;
pub use shared::{Note, NoteGroup, NoteKind, SharedStore};
pub(crate) use shares::fair_level;
use smart_default::SmartDefault;
pub use time::{Clock, Time};

/// `[store]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Keeps what edits take out of conversations. With `false`, no edit takes out a text that must be recallable.
    #[default(true)]
    pub enabled: bool,
    /// Starts only if the store can be opened. With `false`, a file that is damaged or is not a store is set aside under a name
    /// that says when, and a new one is begun; if nothing can be written, abridge serves without the edits that need the
    /// store. A file that another abridge uses stops the start in either case.
    pub required: bool,
    /// Where it is kept. With `"file"`, one process uses it; with any other, all processes that have the same settings do.
    pub engine: StoreEngine,
    /// The name of the environment variable with the URL of the engine: `postgres://USER:PASSWORD@HOST:PORT/DATABASE`,
    /// `redis://USER:PASSWORD@HOST:PORT/DATABASE`, `redis+sentinel://USER:PASSWORD@HOST:PORT/SERVICE/DATABASE` or
    /// `redis+cluster://USER:PASSWORD@HOST:PORT`, with several hosts if need be, separated by commas. To a host that is not
    /// this machine TLS is used, unless the URL ends with `?sslmode=disable`.
    ///
    /// Not set: allowed with `engine = "file"` alone.
    ///
    /// Example: `"ABRIDGE_STORE_URL"`
    pub url_env: Option<String>,
    /// The name of the environment variable with the secret that handles are made with: 64 hexadecimal digits, as
    /// `openssl rand -hex 32` prints. The same for all processes. Not with `engine = "file"`.
    ///
    /// Not set: the first process makes a secret, which is kept in the store.
    ///
    /// Example: `"ABRIDGE_STORE_SECRET"`
    pub secret_env: Option<String>,
    /// Encrypts what is stored with that secret: texts are encrypted, and stored under other names than their handles, so that
    /// who runs the engine reads neither. Needs `secret_env`. Not with `engine = "file"`. A store that was not encrypted from
    /// its beginning is refused.
    pub seal: bool,
    /// The name of the environment variable with the secrets that this one has replaced, separated by commas. A store that
    /// belongs to one of them is taken over.
    ///
    /// Not set: a store that belongs to another secret is refused.
    ///
    /// Example: `"ABRIDGE_OLD_STORE_SECRETS"`
    pub old_secrets_env: Option<String>,
    /// Keeps several fleets apart in one database: a part of the names of its tables or keys. Allowed: up to 32 lower-case
    /// letters, digits and `_`.
    ///
    /// Not set: the names have no such part.
    ///
    /// Example: `"prod"`
    pub namespace: Option<String>,
    /// How many replicas of a Redis have a text in memory before a request that names it goes on (`WAIT`). With 0, a
    /// replica that is promoted may lack what was stored last. Not 0: with `engine = "redis"` alone. Allowed: 0 to 8.
    pub replicas_acknowledge: usize,
    /// Certificates that the engine's may be signed with, besides the system's.
    ///
    /// Not set: the system's alone.
    ///
    /// Example: `"/etc/abridge/store-ca.pem"`
    pub ca_file: Option<PathBuf>,
    /// The file. One process uses it at a time.
    ///
    /// Not set: `abridge/store.redb` in `$XDG_STATE_HOME`, or else in `~/.local/state`; on macOS in
    /// `~/Library/Application Support`, on Windows in `%LOCALAPPDATA%`.
    ///
    /// Example: `"/var/lib/abridge/store.redb"`
    pub path: Option<PathBuf>,
    /// How long a text is kept after it was last used, by a request or by a recall. Where the upstream keeps the conversation
    /// that it was cut out of (`previous_response_id`, `conversation`), it is kept for 30 days at least: the upstream's copy
    /// names the text, and later requests do not. Allowed: 1m to 365d.
    #[default(Period(Duration::from_hours(24 * 7)))]
    pub keep_for: Period,
    /// The stored bytes of everything that is kept, compressed: texts, summaries (at most an eighth) and requests of
    /// `[inspect]` (at most an eighth). If there are more, what would expire first is removed first, of the caller who
    /// has the most. Texts of the last minute, in a database of the last quarter of `keep_for`, are spared; if they
    /// leave no room, that caller's new texts stay in its requests. A file exceeds this by a quarter and one request's
    /// texts at most. Allowed: 1MiB to 1048576GiB.
    #[default(ByteSize::mib(4096))]
    pub max_bytes: ByteSize,
    /// The longest that a request waits for the disk, for a summary too. Then the request goes on without the edits that need the store,
    /// and a recall gets 503. Other requests do not wait until the disk has done what that request waited for. Allowed:
    /// 1ms to 365d.
    #[default(Period::secs(10))]
    pub timeout: Period,
}

/// The engine that keeps a store.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, strum::Display)]
#[serde(rename_all = "lowercase")]
pub enum StoreEngine {
    /// A file of this process.
    #[default]
    #[strum(to_string = "a file")]
    File,
    /// PostgreSQL, or what speaks its protocol. `abridge store init` makes the tables.
    #[strum(to_string = "PostgreSQL")]
    Postgres,
    /// Redis or Valkey: a server, one that sentinels watch, or a cluster. What it promises depends on its settings.
    #[strum(to_string = "Redis")]
    Redis,
}

/// A store of payloads and summaries, used by many requests at once.
///
/// If a future is dropped before it has ended, its operation is done completely or not at all.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Stores all payloads, or none. When it returns, they survive a crash of the process and of the machine. Payloads
    /// that are stored already count as used now, and are kept for the longer one of their lifetime and this one.
    async fn put(&self, payloads: NamedPayloads, lifetime: Lifetime) -> StoreResult<()>;

    /// The payload with its type, which counts as used now; `None` if it is not stored.
    async fn load(&self, key: PayloadKey) -> StoreResult<Option<Payload>>;

    /// The bytes of the payload, which counts as used now; `None` if it is not stored.
    async fn get(&self, key: PayloadKey) -> StoreResult<Option<Bytes>> {
        Ok(self.load(key).await?.map(|payload| payload.bytes()))
    }

    /// Whether a payload was stored and has been swept. This is remembered for a limited time: see [`TOMBSTONES`].
    async fn was_swept(&self, key: PayloadKey) -> StoreResult<bool>;

    /// Notes that payloads are used now; keys that are not stored are ignored. Written to the file later.
    async fn touch(&self, keys: Vec<PayloadKey>) -> StoreResult<()>;

    /// Stores the summary of a beginning of a conversation, or another fact about it that is not to change, unless there is one. When it returns, the summary survives a
    /// crash. Returns the one that was stored before, which is to be used instead.
    async fn offer_summary(&self, place: Place, summary: Bytes) -> StoreResult<Option<Bytes>>;

    /// The summary, which counts as used now; `None` if it is not stored. A damaged one counts as none, and can be made anew.
    async fn summary(&self, beginning: ChainKey) -> StoreResult<Option<Bytes>>;

    /// All beginnings that have a summary.
    async fn summaries(&self) -> StoreResult<Vec<ChainKey>>;

    /// Notes that summaries are used now. Written to the file later.
    async fn touch_summaries(&self, beginnings: Vec<ChainKey>) -> StoreResult<()>;

    /// Stores what `[inspect]` shows of a request. Of all requests the last `most` are kept, within
    /// [`MAX_INSPECTED_BYTES`] and their share of the store.
    async fn put_inspected(&self, id: String, seen: Bytes, most: usize) -> StoreResult<()>;

    /// The record of the request with this id.
    async fn inspected(&self, id: String) -> StoreResult<Option<Bytes>>;

    /// Removes what was stored of requests, except of the last `most`.
    async fn trim_inspected(&self, most: usize) -> StoreResult<()>;

    /// Stores a note for `keep`, replacing the one with the same kind and key.
    async fn note(&self, note: Note, keep: Duration) -> StoreResult<()>;

    /// The notes of a group that have not expired, the last written first where processes share the store.
    async fn notes(&self, group: NoteGroup) -> StoreResult<Vec<Note>>;

    /// Removes what was unused for longer than its lifetime, and what would expire first of what exceeds `max_bytes`.
    /// Trusts the clock, as an operator asks for it.
    async fn sweep(&self) -> StoreResult<SweepResult>;

    /// Periodic maintenance: writes pending uses, sweeps, and compacts a file that is mostly free space. A jump of the
    /// clock since the last call is not trusted at once.
    async fn maintain(&self) -> StoreResult<()>;

    /// Makes the file as small as possible. Blocks all reads and writes meanwhile. A database does that by itself.
    async fn compact(&self) -> StoreResult<()> {
        Ok(())
    }

    /// At most `most` payloads, the last used first.
    async fn list(&self, most: usize) -> StoreResult<Vec<PayloadInfo>> {
        Ok(self.page(PageQuery { limit: most, ..PageQuery::default() }).await?.entries)
    }

    /// One page of payloads, the last used first. They do not count as used.
    async fn page(&self, query: PageQuery) -> StoreResult<Page>;

    /// Copies all that is stored at this moment to a new file. A database has its own means for that.
    async fn backup(&self, _to: &Path) -> StoreResult<()> {
        Err(StoreError::new(Op::Read, StoreErrorKind::Unavailable, Fault::NotAFile))
    }

    /// Reads everything that is stored, and checks it. Nothing counts as used.
    async fn verify(&self) -> StoreResult<Verified>;

    /// Statistics of the store and of this process's use of it.
    async fn stats(&self) -> StoreResult<Stats>;

    /// What this process's use of the store is counted in.
    fn counts(&self) -> &Counts;

    /// The path, if the store is a file.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// One sentence for operators, with the fix.
    fn notice(&self) -> Option<String> {
        None
    }

    /// Whether the last write failed.
    fn is_failing(&self) -> bool {
        self.counts().is_failing.load(Ordering::Relaxed)
    }

    /// The store as one that other processes use at the same time, if it is.
    fn shared(&self) -> Option<&dyn SharedStore> {
        None
    }

    /// Writes pending uses and closes the file. Later operations fail.
    async fn close(&self) -> StoreResult<()>;
}

/// Payloads with their names.
pub type NamedPayloads = Vec<(PayloadKey, Payload)>;

/// The future of a store operation.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = StoreResult<T>> + Send + 'a>>;

/// The result of checking everything in a store.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Verified {
    /// Payloads that are whole.
    pub payloads: u64,
    /// Summaries and other facts about conversations that are whole.
    pub summaries: u64,
    /// Requests stored for `[inspect]` that are whole.
    pub inspected: u64,
    /// Notes that are whole: of processes for each other or for themselves, and the ledger.
    pub notes: u64,
    /// The names of damaged rows.
    pub damaged: Vec<String>,
}

/// One payload, without its content.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub struct PayloadInfo {
    /// Its key.
    pub key: PayloadKey,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its length in the file.
    pub stored_bytes: u64,
    /// When it was stored.
    pub created: Time,
    /// When it was last used, as far as that is written to the file.
    pub used: Time,
}

/// How much a sweep has removed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct SweepResult {
    /// Payloads that were unused for longer than their lifetime.
    pub aged: u64,
    /// Payloads that exceeded `max_bytes`.
    pub crowded_out: u64,
    /// The bytes that they took in the file.
    pub stored_bytes: u64,
    /// Summaries that were unused for too long, or too many.
    pub summaries: u64,
}

/// Statistics of a store. The fields from `commits` on count since the process started.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Stats {
    /// Stored payloads.
    pub payloads: u64,
    /// Their length in bytes.
    pub bytes: u64,
    /// The bytes that they take in the file.
    pub stored_bytes: u64,
    /// Stored summaries, and token factors of conversations.
    pub summaries: u64,
    /// The bytes that they take in the file.
    pub summary_bytes: u64,
    /// Requests stored for `[inspect]`.
    pub inspected: u64,
    /// The bytes that they take in the file.
    pub inspected_bytes: u64,
    /// The length of the file.
    pub file_bytes: u64,
    /// Swept payloads that are remembered.
    pub tombstones: u64,
    /// Durable transactions.
    pub commits: u64,
    /// Payloads that were written.
    pub written: u64,
    /// Payloads that were known to be stored when they were put, so that the file was not accessed.
    pub known: u64,
    /// Payloads that were recalled.
    pub recalled: u64,
    /// Failed operations.
    pub failures: u64,
    /// Reads of something that is damaged.
    pub damaged: u64,
}

/// How many swept payloads are remembered, and for how long.
pub const TOMBSTONES: (u64, Duration) = (100_000, Duration::from_hours(24 * 30));

/// How many summaries and other facts are stored; the least recently used are removed first, of the caller who has most. Each is
/// short, and cost a call.
pub const MAX_SUMMARIES: usize = 50_000;

/// The most bytes that inspected requests may take in the file, unless their share is less; the oldest are removed
/// first.
pub const MAX_INSPECTED_BYTES: u64 = 256 << 20;

/// Summaries may take this fraction of [`Settings::max_bytes`], and so may inspected requests; payloads have the rest.
const SHARE_DIVISOR: u64 = 8;

/// What was used within this time is not removed to save space: requests that name it may be on their way.
pub const IN_USE: Duration = Duration::from_mins(1);

/// How long a text is kept at least whose conversation the upstream keeps: as long as OpenAI keeps a response by default.
const KEEP_CHAINED_FOR: Duration = Duration::from_hours(24 * 30);

// === impl Settings ===

impl Settings {
    /// By how much payloads of this lifetime are kept longer than for `keep_for`.
    fn extra_time(&self, lifetime: Lifetime) -> Duration {
        match lifetime {
            Lifetime::Usual => Duration::ZERO,
            Lifetime::Chained => KEEP_CHAINED_FOR.saturating_sub(self.keep_for.0),
        }
    }

    /// How many bytes all summaries may take.
    fn max_summary_bytes(&self) -> u64 {
        self.max_bytes.0 / SHARE_DIVISOR
    }

    /// How many bytes all inspected requests may take.
    fn max_inspected_bytes(&self) -> u64 {
        MAX_INSPECTED_BYTES.min(self.max_bytes.0 / SHARE_DIVISOR)
    }

    /// The namespace with what joins it to a name; empty if there is none.
    fn namespace_with(&self, joint: char) -> String {
        self.namespace.as_deref().map(|name| format!("{name}{joint}")).unwrap_or_default()
    }

    /// How the names of the tables in PostgreSQL begin.
    fn table_prefix(&self) -> String {
        format!("abridge_{}", self.namespace_with('_'))
    }

    /// The path of the file; `state` is the user's state directory.
    pub fn file(&self, state: Option<&Path>) -> Option<PathBuf> {
        self.path.clone().or_else(|| Some(state?.join("abridge").join("store.redb")))
    }
}

// === impl Verified ===

impl Verified {
    /// Counts one row. A row of a later version, or under another secret, counts as whole.
    fn count(&mut self, name: codec::Name, found: Option<codec::Unreadable>) {
        if found == Some(codec::Unreadable::Damaged) {
            return self.damaged.push(name.to_string());
        }
        match (name.payload(), name.summary()) {
            (Some(_), _) => self.payloads += 1,
            (_, Some(_)) => self.summaries += 1,
            (None, None) if name.kind == codec::NOTE => self.notes += 1,
            (None, None) => self.inspected += 1,
        }
    }
}
