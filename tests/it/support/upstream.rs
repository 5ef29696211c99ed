//! The upstream, played by the test itself: it takes each request off the wire, and answers when and as the test says.

use std::future::ready;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

use bytes::Bytes;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::wire::{Body, Head, Wire};
use super::within;

/// A listening socket, and the connections that came in.
pub(crate) struct Upstream {
    address: SocketAddr,
    scheme: &'static str,
    connections: mpsc::Receiver<Wire>,
    accepting: JoinHandle<()>,
}

/// A port that no one listens on, and that no one else can take meanwhile.
///
/// Closing a listener would not do: a process that another test starts in that moment holds it open a little longer.
pub(crate) struct ClosedPort(TcpSocket);

/// One request, and the connection it came on. Dropping it closes the connection.
pub(crate) struct Exchange {
    pub(crate) head: Head,
    wire: Wire,
}

// === impl Upstream ===

impl Upstream {
    /// Listens on a free port.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::listen(listener, "http", |socket| ready(Some(Wire::new(socket))))
    }

    /// Listens on a free port, with TLS. A connection whose handshake fails is dropped.
    pub(crate) async fn start_tls(acceptor: TlsAcceptor) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::listen(listener, "https", move |socket| {
            let handshake = acceptor.accept(socket);
            async move { handshake.await.ok().map(Wire::new) }
        })
    }

    fn listen<F, W>(listener: TcpListener, scheme: &'static str, welcome: F) -> Self
    where
        F: Fn(TcpStream) -> W + Send + 'static,
        W: Future<Output = Option<Wire>> + Send,
    {
        let address = listener.local_addr().unwrap();
        let (sender, connections) = mpsc::channel(4096);
        let accepting = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                socket.set_nodelay(true).unwrap();
                if let Some(wire) = welcome(socket).await {
                    sender.send(wire).await.ok();
                }
            }
        });
        Self { address, scheme, connections, accepting }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Scheme, host and port; no path.
    pub(crate) fn origin(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// What `upstream.url` usually is.
    pub(crate) fn url(&self) -> String {
        format!("{}/v1", self.origin())
    }

    /// The next connection.
    pub(crate) async fn connection(&mut self) -> Wire {
        within("a connection to the upstream", self.accept()).await.unwrap()
    }

    /// The next connection, however long it takes.
    pub(crate) async fn accept(&mut self) -> Option<Wire> {
        self.connections.recv().await
    }

    /// The next connection, and the head of the first request on it.
    pub(crate) async fn request(&mut self) -> Exchange {
        let mut wire = self.connection().await;
        let head = wire.head().await;
        Exchange { head, wire }
    }

    /// Sees to it that no connection is waiting. It proves something only after an event that comes after a connection would.
    pub(crate) fn no_more(&mut self) {
        assert!(self.connections.try_recv().is_err(), "there should have been no other connection");
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

// === impl ClosedPort ===

impl ClosedPort {
    /// Takes a free port.
    pub(crate) fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        Self(socket)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    /// What `upstream.url` is, if this port is the upstream's.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/v1", self.address())
    }

    /// Connections are accepted from now on.
    pub(crate) fn open(self) -> Upstream {
        Upstream::listen(self.0.listen(1024).unwrap(), "http", |socket| ready(Some(Wire::new(socket))))
    }
}

// === impl Exchange ===

impl Exchange {
    /// The request's body, read to its end.
    pub(crate) async fn bytes(&mut self) -> Bytes {
        self.whole().await.bytes
    }

    /// The request's body with its trailers, read to its end.
    pub(crate) async fn whole(&mut self) -> Body {
        self.wire.body(&self.head).await
    }

    /// Answers in one piece. `fields` are lines without line ends.
    pub(crate) async fn answer(&mut self, status: &str, fields: &[&str], body: impl AsRef<[u8]>) {
        self.wire.send(whole(status, fields, body)).await;
    }

    /// Answers 200 with JSON.
    pub(crate) async fn json(&mut self, body: impl AsRef<[u8]>) {
        self.answer("200 OK", &["content-type: application/json"], body).await;
    }

    /// Begins a streamed answer. Its chunks are sent with [`Wire::send_chunk`].
    pub(crate) async fn begin_stream(&mut self) {
        let head = head("200 OK", &["content-type: text/event-stream", "transfer-encoding: chunked"]);
        self.wire.send(head).await;
    }

    /// Ends a streamed answer.
    pub(crate) async fn end_stream(&mut self) {
        self.wire.send("0\r\n\r\n").await;
    }

    /// The next request on the same connection.
    pub(crate) async fn next(mut self) -> Self {
        let head = self.wire.head().await;
        Self { head, wire: self.wire }
    }

    /// The connection without the request.
    pub(crate) fn into_wire(self) -> Wire {
        self.wire
    }
}

impl Deref for Exchange {
    type Target = Wire;

    fn deref(&self) -> &Wire {
        &self.wire
    }
}

impl DerefMut for Exchange {
    fn deref_mut(&mut self) -> &mut Wire {
        &mut self.wire
    }
}

// === helpers ===

/// A response head with these lines and nothing else.
pub(crate) fn head(status: &str, fields: &[&str]) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status}\r\n");
    for field in fields {
        head.push_str(field);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    head.into_bytes()
}

/// A response with these lines, the length of its body, and nothing else.
pub(crate) fn whole(status: &str, fields: &[&str], body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let length = format!("content-length: {}", body.len());
    [&head(status, &[fields, &[&length]].concat()), body].concat()
}
