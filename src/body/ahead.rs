//! Bodies of answers that are read ahead to see what they say, and then handed on as they came.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

/// The body of an answer. What was read of it ahead still comes, first and as it came.
#[derive(Debug)]
pub struct Ahead {
    read: VecDeque<Result<Frame<Bytes>, hyper::Error>>,
    rest: Incoming,
    // Nothing comes behind what was read.
    ended: bool,
    // What came before a break has been handed on, and had its time to leave.
    left: bool,
}

// === impl Ahead ===

impl Ahead {
    /// Reads the body to its end and returns what it says; `None` if it has more than `most` bytes, breaks off, or does
    /// not come in time. Either way it can be handed on.
    pub async fn peek(&mut self, most: usize, within: Duration) -> Option<Bytes> {
        if self.rest.size_hint().lower() > u64::try_from(most).unwrap_or(u64::MAX) {
            return None;
        }
        timeout(within, self.read_up_to(most)).await.ok()?;
        if !self.ended {
            return None;
        }
        let mut text = Vec::with_capacity(self.n_read());
        for frame in &self.read {
            text.extend_from_slice(frame.as_ref().ok()?.data_ref().map_or(&[][..], |data| data));
        }
        Some(text.into())
    }

    /// Reads until the end, or until there are more than `most` bytes.
    async fn read_up_to(&mut self, most: usize) {
        while !self.ended && self.n_read() <= most {
            match self.rest.frame().await {
                Some(frame) => {
                    self.ended = frame.is_err();
                    self.read.push_back(frame);
                }
                None => self.ended = true,
            }
        }
    }

    fn n_read(&self) -> usize {
        self.read.iter().flatten().filter_map(Frame::data_ref).map(Bytes::len).sum()
    }
}

impl From<Incoming> for Ahead {
    fn from(rest: Incoming) -> Self {
        Self { read: VecDeque::new(), rest, ended: false, left: false }
    }
}

impl Body for Ahead {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        if matches!(this.read.front(), Some(Err(_))) && !this.left {
            // A connection drops what it has not written yet when a body fails, and writes when a body has no more for now.
            this.left = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        match this.read.pop_front() {
            Some(frame) => Poll::Ready(Some(frame)),
            None if this.ended => Poll::Ready(None),
            None => Pin::new(&mut this.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_empty() && (self.ended || self.rest.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let (mut hint, read) = (self.rest.size_hint(), self.n_read() as u64);
        // In this order, since no bound may be on the wrong side of the other.
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(read));
        }
        hint.set_lower(hint.lower().saturating_add(read));
        hint
    }
}
