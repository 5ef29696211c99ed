//! Request bodies: buffered within limits or streamed, and the body that is sent to the upstream.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

pub use budget::{Budget, Lease};
use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
pub use pace::{BodyError, ClientBody, Pace, PacedBody};
use pool::{Buffer, Pool};
use tokio::time::{Instant, sleep_until, timeout};

pub mod budget;
pub mod encoding;
pub mod in_flight;
pub mod pace;
pub mod peek;
pub mod pool;

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
        rest: UnreadBody,
    },
    /// The budget does not have the memory for it.
    #[error("the bytes in memory have reached their limit")]
    NoBudget {
        /// The rest of the body.
        rest: UnreadBody,
    },
    /// The client is too slow, disconnected or broke the protocol.
    #[error(transparent)]
    Body(#[from] BodyError),
}

/// The unread part of a body that is refused.
#[derive(Debug)]
pub enum UnreadBody {
    /// All of it. A client that waits for `100 Continue` has sent nothing yet; polling the body would make it send.
    All(ClientBody),
    /// The rest after the first chunks.
    Rest(ClientBody),
}

/// The body that is sent to the upstream.
#[derive(Debug)]
pub struct RequestBody {
    content: Content,
    progress: Option<UploadProgress>,
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
        return Err(ReadError::TooLong { limit, announced: exact, rest: UnreadBody::All(body) });
    }
    let (mut whole, mut lease) = (Gathered::One(Bytes::new()), Lease::default());
    // With a length, the end is known when the last chunk is there.
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await else { break };
        let Ok(chunk) = frame?.into_data() else { continue };
        if whole.len() + chunk.len() > limit {
            return Err(ReadError::TooLong { limit, announced: exact, rest: UnreadBody::Rest(body) });
        }
        watch(&chunk);
        let is_leased = limits.budget.extend(&mut lease, chunk.len());
        if !is_leased || !whole.push(chunk, announced, &limits.pool) {
            return Err(ReadError::NoBudget { rest: UnreadBody::Rest(body) });
        }
    }
    Ok(whole.into_bytes(lease))
}

/// The chunks that have been read. A body of one chunk is not copied.
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

    /// Adds a chunk; `false` if the system has no memory for it.
    fn push(&mut self, chunk: Bytes, announced: Option<usize>, pool: &Pool) -> bool {
        match self {
            Self::One(first) if first.is_empty() => {
                *first = chunk;
                true
            }
            Self::One(first) => {
                let room = room(first.len() + chunk.len(), announced);
                let mut buffer = pool.take(announced.unwrap_or(room), room);
                let added = buffer.extend(first, room) && buffer.extend(&chunk, room);
                *self = Self::Many(buffer);
                added
            }
            Self::Many(buffer) => {
                let room = room(buffer.len() + chunk.len(), announced);
                buffer.extend(&chunk, room)
            }
        }
    }

    fn into_bytes(self, lease: Lease) -> Bytes {
        match self {
            Self::One(chunk) if chunk.is_empty() => chunk,
            Self::One(chunk) => lease.hold(chunk),
            Self::Many(buffer) => lease.hold(buffer),
        }
    }
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

    /// Notes each part that is sent.
    #[must_use]
    pub fn noted_in(self, progress: &UploadProgress) -> Self {
        Self { progress: Some(progress.clone()), ..self }
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
