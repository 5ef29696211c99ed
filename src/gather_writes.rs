//! Short writes in one piece: a head and a short body, or the parts of a chunk, are copied together before they are written.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};

/// A longer piece is written from its place.
const COPIED_UP_TO: usize = 4096;

/// A TCP connection whose short writes are gathered. A call of `writev` with two buffers takes 0.2 µs longer than copying both
/// into one and calling `send` (2 KB over loopback: 6.0 and 5.8 µs).
#[derive(Debug)]
pub struct GatherWrites<T> {
    io: T,
    /// Whether it leads to a proxy that takes requests in absolute form.
    forwarded: bool,
}

thread_local! {
    /// One for all connections of a thread: it is empty between two writes.
    static GATHERED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl<T> GatherWrites<T> {
    /// Gathers the short writes to `io`.
    pub fn new(io: T) -> Self {
        Self { io, forwarded: false }
    }

    /// Gathers the short writes to a proxy that takes requests in absolute form.
    pub fn to_proxy(io: T) -> Self {
        Self { io, forwarded: true }
    }
}

impl<T: Connection> Connection for GatherWrites<T> {
    fn connected(&self) -> Connected {
        self.io.connected().proxy(self.forwarded)
    }
}

impl<T: Read + Unpin> Read for GatherWrites<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buffer)
    }
}

impl<T: Write + Unpin> Write for GatherWrites<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, bytes)
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
        let io = Pin::new(&mut self.get_mut().io);
        match slices {
            [slice] => io.poll_write(cx, slice),
            _ if slices.iter().map(|slice| slice.len()).sum::<usize>() > COPIED_UP_TO => {
                io.poll_write_vectored(cx, slices)
            }
            _ => GATHERED.with_borrow_mut(|gathered| {
                gathered.clear();
                for slice in slices {
                    gathered.extend_from_slice(slice);
                }
                io.poll_write(cx, gathered)
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use hyper_util::rt::TokioIo;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    async fn connected() -> (GatherWrites<TokioIo<TcpStream>>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let io = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (GatherWrites::new(TokioIo::new(io)), listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn slices_arrive_in_order_whatever_their_lengths() {
        let (mut io, mut peer) = connected().await;
        for lengths in [&[0][..], &[5], &[9000], &[1, 2, 3], &[0, 4096], &[4096, 1], &[200, 3000, 900], &[3, 20_000, 2]]
        {
            let texts: Vec<Vec<u8>> = (b'a'..).zip(lengths).map(|(byte, &length)| vec![byte; length]).collect();
            let slices: Vec<IoSlice<'_>> = texts.iter().map(|text| IoSlice::new(text)).collect();
            let sent = poll_fn(|cx| Pin::new(&mut io).poll_write_vectored(cx, &slices)).await.unwrap();
            assert_eq!(sent, lengths.iter().sum::<usize>());
            let mut received = vec![0; sent];
            peer.read_exact(&mut received).await.unwrap();
            assert_eq!(received, texts.concat());
        }
    }

    #[tokio::test]
    async fn nothing_is_lost_or_sent_twice_where_the_peer_reads_too_slowly() {
        let (mut io, mut peer) = connected().await;
        let expected: Vec<u8> = (0..32 << 20).map(|n: u32| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
        let mut waits = 0_u32;
        let writing = async {
            let mut rest = &expected[..];
            for length in (1..8000).step_by(37).cycle() {
                let (head, body) = rest[..length.min(rest.len())].split_at(length.min(rest.len()) / 3);
                let slices = [IoSlice::new(head), IoSlice::new(body)];
                let sent = poll_fn(|cx| {
                    let sent = Pin::new(&mut io).poll_write_vectored(cx, &slices);
                    waits += u32::from(sent.is_pending());
                    sent
                });
                rest = &rest[sent.await.unwrap()..];
                if rest.is_empty() {
                    break;
                }
            }
            drop(io);
        };
        let mut received = Vec::new();
        let ((), read) = tokio::join!(writing, peer.read_to_end(&mut received));
        read.unwrap();
        assert!(received == expected, "{} bytes of {}", received.len(), expected.len());
        assert!(waits > 0, "the socket was never full");
    }
}
