//! The listening side: sockets, connection limit, TLS, drain.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::rt::{Read, Write};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::admin::access::{Door, Way};
use crate::proxy::Proxy;
use crate::tasks::Tasks;
use crate::units::{ByteSize, Period};
use crate::upstream::{LONGEST_HEAD, MOST_FIELDS};

pub mod admin;
pub mod listen;
pub mod tls;

use listen::{Addresses, Listener, Socket};
use tls::Acceptor;

/// `[server]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The addresses that clients connect to. Port 0 lets the system choose a free port.
    pub listen: Addresses,
    /// Threads that serve requests. One is fastest for a sidecar; more serve many busy clients. Allowed: 1 to 1024.
    pub workers: usize,
    /// Connections that are open at a time. Further connections wait in the kernel's queue. Allowed: 1 to 10000000.
    pub max_connections: usize,
    /// Requests in flight at a time, including answers that still stream and recalls. Further requests get 503 with
    /// `retry-after`. Allowed: 1 to 10000000.
    pub max_in_flight: usize,
    /// The longest request body that is read to be edited; a longer one gets 413. A compressed body is measured both as
    /// it came and decoded. At most `max_buffered`. Allowed: 1B to 2GiB.
    pub max_body: ByteSize,
    /// The bytes of all request bodies and recalled texts in memory at a time; a request over it gets 503 with
    /// `retry-after`. Allowed: at most 1024GiB.
    pub max_buffered: ByteSize,
    /// How long a client may take to send the head of a request. Allowed: 1ms to 365d.
    pub header_timeout: Period,
    /// How long a client may pause in a body that is read to be edited; then the request gets 408. Allowed: 1ms to
    /// 365d.
    pub body_timeout: Period,
    /// How long running answers may continue after a stop signal. Allowed: 0ms to 365d.
    pub grace: Period,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: Addresses::default(),
            workers: 1,
            max_connections: 8192,
            max_in_flight: 4096,
            max_body: ByteSize::mib(64),
            max_buffered: ByteSize::mib(512),
            header_timeout: Period::secs(30),
            body_timeout: Period::secs(60),
            grace: Period::secs(30),
        }
    }
}

/// Accepts connections and serves the requests on them, until it is told to stop. Each listener's task has a clone.
#[derive(Clone, Debug)]
pub struct Server {
    proxy: Arc<Proxy>,
    acceptor: Option<Acceptor>,
    connections: Arc<Semaphore>,
    http: Builder<TokioExecutor>,
    header_timeout: Duration,
    stop: CancellationToken,
    // Accept loops and connections, apart from other tasks: a drain waits for these first.
    tasks: Tasks,
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Drained {
    /// Every answer was finished.
    Whole,
    /// The grace was over first; so many connections were cut.
    Cut(usize),
    /// Somebody would not wait for it.
    Stopped,
}

/// How long a listener rests after a failed accept: descriptors may be exhausted, and trying at once would only burn the processor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A failed accept is told of once, until for so long none has failed: while descriptors are exhausted, each try fails.
const ACCEPT_CALM: Duration = Duration::from_secs(10);

// === impl Server ===

impl Server {
    /// A server that accepts nothing yet.
    pub fn new(settings: &Settings, proxy: Arc<Proxy>, acceptor: Option<Acceptor>) -> Self {
        let mut http = Builder::new(TokioExecutor::new());
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(settings.header_timeout.0)
            .preserve_header_case(true)
            .max_headers(MOST_FIELDS)
            .max_buf_size(LONGEST_HEAD as usize)
            .auto_date_header(false);
        http.http2()
            .timer(TokioTimer::new())
            .adaptive_window(true)
            .max_header_list_size(LONGEST_HEAD)
            .auto_date_header(false);
        Self {
            proxy,
            acceptor,
            connections: Arc::new(Semaphore::new(settings.max_connections.min(Semaphore::MAX_PERMITS))),
            http,
            header_timeout: settings.header_timeout.0,
            stop: CancellationToken::new(),
            tasks: Tasks::default(),
        }
    }

    /// Accepts clients on a listener in a task of its own.
    pub fn listen(&self, listener: Listener) {
        let door = Door::Clients(listener.reach());
        self.tasks.spawn(self.clone().run(listener, door));
    }

    /// Accepts operators, in the same way.
    pub fn listen_for_operators(&self, listener: Listener) {
        let door = Door::Operators(listener.reach());
        self.tasks.spawn(self.clone().run(listener, door));
    }

    /// Stops accepting, then waits till every running answer has ended, or the grace is over.
    pub async fn drain(self, grace: Duration) -> Drained {
        self.stop.cancel();
        match timeout(grace, self.tasks.drained()).await {
            Ok(()) => Drained::Whole,
            Err(_) => Drained::Cut(self.tasks.running()),
        }
    }
}

// === the accept loop ===

impl Server {
    async fn run(self, listener: Listener, door: Door) {
        // Dropping the listener closes its socket: the kernel refuses what comes after.
        self.stop.run_until_cancelled(self.accept(listener, door)).await;
    }

    /// One connection after another. A failed accept is never the end of it.
    async fn accept(&self, listener: Listener, door: Door) {
        let mut failed: Option<Instant> = None;
        // The semaphore is never closed, so the loop ends only by being dropped.
        while let Ok(place) = Arc::clone(&self.connections).acquire_owned().await {
            match listener.accept().await {
                Ok(socket) => self.welcome(socket, door, place),
                Err(error) => {
                    if failed.replace(Instant::now()).is_none_or(|before| before.elapsed() >= ACCEPT_CALM) {
                        tracing::warn!(%error, "a connection could not be accepted; it waits, and is tried again");
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Serves a connection in a task of its own.
    fn welcome(&self, socket: Socket, door: Door, place: OwnedSemaphorePermit) {
        let connection = Connection {
            way: Way { peer: socket.peer(), door },
            proxy: Arc::clone(&self.proxy),
            http: self.http.clone(),
            header_timeout: self.header_timeout,
            stop: self.stop.clone(),
            _place: place,
        };
        match (&self.acceptor, socket) {
            (Some(acceptor), Socket::Tcp(tcp)) => {
                self.tasks.spawn(connection.secure(acceptor.clone(), tcp));
            }
            (None, Socket::Tcp(tcp)) => self.tasks.spawn(connection.serve(TokioIo::new(tcp))),
            // A Unix socket is a file of this machine: there is no one on the way to hide from.
            (_, Socket::Unix(unix)) => self.tasks.spawn(connection.serve(TokioIo::new(unix))),
        }
    }
}

/// One connection.
struct Connection {
    way: Way,
    proxy: Arc<Proxy>,
    http: Builder<TokioExecutor>,
    header_timeout: Duration,
    stop: CancellationToken,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    async fn secure(self, acceptor: Acceptor, tcp: TcpStream) {
        let handshake = timeout(self.header_timeout, acceptor.accept(tcp));
        match self.stop.run_until_cancelled(handshake).await {
            Some(Ok(Ok(tls))) => self.serve(TokioIo::new(tls)).await,
            Some(Ok(Err(error))) => tracing::debug!(%error, "a TLS handshake failed"),
            Some(Err(_)) => tracing::debug!("a TLS handshake took too long"),
            // Nothing is asked before it is over, so nobody waits for an answer.
            None => {}
        }
    }

    /// Serves requests until the client goes, or until the answer that runs when the server stops has ended.
    async fn serve<I: Read + Write + Unpin + Send + 'static>(self, io: I) {
        let Self { way, proxy, http, header_timeout, stop, _place } = self;
        let asked = Arc::new(AtomicBool::new(false));
        let first = Arc::clone(&asked);
        let service = service_fn(move |request| {
            first.store(true, Ordering::Relaxed);
            let proxy = Arc::clone(&proxy);
            // Boxed, because hyper keeps the place of this future, 5 KB, for as long as the connection lives.
            Box::pin(async move { Ok::<_, Infallible>(proxy.handle(request, way).await) })
        });
        let mut serving = pin!(http.serve_connection_with_upgrades(io, service));
        let ended = tokio::select! {
            biased;
            ended = &mut serving => ended,
            () = stop.cancelled() => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
            () = unused(&asked, header_timeout) => return tracing::debug!("a connection was opened and not used"),
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection broke off");
        }
    }
}

/// Returns once a connection has been open for so long without a request, and never if there was one.
///
/// Hyper's own time limit for a head starts only when the first bytes have told HTTP/1 from HTTP/2; who sends none would stay.
async fn unused(asked: &AtomicBool, within: Duration) {
    sleep(within).await;
    if asked.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
}
