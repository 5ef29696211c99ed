//! Request bodies: read whole within limits, or streamed through; and what goes to the upstream.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

pub mod ahead;
pub mod encoding;
pub mod pool;

use pool::{Buffer, Pool};

/// What one request body may cost.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The longest body, in bytes, before and after decoding.
    pub max_body: usize,
    /// How long the client may pause.
    pub pause: Duration,
    /// The bytes of all bodies in memory.
    pub budget: Budget,
    /// Where long bodies are put.
    pub pool: Pool,
}

/// The bytes that all request bodies may hold at a time. Clones share one budget.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Semaphore>, usize);

/// A part of the [`Budget`], given back when it is dropped.
#[derive(Debug, Default)]
pub struct Lease(Option<OwnedSemaphorePermit>);

/// A body in memory, and the lease that pays for it.
#[derive(Debug)]
pub struct Held {
    /// The bytes.
    pub bytes: Bytes,
    /// What they take of the budget.
    pub lease: Lease,
}

/// Why a body was not read whole.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is longer than the limit. What was read, and the rest.
    #[error("the request body is longer than {} bytes", .limit)]
    TooLong {
        /// The limit, in bytes.
        limit: usize,
        /// The length that the client announced, in bytes.
        announced: Option<u64>,
        /// The rest of the body.
        rest: Unread,
    },
    /// All bodies together are longer than the budget.
    #[error("the request bodies in memory have reached their limit")]
    NoBudget {
        /// The rest of the body.
        rest: Unread,
    },
    /// The client paused too long.
    #[error("the client paused for {} s in the middle of the request body", .0.as_secs())]
    Paused(Duration),
    /// The client went away or broke the protocol.
    #[error("the request body broke off")]
    Broken(#[source] hyper::Error),
}

/// What was not read of a body that is refused.
#[derive(Debug)]
pub enum Unread {
    /// All of it. A client that waits for `100 Continue` has sent nothing yet, and must not be asked to.
    All(Incoming),
    /// What comes behind the first chunks.
    Rest(Incoming),
}

/// The body that goes to the upstream.
#[derive(Debug)]
pub enum Outgoing {
    /// In memory, in parts: what was not edited is a slice of what the client sent.
    Held {
        /// The parts, in order; none is empty.
        parts: VecDeque<Bytes>,
        /// Kept until the last part is handed on, or longer where the body is kept longer.
        lease: Arc<Lease>,
    },
    /// Passed on as it comes.
    Streamed(Incoming),
}

/// One permit of the semaphore stands for this many bytes, because it counts in `u32`.
const GRAIN: usize = 1024;

/// A part of a body that is copied sooner than sent by itself, in bytes.
const SHORT: usize = 2048;

// === impl Budget ===

impl Budget {
    /// A budget of so many bytes.
    pub fn new(bytes: usize) -> Self {
        let grains = (bytes / GRAIN).min(Semaphore::MAX_PERMITS);
        Self(Arc::new(Semaphore::new(grains)), grains)
    }

    /// Makes the lease so much longer, or fails at once: waiting for memory while holding some is how proxies lock up.
    #[must_use]
    pub fn extend(&self, lease: &mut Lease, bytes: usize) -> bool {
        let Ok(grains) = u32::try_from(bytes.div_ceil(GRAIN)) else { return false };
        let Ok(more) = Arc::clone(&self.0).try_acquire_many_owned(grains) else { return false };
        match &mut lease.0 {
            Some(permit) => permit.merge(more),
            empty @ None => *empty = Some(more),
        }
        true
    }

    /// A lease for so many bytes, if there are that many left.
    pub fn lease(&self, bytes: usize) -> Option<Lease> {
        let mut lease = Lease::default();
        self.extend(&mut lease, bytes).then_some(lease)
    }

    /// The bytes that are taken.
    pub fn taken(&self) -> usize {
        self.1.saturating_sub(self.0.available_permits()) * GRAIN
    }

    /// The bytes that are left.
    #[cfg(test)]
    pub(crate) fn left(&self) -> usize {
        self.0.available_permits() * GRAIN
    }
}

// === reading ===

/// Reads a body whole.
///
/// A body whose length is announced is judged by it before a byte is read, and goes into one buffer of that size.
pub async fn read_up_to(mut body: Incoming, limits: &Limits) -> Result<Held, ReadError> {
    let exact = body.size_hint().exact();
    let announced = exact.map(|length| usize::try_from(length).unwrap_or(usize::MAX));
    let limit = limits.max_body;
    if announced.is_some_and(|length| length > limit) {
        return Err(ReadError::TooLong { limit, announced: exact, rest: Unread::All(body) });
    }
    let Some(mut lease) = limits.budget.lease(announced.unwrap_or(0)) else {
        return Err(ReadError::NoBudget { rest: Unread::All(body) });
    };
    let mut whole = Gathered::One(Bytes::new());
    loop {
        let next = timeout(limits.pause, body.frame()).await.map_err(|_| ReadError::Paused(limits.pause))?;
        let Some(frame) = next else { break };
        let Ok(chunk) = frame.map_err(ReadError::Broken)?.into_data() else { continue };
        if whole.len() + chunk.len() > limit {
            return Err(ReadError::TooLong { limit, announced: exact, rest: Unread::Rest(body) });
        }
        if announced.is_none() && !limits.budget.extend(&mut lease, chunk.len()) {
            return Err(ReadError::NoBudget { rest: Unread::Rest(body) });
        }
        whole.push(chunk, announced, &limits.pool);
    }
    Ok(Held { bytes: whole.into_bytes(), lease })
}

/// Chunks on their way into one piece. A body that came in one chunk is not copied.
#[derive(Debug)]
enum Gathered {
    One(Bytes),
    Many(Buffer),
}

impl Gathered {
    fn len(&self) -> usize {
        match self {
            Self::One(chunk) => chunk.len(),
            Self::Many(buffer) => buffer.len(),
        }
    }

    fn push(&mut self, chunk: Bytes, announced: Option<usize>, pool: &Pool) {
        match self {
            Self::One(first) if first.is_empty() => *first = chunk,
            Self::One(first) => {
                let mut buffer = pool.take(announced.unwrap_or(2 * (first.len() + chunk.len())));
                buffer.extend(first);
                buffer.extend(&chunk);
                *self = Self::Many(buffer);
            }
            Self::Many(buffer) => buffer.extend(&chunk),
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::One(chunk) => chunk,
            Self::Many(buffer) => buffer.freeze(),
        }
    }
}

/// Reads on and throws away, so that a client that is still sending sees our answer and not a reset connection.
pub async fn discard(mut rest: Incoming, at_most: Duration) {
    let all = async { while let Some(Ok(_)) = rest.frame().await {} };
    // Whether it ended or the time did, the connection is closed next if anything is left.
    let _ended = timeout(at_most, all).await;
}

// === impl Outgoing ===

impl Outgoing {
    /// The parts of a body in memory.
    pub fn held(parts: &[Bytes], lease: impl Into<Arc<Lease>>) -> Self {
        Self::Held { parts: joined(parts), lease: lease.into() }
    }
}

/// The parts with short neighbours made one: each part costs a place in a write, and a write takes few.
fn joined(parts: &[Bytes]) -> VecDeque<Bytes> {
    let runs = parts.chunk_by(|one, next| one.len().max(next.len()) <= SHORT);
    let joined = runs.map(|run| if let [one] = run { one.clone() } else { run.concat().into() });
    joined.filter(|part| !part.is_empty()).collect()
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Held { parts, .. } => Poll::Ready(parts.pop_front().map(|part| Ok(Frame::data(part)))),
            Self::Streamed(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Held { parts, .. } => parts.is_empty(),
            Self::Streamed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Held { parts, .. } => SizeHint::with_exact(parts.iter().map(|part| part.remaining() as u64).sum()),
            Self::Streamed(body) => body.size_hint(),
        }
    }
}
