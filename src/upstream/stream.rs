//! Connections to the upstream, plain or with TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::MaybeHttpsStream;
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

/// A connection that is ready for requests. The state of TLS takes a kilobyte and is boxed, so that a plain connection does
/// not reserve memory for it.
#[derive(Debug)]
pub enum UpstreamStream {
    /// Without TLS.
    Plain(Stream),
    /// With TLS.
    Tls(Box<MaybeHttpsStream<Stream>>),
}

/// What hyper asks of a connection.
trait Io: Read + Write + Connection + Unpin {}

impl<T: Read + Write + Connection + Unpin> Io for T {}

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

// === impl UpstreamStream ===

impl UpstreamStream {
    fn io(&self) -> &dyn Io {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => &**stream,
        }
    }

    fn io_mut(self: Pin<&mut Self>) -> Pin<&mut dyn Io> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream),
            Self::Tls(stream) => Pin::new(&mut **stream),
        }
    }
}

impl From<MaybeHttpsStream<Stream>> for UpstreamStream {
    fn from(stream: MaybeHttpsStream<Stream>) -> Self {
        match stream {
            MaybeHttpsStream::Http(stream) => Self::Plain(stream),
            with_tls @ MaybeHttpsStream::Https(_) => Self::Tls(Box::new(with_tls)),
        }
    }
}

impl Connection for UpstreamStream {
    fn connected(&self) -> Connected {
        self.io().connected()
    }
}

impl Read for UpstreamStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        self.io_mut().poll_read(cx, buffer)
    }
}

impl Write for UpstreamStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.io_mut().poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io_mut().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io_mut().poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io().is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.io_mut().poll_write_vectored(cx, slices)
    }
}
