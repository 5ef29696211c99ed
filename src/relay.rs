//! The answer's way back: each frame of the upstream is handed on as it came, then shown to an observer.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::body::ahead::Ahead;

pub mod tap;

/// Sees what is relayed. It cannot change anything, and is to be quick: what takes longer belongs into a task of its own.
pub trait Observe: Send {
    /// A chunk goes on.
    fn on_data(&mut self, chunk: &Bytes);
    /// Nothing more will come. The last bytes may not have left yet.
    fn on_end(self, end: End);
}

/// How a relayed body ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// As the upstream meant it to.
    Complete,
    /// The upstream broke off or paused too long; the client's connection is broken off too.
    Cut,
    /// The client went away; the upstream is cancelled.
    ClientGone,
}

/// Why a body could not be relayed to its end.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The upstream broke off.
    #[error("the upstream broke off in the middle of its answer")]
    Broken(#[source] hyper::Error),
    /// The upstream paused too long.
    #[error("the upstream paused for {} s in the middle of its answer", .0.as_secs())]
    Paused(Duration),
}

pin_project_lite::pin_project! {
    /// A response body of the upstream on its way to the client.
    ///
    /// Backpressure is `poll_frame` itself: the upstream is read only when the client's connection has room.
    #[derive(Debug)]
    pub struct Relay<O: Observe> {
        body: Ahead,
        idle: Duration,
        // Since when we have been waiting for the upstream. It is not silent while the client leaves us no room.
        silent_since: Option<Instant>,
        // Set at the first silence. What comes does not move it; it asks `silent_since` when it fires: most answers end
        // long before that, and their chunks cost no timer.
        #[pin]
        deadline: Option<Sleep>,
        // Taken at the end, so that the observer hears of it once.
        observer: Option<O>,
    }

    impl<O: Observe> PinnedDrop for Relay<O> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            let end = if this.body.is_end_stream() { End::Complete } else { End::ClientGone };
            ended(this.observer, end);
        }
    }
}

fn ended<O: Observe>(observer: &mut Option<O>, end: End) {
    if let Some(observer) = observer.take() {
        observer.on_end(end);
    }
}

impl<O: Observe> Relay<O> {
    /// Relays `body`, which may pause for at most `idle`.
    pub fn new(body: Ahead, idle: Duration, observer: O) -> Self {
        Self { body, idle, silent_since: None, deadline: None, observer: Some(observer) }
    }
}

impl<O: Observe> Body for Relay<O> {
    type Data = Bytes;
    type Error = RelayError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        let mut this = self.project();
        let Poll::Ready(next) = Pin::new(&mut *this.body).poll_frame(cx) else {
            let due = *this.silent_since.get_or_insert_with(Instant::now) + *this.idle;
            if this.deadline.is_none() {
                this.deadline.set(Some(sleep_until(due)));
            }
            while let Some(mut deadline) = this.deadline.as_mut().as_pin_mut() {
                std::task::ready!(deadline.as_mut().poll(cx));
                if due <= Instant::now() {
                    break;
                }
                deadline.reset(due);
            }
            ended(this.observer, End::Cut);
            return Poll::Ready(Some(Err(RelayError::Paused(*this.idle))));
        };
        *this.silent_since = None;
        Poll::Ready(match next {
            Some(Ok(frame)) => {
                if let (Some(chunk), Some(observer)) = (frame.data_ref(), this.observer.as_mut()) {
                    observer.on_data(chunk);
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => {
                ended(this.observer, End::Cut);
                Some(Err(RelayError::Broken(error)))
            }
            None => {
                ended(this.observer, End::Complete);
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
