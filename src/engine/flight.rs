//! Single flight: one task makes a summary, and all requests that need it wait for that task.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::disks::PersistError;

/// A summary that is being made.
#[derive(Debug)]
pub(super) struct Flight {
    /// Keeps a flight in the background wanted, which is made even without waiters.
    _background: Option<watch::Receiver<Ended>>,
    /// When it began.
    pub(super) began: Instant,
    /// Its result, once it has ended. Each receiver is a request that waits.
    ended: watch::Sender<Ended>,
}

type Ended = Option<Result<(), SummaryError>>;

/// Why a summary could not be made.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SummaryError {
    /// An earlier attempt failed, and `summarize.cooldown` has not passed yet.
    #[error("an earlier attempt failed less than summarize.cooldown ago")]
    CoolingDown,
    /// It was not made within this time.
    #[error("it was not made within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// No model produced it; the last error as text.
    #[error("{0}")]
    Failed(Arc<str>),
    /// It, or its transcript, could not be stored.
    #[error(transparent)]
    NotStored(#[from] PersistError),
    /// Too many summaries are being made, or their input exceeds the memory budget.
    #[error("too many summaries are being made")]
    Busy,
    /// No request waits for it any more.
    #[error("no request waits for it any more")]
    Abandoned,
    /// The task that made it has ended without a result.
    #[error("abridge is shutting down, or has a bug")]
    ShuttingDown,
}

impl Flight {
    /// Creates a flight without waiters. One in the background is made even without waiters.
    pub(super) fn new(background: bool) -> Self {
        let (ended, waiter) = watch::channel(None);
        Self { _background: background.then_some(waiter), began: Instant::now(), ended }
    }

    /// Whether a new call may be made for it.
    pub(super) fn is_wanted(&self) -> bool {
        !self.ended.is_closed()
    }

    /// Returns when the flight is no longer wanted.
    pub(super) async fn abandoned(&self) {
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

    /// Gives all waiters the result.
    pub(super) fn end(&self, result: Result<(), SummaryError>) {
        self.ended.send_replace(Some(result));
    }
}
