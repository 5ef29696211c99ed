//! Single flight: one task makes a summary, and all requests that need it wait for that task. The first request
//! requests may be dropped.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use super::error::SummaryError;

/// A summary that is being made.
#[derive(Debug)]
pub(super) struct Flight {
    background: bool,
    /// When it began.
    pub(super) began: Instant,
    waiting: watch::Sender<usize>,
    ended: watch::Sender<Option<Result<(), SummaryError>>>,
}

/// A request that waits for a flight; it stops waiting when this is dropped.
pub(super) struct Waiter(Arc<Flight>);

// === impl Flight ===

impl Flight {
    /// Creates a flight without waiters. One in the background is made even without waiters.
    pub(super) fn new(background: bool) -> Self {
        Self { background, began: Instant::now(), waiting: watch::channel(0).0, ended: watch::channel(None).0 }
    }

    /// Whether a new call may be made for it.
    pub(super) fn is_wanted(&self) -> bool {
        self.background || *self.waiting.borrow() > 0
    }

    /// Returns when the flight is no longer wanted.
    pub(super) async fn abandoned(&self) {
        if self.background {
            return std::future::pending().await;
        }
        // The sender lives as long as `self`.
        let mut waiting = self.waiting.subscribe();
        let _none_waits = waiting.wait_for(|waiting| *waiting == 0).await;
    }

    /// Adds a waiter.
    pub(super) fn join(self: Arc<Self>) -> Waiter {
        self.waiting.send_modify(|waiting| *waiting += 1);
        Waiter(self)
    }

    /// Passes the result to all waiters.
    pub(super) fn end(&self, result: Result<(), SummaryError>) {
        self.ended.send_replace(Some(result));
    }
}

// === impl Waiter ===

impl Waiter {
    /// Waits for the result.
    pub(super) async fn wait(self) -> Result<(), SummaryError> {
        let mut ended = self.0.ended.subscribe();
        let ended = ended.wait_for(Option::is_some).await;
        ended.ok().and_then(|ended| ended.clone()).unwrap_or(Err(SummaryError::ShuttingDown))
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.waiting.send_modify(|waiting| *waiting -= 1);
    }
}
