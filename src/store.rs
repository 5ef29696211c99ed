//! What is taken out of a conversation is kept here: payloads under keys that are hashes of them.
//!
//! Because the key is the content's, a payload is written once and never overwritten, and writing it again is nothing. So few
//! verbs are enough, and [`conformance`] says what each of them must do in any store. [`redb`] is the one that is a file;
//! [`memory`] is the measure for tests.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::metrics::histogram::Snapshot;
use crate::payload::{ChainKey, Payload, PayloadKey};
use crate::units::{ByteSize, Period};

mod ages;
pub mod conformance;
mod known;
pub mod memory;
pub mod page;
pub mod redb;

pub use page::{Cursor, Page, Paged};
pub use redb::{OpenError, Redb};

/// `[store]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Keeps what edits take out of conversations. With `false`, no edit takes out a text that must be recallable.
    pub enabled: bool,
    /// The file. One process uses it at a time.
    ///
    /// Not set: `abridge/store.redb` in `$XDG_STATE_HOME`, or else in `~/.local/state`.
    ///
    /// Example: `"/var/lib/abridge/store.redb"`
    pub path: Option<PathBuf>,
    /// How long a text is kept after it was last used, by a request or by a recall. Allowed: 1m to 365d.
    pub keep_for: Period,
    /// The bytes in the file of everything that is kept, compressed: texts, summaries (at most an eighth) and requests
    /// of `[inspect]` (at most an eighth). What was unused for longest is removed first; what was used in the last
    /// minute is spared. Allowed: 1MiB to 1048576GiB.
    pub max_bytes: ByteSize,
    /// How much of the file is held in memory. Allowed: 1MiB to 1048576GiB.
    pub cache: ByteSize,
    /// The longest that a request waits for the disk. Then the request goes on without the edits that need the store,
    /// and a recall gets 503. Other requests do not wait until the disk has done what that request waited for. Allowed:
    /// 1ms to 365d.
    pub timeout: Period,
}

/// Where payloads are kept. All of them may be used by many requests at once.
///
/// A future that is dropped before it has ended leaves either nothing or all of what it was to do.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Keeps all payloads, or none. When it has returned they survive a crash of the process and of the machine. Those that are
    /// kept already count as used now.
    fn keep_all(&self, payloads: Vec<(PayloadKey, Payload)>) -> Doing<'_, ()>;

    /// The payload, which counts as used now; none if it was never kept or is no longer.
    fn get(&self, key: PayloadKey) -> Doing<'_, Option<Bytes>>;

    /// Whether a payload was kept once and was swept. Not remembered for ever: see [`TOMBSTONES`].
    fn was_swept(&self, key: PayloadKey) -> Doing<'_, bool>;

    /// Counts payloads as used now; those that are not kept stay unknown. Written down later.
    fn touch(&self, keys: Vec<PayloadKey>) -> Doing<'_, ()>;

    /// Keeps a summary of a beginning of a conversation, in place of one that was kept. When it has returned the summary
    /// survives a crash.
    fn keep_summary(&self, beginning: ChainKey, summary: Bytes) -> Doing<'_, ()>;

    /// The summary, which counts as used now; none if it was never kept or is no longer.
    fn summary(&self, beginning: ChainKey) -> Doing<'_, Option<Bytes>>;

    /// All beginnings of which there is a summary.
    fn summaries(&self) -> Doing<'_, Vec<ChainKey>>;

    /// Counts summaries as used now. Written down later.
    fn touch_summaries(&self, beginnings: Vec<ChainKey>) -> Doing<'_, ()>;

    /// Keeps what `[inspect]` is to show of a request: of all such the last `most`, and not more bytes than
    /// [`MOST_INSPECTED`] and their share.
    fn keep_inspected(&self, id: String, seen: Bytes, most: usize) -> Doing<'_, ()>;

    /// What was kept of the request with this id, as it was given.
    fn inspected(&self, id: String) -> Doing<'_, Option<Bytes>>;

    /// Removes what was kept of requests, but for the last `most`.
    fn trim_inspected(&self, most: usize) -> Doing<'_, ()>;

    /// Removes what was unused for too long, as the clock says, and what is too much. Somebody asks for it.
    fn sweep(&self) -> Doing<'_, Swept>;

    /// Gives memory and disk back: writes down what waits, removes what is too old or too much, and compacts a file that is
    /// mostly air. To be called now and then; a clock that has leapt ahead since the last time is not believed at once.
    fn keep_house(&self) -> Doing<'_, ()>;

    /// Makes the file as small as it can be. Nothing can be read or written meanwhile.
    fn compact(&self) -> Doing<'_, ()>;

    /// Payloads by their last use, newest first, at most so many.
    fn list(&self, most: usize) -> Doing<'_, Vec<Entry>>;

    /// Some of them, in the same order. They do not count as used.
    fn page(&self, page: Page) -> Doing<'_, Paged>;

    /// Numbers about the store and about this process's use of it.
    fn stats(&self) -> Doing<'_, Stats>;

    /// Numbers about this process's use of the store, which cost nothing.
    fn work(&self) -> Work {
        Work::default()
    }

    /// The file, if it is one.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// Whether it has failed, and nothing was written since.
    fn is_in_trouble(&self) -> bool {
        false
    }

    /// Writes down what waits, and lets go of the file. Everything after it is refused.
    fn close(&self) -> Doing<'_, ()>;
}

/// Something that a store is doing.
pub type Doing<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Why the store could not do something.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the store is {kind} and cannot {op}")]
pub struct StoreError {
    /// What was to be done.
    pub op: Op,
    /// What is wrong.
    pub kind: Kind,
    /// What the store's machinery says.
    #[source]
    pub source: Arc<dyn Error + Send + Sync>,
}

/// What was to be done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Op {
    /// Take hold of the file.
    Open,
    /// Keep payloads.
    Put,
    /// Read.
    Get,
    /// Remove what is old.
    Sweep,
    /// Shrink the file.
    Compact,
    /// Let go of the file.
    Close,
}

/// What is wrong with a store.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Kind {
    /// The file cannot be reached, or the store is closed; it may work again later.
    Unavailable,
    /// What the file holds makes no sense.
    Corrupt,
    /// There is no room on the disk.
    Full,
}

/// One payload, without its content.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub struct Entry {
    /// Its name.
    #[serde(serialize_with = "as_text")]
    pub key: PayloadKey,
    /// Its length.
    pub bytes: u64,
    /// Its length in the file.
    pub stored_bytes: u64,
    /// When it was kept.
    pub created: Time,
    /// When it was last used, as far as that is written down.
    pub used: Time,
}

/// What a sweep removed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Swept {
    /// Payloads that were unused for too long.
    pub aged: u64,
    /// Payloads that were too much.
    pub crowded_out: u64,
    /// What they took in the file.
    pub stored_bytes: u64,
    /// Summaries that were unused for too long, or too many.
    pub summaries: u64,
}

/// Numbers about a store. Those from `commits` on are of this process, since it started.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Stats {
    /// Payloads that are kept.
    pub payloads: u64,
    /// Their length.
    pub bytes: u64,
    /// What they take in the file.
    pub stored_bytes: u64,
    /// Summaries that are kept.
    pub summaries: u64,
    /// What they take in the file, beside the payloads.
    pub summary_bytes: u64,
    /// Requests that are kept for `[inspect]`.
    pub inspected: u64,
    /// What they take in the file, beside all else.
    pub inspected_bytes: u64,
    /// The length of the file.
    pub file_bytes: u64,
    /// Swept payloads that are remembered.
    pub tombstones: u64,
    /// Transactions that were made durable.
    pub commits: u64,
    /// Payloads that were written.
    pub written: u64,
    /// Payloads that were to be kept and were known to be, so that the file was not asked.
    pub known: u64,
    /// Payloads that were recalled.
    pub recalled: u64,
    /// What failed, of everything that the store was to do.
    pub failures: u64,
}

/// What a store has done since the process started.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// Transactions that were made durable.
    pub commits: u64,
    /// Payloads that were written.
    pub written: u64,
    /// Their length.
    pub written_bytes: u64,
    /// Payloads that were to be kept and were known to be.
    pub known: u64,
    /// What failed.
    pub failures: u64,
    /// How long those waited who had something to be kept that was not known to be.
    pub waits: Snapshot,
}

/// Seconds since 1970.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Time(pub u64);

/// Tells the time. The one of the system, or a test's own.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Time + Send + Sync>);

/// How many swept payloads are remembered, and for how long.
pub const TOMBSTONES: (u64, Duration) = (100_000, Duration::from_hours(24 * 30));

/// How many summaries are kept; those unused for longest go first. Each was paid for, and is short.
pub const MOST_SUMMARIES: usize = 50_000;

/// How many bytes all that is kept of requests may take in the file, where that is less than its share; the oldest goes first.
pub const MOST_INSPECTED: u64 = 256 << 20;

/// Summaries may take this part of [`Settings::max_bytes`], and so may what is kept of requests; payloads have the rest.
const PARTS: u64 = 8;

/// What was used so short a time ago is not crowded out: requests that name it are on their way.
pub const IN_USE: Duration = Duration::from_mins(1);

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: true,
            path: None,
            keep_for: Period(Duration::from_hours(24 * 7)),
            max_bytes: ByteSize::mib(4096),
            cache: ByteSize::mib(16),
            timeout: Period::secs(10),
        }
    }
}

// === impl Settings ===

impl Settings {
    /// How many bytes all summaries may take.
    fn most_of_summaries(&self) -> u64 {
        self.max_bytes.0 / PARTS
    }

    /// How many bytes all that is kept of requests may take.
    fn most_of_requests(&self) -> u64 {
        MOST_INSPECTED.min(self.max_bytes.0 / PARTS)
    }

    /// The file, where `state` is the folder that a user's programs keep their state in.
    pub fn file(&self, state: Option<&Path>) -> Option<PathBuf> {
        self.path.clone().or_else(|| Some(state?.join("abridge/store.redb")))
    }
}

// === impl StoreError ===

impl StoreError {
    /// An error without a cause of its own.
    pub(crate) fn new(op: Op, kind: Kind, source: impl Error + Send + Sync + 'static) -> Self {
        Self { op, kind, source: Arc::new(source) }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "be opened",
            Self::Put => "keep a payload",
            Self::Get => "be read",
            Self::Sweep => "be swept",
            Self::Compact => "be compacted",
            Self::Close => "be closed",
        })
    }
}

impl Kind {
    /// The kind as one word, for labels.
    pub fn label(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Corrupt => "corrupt",
            Self::Full => "full",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

// === impl Time, Clock ===

impl Time {
    /// How long ago another time was; nothing if it is still to come.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_secs(self.0.saturating_sub(earlier.0))
    }
}

impl Clock {
    /// The time of the machine.
    pub fn system() -> Self {
        #[expect(clippy::disallowed_methods, reason = "how long something was unused outlives a process")]
        let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
        Self::new(move || Time(now()))
    }

    /// Another time.
    pub fn new(now: impl Fn() -> Time + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// What time it is.
    pub fn now(&self) -> Time {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

// === helpers ===

fn as_text<S: serde::Serializer>(key: &PayloadKey, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_is_still_to_come_was_no_time_ago() {
        assert_eq!(Time(5).since(Time(3)), Duration::from_secs(2));
        assert_eq!(Time(3).since(Time(5)), Duration::ZERO);
    }
}
