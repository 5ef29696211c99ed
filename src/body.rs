//! Request bodies: buffered within limits or streamed, and the body that is sent to the upstream.

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

pub mod encoding;
pub mod peek;
pub mod pool;

use pool::{Buffer, Pool};

/// The limits for reading one request body.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The longest body, in bytes, before and after decoding.
    pub max_body: usize,
    /// How long the client may pause between two chunks.
    pub pause: Duration,
    /// The budget of all bodies in memory.
    pub budget: Budget,
    /// Buffers for long bodies.
    pub pool: Pool,
}

/// The bytes that all request bodies may hold at a time. Clones share one budget.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Semaphore>, usize);

/// A part of the [`Budget`], returned when it is dropped.
#[derive(Debug, Default)]
pub struct Lease(Option<OwnedSemaphorePermit>);

/// A body in memory, and its lease.
#[derive(Debug)]
pub struct BufferedBody {
    /// The bytes.
    pub bytes: Bytes,
    /// Their part of the budget.
    pub lease: Lease,
}

/// Why a body could not be read completely.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The body is longer than the limit.
    #[error("the request body is longer than {} bytes", .limit)]
    TooLong {
        /// The limit, in bytes.
        limit: usize,
        /// The length that the client announced, in bytes.
        announced: Option<u64>,
        /// The rest of the body.
        rest: UnreadBody,
    },
    /// All bodies together exceed the budget.
    #[error("the request bodies in memory have reached their limit")]
    NoBudget {
        /// The rest of the body.
        rest: UnreadBody,
    },
    /// The client paused too long.
    #[error("the client paused for {} s in the middle of the request body", .0.as_secs())]
    Paused(Duration),
    /// The client disconnected or broke the protocol.
    #[error("the request body broke off")]
    Broken(#[source] hyper::Error),
}

/// The unread part of a body that is refused.
#[derive(Debug)]
pub enum UnreadBody {
    /// All of it. A client that waits for `100 Continue` has sent nothing yet; polling the body would make it send.
    All(Incoming),
    /// The rest after the first chunks.
    Rest(Incoming),
}

/// The body that is sent to the upstream.
#[derive(Debug)]
pub enum RequestBody {
    /// In memory, in parts: unedited parts are slices of the client's body.
    Buffered {
        /// The parts, in order; none is empty.
        parts: VecDeque<Bytes>,
        /// Held until the last part is sent, or longer where the body is kept longer.
        lease: Arc<Lease>,
    },
    /// Forwarded as it arrives.
    Streamed(Incoming),
}

/// The bytes that one permit of the semaphore stands for, because it counts in `u32`.
const PERMIT_BYTES: usize = 1024;

/// Neighbouring parts up to this length, in bytes, are merged by copying.
const MERGE_BELOW: usize = 2048;

// === impl Budget ===

impl Budget {
    /// Creates a budget of this many bytes.
    pub fn new(bytes: usize) -> Self {
        let permits = (bytes / PERMIT_BYTES).min(Semaphore::MAX_PERMITS);
        Self(Arc::new(Semaphore::new(permits)), permits)
    }

    /// Extends the lease by `bytes`, or returns `false` at once: waiting for memory while holding some can deadlock.
    #[must_use]
    pub fn extend(&self, lease: &mut Lease, bytes: usize) -> bool {
        let Ok(permits) = u32::try_from(bytes.div_ceil(PERMIT_BYTES)) else { return false };
        let Ok(more) = Arc::clone(&self.0).try_acquire_many_owned(permits) else { return false };
        match &mut lease.0 {
            Some(permit) => permit.merge(more),
            empty @ None => *empty = Some(more),
        }
        true
    }

    /// Leases this many bytes, if they are left.
    pub fn lease(&self, bytes: usize) -> Option<Lease> {
        let mut lease = Lease::default();
        self.extend(&mut lease, bytes).then_some(lease)
    }

    /// The bytes that are leased.
    pub fn used(&self) -> usize {
        self.1.saturating_sub(self.0.available_permits()) * PERMIT_BYTES
    }

    /// The bytes that are left.
    #[cfg(test)]
    pub(crate) fn remaining(&self) -> usize {
        self.0.available_permits() * PERMIT_BYTES
    }
}

// === reading ===

/// Reads a whole body.
///
/// An announced length is checked before a byte is read, and the body goes into one buffer of that size.
pub async fn read_up_to(body: Incoming, limits: &Limits) -> Result<BufferedBody, ReadError> {
    read_watched(body, limits, |_| ()).await
}

/// The same; `watch` gets each chunk as it arrives.
pub async fn read_watched(
    mut body: Incoming,
    limits: &Limits,
    mut watch: impl FnMut(&[u8]),
) -> Result<BufferedBody, ReadError> {
    let exact = body.size_hint().exact();
    let announced = exact.map(|length| usize::try_from(length).unwrap_or(usize::MAX));
    let limit = limits.max_body;
    if announced.is_some_and(|length| length > limit) {
        return Err(ReadError::TooLong { limit, announced: exact, rest: UnreadBody::All(body) });
    }
    let Some(mut lease) = limits.budget.lease(announced.unwrap_or(0)) else {
        return Err(ReadError::NoBudget { rest: UnreadBody::All(body) });
    };
    let mut whole = Gathered::One(Bytes::new());
    // With a length, the end is known when the last chunk is there.
    while !body.is_end_stream() {
        let next = timeout(limits.pause, body.frame()).await.map_err(|_| ReadError::Paused(limits.pause))?;
        let Some(frame) = next else { break };
        let Ok(chunk) = frame.map_err(ReadError::Broken)?.into_data() else { continue };
        if whole.len() + chunk.len() > limit {
            return Err(ReadError::TooLong { limit, announced: exact, rest: UnreadBody::Rest(body) });
        }
        if announced.is_none() && !limits.budget.extend(&mut lease, chunk.len()) {
            return Err(ReadError::NoBudget { rest: UnreadBody::Rest(body) });
        }
        watch(&chunk);
        whole.push(chunk, announced, &limits.pool);
    }
    Ok(BufferedBody { bytes: whole.into_bytes(), lease })
}

/// The chunks that have been read. A body of one chunk is not copied.
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

/// Reads and discards a body for at most this time, so that a client that still sends sees the answer and no reset.
pub async fn discard(mut rest: Incoming, at_most: Duration) {
    let all = async { while let Some(Ok(_)) = rest.frame().await {} };
    // After the timeout, hyper closes the connection if anything is left.
    let _ended = timeout(at_most, all).await;
}

// === impl RequestBody ===

impl RequestBody {
    /// The parts of a body in memory.
    pub fn buffered(parts: &[Bytes], lease: impl Into<Arc<Lease>>) -> Self {
        Self::Buffered { parts: merge_short(parts), lease: lease.into() }
    }
}

/// Merges short neighbouring parts: each part takes an entry in a vectored write, which has few.
fn merge_short(parts: &[Bytes]) -> VecDeque<Bytes> {
    let runs = parts.chunk_by(|one, next| one.len().max(next.len()) <= MERGE_BELOW);
    let joined = runs.map(|run| if let [one] = run { one.clone() } else { run.concat().into() });
    joined.filter(|part| !part.is_empty()).collect()
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Buffered { parts, .. } => Poll::Ready(parts.pop_front().map(|part| Ok(Frame::data(part)))),
            Self::Streamed(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Buffered { parts, .. } => parts.is_empty(),
            Self::Streamed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Buffered { parts, .. } => {
                SizeHint::with_exact(parts.iter().map(|part| part.remaining() as u64).sum())
            }
            Self::Streamed(body) => body.size_hint(),
        }
    }
}
