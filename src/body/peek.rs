//! Answer bodies: those that can be read in advance and are still relayed unchanged, and those that abridge makes.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

/// The bytes that a held frame takes beside its data.
const FRAME_COST: usize = 128;

/// The frames of a body that is made while it is relayed.
pub type Frames = Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, hyper::Error>> + Send>>;

/// The body of an answer. Peeked frames are yielded first, unchanged.
#[derive(Debug)]
pub struct PeekableBody {
    peeked: VecDeque<Result<Frame<Bytes>, hyper::Error>>,
    rest: Rest,
    // Nothing follows the peeked frames.
    ended: bool,
    // The frames before an error have been yielded, and the connection could write them.
    flushed: bool,
}

/// Where the frames after the peeked ones come from.
#[derive(derive_more::Debug)]
enum Rest {
    Upstream(Incoming),
    #[debug("Made")]
    Made(Frames),
    Nothing,
}

// === impl PeekableBody ===

impl PeekableBody {
    /// A body that is there as a whole.
    pub fn whole(data: Bytes) -> Self {
        Self { peeked: VecDeque::from([Ok(Frame::data(data))]), rest: Rest::Nothing, ended: true, flushed: false }
    }

    /// A body of frames that are made while it is relayed. Dropping it stops that.
    pub fn made(frames: Frames) -> Self {
        Self { peeked: VecDeque::new(), rest: Rest::Made(frames), ended: false, flushed: false }
    }

    /// Reads the body to its end and returns its data; `None` if it has more than `max` bytes, breaks off, or takes longer
    /// than `within`. It can be relayed in each case.
    pub async fn peek(&mut self, max: usize, within: Duration) -> Option<Bytes> {
        if self.size_hint().lower() > u64::try_from(max).unwrap_or(u64::MAX) {
            return None;
        }
        let mut n_bytes = self.n_peeked();
        let is_too_long = |data: &[u8]| {
            n_bytes += data.len();
            (n_bytes > max).then_some(())
        };
        timeout(within, self.read_until(is_too_long)).await.ok()?;
        if !self.ended {
            return None;
        }
        let mut text = Vec::with_capacity(self.n_peeked());
        for frame in &self.peeked {
            text.extend_from_slice(data_of(frame.as_ref().ok()?));
        }
        Some(text.into())
    }

    /// Reads until `judge`, which is shown each chunk once, has decided. `None` if the body ends or breaks off before, if
    /// more than `max` bytes would be held, or if it takes longer than `within`. It can be relayed in each case.
    pub async fn peek_until<T>(
        &mut self,
        max: usize,
        within: Duration,
        mut judge: impl FnMut(&[u8]) -> Option<T>,
    ) -> Option<T> {
        let mut held = 0;
        let decided = |data: &[u8]| {
            held += data.len() + FRAME_COST;
            judge(data).map(Some).or((held > max).then_some(None))
        };
        timeout(within, self.read_until(decided)).await.ok()??
    }

    /// Reads until the end, or until `judge` has decided, which is shown each chunk.
    async fn read_until<T>(&mut self, mut judge: impl FnMut(&[u8]) -> Option<T>) -> Option<T> {
        while !self.ended {
            let Some(frame) = self.rest.frame().await else {
                self.ended = true;
                break;
            };
            self.ended = frame.is_err();
            let decided = judge(frame.as_ref().map_or(&[], data_of));
            self.peeked.push_back(frame);
            if decided.is_some() {
                return decided;
            }
        }
        None
    }

    fn n_peeked(&self) -> usize {
        self.peeked.iter().flatten().filter_map(Frame::data_ref).map(Bytes::len).sum()
    }
}

fn data_of(frame: &Frame<Bytes>) -> &[u8] {
    frame.data_ref().map_or(&[], |data| data)
}

impl From<Incoming> for PeekableBody {
    fn from(rest: Incoming) -> Self {
        Self { peeked: VecDeque::new(), rest: Rest::Upstream(rest), ended: false, flushed: false }
    }
}

impl Body for Rest {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Upstream(body) => Pin::new(body).poll_frame(cx),
            Self::Made(frames) => frames.as_mut().poll_next(cx),
            Self::Nothing => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Upstream(body) => body.is_end_stream(),
            Self::Made(_) => false,
            Self::Nothing => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Upstream(body) => body.size_hint(),
            Self::Made(_) => SizeHint::default(),
            Self::Nothing => SizeHint::with_exact(0),
        }
    }
}

impl Body for PeekableBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        if matches!(this.peeked.front(), Some(Err(_))) && !this.flushed {
            // hyper drops unwritten data when a body fails, and writes it when a body is pending.
            this.flushed = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        match this.peeked.pop_front() {
            Some(frame) => Poll::Ready(Some(frame)),
            None if this.ended => Poll::Ready(None),
            None => Pin::new(&mut this.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.peeked.is_empty() && (self.ended || self.rest.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let (mut hint, peeked) = (self.rest.size_hint(), self.n_peeked() as u64);
        // The upper bound first, because the lower one must never exceed it.
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(peeked));
        }
        hint.set_lower(hint.lower().saturating_add(peeked));
        hint
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    #[tokio::test]
    async fn frames_that_were_peeked_before_count() {
        let frames = [Bytes::from_static(b"0123456789")].map(|data| Ok(Frame::data(data)));
        let mut body = PeekableBody::made(Box::pin(stream::iter(frames)));
        let within = Duration::from_secs(1);
        assert!(body.peek_until(0, within, |_| None::<()>).await.is_none());
        assert!(body.peek(9, within).await.is_none());
        assert_eq!(body.peek(10, within).await.unwrap(), "0123456789");
    }
}
