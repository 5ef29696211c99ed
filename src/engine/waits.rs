//! The waits of a request while it was planned.

use std::time::Duration;

use tokio::time::Instant;

/// All that one request has waited for, in order.
#[derive(Clone, Debug, Default)]
pub struct Waits(Vec<Wait>);

/// One wait.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// The reason.
    pub cause: WaitCause,
    /// When it began.
    pub began: Instant,
    /// How long it took.
    pub took: Duration,
}

/// The reasons why a request waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum WaitCause {
    /// The store, until the payloads are durable.
    Store,
    /// A summary.
    Summary,
    /// Answers of handlers.
    Handlers,
}

// === impl Waits ===

impl Waits {
    /// Adds a wait that ends now.
    pub(super) fn add(&mut self, cause: WaitCause, began: Instant) {
        self.0.push(Wait { cause, began, took: began.elapsed() });
    }

    /// How long the request waited for this; `None` if it did not wait.
    pub fn total(&self, cause: WaitCause) -> Option<Duration> {
        let mut times = self.iter().filter(|wait| wait.cause == cause).map(|wait| wait.took).peekable();
        times.peek()?;
        Some(times.sum())
    }

    /// Each wait.
    pub fn iter(&self) -> impl Iterator<Item = &Wait> {
        self.0.iter()
    }
}

// === impl WaitCause ===

impl WaitCause {
    /// The cause as one word.
    pub fn label(self) -> &'static str {
        self.into()
    }
}
