//! Connections to the upstream, plain or with TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::gather_writes::GatherWrites;

/// A TCP connection, and whether requests on it must be in absolute form.
#[derive(Debug)]
pub struct Stream {
    tcp: GatherWrites<TokioIo<TcpStream>>,
    forwarded: bool,
}

/// A connection that is ready for requests, as hyper takes it.
pub trait Io: Read + Write + Connection + Send + Unpin {}

impl<T: Read + Write + Connection + Send + Unpin> Io for T {}

// === impl Stream ===

impl Stream {
    pub(super) fn new(tcp: TokioIo<TcpStream>, forwarded: bool) -> Self {
        Self { tcp: GatherWrites::new(tcp), forwarded }
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        self.tcp.get_ref().connected().proxy(self.forwarded)
    }
}

impl Read for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_read(cx, buffer)
    }
}

impl Write for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().tcp).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().tcp).poll_write_vectored(cx, slices)
    }
}

impl Connection for Box<dyn Io> {
    fn connected(&self) -> Connected {
        (**self).connected()
    }
}
