//! The interface between a store and its engine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::OpenError;
use super::link::{Connect, Links};
use super::writer::NewRow;
use crate::payload::{ChainKey, Lifetime, PayloadKey, Place};
use crate::store::secret::Identity;
use crate::store::shared::{Claimant, Note, NoteGroup, Seen, SeenState};
use crate::store::{Clock, Cursor, PayloadInfo, Settings, StoreResult, Time};
use crate::tasks::Tasks;

/// Settings, and whose time counts.
#[derive(Clone, Debug)]
pub(in crate::store) struct Terms {
    pub(in crate::store) settings: Settings,
    /// A test's clock, in place of the engine's.
    pub(super) clock: Option<Clock>,
    pub(super) began: Instant,
}

/// Which payloads are swept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::store) enum Stale {
    /// Those that were unused for longer than their lifetime.
    Expired,
    /// Those of one owner that no process counts as known, what would expire first before others, until that is so many bytes.
    Unused { owner: u16, bytes: u64 },
}

/// The outcome of a call.
pub(in crate::store) trait Reply<T>: Future<Output = StoreResult<T>> + Send {}

impl<T, F: Future<Output = StoreResult<T>> + Send> Reply<T> for F {}

/// What an engine does. Keys of payloads are the names of rows, and bodies are encoded, as `seal` makes them; times are
/// those of the engine's clock.
pub(in crate::store) trait Engine: Send + Sync + Sized + 'static {
    /// Its name.
    const NAME: &'static str;

    /// Opens its connections.
    type Connect: Connect;

    /// Starts to connect.
    fn start(url: &str, terms: Terms, identity: Arc<Identity>, tasks: &Tasks) -> Result<Self, OpenError>;

    /// Its connections.
    fn links(&self) -> &Links<Self::Connect>;

    /// Returns what it promises of what it has confirmed, in words.
    fn promise(&self) -> impl Future<Output = String> + Send;

    /// Stores all rows, or none; how many were new, and their bytes.
    fn put(&self, rows: &BTreeMap<PayloadKey, NewRow>) -> impl Reply<(u64, u64)>;

    /// Those of the keys that are stored for as long, with a use that need not be written.
    fn fresh(&self, keys: &[PayloadKey], lifetime: Lifetime) -> impl Reply<Vec<PayloadKey>>;

    /// A body, and whether its use is to be written.
    fn get(&self, key: PayloadKey) -> impl Reply<Option<(Vec<u8>, bool)>>;

    /// Removes a row if it has this body.
    fn remove(&self, key: PayloadKey, body: &[u8]) -> impl Reply<()>;

    fn was_swept(&self, key: PayloadKey) -> impl Reply<bool>;

    fn touch(&self, keys: &[PayloadKey]) -> impl Reply<()>;

    fn bodies(&self, keys: &[PayloadKey]) -> impl Reply<Vec<(PayloadKey, Vec<u8>)>>;

    /// At most `most` payloads after a place, the last used first, whose keys are in a range.
    fn list(&self, after: Option<Cursor>, keys: [PayloadKey; 2], most: usize) -> impl Reply<Vec<PayloadInfo>>;

    fn put_inspected(&self, id: &str, body: &[u8]) -> impl Reply<()>;

    fn inspected(&self, id: &str) -> impl Reply<Option<Vec<u8>>>;

    fn trim_inspected(&self, most: usize) -> impl Reply<()>;

    /// Takes a turn that one process has for so many seconds.
    fn take_turn(&self, turn: (&str, i64)) -> impl Reply<bool>;

    /// Removes a batch of payloads; how many, and their bytes as stored.
    fn sweep(&self, stale: Stale) -> impl Reply<(u64, u64)>;

    /// How many bytes each owner has stored.
    fn owners(&self) -> impl Reply<Vec<(u64, u16)>>;

    /// Removes summaries that were unused for too long, and notes that have expired; how many summaries.
    fn sweep_others(&self) -> impl Reply<u64>;

    /// Removes summaries beyond their share of the store, those unused for longest first, and forgets swept payloads beyond
    /// [`crate::store::TOMBSTONES`]; how many summaries.
    fn crowd_others(&self) -> impl Reply<u64>;

    /// If the last sweep has found the store full, the bytes above which an owner stores nothing more; otherwise 0.
    fn full_above(&self) -> impl Reply<u64>;

    fn set_full_above(&self, level: u64) -> impl Reply<()>;

    /// Totals of what is stored, as [`Stats::of_totals`](crate::store::Stats) takes them.
    fn totals(&self) -> impl Reply<[u64; 8]>;

    /// Stores a summary unless there is one; the one that is there.
    fn offer(&self, place: Place, body: &[u8]) -> impl Reply<Option<Vec<u8>>>;

    /// A body, and whether its use is to be written.
    fn summary(&self, beginning: ChainKey) -> impl Reply<Option<(Vec<u8>, bool)>>;

    /// Removes a summary if it has this body.
    fn remove_summary(&self, beginning: ChainKey, body: &[u8]) -> impl Reply<()>;

    fn summaries(&self) -> impl Reply<Vec<ChainKey>>;

    fn touch_summaries(&self, beginnings: &[ChainKey]) -> impl Reply<()>;

    fn look(&self, root: ChainKey) -> impl Reply<Vec<Seen>>;

    /// Why a claim is not given; `None` if it is.
    fn claim(&self, place: Place, claimant: Claimant) -> impl Reply<Option<SeenState>>;

    fn release(&self, place: Place, claimant: Claimant, not_before: Option<Duration>) -> impl Reply<()>;

    fn note(&self, note: Note, keep: Duration) -> impl Reply<()>;

    /// Names and values of notes. A name is a key with a kind after it.
    fn notes(&self, group: NoteGroup) -> impl Reply<Vec<(Vec<u8>, Vec<u8>)>>;
}

// === impl Terms ===

impl Terms {
    /// The time that the engine is told; `None` for its own.
    pub(in crate::store) fn now(&self) -> Option<i64> {
        self.clock.as_ref().map(|clock| count(clock.now().0))
    }

    /// A time for spans of time in this process.
    pub(super) fn local_time(&self) -> Time {
        self.clock.as_ref().map_or_else(|| Time(self.began.elapsed().as_secs()), Clock::now)
    }

    /// How long a key counts as known: half a grain.
    pub(super) fn known_for(&self) -> Duration {
        self.settings.keep_for.0 / 16
    }

    /// The same, as the engine takes it: in seconds.
    pub(in crate::store) fn half_grain(&self) -> i64 {
        count(self.known_for().as_secs())
    }

    /// How long what is unused stays at least, whatever the size of the store.
    pub(in crate::store) fn in_use_for(&self) -> i64 {
        4 * self.half_grain()
    }

    /// `keep_for` in seconds.
    pub(in crate::store) fn keep_for(&self) -> i64 {
        count(self.settings.keep_for.0.as_secs())
    }

    /// By how many seconds payloads of this lifetime are kept longer than for `keep_for`.
    pub(in crate::store) fn extra(&self, lifetime: Lifetime) -> i64 {
        count(self.settings.extra_time(lifetime).as_secs())
    }
}

/// A number as an engine takes it.
pub(in crate::store) fn count(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
