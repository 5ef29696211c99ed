//! What happens, told to whoever listens: what edits did, and how summaries came about. Names and numbers, and nothing of what
//! the messages say unless that is asked for.

use std::sync::Arc;

use serde::Serialize;
use tokio::sync::broadcast;

use crate::payload::Caller;

/// Where events go. Clones share the listeners; nobody waits for one, and one that is too slow loses the oldest.
#[derive(Clone, Debug)]
pub struct Events(broadcast::Sender<Arc<Event>>);

/// One event.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    /// The request that it is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Whose it is. Not told to anybody.
    #[serde(skip)]
    pub caller: Option<Caller>,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type")]
pub enum What {
    /// A summary is going to be made.
    #[serde(rename = "summary.before")]
    SummaryBefore {
        /// The model that the request asks.
        model: Option<String>,
        /// The first message that it will stand for.
        from: usize,
        /// One behind the last.
        to: usize,
        /// The tokens of what it will stand for.
        tokens: usize,
        /// Whether a request waits for it.
        waits: bool,
    },
    /// A model was asked for a summary.
    #[serde(rename = "summary.attempt")]
    SummaryAttempt {
        /// Who was asked.
        phase: Phase,
        /// Which attempt with this one: 1, 2, …
        number: usize,
        /// Its model.
        model: Option<String>,
        /// What went wrong, if anything did.
        error: Option<String>,
        /// How long it took, in milliseconds.
        milliseconds: u64,
    },
    /// A summary was made, or not.
    #[serde(rename = "summary.after")]
    SummaryAfter {
        /// The tokens of what it stands for.
        tokens_before: usize,
        /// Its own tokens, if it was made.
        tokens_after: Option<usize>,
        /// Why it was not made.
        error: Option<String>,
        /// How long all of it took, in milliseconds.
        milliseconds: u64,
        /// The tokens that its calls were billed, as their answers say.
        usage: Option<Usage>,
        /// What it says, if `events.content` is on.
        content: Option<String>,
    },
}

/// Who was asked for a summary.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The model itself.
    Primary,
    /// One of those that are asked after it.
    Failover,
}

/// Tokens as an upstream bills them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Usage {
    /// Of the input.
    pub prompt: u64,
    /// Of those, served by the prompt cache.
    pub cached: u64,
    /// Of the answer.
    pub completion: u64,
}

/// How many events a listener may be behind.
const BACKLOG: usize = 256;

impl Default for Events {
    fn default() -> Self {
        Self(broadcast::Sender::new(BACKLOG))
    }
}

impl Events {
    /// Tells whoever listens. Costs next to nothing when nobody does.
    pub fn publish(&self, event: Event) {
        // Nobody listening is no error.
        let _listeners = self.0.send(Arc::new(event));
    }

    /// Listens from now on.
    pub fn listen(&self) -> broadcast::Receiver<Arc<Event>> {
        self.0.subscribe()
    }
}
