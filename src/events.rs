//! What happens, told to whoever listens: what edits did, and how summaries came about. Names and numbers, and nothing of what
//! the messages say unless `events.content` asks for that.
//!
//! Each listener has a queue of its own, so a slow one delays nobody, and what it loses is its own oldest. What an event looks
//! like is in docs/headers-and-events.md; [`What`] has its fields.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::payload::Caller;
use crate::units::Period;

mod kinds;
mod target;

pub use kinds::{Counts, Edits, Ended, Event, Phase, Usage, What};
pub use target::{WebhookUrl, WebhookUrlError};

/// `[events]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Includes the texts of summaries in events. Nothing else of what messages say is ever in an event.
    pub content: bool,
    /// How many clients may listen to `GET /abridge/events` at a time; further ones get 503 with `retry-after`. 0
    /// closes the path. Allowed: 0 to 10000.
    pub listeners: usize,
    /// How many events may wait for each listener, and for the webhook. When the queue is full, the oldest event is
    /// lost, and the listener is told how many were. Allowed: 1 to 65536.
    pub queue: usize,
    /// How long a stream of events may be silent; then a comment line is sent. Allowed: 1ms to 365d.
    pub heartbeat: Period,
    /// Where every event, of all callers, is posted as JSON.
    ///
    /// Not set: nothing is posted.
    ///
    /// Example: `"https://hooks.example/abridge"`
    pub webhook: Option<WebhookUrl>,
    /// How long the webhook may take to answer. Allowed: 1ms to 365d.
    pub webhook_timeout: Period,
}

/// Where events go. Clones share the listeners, and nobody waits for one.
#[derive(Clone, Debug)]
pub struct Events(Arc<Hub>);

#[derive(Debug)]
struct Hub {
    settings: Settings,
    /// Free places for listeners.
    free: Arc<Semaphore>,
    places: ArcSwap<Vec<Place>>,
    ids: Ids,
}

/// A listener as the others see it.
#[derive(Clone, Debug)]
struct Place {
    id: u64,
    audience: Audience,
    queue: broadcast::Sender<Arc<Told>>,
}

/// Whose events somebody hears.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Audience {
    /// Everybody's.
    All,
    /// Those of one caller.
    Caller(Caller),
}

/// Hears events from when it was made until it is dropped.
#[derive(Debug)]
pub struct Listener {
    id: u64,
    hub: Arc<Hub>,
    queue: broadcast::Receiver<Arc<Told>>,
    _place: Option<OwnedSemaphorePermit>,
}

/// One event as it is told.
#[derive(Debug)]
pub struct Told {
    /// Its name, which no other event has.
    pub id: String,
    /// Its type.
    pub kind: &'static str,
    /// All of it.
    pub json: Bytes,
}

/// What a listener hears next.
#[derive(Clone, Debug)]
pub enum Heard {
    /// An event.
    Event(Arc<Told>),
    /// So many were lost here, because nobody took them out of the queue.
    Lost(u64),
}

/// Makes ids out of which nobody learns how many events others have had.
#[derive(Debug, Default)]
struct Ids {
    key: RandomState,
    next: AtomicU64,
}

/// An event with what is added when it is told.
#[derive(Serialize)]
struct Envelope<'a> {
    id: &'a str,
    unix_ms: u64,
    #[serde(flatten)]
    event: &'a Event,
}

/// The type of the note that tells of lost events.
pub const LOST: &str = "events.lost";

impl Default for Settings {
    fn default() -> Self {
        Self {
            content: false,
            listeners: 16,
            queue: 256,
            heartbeat: Period::secs(15),
            webhook: None,
            webhook_timeout: Period::secs(10),
        }
    }
}

// === impl Events ===

impl Default for Events {
    fn default() -> Self {
        Self::new(&Settings::default())
    }
}

impl Events {
    /// Events that nobody listens to yet.
    pub fn new(settings: &Settings) -> Self {
        Self(Arc::new(Hub {
            settings: settings.clone(),
            free: Arc::new(Semaphore::new(settings.listeners.min(Semaphore::MAX_PERMITS))),
            places: ArcSwap::default(),
            ids: Ids::default(),
        }))
    }

    /// Whether anybody listens. Who publishes may ask before an event is made.
    pub fn are_heard(&self) -> bool {
        !self.0.places.load().is_empty()
    }

    /// How long a stream of events may be still.
    pub fn heartbeat(&self) -> Duration {
        self.0.settings.heartbeat.0
    }

    /// Tells whoever listens. Costs next to nothing when nobody does.
    pub fn publish(&self, mut event: Event) {
        let hub = &*self.0;
        let places = hub.places.load();
        let mut hearing = places.iter().filter(|place| place.audience.hears(event.caller)).peekable();
        if hearing.peek().is_none() {
            return;
        }
        event.what.bound(hub.settings.content);
        let Some(told) = Told::new(hub.ids.next(), &event) else { return };
        let told = Arc::new(told);
        for place in hearing {
            // Who has just left does not hear it.
            let _heard = place.queue.send(Arc::clone(&told));
        }
    }

    /// Listens from now on; `None` if as many do as may.
    pub fn listen(&self, audience: Audience) -> Option<Listener> {
        let place = Arc::clone(&self.0.free).try_acquire_owned().ok()?;
        Some(self.sit(audience, Some(place)))
    }

    /// Listens from now on to everything, and takes no place from anybody.
    pub fn listen_beside(&self) -> Listener {
        self.sit(Audience::All, None)
    }

    fn sit(&self, audience: Audience, permit: Option<OwnedSemaphorePermit>) -> Listener {
        let hub = Arc::clone(&self.0);
        let (sender, queue) = broadcast::channel(hub.settings.queue.max(1));
        let place = Place { id: hub.ids.next.fetch_add(1, Ordering::Relaxed), audience, queue: sender };
        let id = place.id;
        hub.places.rcu(|places| places.iter().chain([&place]).cloned().collect::<Vec<_>>());
        Listener { id, hub, queue, _place: permit }
    }
}

impl Audience {
    fn hears(self, whose: Option<Caller>) -> bool {
        match self {
            Self::All => true,
            Self::Caller(caller) => whose == Some(caller),
        }
    }
}

// === impl Listener ===

impl Listener {
    /// What comes next; `None` once nothing can come any more. If the future is dropped, nothing is lost.
    pub async fn next(&mut self) -> Option<Heard> {
        match self.queue.recv().await {
            Ok(told) => Some(Heard::Event(told)),
            Err(RecvError::Lagged(n)) => Some(Heard::Lost(n)),
            Err(RecvError::Closed) => None,
        }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let id = self.id;
        self.hub.places.rcu(|places| places.iter().filter(|place| place.id != id).cloned().collect::<Vec<_>>());
    }
}

// === impl Told ===

impl Told {
    fn new(id: String, event: &Event) -> Option<Self> {
        let json = serde_json::to_vec(&Envelope { id: &id, unix_ms: now(), event }).ok()?;
        Some(Self { kind: event.what.kind(), json: json.into(), id })
    }
}

/// The note that so many events were lost, as JSON.
pub fn lost(n: u64) -> Bytes {
    format!("{{\"type\":\"{LOST}\",\"lost\":{n}}}").into()
}

#[expect(clippy::disallowed_methods, reason = "an event says when it was; nothing that goes upstream depends on it")]
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Ids {
    fn next(&self) -> String {
        format!("evt_{:016x}", self.key.hash_one(self.next.fetch_add(1, Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests;
