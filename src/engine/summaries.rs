//! What is remembered of summaries: which there are, what the latest of them say, what is being made, and what could not be.
//!
//! Planning asks this for every message of a large conversation, so asking reads no file and waits for nobody but one who
//! changes an entry: what there is lies in one map. The texts are bounded by their size, and come out of the store when they
//! are wanted again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLockReadGuard};
use std::time::Duration;

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use super::flight::Flight;
use super::patience::Patience;
use super::rewritten::Rewritten;
use crate::payload::ChainKey;
use crate::store::{MOST_SUMMARIES, Store, StoreError};
use crate::summary::{Memory, Recollection, Summary};

mod leader;

pub(super) use leader::Leader;

/// What is remembered. One for the whole process.
#[derive(Debug)]
#[expect(clippy::disallowed_types, reason = "held for a few instructions, never across an await")]
pub struct Summaries {
    store: Option<Arc<dyn Store>>,
    patience: Patience,
    states: std::sync::RwLock<States>,
    texts: Cache<ChainKey, Arc<Text>, Bytes>,
    // Those that were used and are to be counted as such in the store.
    used: Mutex<Vec<ChainKey>>,
    began: Instant,
    read: watch::Sender<bool>,
    /// What those were made of that were made lately.
    pub(super) rewritten: Rewritten,
}

type States = HashMap<ChainKey, State>;

/// What is known of one beginning.
#[derive(Clone, Debug)]
enum State {
    /// There is a summary.
    Kept,
    /// There is one, and it cannot be read for the time being.
    Unreadable(Instant),
    /// It is being made.
    UnderWay(Arc<Flight>),
    /// It could not be made, and is not to be tried again before then.
    NotNow(Instant),
}

/// How making a summary begins.
#[derive(Debug)]
pub(super) enum Begin {
    /// It need not be made.
    Kept,
    /// It could not be made a short time ago.
    NotNow,
    /// Somebody makes it.
    Join(Arc<Flight>),
    /// Whoever has asked makes it.
    Yours(Leader),
}

/// A summary in memory.
#[derive(Debug)]
struct Text {
    summary: Arc<Summary>,
    // When its use was last noted, in seconds since the process began.
    noted: AtomicU64,
}

/// How much memory the texts take, in bytes.
const TEXTS: u64 = 32 << 20;

/// A use is noted again after this time.
const NOTE_AFTER: Duration = Duration::from_mins(5);

/// How many uses may wait to be noted; more are noted the next time.
const MOST_USED: usize = 1024;

/// A summary that could not be read is not asked for again for so long.
const REST: Duration = Duration::from_secs(10);

/// How many beginnings are remembered of which a summary could not be made.
const MOST_REFUSED: usize = 4096;

// === impl Summaries ===

impl Summaries {
    /// Nothing is remembered before [`Self::read_index`] has been called. What is made is kept in that store; without one, it is
    /// remembered as long as there is room.
    pub(super) fn new(store: Option<Arc<dyn Store>>, patience: Patience) -> Self {
        let (read, _) = watch::channel(store.is_none());
        Self {
            store,
            patience,
            states: States::default().into(),
            texts: Cache::with_weighter(1024, TEXTS, Bytes),
            used: Mutex::default(),
            began: Instant::now(),
            read,
            rewritten: Rewritten::default(),
        }
    }

    /// Reads which summaries the store has.
    pub async fn read_index(&self) {
        if let Some(store) = &self.store {
            match store.summaries().await {
                Ok(kept) => self.change(|states| {
                    for beginning in &kept {
                        states.entry(*beginning).or_insert(State::Kept);
                    }
                }),
                Err(error) => {
                    tracing::warn!(%error, cause = %error.source, "the summaries in the store are not known: they will be made again");
                }
            }
        }
        self.read.send_replace(true);
    }

    /// Whether it is known which summaries the store has.
    pub(super) fn is_read(&self) -> bool {
        *self.read.borrow()
    }

    /// Waits until it is.
    pub(super) async fn until_read(&self) {
        let mut read = self.read.subscribe();
        let _read = self.patience.wait(async move { read.wait_for(|read| *read).await.is_ok() }).await;
    }

    /// Gets the text of a summary out of the store. If that fails, [`Memory::recall`] says another thing from now on.
    pub(super) async fn load(&self, beginning: ChainKey) {
        let Some(store) = self.store.clone() else { return self.forget(beginning) };
        match self.patience.wait(async move { store.summary(beginning).await }).await {
            Ok(Ok(stored)) => match stored.and_then(|stored| serde_json::from_slice(&stored).ok()) {
                Some(summary) => self.remember(beginning, summary),
                None => self.forget(beginning),
            },
            Ok(Err(error)) => {
                tracing::debug!(%error, cause = %error.source, "a summary cannot be read");
                self.set(beginning, State::Unreadable(Instant::now() + REST));
            }
            Err(_) => self.set(beginning, State::Unreadable(Instant::now() + REST)),
        }
    }

    /// Begins to make a summary. Of all who ask at once, one makes it.
    pub(super) fn begin(self: &Arc<Self>, beginning: ChainKey, background: bool) -> Begin {
        let (flight, now) = (Arc::new(Flight::new(background)), Instant::now());
        let begun = self.change(|states| {
            let begun = begun(states.get(&beginning), now);
            if begun.is_none() {
                states.insert(beginning, State::UnderWay(Arc::clone(&flight)));
            }
            begun
        });
        begun.unwrap_or_else(|| Begin::Yours(Leader::new(Arc::clone(self), beginning, flight)))
    }

    /// Keeps a summary: durable in the store, if there is one, and then in memory.
    pub(super) async fn keep(&self, beginning: ChainKey, summary: Summary) -> Result<(), StoreError> {
        if let Some(store) = &self.store {
            let json = serde_json::to_vec(&summary).unwrap_or_default();
            store.keep_summary(beginning, json.into()).await?;
        }
        self.remember(beginning, summary);
        Ok(())
    }

    /// Notes that a summary could not be made.
    pub(super) fn refuse(&self, beginning: ChainKey, cooldown: Duration) {
        let now = Instant::now();
        let until = now + cooldown;
        self.change(|states| {
            states.retain(|_, state| !matches!(state, State::NotNow(until) if *until <= now));
            let refused = |(key, state): (&ChainKey, &State)| match state {
                State::NotNow(until) => Some((*until, *key)),
                _ => None,
            };
            if states.iter().filter_map(refused).count() >= MOST_REFUSED
                && let Some((_, first)) = states.iter().filter_map(refused).min()
            {
                states.remove(&first);
            }
            states.insert(beginning, State::NotNow(until));
        });
    }

    /// Forgets that a summary is being made, if it is this flight that was to make it.
    pub(super) fn abandon(&self, beginning: ChainKey, flight: &Arc<Flight>) {
        self.change(|states| {
            if states.get(&beginning).is_some_and(|state| state.is_flight(flight)) {
                states.remove(&beginning);
            }
        });
    }

    /// Counts the summaries as used, and their transcripts with them, that planning has used.
    pub(super) async fn note_uses(&self) {
        let Ok(mut used) = self.used.try_lock() else { return };
        let Some(store) = self.store.clone().filter(|_| !used.is_empty()) else { return };
        let beginnings = std::mem::take(&mut *used);
        drop(used);
        let texts = beginnings.iter().filter_map(|beginning| self.texts.peek(beginning));
        let transcripts = texts.filter_map(|text| text.summary.transcript).collect();
        // What fails here has raised its alarm; the next use is noted.
        let noting = async move {
            store.touch_summaries(beginnings).await?;
            store.touch(transcripts).await
        };
        let _noted = self.patience.wait(noting).await;
    }

    fn remember(&self, beginning: ChainKey, summary: Summary) {
        let noted = AtomicU64::new(self.seconds());
        self.texts.insert(beginning, Arc::new(Text { summary: Arc::new(summary), noted }));
        self.set(beginning, State::Kept);
    }

    fn set(&self, beginning: ChainKey, state: State) {
        self.change(|states| _ = states.insert(beginning, state));
    }

    fn forget(&self, beginning: ChainKey) {
        self.change(|states| _ = states.remove(&beginning));
    }

    fn states(&self) -> RwLockReadGuard<'_, States> {
        self.states.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut States) -> T) -> T {
        let mut states = self.states.write().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut states);
        if states.len() > 2 * MOST_SUMMARIES {
            // The store has swept them long ago, or is none.
            states.retain(|key, state| !matches!(state, State::Kept) || self.texts.peek(key).is_some());
        }
        changed
    }

    fn seconds(&self) -> u64 {
        self.began.elapsed().as_secs()
    }
}

impl Memory for Summaries {
    fn recall(&self, beginning: ChainKey) -> Recollection {
        match self.states().get(&beginning) {
            None => Recollection::Nothing,
            Some(State::Kept) => match self.texts.get(&beginning) {
                Some(text) => {
                    let (now, noted) = (self.seconds(), text.noted.load(Ordering::Relaxed));
                    if now.saturating_sub(noted) >= NOTE_AFTER.as_secs()
                        && let Ok(mut used) = self.used.try_lock()
                        && used.len() < MOST_USED
                    {
                        text.noted.store(now, Ordering::Relaxed);
                        used.push(beginning);
                    }
                    Recollection::Summary(Arc::clone(&text.summary))
                }
                None => Recollection::Stored,
            },
            Some(State::Unreadable(until)) if *until <= Instant::now() => Recollection::Stored,
            Some(State::NotNow(until)) if *until <= Instant::now() => Recollection::Nothing,
            Some(State::UnderWay(_)) => Recollection::UnderWay,
            Some(State::Unreadable(_) | State::NotNow(_)) => Recollection::NotNow,
        }
    }

    fn is_empty(&self) -> bool {
        self.states().is_empty()
    }
}

/// What somebody finds who wants to make a summary; none if there is nothing.
fn begun(state: Option<&State>, now: Instant) -> Option<Begin> {
    match state? {
        State::UnderWay(flight) => Some(Begin::Join(Arc::clone(flight))),
        State::NotNow(until) | State::Unreadable(until) if *until > now => Some(Begin::NotNow),
        State::Kept | State::Unreadable(_) => Some(Begin::Kept),
        State::NotNow(_) => None,
    }
}

impl State {
    fn is_flight(&self, flight: &Arc<Flight>) -> bool {
        matches!(self, Self::UnderWay(other) if Arc::ptr_eq(other, flight))
    }
}

/// Weighs texts by their memory.
#[derive(Clone, Copy, Debug)]
struct Bytes;

impl Weighter<ChainKey, Arc<Text>> for Bytes {
    fn weight(&self, _: &ChainKey, text: &Arc<Text>) -> u64 {
        const PLACE: usize = 256;
        (text.summary.text.len() + PLACE) as u64
    }
}

#[cfg(test)]
mod tests;
