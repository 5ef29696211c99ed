//! Upload progress of a request: the timeout for an answer counts from the last part of the body that was sent.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, sleep_until};

/// When a part of a request's body was last sent. Clones share it.
#[derive(Clone, Debug)]
pub struct UploadProgress {
    began: Instant,
    // In milliseconds since `began`. Atomic, because the connection's task writes it and the request's task reads it.
    last: Arc<AtomicU64>,
}

/// A request body that notes its progress.
#[derive(Debug)]
pub struct WatchedBody<B> {
    body: B,
    progress: UploadProgress,
}

// === impl UploadProgress ===

impl UploadProgress {
    /// Starts now.
    pub fn start() -> Self {
        Self { began: Instant::now(), last: Arc::default() }
    }

    /// Wraps a body so that each part is noted here.
    pub fn watch<B>(&self, body: B) -> WatchedBody<B> {
        WatchedBody { body, progress: self.clone() }
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

    fn touch(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }
}

// === impl WatchedBody ===

impl<B: Body<Data = Bytes> + Unpin> Body for WatchedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        let next = Pin::new(&mut this.body).poll_frame(cx);
        if next.is_ready() {
            this.progress.touch();
        }
        next
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
