//! How long a request has been still: the wait for an answer begins when the client's upload ends, however long that took.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, sleep};

/// When a part of a request's body last went out. Clones share it.
#[derive(Clone, Debug)]
pub struct Progress {
    began: Instant,
    // In milliseconds behind `began`: an atomic number, because the connection's task writes it and the request's reads it.
    last: Arc<AtomicU64>,
}

/// A request body that notes its progress.
#[derive(Debug)]
pub struct Watched<B> {
    body: B,
    progress: Progress,
}

// === impl Progress ===

impl Progress {
    /// Begins now.
    pub fn begin() -> Self {
        Self { began: Instant::now(), last: Arc::default() }
    }

    /// The same body, whose parts are noted here.
    pub fn watch<B>(&self, body: B) -> Watched<B> {
        Watched { body, progress: self.clone() }
    }

    /// Returns once nothing has gone out for so long.
    pub async fn stands_still(&self, within: Duration) {
        loop {
            let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
            let quiet = self.began.elapsed().saturating_sub(last);
            if quiet >= within {
                return;
            }
            sleep(within.saturating_sub(quiet)).await;
        }
    }

    fn note(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }
}

// === impl Watched ===

impl<B: Body<Data = Bytes> + Unpin> Body for Watched<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        let next = Pin::new(&mut this.body).poll_frame(cx);
        if next.is_ready() {
            this.progress.note();
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
