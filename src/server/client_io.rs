//! The connection to a client, within the memory budget and the time-out for writes, and the answer to one of its requests, which
//! is in flight until it has ended.
//!
//! hyper decides how much it reads at a time and how much it holds to be written. The room that it offers for a read is its
//! buffer, and the bytes that it offers to write are all that it holds. Only larger ones than usual are leased, so a short
//! request costs two comparisons.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONNECTION;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::rt::{Executor, Read, ReadBuf, ReadBufCursor, Write};
use hyper::{Request, Response, Version};
use hyper_util::rt::TokioExecutor;
use tokio::time::{Sleep, sleep};

use crate::admin::access::ConnectionInfo;
use crate::body::{Budget, InFlight, Lease, Pace, PacedBody, Requests};
use crate::proxy::{Proxy, ResponseBody};

/// The limits of all connections to clients. The buffers that are read into have a separate budget, so that idle connections
/// take no room from bodies.
#[derive(Clone, Debug)]
pub(super) struct IoLimits {
    pub(super) budget: Budget,
    pub(super) buffers: Budget,
    pub(super) write_timeout: Duration,
}

/// A connection to a client.
pub(super) struct ClientIo<T> {
    io: T,
    limits: IoLimits,
    requests: Arc<Requests>,
    // The buffer that is read into, and what waits to be written.
    reading: Lease,
    unsent: Lease,
    // How many bytes were read without a lease since this many requests.
    n_head: usize,
    behind: usize,
    // Runs while the client takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
}

/// A buffer up to this size is not leased. Each connection may have two of them.
const UNLEASED: usize = 16 << 10;

/// How much is read at a time when the budget is used up.
const LEAST_READ: usize = 4 << 10;

/// The answer to a head that the budget has no room for. hyper has not read the request, so it cannot answer.
const OVERLOADED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nx-abridge-error: overloaded\r\nretry-after: 1\r\n\
    content-length: 0\r\nconnection: close\r\n\r\n";

// === impl ClientIo ===

impl<T: Read + Write + Unpin> ClientIo<T> {
    pub(super) fn new(io: T, limits: IoLimits, requests: Arc<Requests>) -> Self {
        let (reading, unsent) = (Lease::default(), Lease::default());
        Self { io, limits, requests, reading, unsent, n_head: 0, behind: 0, stalled: None }
    }

    /// Reads into a buffer that has to be leased.
    fn poll_read_leased(&mut self, cx: &mut Context<'_>, mut buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        // A buffer for a head has a part of it already, as long as the room for the rest. One for a body has given it away.
        let (is_body, room) = (self.requests.are_in_flight(), buffer.remaining());
        let held = if is_body { room } else { 2 * room };
        if self.limits.buffers.extend_to(&mut self.reading, held) {
            return Pin::new(&mut self.io).poll_read(cx, buffer);
        }
        let mut little = [0; LEAST_READ];
        let mut read = ReadBuf::new(&mut little);
        std::task::ready!(Pin::new(&mut self.io).poll_read(cx, read.unfilled()))?;
        let started = self.requests.n_started();
        if is_body || self.behind != started {
            (self.behind, self.n_head) = (started, 0);
        }
        self.n_head += read.filled().len();
        // The reader of a body decides whether that is refused. A buffer may be long although the head is short.
        if is_body || self.n_head <= 2 * LEAST_READ {
            buffer.put_slice(read.filled());
            return Poll::Ready(Ok(()));
        }
        // Whoever does not take this sees the connection close.
        let _ = Pin::new(&mut self.io).poll_write(cx, OVERLOADED);
        tracing::debug!("a long head was refused: there is no memory for it");
        Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()))
    }

    /// Notes what a write of `offered` bytes has done.
    fn after_write(
        &mut self,
        cx: &mut Context<'_>,
        offered: usize,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Pending => {
                if offered > UNLEASED && !self.limits.budget.extend_to(&mut self.unsent, offered) {
                    tracing::debug!("a client that does not read was cut off: there is no memory for its answer");
                    return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
                }
                let timer = self.stalled.get_or_insert_with(|| Box::pin(sleep(self.limits.write_timeout)));
                std::task::ready!(timer.as_mut().poll(cx));
                tracing::debug!(
                    "a client that does not read was cut off: it has taken nothing for server.write_timeout"
                );
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            written @ Poll::Ready(_) => {
                if self.stalled.take().is_some() {
                    self.unsent.shrink_to(0);
                }
                written
            }
        }
    }
}

impl<T: Read + Write + Unpin> Read for ClientIo<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if buffer.remaining() <= UNLEASED {
            return Pin::new(&mut this.io).poll_read(cx, buffer);
        }
        this.poll_read_leased(cx, buffer)
    }
}

impl<T: Read + Write + Unpin> Write for ClientIo<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write(cx, bytes);
        this.after_write(cx, bytes.len(), written)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write_vectored(cx, slices);
        let offered = if written.is_pending() { slices.iter().map(|slice| slice.len()).sum() } else { 0 };
        this.after_write(cx, offered, written)
    }
}

pin_project_lite::pin_project! {
    /// The body of an answer.
    #[derive(Debug)]
    pub(super) struct Answer {
        #[pin]
        body: ResponseBody,
        in_flight: InFlight,
    }
}

/// Runs the streams of HTTP/2. One whose client takes nothing of its answer for that long is reset: it may do so on a connection
/// whose other streams go on.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamExecutor {
    pub(super) write_timeout: Duration,
}

/// The last step of a stream since it was polled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Done {
    /// Nothing: it waits for its client.
    Nothing,
    /// It has waited for abridge or for the upstream.
    Waited,
    /// It has sent a part of its answer.
    Sent,
}

thread_local! {
    /// Of the stream that this thread polls.
    static DONE: Cell<Done> = const { Cell::new(Done::Nothing) };
}

/// Answers a request. The future is boxed, because hyper reserves the size of this future, 5 KB, for the life of the connection.
pub(super) fn answer(
    proxy: Arc<Proxy>,
    request: Request<Incoming>,
    info: ConnectionInfo,
    in_flight: InFlight,
    pace: Pace,
) -> Pin<Box<impl Future<Output = Result<Response<Answer>, Infallible>>>> {
    Box::pin(async move {
        let is_http2 = request.version() == Version::HTTP_2;
        let request = request.map(|body| PacedBody::new(body, pace, Some(in_flight.clone())));
        let mut handling = pin!(proxy.handle(request, info));
        let response = poll_fn(|cx| {
            DONE.set(Done::Waited);
            handling.as_mut().poll(cx)
        });
        let mut response = response.await;
        // HTTP/2 has no such field, and sends GOAWAY.
        if is_http2 && response.headers_mut().remove(CONNECTION).is_some() {
            in_flight.close_connection();
        }
        Ok(response.map(|body| Answer { body, in_flight }))
    })
}

impl Body for Answer {
    type Data = Bytes;
    type Error = <ResponseBody as Body>::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let next = self.project().body.poll_frame(cx);
        DONE.set(if next.is_ready() { Done::Sent } else { Done::Waited });
        next
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        let within = self.write_timeout;
        TokioExecutor::new().execute(async move {
            let (mut stream, mut timer) = (pin!(stream), None);
            poll_fn(|cx| {
                DONE.set(Done::Nothing);
                if stream.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                let done = DONE.get();
                if done != Done::Nothing {
                    timer = None;
                }
                if done == Done::Waited {
                    return Poll::Pending;
                }
                timer.get_or_insert_with(|| Box::pin(sleep(within))).as_mut().poll(cx)
            })
            .await;
        });
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const MIB: usize = 1 << 20;

    fn connected(budget: usize, buffered: usize) -> (ClientIo<TokioIo<DuplexStream>>, DuplexStream, Arc<Requests>) {
        let (near, far) = duplex(buffered);
        let (budget, buffers) = (Budget::new(budget), Budget::new(budget));
        let limits = IoLimits { budget, buffers, write_timeout: Duration::from_mins(1) };
        let requests = Arc::new(Requests::default());
        (ClientIo::new(TokioIo::new(near), limits, Arc::clone(&requests)), far, requests)
    }

    async fn read(io: &mut ClientIo<TokioIo<DuplexStream>>, room: usize) -> io::Result<usize> {
        let mut bytes = vec![0; room];
        let mut buffer = ReadBuf::new(&mut bytes);
        poll_fn(|cx| Pin::new(&mut *io).poll_read(cx, buffer.unfilled())).await?;
        Ok(buffer.filled().len())
    }

    #[tokio::test]
    async fn a_long_head_is_refused_with_an_answer_when_there_is_no_memory() {
        for (budget, is_read) in [(128 << 10, true), ((128 << 10) - 1, false)] {
            let (mut io, mut far, _requests) = connected(budget, MIB);
            far.write_all(&[b'x'; 100]).await.unwrap();
            assert_eq!(read(&mut io, UNLEASED).await.unwrap(), 100);
            assert_eq!(io.limits.buffers.used(), 0);
            far.write_all(&[b'x'; 9000]).await.unwrap();
            let mut n_read = 0;
            let refused = async {
                while n_read < 9000 {
                    n_read += read(&mut io, 64 << 10).await?;
                }
                io::Result::Ok(())
            };
            assert_eq!((refused.await.is_ok(), n_read), (is_read, if is_read { 9000 } else { 2 * LEAST_READ }));
            drop(io);
            let mut answer = String::new();
            far.read_to_string(&mut answer).await.unwrap();
            assert_eq!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("overloaded"), !is_read, "{answer}");
        }
    }

    #[tokio::test]
    async fn a_body_is_read_in_small_pieces_without_memory() {
        let (mut io, mut far, requests) = connected(64 << 10, MIB);
        far.write_all(&vec![b'x'; 200 << 10]).await.unwrap();
        let request = requests.start();
        assert_eq!(read(&mut io, 64 << 10).await.unwrap(), 64 << 10);
        assert_eq!(io.limits.buffers.used(), 64 << 10);
        assert_eq!(read(&mut io, 128 << 10).await.unwrap(), LEAST_READ);
        drop(request);
        // A short head is read even then, and a long one is not.
        assert_eq!(read(&mut io, 128 << 10).await.unwrap(), LEAST_READ);
        assert!(read(&mut io, 128 << 10).await.is_err());
    }

    async fn write(io: &mut ClientIo<TokioIo<DuplexStream>>, n: usize) -> io::Result<usize> {
        let bytes = vec![b'x'; n];
        poll_fn(|cx| Pin::new(&mut *io).poll_write_vectored(cx, &[IoSlice::new(&bytes)])).await
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_client_does_not_take_is_leased_until_it_does_and_not_for_ever() {
        let (mut io, mut far, _requests) = connected(MIB, 1000);
        assert_eq!(write(&mut io, 100_000).await.unwrap(), 1000);
        let budget = io.limits.budget.clone();
        let reading = async {
            sleep(Duration::from_secs(59)).await;
            assert_eq!(budget.used(), 99_000);
            far.read_exact(&mut [0; 10]).await.unwrap();
        };
        assert_eq!(tokio::join!(write(&mut io, 99_000), reading).0.unwrap(), 10);
        assert_eq!(budget.used(), 0);
        assert_eq!(write(&mut io, 98_990).await.unwrap_err().kind(), io::ErrorKind::TimedOut);

        let (mut io, _far, _requests) = connected(50_000, 1000);
        write(&mut io, 100_000).await.unwrap();
        assert_eq!(write(&mut io, 50_001).await.unwrap_err().kind(), io::ErrorKind::OutOfMemory);
    }
}
