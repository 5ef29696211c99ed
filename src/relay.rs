//! Relays answers: each frame of the upstream goes to the client unchanged, and then to an observer.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::body::peek::PeekableBody;
use crate::dialect::AnswerEnd;

pub(crate) mod event_splitter;
pub mod tap;

/// Observes a relayed body. It cannot change the body, and must be quick: longer work belongs into a task.
pub trait Observe: Send {
    /// A chunk is relayed.
    fn on_data(&mut self, chunk: &Bytes);
    /// The body has ended. Its last bytes may not have been written to the client yet.
    fn on_end(self, end: AnswerEnd);
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
    /// A response body that is relayed from the upstream to the client.
    ///
    /// Backpressure is `poll_frame` itself: the upstream is read only when the client's connection has room.
    #[derive(Debug)]
    pub struct Relay<O: Observe> {
        body: PeekableBody,
        idle: Duration,
        // Since when the relay waits for the upstream; `None` while it waits for the client.
        waiting_since: Option<Instant>,
        // Set at the first wait. Chunks do not reset it; `waiting_since` is checked when it fires: most answers end long
        // before that, and their chunks cost no timer operation.
        #[pin]
        deadline: Option<Sleep>,
        // Taken at the end, so that `on_end` is called once.
        observer: Option<O>,
    }

    impl<O: Observe> PinnedDrop for Relay<O> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            let end = if this.body.is_end_stream() { AnswerEnd::Complete } else { AnswerEnd::ClientGone };
            notify_end(this.observer, end);
        }
    }
}

fn notify_end<O: Observe>(observer: &mut Option<O>, end: AnswerEnd) {
    if let Some(observer) = observer.take() {
        observer.on_end(end);
    }
}

impl<O: Observe> Relay<O> {
    /// Relays `body`, which may pause for at most `idle`.
    pub fn new(body: PeekableBody, idle: Duration, observer: O) -> Self {
        Self { body, idle, waiting_since: None, deadline: None, observer: Some(observer) }
    }
}

impl<O: Observe> Body for Relay<O> {
    type Data = Bytes;
    type Error = RelayError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        let mut this = self.project();
        let Poll::Ready(next) = Pin::new(&mut *this.body).poll_frame(cx) else {
            let due = *this.waiting_since.get_or_insert_with(Instant::now) + *this.idle;
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
            notify_end(this.observer, AnswerEnd::Cut);
            return Poll::Ready(Some(Err(RelayError::Paused(*this.idle))));
        };
        *this.waiting_since = None;
        Poll::Ready(match next {
            Some(Ok(frame)) => {
                if let (Some(chunk), Some(observer)) = (frame.data_ref(), this.observer.as_mut()) {
                    observer.on_data(chunk);
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => {
                notify_end(this.observer, AnswerEnd::Cut);
                Some(Err(RelayError::Broken(error)))
            }
            None => {
                notify_end(this.observer, AnswerEnd::Complete);
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
