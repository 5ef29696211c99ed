//! Upload progress of a request: the timeout for an answer counts from the last part of the body that was sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// When a part of a request's body was last sent. Clones share it.
#[derive(Clone, Debug)]
pub struct UploadProgress {
    began: Instant,
    // In milliseconds since `began`. Atomic, because the connection's task writes it and the request's task reads it.
    last: Arc<AtomicU64>,
}

// === impl UploadProgress ===

impl UploadProgress {
    /// Starts now.
    pub fn start() -> Self {
        Self { began: Instant::now(), last: Arc::default() }
    }

    /// Returns once nothing has been sent for `within`.
    pub async fn stalled(&self, within: Duration) {
        let mut last = Duration::ZERO;
        // A time that far off never comes.
        while let Some(due) = self.began.checked_add(last).and_then(|sent| sent.checked_add(within)) {
            sleep_until(due).await;
            let before = last;
            last = Duration::from_millis(self.last.load(Ordering::Relaxed));
            if last == before {
                return;
            }
        }
        std::future::pending::<()>().await;
    }

    /// Notes that a part is sent.
    pub(super) fn touch(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }
}
