//! The server: accepts connections within a limit, serves HTTP on them, and drains at shutdown.

use std::error::Error;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use hyper::rt::{Read, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::{Builder, UpgradeableConnection};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::admin::access::{ConnectionInfo, Exposure, ListenerRole};
use crate::admin::clients::sha256;
use crate::body::{Budget, Pace, Requests};
use crate::gather_writes::GatherWrites;
use crate::proxy::Proxy;
use crate::tasks::Tasks;
use crate::units::{ByteSize, Period};

pub mod admin;
mod client_io;
pub mod listen;
pub mod tls;

use client_io::{ClientIo, IoLimits, StreamExecutor, answer};
use listen::{Addresses, Listener, Socket};
use smart_default::SmartDefault;
use tls::Acceptor;

/// `[server]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The addresses that clients connect to. Port 0 lets the system choose a free port.
    pub listen: Addresses,
    /// Threads that serve requests. One is fastest for a sidecar; more serve many busy clients. 0: one for each core.
    /// Allowed: 0 to 1024.
    #[default(1)]
    pub workers: usize,
    /// Connections that are open at a time. Further connections wait in the kernel's queue. Allowed: 1 to 10000000.
    #[default(8192)]
    pub max_connections: usize,
    /// Requests in flight at a time, including answers that still stream and recalls. Further requests get 503 with
    /// `retry-after`. Allowed: 1 to 10000000.
    #[default(4096)]
    pub max_in_flight: usize,
    /// The longest request body that is read to be edited; a longer one gets 413. A compressed body is measured both as
    /// it came and decoded. At most `max_buffered`. Allowed: 1B to 2GiB.
    #[default(ByteSize::mib(64))]
    pub max_body: ByteSize,
    /// The bytes that are held in memory for all clients at a time: bodies as they arrive, what is decoded and planned of
    /// them, recalled texts, long heads, and answers that a client has not taken yet. A request over it gets 503 with
    /// `retry-after`, or 413 if it would be over it by itself; one that cannot be edited within it is forwarded as it came. A
    /// client that does not read its answer is cut off. Besides this, abridge takes up to 100 MB. Allowed: at most 1024GiB.
    #[default(ByteSize::mib(512))]
    pub max_buffered: ByteSize,
    /// How long a client may take to send the head of a request, and how long a connection may be open without one: then it
    /// is closed, over HTTP/2 or with `[keep_alive]` after at most twice as long. Allowed: 1ms to 365d.
    #[default(Period::secs(30))]
    pub header_timeout: Period,
    /// How long a client may pause in a request body, whether that is edited or passed on; then the request gets 408.
    /// Allowed: 1ms to 365d.
    #[default(Period::secs(60))]
    pub body_timeout: Period,
    /// The fewest bytes a second of a request body, on average over the time that abridge waits for it, from
    /// `min_body_rate_after` on; then the request gets 408. 0 for no minimum. Allowed: 0B to 1GiB.
    #[default(ByteSize(240))]
    pub min_body_rate: ByteSize,
    /// How long a request body may be waited for in all before `min_body_rate` counts. Allowed: 0ms to 365d.
    #[default(Period::secs(30))]
    pub min_body_rate_after: Period,
    /// How long a client may take nothing of an answer that is ready to be written; then the connection is closed. How long
    /// the upstream is silent does not matter here. Allowed: 1ms to 365d.
    #[default(Period::secs(60))]
    pub write_timeout: Period,
    /// How long running answers may continue after a stop signal. Allowed: 0ms to 365d.
    #[default(Period::secs(30))]
    pub grace: Period,
}

impl Settings {
    /// How slowly a client may send a body.
    pub fn pace(&self) -> Pace {
        let Self { body_timeout, min_body_rate, min_body_rate_after, .. } = self;
        Pace { pause: body_timeout.0, min_rate: min_body_rate.0, grace: min_body_rate_after.0 }
    }
}

/// Accepts connections and serves their requests until it is drained. Each listener's task has a clone.
#[derive(Clone, Debug)]
pub struct Server {
    proxy: Arc<Proxy>,
    acceptor: Option<Acceptor>,
    connections: Arc<Semaphore>,
    operator_connections: Arc<Semaphore>,
    http1: http1::Builder,
    http: Builder<StreamExecutor>,
    // Without hyper's own limit on the time between requests.
    patient_http: Builder<StreamExecutor>,
    header_timeout: Duration,
    io: IoLimits,
    operator_io: IoLimits,
    pace: Pace,
    stop: CancellationToken,
    // Accept loops and connections, separate from other tasks: a drain waits for these first.
    tasks: Tasks,
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DrainOutcome {
    /// Every answer was finished.
    Complete,
    /// The grace period ended first, and this many connections were cut.
    TimedOut(usize),
    /// A second signal ended the drain.
    Interrupted,
}

/// The most bytes in the head of a request. Over HTTP/1 hyper checks this when it needs to read more, so that it accepts a
/// longer head that fits into its buffer. In HTTP/2 each field counts 32 bytes more.
///
/// It is also how much hyper reads at a time. Bodies of 1 MB and 8 MB take a twentieth less time in pieces of 64 KiB than in its
/// own of 400 KiB, and 2.4 MB less memory: such a piece is still in the cache when its strings are indexed and it is copied
/// (`cargo bench --bench load -- --parts latency`).
const MAX_REQUEST_HEAD_BYTES: u32 = 64 << 10;

/// The buffers that connections read into take at most this part of `max_buffered`, besides it.
const BUFFERS_SHARE: usize = 16;

/// How many connections `admin.listen` serves at a time, besides those of clients, and the bytes of answers that operators
/// have not taken.
const OPERATOR_CONNECTIONS: usize = 256;
const OPERATOR_BYTES: usize = 32 << 20;

/// The most bytes of request bodies over HTTP/2 that are held before they are read: of a stream, and of a connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;

/// The delay after a failed accept: descriptors may be exhausted, and an immediate retry would only use the processor.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// A failed accept is logged only if none has failed for this long: while descriptors are exhausted, each attempt fails.
const ACCEPT_WARN_INTERVAL: Duration = Duration::from_secs(10);

// === impl Server ===

impl Server {
    /// Creates a server without listeners.
    pub fn new(settings: &Settings, proxy: Arc<Proxy>, acceptor: Option<Acceptor>, budget: Budget) -> Self {
        let buffers = Budget::new(settings.max_buffered.as_usize() / BUFFERS_SHARE);
        let io = IoLimits { budget, buffers, write_timeout: settings.write_timeout.0 };
        let operator_io = IoLimits {
            budget: Budget::new(OPERATOR_BYTES),
            buffers: Budget::new(OPERATOR_BYTES / BUFFERS_SHARE),
            ..io.clone()
        };
        let head = settings.header_timeout.0;
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            .header_read_timeout(head)
            .preserve_header_case(true)
            .max_buf_size(MAX_REQUEST_HEAD_BYTES as usize)
            .auto_date_header(false);
        let mut http = Builder::new(StreamExecutor { write_timeout: io.write_timeout });
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(head)
            .preserve_header_case(true)
            .max_buf_size(MAX_REQUEST_HEAD_BYTES as usize)
            .auto_date_header(false);
        http.http2()
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(MAX_REQUEST_HEAD_BYTES as usize)
            .max_header_list_size(MAX_REQUEST_HEAD_BYTES)
            .auto_date_header(false);
        let mut patient_http = http.clone();
        patient_http.http1().header_read_timeout(None);
        Self {
            proxy,
            acceptor,
            connections: Arc::new(Semaphore::new(settings.max_connections.min(Semaphore::MAX_PERMITS))),
            http1,
            http,
            patient_http,
            operator_connections: Arc::new(Semaphore::new(OPERATOR_CONNECTIONS)),
            header_timeout: head,
            io,
            operator_io,
            pace: settings.pace(),
            stop: CancellationToken::new(),
            tasks: Tasks::default(),
        }
    }

    /// Accepts clients, or operators, on a listener, in a task.
    pub fn listen(&self, listener: Listener, role: fn(Exposure) -> ListenerRole) {
        let (role, mut server) = (role(listener.exposure()), self.clone());
        if matches!(role, ListenerRole::Operators(_)) {
            server.connections = Arc::clone(&self.operator_connections);
            server.io = self.operator_io.clone();
        }
        self.tasks.spawn(server.run(listener, role));
    }

    /// Stops accepting, then waits until every running answer has ended, or the grace period is over.
    pub async fn drain(self, grace: Duration) -> DrainOutcome {
        self.stop.cancel();
        match timeout(grace, self.tasks.wait()).await {
            Ok(()) => DrainOutcome::Complete,
            Err(_) => DrainOutcome::TimedOut(self.tasks.running()),
        }
    }

    async fn run(self, listener: Listener, listener_role: ListenerRole) {
        // Dropping the listener closes its socket: the kernel refuses later connections.
        let server = Arc::new(self);
        server.stop.run_until_cancelled(server.accept_loop(listener, listener_role)).await;
    }

    /// Accepts one connection after another. A failed accept does not end the loop.
    async fn accept_loop(self: &Arc<Self>, listener: Listener, listener_role: ListenerRole) {
        let mut failed: Option<Instant> = None;
        // The semaphore is never closed, so the loop ends only by being dropped.
        while let Ok(permit) = Arc::clone(&self.connections).acquire_owned().await {
            match listener.accept().await {
                Ok(socket) => self.spawn_connection(socket, listener_role, permit),
                Err(error) => {
                    if failed.replace(Instant::now()).is_none_or(|before| before.elapsed() >= ACCEPT_WARN_INTERVAL) {
                        tracing::warn!(%error, "a connection could not be accepted; it stays in the queue and is tried again");
                    }
                    sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    }

    /// Serves a connection in a task.
    fn spawn_connection(self: &Arc<Self>, socket: Socket, listener_role: ListenerRole, permit: OwnedSemaphorePermit) {
        let connection = Connection {
            info: ConnectionInfo { peer: socket.peer(), listener_role, certificate: None, id: 0 },
            server: Arc::clone(self),
            _permit: permit,
        };
        match (&self.acceptor, socket) {
            (Some(acceptor), Socket::Tcp(tcp)) => {
                self.tasks.spawn(connection.serve_tls(acceptor.clone(), tcp));
            }
            (None, Socket::Tcp(tcp)) => self.tasks.spawn(connection.serve_tcp(tcp)),
            // A Unix socket stays on this machine and needs no TLS.
            (_, Socket::Unix(unix)) => self.tasks.spawn(connection.serve(TokioIo::new(unix))),
        }
    }
}

// === the accept loop ===

/// The task of one connection.
struct Connection {
    info: ConnectionInfo,
    server: Arc<Server>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    async fn serve_tls(mut self, acceptor: Acceptor, tcp: TcpStream) {
        let handshake = timeout(self.server.header_timeout, acceptor.accept(tcp));
        match self.server.stop.run_until_cancelled(handshake).await {
            Some(Ok(Ok(tls))) => {
                let shown = tls.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                self.info.certificate = shown.map(|certificate| sha256(certificate));
                self.serve(TokioIo::new(tls)).await;
            }
            Some(Ok(Err(error))) => tracing::debug!(%error, "a TLS handshake failed"),
            Some(Err(_)) => tracing::debug!("a TLS handshake took too long"),
            // Stopped during the handshake: no request has arrived, so no answer is due.
            None => {}
        }
    }

    /// Serves requests over TCP without TLS. What waits for the first bytes and what serves HTTP/2 is boxed: the task keeps
    /// room for all of its states as long as the connection is open.
    async fn serve_tcp(self, tcp: TcpStream) {
        let first = Box::pin(timeout(self.server.header_timeout, may_be_http2(&tcp)));
        match self.server.stop.run_until_cancelled(first).await {
            Some(Ok(false)) if !self.server.proxy.keeps_open() => {
                self.serve_http1(GatherWrites::new(TokioIo::new(tcp))).await;
            }
            Some(Ok(_)) => Box::pin(self.serve(TokioIo::new(tcp))).await,
            Some(Err(_)) => tracing::debug!("{NOT_USED}"),
            // Stopped before anything was sent.
            None => {}
        }
    }

    /// Serves requests of HTTP/1. hyper reads them into a buffer of 8 KiB; in [`Self::serve`] it is one of 16 KiB, as the bytes
    /// that tell the version are read before.
    async fn serve_http1<I: Read + Write + Unpin + Send + 'static>(self, io: I) {
        let (io, requests) = self.limited(io);
        let (proxy, pace) = (Arc::clone(&self.server.proxy), self.server.pace);
        let open = proxy.connected(&requests);
        let info = ConnectionInfo { id: open.id, ..self.info };
        let service = service_fn(move |request| answer(Arc::clone(&proxy), request, info, requests.start(), pace));
        let serving = pin!(self.server.http1.serve_connection(io, service).with_upgrades());
        log_end(until_stopped(serving, http1::UpgradeableConnection::graceful_shutdown, &self.server.stop).await);
    }

    /// Serves requests of the version that the client speaks.
    ///
    /// hyper's own timeout for a head starts only when the first bytes show the HTTP version, and HTTP/2 has none.
    async fn serve<I: Read + Write + Unpin + Send + 'static>(self, io: I) {
        let (io, requests) = self.limited(io);
        let (proxy, within) = (Arc::clone(&self.server.proxy), self.server.header_timeout);
        let open = proxy.connected(&requests);
        let http = if proxy.keeps_open() { &self.server.patient_http } else { &self.server.http };
        let info = ConnectionInfo { id: open.id, ..self.info };
        let for_service = Arc::clone(&requests);
        let pace = self.server.pace;
        let service = service_fn(move |request| answer(Arc::clone(&proxy), request, info, for_service.start(), pace));
        let mut serving = pin!(http.serve_connection_with_upgrades(io, service));
        tokio::select! {
            biased;
            ended = until_stopped(serving.as_mut(), UpgradeableConnection::graceful_shutdown, &self.server.stop) => {
                return log_end(ended);
            }
            () = requests.idle(within) => tracing::debug!("{NOT_USED}"),
            () = requests.closing() => {}
        }
        serving.as_mut().graceful_shutdown();
        // The client may not take even that, or may have sent a request meanwhile.
        tokio::select! {
            ended = serving => log_end(ended),
            () = requests.idle(within) => {}
        }
    }

    fn limited<I: Read + Write + Unpin>(&self, io: I) -> (ClientIo<I>, Arc<Requests>) {
        let requests = Arc::new(Requests::default());
        (ClientIo::new(io, self.server.io.clone(), Arc::clone(&requests)), requests)
    }
}

/// The log message for a connection without a request.
const NOT_USED: &str = "a connection was open without a request";

/// Serves until the client disconnects, or until the answer that runs when the server stops has ended.
async fn until_stopped<C: Future>(
    mut serving: Pin<&mut C>,
    shut_down: fn(Pin<&mut C>),
    stop: &CancellationToken,
) -> C::Output {
    tokio::select! {
        biased;
        ended = &mut serving => ended,
        () = stop.cancelled() => {
            shut_down(serving.as_mut());
            serving.await
        }
    }
}

fn log_end<E: Into<Box<dyn Error + Send + Sync>>>(ended: Result<(), E>) {
    if let Err(error) = ended {
        tracing::debug!(error = %error.into(), "a connection broke off");
    }
}

/// Whether the first bytes of a connection may be those of HTTP/2. Waits for them, and leaves them there.
async fn may_be_http2(tcp: &TcpStream) -> bool {
    let mut first = [0; HTTP2_PREFACE.len()];
    // The protocol of a broken connection does not matter.
    let n = tcp.peek(&mut first).await.unwrap_or(0);
    first.iter().zip(HTTP2_PREFACE).take(n).all(|(byte, of_http2)| byte == of_http2)
}

/// The first bytes of a client of HTTP/2.
const HTTP2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
