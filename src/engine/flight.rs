//! Single flight: one task makes a summary, and all requests that need it wait for that task.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::summaries::Summaries;
use super::summarizer::SummaryError;
use crate::payload::ChainKey;

/// A summary that is being made.
#[derive(Debug)]
pub(super) struct Flight {
    background: bool,
    /// When it began.
    pub(super) began: Instant,
    /// Its result, once it has ended. Each receiver is a request that waits.
    ended: watch::Sender<Option<Result<(), SummaryError>>>,
}

/// Held by the task that makes a summary. If it is dropped, the waiters get an error.
pub(super) struct Leader {
    pub(super) summaries: Arc<Summaries>,
    pub(super) beginning: ChainKey,
    /// The flight that later requests join.
    pub(super) flight: Arc<Flight>,
}

impl Flight {
    /// Creates a flight without waiters. One in the background is made even without waiters.
    pub(super) fn new(background: bool) -> Self {
        Self { background, began: Instant::now(), ended: watch::channel(None).0 }
    }

    /// Whether a new call may be made for it.
    pub(super) fn is_wanted(&self) -> bool {
        self.background || !self.ended.is_closed()
    }

    /// Returns when the flight is no longer wanted.
    pub(super) async fn abandoned(&self) {
        if self.background {
            return std::future::pending().await;
        }
        self.ended.closed().await;
    }

    /// Adds a waiter, which gets the result, and stops waiting when it is dropped.
    pub(super) fn join(&self) -> impl Future<Output = Result<(), SummaryError>> + Send + use<> {
        let mut ended = self.ended.subscribe();
        async move {
            let ended = ended.wait_for(Option::is_some).await;
            ended.ok().and_then(|ended| ended.clone()).unwrap_or(Err(SummaryError::ShuttingDown))
        }
    }
}

impl Leader {
    /// Ends the flight with an error, and starts the cooldown.
    pub(super) fn fail(self, error: SummaryError, cooldown: Duration) {
        self.summaries.cool_down(self.beginning, cooldown);
        self.end(Err(error));
    }

    /// Ends the flight without a cooldown: the summary is stored, no request waits, or there is no capacity. The next claim
    /// may try again.
    pub(super) fn end(self, result: Result<(), SummaryError>) {
        self.summaries.abandon(self.beginning, &self.flight);
        self.flight.ended.send_replace(Some(result));
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.summaries.abandon(self.beginning, &self.flight);
    }
}
