//! One connection, read and written byte by byte, for the tests on both sides of abridge.
//!
//! Nothing here hides what was on the wire: heads keep their raw bytes, chunks come as they were framed, and a
//! connection that broke is told from one that ended.

use std::io;
use std::pin::Pin;
use std::task::{Context, Waker};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::within;

/// The transport of a connection.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {
    /// Makes the close that follows a reset.
    fn break_off(&self) {}

    /// Says that nothing more will come, at once and without a word of TLS.
    fn hang_up(&mut self) {}
}

/// One end of a connection.
pub(crate) struct Wire {
    socket: Box<dyn Socket>,
    unread: BytesMut,
}

/// The head of a request or of a response.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// As it was on the wire, the blank line included.
    pub(crate) raw: Bytes,
    /// The request line or the status line.
    pub(crate) start: String,
    /// Names in lower case, values as they were, in order.
    pub(crate) fields: Vec<(String, String)>,
}

/// A body read to its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Body {
    /// The bytes, without framing.
    pub(crate) bytes: Bytes,
    /// What followed the last chunk.
    pub(crate) trailers: Vec<(String, String)>,
}

/// A whole response.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    /// Status line and headers.
    pub(crate) head: Head,
    /// The body's bytes, without framing.
    pub(crate) body: Bytes,
    /// What followed the last chunk.
    pub(crate) trailers: Vec<(String, String)>,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    /// The other side closed it.
    Closed,
    /// The other side reset it, or ended TLS without a word.
    Broken,
}

// === impl Socket ===

impl Socket for TcpStream {
    fn break_off(&self) {
        self.set_zero_linger().unwrap();
    }

    fn hang_up(&mut self) {
        shut_down(self);
    }
}

impl Socket for UnixStream {
    fn hang_up(&mut self) {
        shut_down(self);
    }
}

/// The empty rest of a connection that has been taken out of its [`Wire`].
impl Socket for tokio::io::Empty {}

impl Socket for Box<dyn Socket> {
    fn break_off(&self) {
        (**self).break_off();
    }

    fn hang_up(&mut self) {
        (**self).hang_up();
    }
}

impl<S: Socket> Socket for tokio_rustls::server::TlsStream<S> {
    fn break_off(&self) {
        self.get_ref().0.break_off();
    }

    fn hang_up(&mut self) {
        self.get_mut().0.hang_up();
    }
}

impl<S: Socket> Socket for tokio_rustls::client::TlsStream<S> {
    fn break_off(&self) {
        self.get_ref().0.break_off();
    }

    fn hang_up(&mut self) {
        self.get_mut().0.hang_up();
    }
}

// === impl Wire ===

impl Wire {
    pub(crate) fn new(socket: impl Socket + 'static) -> Self {
        Self { socket: Box::new(socket), unread: BytesMut::new() }
    }

    /// Opens a TCP connection without delay for small writes.
    pub(crate) async fn connect(address: std::net::SocketAddr) -> Self {
        let socket = within("connect", TcpStream::connect(address)).await.unwrap();
        socket.set_nodelay(true).unwrap();
        Self::new(socket)
    }

    /// Writes all of it.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        within("write", self.try_send(bytes)).await.expect("the other side takes what is written");
    }

    /// Writes all of it, or says why it could not.
    pub(crate) async fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.socket.write_all(bytes.as_ref()).await?;
        self.socket.flush().await
    }

    /// Writes one chunk of a chunked body.
    pub(crate) async fn send_chunk(&mut self, bytes: impl AsRef<[u8]>) {
        self.send(framed(bytes)).await;
    }

    /// Writes `block` again and again, until something returns, or `most` bytes are written; says how many were.
    pub(crate) async fn send_until_answered(&mut self, block: &[u8], most: usize) -> usize {
        let (mut from, mut to) = tokio::io::split(&mut self.socket);
        let mut written = 0;
        let writing = async {
            while written < most && to.write_all(block).await.is_ok() {
                written += block.len();
            }
        };
        let reading = from.read_buf(&mut self.unread);
        within("an answer, or the end of what is written", async {
            tokio::select! {
                read = reading => assert!(read.is_ok_and(|n| n > 0), "an answer should have come"),
                () = writing => {}
            }
        })
        .await;
        written
    }

    /// Closes the connection in the midst of whatever was going on.
    pub(crate) async fn close(&mut self) {
        self.socket.shutdown().await.ok();
    }

    /// Returns what the connection runs over. Nothing may have been read ahead.
    pub(crate) fn into_socket(mut self) -> Box<dyn Socket> {
        assert!(self.unread.is_empty());
        self.take_socket()
    }

    /// Closes with a reset.
    pub(crate) fn reset(mut self) {
        self.take_socket().break_off();
    }

    /// Reads whatever comes next; empty at the end of the connection.
    pub(crate) async fn some(&mut self) -> io::Result<Bytes> {
        if self.unread.is_empty() {
            within("bytes", self.fill()).await?;
        }
        Ok(self.unread.split().freeze())
    }

    /// Reads `n` bytes.
    pub(crate) async fn exactly(&mut self, n: usize) -> Bytes {
        while self.unread.len() < n {
            let more = within("the rest of a body", self.fill()).await.expect("a body in full");
            assert!(more, "the connection ended {} bytes into {n}", self.unread.len());
        }
        self.unread.split_to(n).freeze()
    }

    /// Reads the head of a request or a response.
    pub(crate) async fn head(&mut self) -> Head {
        let raw = self.through(b"\r\n\r\n").await;
        Head::parse(raw)
    }

    /// Reads the next head, if the connection has not ended.
    pub(crate) async fn next_head(&mut self) -> Option<Head> {
        while self.unread.is_empty() {
            if !self.fill().await.unwrap_or(false) {
                return None;
            }
        }
        Some(self.head().await)
    }

    /// Reads the next head and a body of announced length, unless the connection ends before all of it has come.
    pub(crate) async fn next_whole(&mut self) -> Option<(Head, Bytes)> {
        let end = loop {
            if let Some(at) = memchr::memmem::find(&self.unread, b"\r\n\r\n") {
                break at + 4;
            }
            self.fill().await.ok().filter(|more| *more)?;
        };
        let head = Head::parse(self.unread.split_to(end).freeze());
        let length = head.get("content-length").expect("a length").parse().unwrap();
        while self.unread.len() < length {
            self.fill().await.ok().filter(|more| *more)?;
        }
        Some((head, self.unread.split_to(length).freeze()))
    }

    /// Reads the body that `head` announces.
    pub(crate) async fn body(&mut self, head: &Head) -> Body {
        if head.is("transfer-encoding", "chunked") {
            let mut bytes = BytesMut::new();
            while let Some(chunk) = self.chunk().await {
                bytes.extend_from_slice(&chunk);
            }
            return Body { bytes: bytes.freeze(), trailers: self.trailers().await };
        }
        let length = head.get("content-length").map(|length| length.parse().unwrap());
        let bytes = match length {
            Some(length) => self.exactly(length).await,
            None if head.is_response() => self.rest().await.0,
            None => Bytes::new(),
        };
        Body { bytes, trailers: Vec::new() }
    }

    /// Reads one chunk of a chunked body; `None` at the last one, after which the trailers stand.
    pub(crate) async fn chunk(&mut self) -> Option<Bytes> {
        let line = self.through(b"\r\n").await;
        let size = std::str::from_utf8(&line).unwrap().trim_end();
        let size = usize::from_str_radix(size, 16).unwrap_or_else(|_| panic!("{size:?} is not a chunk's size"));
        if size == 0 {
            return None;
        }
        let chunk = self.exactly(size).await;
        assert_eq!(self.exactly(2).await, "\r\n");
        Some(chunk)
    }

    /// Reads what follows the last chunk.
    pub(crate) async fn trailers(&mut self) -> Vec<(String, String)> {
        let mut trailers = Vec::new();
        loop {
            let line = self.through(b"\r\n").await;
            if line.as_ref() == b"\r\n" {
                return trailers;
            }
            trailers.push(field(&line));
        }
    }

    /// Reads a whole response.
    pub(crate) async fn reply(&mut self) -> Reply {
        let head = self.head().await;
        let Body { bytes, trailers } = self.body(&head).await;
        Reply { head, body: bytes, trailers }
    }

    /// Reads to the end of the connection, framing and all.
    pub(crate) async fn rest(&mut self) -> (Bytes, End) {
        let end = within("the end of the connection", async {
            loop {
                match self.fill().await {
                    Ok(true) => {}
                    Ok(false) => return End::Closed,
                    Err(_) => return End::Broken,
                }
            }
        })
        .await;
        (self.unread.split().freeze(), end)
    }

    /// Waits for the other side to go away, and sees to it that it says nothing before.
    pub(crate) async fn gone(&mut self) -> End {
        let (bytes, end) = self.rest().await;
        assert_eq!(bytes, "", "the other side should have gone without a word");
        end
    }

    /// Runs what is left of this connection against another one, until both have ended.
    pub(crate) async fn tunnel(mut self, mut to: TcpStream) {
        to.write_all(&self.unread).await.unwrap();
        tokio::io::copy_bidirectional(&mut self.socket, &mut to).await.ok();
    }

    fn take_socket(&mut self) -> Box<dyn Socket> {
        std::mem::replace(&mut self.socket, Box::new(tokio::io::empty()))
    }

    async fn through(&mut self, mark: &[u8]) -> Bytes {
        loop {
            if let Some(at) = memchr::memmem::find(&self.unread, mark) {
                return self.unread.split_to(at + mark.len()).freeze();
            }
            let more = within("a head", self.fill()).await.expect("a head in full");
            assert!(more, "the connection ended behind {:?}", self.unread);
        }
    }

    async fn fill(&mut self) -> io::Result<bool> {
        self.unread.reserve(64 << 10);
        Ok(self.socket.read_buf(&mut self.unread).await? > 0)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // A process that another test starts in this moment holds our sockets too, until its program is loaded. So it is not
        // enough to close them.
        self.socket.hang_up();
    }
}

// === impl Head ===

impl Head {
    fn parse(raw: Bytes) -> Self {
        let mut lines = raw.split(|byte| *byte == b'\n').filter(|line| line.len() > 1);
        let start = String::from_utf8_lossy(lines.next().unwrap()).trim_end().to_owned();
        let fields = lines.map(field).collect();
        Self { raw, start, fields }
    }

    /// The value of a field that is at most once.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let values = self.all(name);
        assert!(values.len() < 2, "{name} stands more than once: {values:?}");
        values.first().copied()
    }

    /// Every value of a field, in order.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.fields.iter().filter(|(field, _)| field == name).map(|(_, value)| value.as_str()).collect()
    }

    /// Whether the field is there once with this value.
    pub(crate) fn is(&self, name: &str, value: &str) -> bool {
        self.all(name) == [value]
    }

    /// The second word: a request's target.
    pub(crate) fn target(&self) -> &str {
        self.start.split(' ').nth(1).unwrap()
    }

    /// The second word: a response's status.
    pub(crate) fn status(&self) -> u16 {
        self.target().parse().unwrap()
    }

    /// The names of all fields, in order.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.fields.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn is_response(&self) -> bool {
        self.start.starts_with("HTTP/")
    }
}

// === helpers ===

/// Shutting a plain socket down is one system call, which does not wait.
fn shut_down(socket: &mut (impl AsyncWrite + Unpin)) {
    let _done = Pin::new(socket).poll_shutdown(&mut Context::from_waker(Waker::noop()));
}

/// A chunk of a chunked body, with its framing.
pub(crate) fn framed(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    chunk
}

fn field(line: impl AsRef<[u8]>) -> (String, String) {
    let line = String::from_utf8_lossy(line.as_ref()).into_owned();
    let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("{line:?} is not a field"));
    (name.to_ascii_lowercase(), value.trim().to_owned())
}
