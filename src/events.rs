//! Events for subscribers: what edits did, and how summaries were made. Events contain names and numbers, and texts of
//! summaries only with `events.content`.
//!
//! Each subscriber has its own queue, so a slow one delays no other and loses only its own oldest events.
//! docs/headers-and-events.md describes the events; [`EventKind`] has their fields.

use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use smart_default::SmartDefault;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::held::Held;
use crate::payload::Caller;
use crate::platform::since_1970;
use crate::units::Period;

mod kinds;

pub use kinds::{Edits, Event, EventKind, Phase};

/// `[events]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Includes the texts of summaries in events. Nothing else of what messages say is ever in an event.
    pub content: bool,
    /// How many clients may listen to `GET /abridge/events` at a time, and how many operators besides; further ones get 503
    /// with `retry-after`. 0 closes the path. Allowed: 0 to 10000.
    #[default(16)]
    pub listeners: usize,
    /// How many events may wait for each listener, and for the webhook. When the queue is full, the oldest event is
    /// lost, and the listener is told how many were. Allowed: 1 to 65536.
    #[default(256)]
    pub queue: usize,
    /// How long a stream of events may be silent; then a comment line is sent. Allowed: 1ms to 365d.
    #[default(Period::secs(15))]
    pub heartbeat: Period,
    /// Where every event, of all callers, is posted as JSON.
    ///
    /// Not set: nothing is posted.
    ///
    /// Example: `"https://hooks.example/abridge"`
    pub webhook: Option<WebhookUrl>,
    /// How long the webhook may take to answer. Allowed: 1ms to 365d.
    #[default(Period::secs(10))]
    pub webhook_timeout: Period,
}

/// An `http://` or `https://` URL with a host, and perhaps a path and a query, but without user information. Path and
/// query may hold a secret, so only the host is ever printed.
#[derive(Clone, derive_more::Debug, derive_more::Display, Eq, PartialEq)]
#[debug("WebhookUrl({self})")]
#[display("{}{}", self.origin(), if _0.path_and_query().is_none_or(|path| path == "/") { "/" } else { "/***" })]
pub struct WebhookUrl(Uri);

/// A URL that cannot be read. The URL is not part of the message, as it may hold a secret.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "not a webhook's URL: write http:// or https:// and a host, without user, such as \"https://hooks.example/abridge\""
)]
pub struct WebhookUrlError;

/// Publishes events. Clones share the subscribers, and publishing never waits.
#[derive(Clone, Debug)]
pub struct Events(Arc<Hub>);

#[derive(Debug)]
struct Hub {
    settings: Settings,
    /// Free places for listeners: those of callers, and those of operators.
    callers: Arc<Semaphore>,
    operators: Arc<Semaphore>,
    subscribers: Held<Vec<Subscriber>>,
    /// Hides in the ids of events how many other callers have received.
    id_key: RandomState,
    next_id: AtomicU64,
}

/// The sending side of a subscription.
#[derive(Clone, Debug)]
struct Subscriber {
    audience: Audience,
    queue: broadcast::Sender<Arc<EncodedEvent>>,
}

/// The callers whose events a subscriber receives.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Audience {
    /// All callers.
    All,
    /// One caller.
    Caller(Caller),
}

/// Receives events from its creation until it is dropped.
#[derive(Debug)]
pub struct Subscription {
    queue: broadcast::Receiver<Arc<EncodedEvent>>,
    _place: Option<OwnedSemaphorePermit>,
}

/// An event in its wire form.
#[derive(Debug)]
pub struct EncodedEvent {
    /// The unique id of the event.
    pub id: String,
    /// The type, such as `edit.before`.
    pub kind: &'static str,
    /// The whole event as JSON.
    pub json: Bytes,
}

/// The next item of a subscription.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// An event.
    Event(Arc<EncodedEvent>),
    /// This many events were lost because the queue was full.
    Lost(u64),
}

/// An event with the fields that are added when it is published.
#[derive(Serialize)]
struct Envelope<'a> {
    id: &'a str,
    unix_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    r#type: &'static str,
    #[serde(flatten)]
    kind: &'a EventKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    savings: Option<&'a str>,
}

/// The type of the item that reports lost events.
pub const LOST: &str = "events.lost";

// === impl WebhookUrl ===

impl WebhookUrl {
    /// The whole URL.
    pub fn uri(&self) -> &Uri {
        &self.0
    }

    /// Scheme, host and port.
    pub fn origin(&self) -> String {
        let host = self.0.authority().map(http::uri::Authority::as_str).unwrap_or_default();
        format!("{}://{host}", self.0.scheme_str().unwrap_or_default())
    }
}

impl FromStr for WebhookUrl {
    type Err = WebhookUrlError;

    fn from_str(text: &str) -> Result<Self, WebhookUrlError> {
        let uri: Uri = text.parse().map_err(|_| WebhookUrlError)?;
        let plain = uri.authority().is_some_and(|host| !host.as_str().contains('@'));
        match uri.scheme_str() {
            Some("http" | "https") if plain => Ok(Self(uri)),
            _ => Err(WebhookUrlError),
        }
    }
}

impl<'de> Deserialize<'de> for WebhookUrl {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

impl Serialize for WebhookUrl {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

// === impl Events ===

impl Default for Events {
    fn default() -> Self {
        Self::new(&Settings::default())
    }
}

impl Events {
    /// Creates a publisher without subscribers.
    pub fn new(settings: &Settings) -> Self {
        let places = || Arc::new(Semaphore::new(settings.listeners.min(Semaphore::MAX_PERMITS)));
        Self(Arc::new(Hub {
            settings: settings.clone(),
            callers: places(),
            operators: places(),
            subscribers: Held::default(),
            id_key: RandomState::new(),
            next_id: AtomicU64::new(0),
        }))
    }

    /// Whether there are subscribers. Lets a publisher skip the construction of an event.
    pub fn has_subscribers(&self) -> bool {
        self.0.subscribers.with(|subscribers| subscribers.iter().any(Subscriber::listens))
    }

    /// How long a stream of events may be silent.
    pub fn heartbeat(&self) -> Duration {
        self.0.settings.heartbeat.0
    }

    /// Sends the event to its subscribers. Nearly free if there are none.
    pub fn publish(&self, mut event: Event) {
        let hub = &*self.0;
        let of_one = event.caller.map(Audience::Caller);
        let hears = |audience| audience == Audience::All || Some(audience) == of_one;
        let recipients = hub.subscribers.with(|subscribers| {
            subscribers.retain(Subscriber::listens);
            subscribers.iter().filter(|subscriber| hears(subscriber.audience)).cloned().collect::<Vec<_>>()
        });
        if recipients.is_empty() {
            return;
        }
        event.kind.redact(hub.settings.content);
        let id = format!("evt_{:016x}", hub.id_key.hash_one(hub.next_id.fetch_add(1, Ordering::Relaxed)));
        let encoded = |savings| EncodedEvent::new(id.clone(), &event, savings).map(Arc::new);
        let Some(of_caller) = encoded(None) else { return };
        let of_all = event.kind.savings().and_then(|savings| encoded(Some(savings)));
        let of_all = of_all.unwrap_or_else(|| Arc::clone(&of_caller));
        for subscriber in recipients {
            let event = if subscriber.audience == Audience::All { &of_all } else { &of_caller };
            // The subscription may have been dropped in the meantime.
            let _heard = subscriber.queue.send(Arc::clone(event));
        }
    }

    /// Subscribes from now on; `None` if `events.listeners` is reached.
    pub fn subscribe(&self, audience: Audience) -> Option<Subscription> {
        let places = if audience == Audience::All { &self.0.operators } else { &self.0.callers };
        let place = Arc::clone(places).try_acquire_owned().ok()?;
        Some(self.add_subscriber(audience, Some(place)))
    }

    /// Subscribes to the events of all callers, without counting towards `events.listeners`.
    pub fn subscribe_unlimited(&self) -> Subscription {
        self.add_subscriber(Audience::All, None)
    }

    fn add_subscriber(&self, audience: Audience, permit: Option<OwnedSemaphorePermit>) -> Subscription {
        let (sender, queue) = broadcast::channel(self.0.settings.queue.max(1));
        self.0.subscribers.with(|subscribers| {
            subscribers.retain(Subscriber::listens);
            subscribers.push(Subscriber { audience, queue: sender });
        });
        Subscription { queue, _place: permit }
    }
}

impl Subscriber {
    /// Whether its subscription still exists.
    fn listens(&self) -> bool {
        self.queue.receiver_count() > 0
    }
}

// === impl Subscription ===

impl Subscription {
    /// The next item; `None` once no more can come. Cancel safe: dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Delivery> {
        match self.queue.recv().await {
            Ok(event) => Some(Delivery::Event(event)),
            Err(RecvError::Lagged(n)) => Some(Delivery::Lost(n)),
            Err(RecvError::Closed) => None,
        }
    }

    /// The next item; `None` once `stop` is cancelled and the queue is empty.
    pub async fn next_until(&mut self, stop: &CancellationToken) -> Option<Delivery> {
        if self.queue.is_empty() { stop.run_until_cancelled(self.next()).await? } else { self.next().await }
    }
}

// === impl EncodedEvent ===

impl EncodedEvent {
    fn new(id: String, event: &Event, savings: Option<&str>) -> Option<Self> {
        let unix_ms = u64::try_from(since_1970().as_millis()).unwrap_or(u64::MAX);
        let Event { request_id, kind, caller: _ } = event;
        let name = kind.into();
        let envelope = Envelope { id: &id, unix_ms, request_id: request_id.as_deref(), r#type: name, kind, savings };
        let json = serde_json::to_vec(&envelope).ok()?;
        Some(Self { kind: name, json: json.into(), id })
    }
}

/// The JSON item that reports lost events.
pub fn lost_event(n: u64) -> Bytes {
    format!("{{\"type\":\"{LOST}\",\"lost\":{n}}}").into()
}

#[cfg(test)]
mod tests;
