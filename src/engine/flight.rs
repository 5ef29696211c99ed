//! Single flight: one task makes a summary, and all requests that need it wait for that task. The request that came first may
//! go away.

use std::sync::Arc;

use tokio::sync::watch;

use super::error::SummaryError;

/// A summary that is being made.
#[derive(Debug)]
pub(super) struct Flight {
    background: bool,
    waiting: watch::Sender<usize>,
    ended: watch::Sender<Option<Result<(), SummaryError>>>,
}

/// A request that waits for a flight, from now until this is dropped.
#[derive(Debug)]
pub(super) struct Waiter(Arc<Flight>);

// === impl Flight ===

impl Flight {
    /// Nobody waits yet. One in the background is made all the same.
    pub(super) fn new(background: bool) -> Self {
        Self { background, waiting: watch::channel(0).0, ended: watch::channel(None).0 }
    }

    /// Whether a new call is to be made for it.
    pub(super) fn is_wanted(&self) -> bool {
        self.background || *self.waiting.borrow() > 0
    }

    /// Returns when it is not wanted any more.
    pub(super) async fn abandoned(&self) {
        if self.background {
            return std::future::pending().await;
        }
        // The sender lives as long as this does.
        let mut waiting = self.waiting.subscribe();
        let _none_waits = waiting.wait_for(|waiting| *waiting == 0).await;
    }

    /// Waits from now on.
    pub(super) fn join(self: Arc<Self>) -> Waiter {
        self.waiting.send_modify(|waiting| *waiting += 1);
        Waiter(self)
    }

    /// Tells all who wait how it ended.
    pub(super) fn end(&self, result: Result<(), SummaryError>) {
        self.ended.send_replace(Some(result));
    }
}

// === impl Waiter ===

impl Waiter {
    /// Waits for the end.
    pub(super) async fn wait(self) -> Result<(), SummaryError> {
        let mut ended = self.0.ended.subscribe();
        let ended = ended.wait_for(Option::is_some).await;
        ended.ok().and_then(|ended| ended.clone()).unwrap_or(Err(SummaryError::Ending))
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.waiting.send_modify(|waiting| *waiting -= 1);
    }
}
