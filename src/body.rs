//! Request bodies: buffered within limits or streamed, and the body that is sent to the upstream.

use std::collections::VecDeque;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
pub use pace::{BodyError, ClientBody, InFlight, KeptOpen, Pace, PacedBody, Requests};
use pool::Buffer;
pub use pool::Pool;
use tokio::time::{Instant, sleep_until, timeout};

pub use crate::held::budget::{Budget, Lease};

pub mod encoding;
pub mod pace;
pub mod peek;
mod pool;

/// The limits for reading one request body.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The longest body, in bytes, before and after decoding.
    pub max_body: usize,
    /// The budget of all that is held in memory for clients.
    pub budget: Budget,
    /// Buffers for long bodies.
    pub pool: Pool,
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
        rest: ClientBody,
    },
    /// The budget does not have the memory for it.
    #[error("the bytes in memory have reached their limit")]
    NoBudget {
        /// The rest of the body.
        rest: ClientBody,
    },
    /// The client is too slow, disconnected or broke the protocol.
    #[error(transparent)]
    Body(#[from] BodyError),
}

/// The body that is sent to the upstream.
#[derive(Debug)]
pub struct RequestBody {
    content: Content,
    /// Where each part that is sent is noted.
    pub(crate) progress: Option<UploadProgress>,
}

#[derive(Debug)]
enum Content {
    /// In memory, in parts, in order; none is empty. Unedited parts are slices of the client's body, and have its lease.
    Buffered(VecDeque<Bytes>),
    /// Forwarded as it arrives.
    Streamed(ClientBody),
}

/// Neighbouring parts up to this length, in bytes, are merged by copying.
const MERGE_BELOW: usize = 2048;

/// The room that is allocated for a body of an announced length is at most this many times what has come of it.
const ROOM_PER_BYTE: usize = 16;

// === reading ===

/// Reads a whole body.
///
/// An announced length is checked before a byte is read. Memory is taken as bytes come, however many are announced.
pub async fn read_up_to(body: ClientBody, limits: &Limits) -> Result<Bytes, ReadError> {
    read_watched(body, limits, |_| ()).await
}

/// The same; `watch` gets each chunk as it arrives. The bytes have their lease of the budget: it is returned when the last
/// slice of them is dropped.
pub async fn read_watched(
    mut body: ClientBody,
    limits: &Limits,
    mut watch: impl FnMut(&[u8]),
) -> Result<Bytes, ReadError> {
    let exact = body.size_hint().exact();
    let announced = exact.map(|length| usize::try_from(length).unwrap_or(usize::MAX));
    let limit = limits.max_body;
    if announced.is_some_and(|length| length > limit) {
        return Err(ReadError::TooLong { limit, announced: exact, rest: body });
    }
    // A body of one chunk is not copied.
    let (mut first, mut buffer, mut lease) = (Bytes::new(), None::<Buffer>, Lease::default());
    let mut come = 0;
    // With a length, the end is known when the last chunk is there.
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await else { break };
        let Ok(chunk) = frame?.into_data() else { continue };
        come += chunk.len();
        if come > limit {
            return Err(ReadError::TooLong { limit, announced: exact, rest: body });
        }
        watch(&chunk);
        let is_leased = limits.budget.extend(&mut lease, chunk.len());
        let has_room = is_leased
            && if come == chunk.len() {
                first = chunk;
                true
            } else {
                let room = room(come, announced);
                let buffer = buffer.get_or_insert_with(|| limits.pool.take(announced.unwrap_or(room), room));
                buffer.extend(&mem::take(&mut first), room) && buffer.extend(&chunk, room)
            };
        if !has_room {
            return Err(ReadError::NoBudget { rest: body });
        }
    }
    Ok(match buffer {
        Some(buffer) => lease.hold(buffer),
        None if first.is_empty() => first,
        None => lease.hold(first),
    })
}

/// The room for a body of which so many bytes have come.
fn room(came: usize, announced: Option<usize>) -> usize {
    announced.map_or(2 * came, |announced| announced.min(ROOM_PER_BYTE * came))
}

/// Reads and discards a body for at most this time, so that a client that still sends sees the answer and no reset.
pub async fn discard(mut rest: impl Body + Unpin, at_most: Duration) {
    let all = async { while let Some(Ok(_)) = rest.frame().await {} };
    // After the timeout, hyper closes the connection if anything is left.
    let _ended = timeout(at_most, all).await;
}

// === impl RequestBody ===

impl RequestBody {
    /// Its parts; `None` if it is forwarded as it arrives, and something will.
    pub fn parts(&self) -> Option<impl Iterator<Item = &Bytes>> {
        match &self.content {
            Content::Buffered(parts) => Some(parts.iter()),
            Content::Streamed(body) => body.is_end_stream().then(Default::default),
        }
    }

    /// The parts of a body in memory.
    pub fn buffered(parts: &[Bytes]) -> Self {
        Self { content: Content::Buffered(merge_short(parts)), progress: None }
    }

    /// A body that is forwarded as it arrives.
    pub fn streamed(body: ClientBody) -> Self {
        Self { content: Content::Streamed(body), progress: None }
    }
}

/// Merges short neighbouring parts: each part takes an entry in a vectored write, which has few.
fn merge_short(parts: &[Bytes]) -> VecDeque<Bytes> {
    let runs = parts.chunk_by(|one, next| one.len().max(next.len()) <= MERGE_BELOW);
    let joined = runs.map(|run| if let [one] = run { one.clone() } else { run.concat().into() });
    joined.filter(|part| !part.is_empty()).collect()
}

/// The most bytes of a body of this length that are copied when this many places in it are replaced.
pub(crate) fn most_merged(length: usize, n_replaced: usize) -> usize {
    length.min(n_replaced.saturating_mul(2 * MERGE_BELOW))
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let next = match &mut this.content {
            Content::Buffered(parts) => Poll::Ready(parts.pop_front().map(|part| Ok(Frame::data(part)))),
            Content::Streamed(body) => Pin::new(body).poll_frame(cx),
        };
        if let Some(progress) = this.progress.as_ref().filter(|_| next.is_ready()) {
            progress.touch();
        }
        next
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Buffered(parts) => parts.is_empty(),
            Content::Streamed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Buffered(parts) => SizeHint::with_exact(parts.iter().map(|part| part.remaining() as u64).sum()),
            Content::Streamed(body) => body.size_hint(),
        }
    }
}

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
