//! The summaries that are known: which ones exist, the recent texts, the ones being made, and the ones that could not
//! be made.
//!
//! Planning looks up every message of a large conversation here, so a lookup reads no file and waits for no lock but a
//! short write lock on the one map. The texts are bounded by size, and are loaded from the store when they are needed
//! again.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, PoisonError, RwLockReadGuard};
use std::time::Duration;

use bytes::Bytes;
use quick_cache::UnitWeighter;
use quick_cache::sync::Cache;
use tokio::sync::watch;
use tokio::time::Instant;

use super::disks::{Disks, PersistError};
use super::flight::{Flight, SummaryError};
use crate::held::Held;
use crate::payload::cache::By;
use crate::payload::{ChainKey, Place};
use crate::store::{MAX_SUMMARIES, StoreError, fair_level};
use crate::summary::{IndexedOutline, Outline, Summary, SummaryIndex, SummaryState};

mod facts;
mod shared;

pub(super) use facts::stored;
pub(super) use shared::Turn;

/// All known summaries. There is one per process.
#[derive(Debug)]
#[expect(clippy::disallowed_types, reason = "held for a few instructions, never across an await")]
pub struct Summaries {
    pub(super) disks: Disks,
    statuses: std::sync::RwLock<Statuses>,
    texts: Cache<ChainKey, Arc<Summary>, By<Arc<Summary>>>,
    // The names that this process has added of requests that were sent.
    sent: Cache<ChainKey, ()>,
    // The facts whose use is still to be noted in the store.
    pending_uses: Held<Vec<ChainKey>>,
    // Of each conversation, the summaries that a shared store had when it was last looked up.
    looked_up: Cache<ChainKey, Arc<[ChainKey]>>,
    // How often something was learnt from other processes, and that number for each conversation when it was learnt of that.
    n_learnt: AtomicUsize,
    learnt: Cache<ChainKey, usize>,
    // When facts last counted as used in the store.
    noted: Cache<ChainKey, Instant>,
    index_read: watch::Sender<bool>,
    /// What recent summaries were made from.
    pub(super) recent: RecentSummaries,
}

type Statuses = HashMap<ChainKey, Status>;

/// The state of one beginning.
#[derive(Clone, Debug)]
enum Status {
    /// There is a summary.
    Stored,
    /// There is a summary that could not be read; it is not read again before this time.
    Unreadable(Instant),
    /// The summary is being made.
    InFlight(Arc<Flight>),
    /// Another process makes the summary; its lease ends at this time.
    Elsewhere(Instant),
    /// The summary could not be made, and is not tried again before this time.
    CoolingDown(Instant),
}

/// The next step of a task that wants to make a summary.
pub(super) enum Claim {
    /// Nothing: there is a summary.
    Stored,
    /// Fail: an earlier attempt failed a short time ago.
    CoolingDown,
    /// Wait: another task makes it.
    Join(Arc<Flight>),
    /// Make it.
    Lead(Leader),
}

/// The memory limit of the texts, in bytes.
const MAX_TEXT_BYTES: u64 = 32 << 20;

/// The bytes of a text in memory besides its own.
const TEXT_OVERHEAD: u64 = 256;

/// A use is noted again after this time.
const USE_INTERVAL: Duration = Duration::from_mins(5);

/// How many uses may be pending; further ones are noted the next time.
const MAX_PENDING_USES: usize = 1024;

/// How long a summary that could not be read is not read again.
const READ_BACKOFF: Duration = Duration::from_secs(10);

/// Of how many conversations the summaries in a shared store are remembered.
const MAX_LOOKED_UP: usize = 4096;

/// Of how many facts the last use is remembered, in at most 4 MB. Where more are in use, a use is noted in the store again.
const MAX_NOTED: u64 = 64 << 10;

/// How many names of requests that were sent are remembered in memory, besides those in the store.
const MAX_SENT: usize = 64 << 10;

/// How many failed beginnings are remembered.
const MAX_COOLDOWNS: usize = 4096;

/// What recent summaries were made from, so that a client that changes a message at the beginning with each request does not
/// cause a new summary each time. It is not in the store: after a restart, one more summary is made.
#[derive(Debug, Default)]
pub(super) struct RecentSummaries {
    /// What each was made from, and whether the log already says that one of its messages changes.
    made: Held<VecDeque<(IndexedOutline, bool)>>,
}

/// How many messages, and how many summaries, are remembered; together about 4 MB.
const MAX_MESSAGES: usize = 16_384;
const MAX_RECENT: usize = 64;

/// Held by the task that makes a summary. The waiters get the result when it is dropped.
pub(super) struct Leader {
    summaries: Arc<Summaries>,
    beginning: ChainKey,
    /// The flight that later requests join.
    pub(super) flight: Arc<Flight>,
    result: Result<(), SummaryError>,
}

// === impl Summaries ===

impl Summaries {
    /// Creates an empty index; [`Self::read_index`] fills it. New summaries are written to the store; without one, they
    /// are in memory only, as long as there is room.
    pub(super) fn new(disks: Disks) -> Self {
        // Everything that is in a shared store is looked up for each request.
        let has_index = disks.store.as_deref().is_some_and(|store| store.shared().is_none());
        let (index_read, _) = watch::channel(!has_index);
        Self {
            disks,
            statuses: Statuses::default().into(),
            texts: Cache::with_weighter(1024, MAX_TEXT_BYTES, By(|summary| summary.text.len() as u64 + TEXT_OVERHEAD)),
            sent: Cache::new(MAX_SENT),
            pending_uses: Held::default(),
            looked_up: Cache::new(MAX_LOOKED_UP),
            n_learnt: AtomicUsize::new(0),
            learnt: Cache::new(MAX_LOOKED_UP),
            noted: Cache::with_weighter(1024, MAX_NOTED, UnitWeighter),
            index_read,
            recent: RecentSummaries::default(),
        }
    }

    /// Reads from the store which summaries it has.
    pub async fn read_index(&self) {
        if let Some(store) = self.disks.store.as_deref().filter(|_| !self.is_index_read()) {
            match store.summaries().await {
                Ok(kept) => self.change(|statuses| {
                    for beginning in &kept {
                        statuses.entry(*beginning).or_insert(Status::Stored);
                    }
                }),
                Err(error) => {
                    tracing::warn!(%error, cause = %error.source, "the index of stored summaries could not be read: summaries will be made again");
                }
            }
        }
        self.index_read.send_replace(true);
    }

    /// Whether the index was read from the store.
    pub(super) fn is_index_read(&self) -> bool {
        *self.index_read.borrow()
    }

    /// Ends when the index was read.
    pub fn until_read(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut read = self.index_read.subscribe();
        async move {
            let _read = read.wait_for(|read| *read).await.is_ok();
        }
    }

    /// Waits until the index was read, for `store.timeout` at the longest.
    pub(super) async fn wait_for_index(&self) {
        let _read = self.disks.breaker.call(self.until_read()).await;
    }

    /// Loads the text of a summary from the store. If that fails, [`SummaryIndex::state`] returns another state from now on.
    pub(super) async fn load(&self, beginning: ChainKey) {
        match self.fact(beginning).await {
            Ok(stored) => match stored.and_then(|stored| serde_json::from_slice(&stored).ok()) {
                Some(summary) => self.insert(beginning, summary),
                None => self.forget(beginning),
            },
            Err(error) => {
                if let PersistError::Store(error) = error {
                    tracing::debug!(%error, cause = %error.source, "a summary cannot be read");
                }
                self.set(beginning, Status::Unreadable(Instant::now() + READ_BACKOFF));
            }
        }
    }

    /// Claims the making of a summary. Of concurrent claims, one leads.
    pub(super) fn claim(self: &Arc<Self>, beginning: ChainKey, background: bool) -> Claim {
        let now = Instant::now();
        self.change(|statuses| match statuses.get(&beginning) {
            Some(Status::InFlight(flight)) => Claim::Join(Arc::clone(flight)),
            Some(Status::CoolingDown(until) | Status::Unreadable(until)) if *until > now => Claim::CoolingDown,
            Some(Status::Stored | Status::Unreadable(_)) => Claim::Stored,
            None | Some(Status::CoolingDown(_) | Status::Elsewhere(_)) => {
                let flight = Arc::new(Flight::new(background));
                statuses.insert(beginning, Status::InFlight(Arc::clone(&flight)));
                // The result of a task that panics, or is not run to its end.
                let result = Err(SummaryError::ShuttingDown);
                Claim::Lead(Leader { summaries: Arc::clone(self), beginning, flight, result })
            }
        })
    }

    /// Stores a summary durably, if there is a store, and then in memory. If the store has another one by now, that one is
    /// used, and the result is true.
    pub(super) async fn put(&self, place: Place, mut summary: Summary) -> Result<bool, StoreError> {
        let theirs = match &self.disks.store {
            Some(store) => store.offer_summary(place, stored(&summary, place.root)).await?,
            None => None,
        };
        if let Some(theirs) = &theirs {
            summary = serde_json::from_slice(theirs).unwrap_or(summary);
        }
        self.insert(place.beginning, summary);
        Ok(theirs.is_some())
    }

    /// A summary or another fact, as it is stored, which counts as used; none without a store.
    pub(super) async fn fact(&self, beginning: ChainKey) -> Result<Option<Bytes>, PersistError> {
        let fact = self.disks.ask(|store| async move { store.summary(beginning).await }).await?.flatten();
        if fact.is_some() {
            self.noted.insert(beginning, Instant::now());
        }
        Ok(fact)
    }

    /// Stores another fact about a beginning that is not to change, durably if there is a store, unless there is one. Returns
    /// the one that holds.
    pub(super) async fn offer_fact(&self, place: Place, fact: Bytes) -> Result<Bytes, PersistError> {
        let offered = fact.clone();
        let offered = self.disks.ask(|store| async move { store.offer_summary(place, offered).await }).await?;
        self.noted.insert(place.beginning, Instant::now());
        Ok(offered.flatten().unwrap_or(fact))
    }

    /// Whether there is a summary of a beginning, or another fact about it.
    pub(super) fn is_stored(&self, beginning: ChainKey) -> bool {
        matches!(self.statuses().get(&beginning), Some(Status::Stored))
    }

    /// Has a use noted in the store later, unless one was within this time.
    pub(super) fn note_use(&self, beginning: ChainKey, within: Duration) {
        if self.noted.get(&beginning).is_some_and(|noted| noted.elapsed() < within) {
            return;
        }
        self.pending_uses.with(|used| {
            if used.len() < MAX_PENDING_USES {
                used.push(beginning);
                self.noted.insert(beginning, Instant::now());
            }
        });
    }

    /// Whether there is a store.
    pub(super) fn has_store(&self) -> bool {
        self.disks.store.is_some()
    }

    /// Notes that a summary could not be made, and is not to be tried again for `cooldown`.
    pub(super) fn cool_down(&self, beginning: ChainKey, cooldown: Duration) {
        let now = Instant::now();
        let until = now + cooldown;
        self.change(|statuses| {
            statuses.retain(|_, status| !matches!(status, Status::CoolingDown(until) if *until <= now));
            let refused = |(key, status): (&ChainKey, &Status)| match status {
                Status::CoolingDown(until) => Some((*until, *key)),
                _ => None,
            };
            if statuses.iter().filter_map(refused).count() >= MAX_COOLDOWNS
                && let Some((_, first)) = statuses.iter().filter_map(refused).min()
            {
                statuses.remove(&first);
            }
            statuses.insert(beginning, Status::CoolingDown(until));
        });
    }

    /// Forgets that a summary is being made, if `flight` is the one that makes it.
    pub(super) fn abandon(&self, beginning: ChainKey, flight: &Arc<Flight>) {
        self.change(|statuses| {
            if matches!(statuses.get(&beginning), Some(Status::InFlight(other)) if Arc::ptr_eq(other, flight)) {
                statuses.remove(&beginning);
            }
        });
    }

    /// Notes in the store that summaries, and their transcripts, were used by plans.
    pub(super) async fn flush_uses(&self) {
        let beginnings = self.pending_uses.with(std::mem::take);
        if beginnings.is_empty() {
            return;
        }
        let texts = beginnings.iter().filter_map(|beginning| self.texts.peek(beginning));
        let transcripts = texts.filter_map(|summary| summary.transcript).collect();
        // The store logs its failures; the next use is noted again.
        let noting = self.disks.ask(|store| async move {
            store.touch_summaries(beginnings).await?;
            store.touch(transcripts).await
        });
        let _noted = Box::pin(noting).await;
    }

    fn insert(&self, beginning: ChainKey, summary: Summary) {
        self.noted.insert(beginning, Instant::now());
        self.texts.insert(beginning, Arc::new(summary));
        self.set(beginning, Status::Stored);
    }

    fn set(&self, beginning: ChainKey, status: Status) {
        self.change(|statuses| _ = statuses.insert(beginning, status));
    }

    fn forget(&self, beginning: ChainKey) {
        self.change(|statuses| _ = statuses.remove(&beginning));
    }

    fn statuses(&self) -> RwLockReadGuard<'_, Statuses> {
        self.statuses.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Statuses) -> T) -> T {
        let mut statuses = self.statuses.write().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut statuses);
        if statuses.len() > 2 * MAX_SUMMARIES {
            // The store has swept those beyond the shares of callers. Without a store, these are forgotten as well.
            let (now, mut held) = (Instant::now(), HashMap::new());
            statuses.keys().for_each(|key| *held.entry(key.owner()).or_insert(0) += 1);
            let level = fair_level(held.values().copied(), (statuses.len() - MAX_SUMMARIES) as u64);
            statuses.retain(|key, status| match status {
                Status::Stored => {
                    let of_owner = held.entry(key.owner()).or_default();
                    let stays = *of_owner <= level || self.texts.peek(key).is_some();
                    *of_owner -= u64::from(!stays);
                    stays
                }
                Status::Elsewhere(until) => *until > now,
                _ => true,
            });
        }
        changed
    }
}

impl SummaryIndex for Summaries {
    fn state(&self, beginning: ChainKey) -> SummaryState {
        match self.statuses().get(&beginning) {
            None => SummaryState::Unknown,
            Some(Status::Stored) => match self.texts.get(&beginning) {
                Some(summary) => {
                    self.note_use(beginning, USE_INTERVAL);
                    SummaryState::Summary(summary)
                }
                None => SummaryState::Stored,
            },
            Some(Status::Unreadable(until)) if *until <= Instant::now() => SummaryState::Stored,
            Some(Status::CoolingDown(until) | Status::Elsewhere(until)) if *until <= Instant::now() => {
                SummaryState::Unknown
            }
            Some(Status::InFlight(_) | Status::Elsewhere(_)) => SummaryState::InProgress,
            Some(Status::Unreadable(_) | Status::CoolingDown(_)) => SummaryState::CoolingDown,
        }
    }

    fn is_empty(&self) -> bool {
        self.statuses().is_empty()
    }
}

// === impl RecentSummaries ===

impl RecentSummaries {
    /// Remembers what a summary was made from.
    pub(super) fn note(&self, outline: Outline) {
        let new = (IndexedOutline::new(outline), false);
        let n_messages = |(made, _): &(IndexedOutline, bool)| made.outline.messages.len();
        self.made.with(|recent| {
            recent.push_front(new);
            recent.truncate(MAX_RECENT);
            while recent.iter().map(n_messages).sum::<usize>() > MAX_MESSAGES {
                recent.pop_back();
            }
        });
    }

    /// Whether a recent summary was made from nearly the same messages, some of which have changed since. Logs the
    /// first such change.
    pub(super) fn has_similar(&self, wanted: &Outline) -> bool {
        let found = self.made.with(|recent| {
            let mut found = recent.iter_mut().filter_map(|(made, is_logged)| Some((made.changed(wanted)?, is_logged)));
            found.next().map(|(changed, is_logged)| (changed, std::mem::replace(is_logged, true)))
        });
        let Some((changed, is_logged)) = found else { return false };
        if !is_logged {
            tracing::warn!(
                index = changed,
                "no summary is made: the client has changed a message that the last one stands for, and little else is new"
            );
        }
        true
    }
}

// === impl Leader ===

impl Leader {
    /// Ends the flight with an error, and starts the cooldown.
    pub(super) fn fail(self, error: SummaryError, cooldown: Duration) {
        self.summaries.cool_down(self.beginning, cooldown);
        self.end(Err(error));
    }

    /// Ends the flight without a cooldown: the summary is stored, no request waits, or there is no capacity. The next claim
    /// may try again.
    pub(super) fn end(mut self, result: Result<(), SummaryError>) {
        self.result = result;
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.summaries.abandon(self.beginning, &self.flight);
        self.flight.end(std::mem::replace(&mut self.result, Ok(())));
    }
}

#[cfg(test)]
mod tests;
