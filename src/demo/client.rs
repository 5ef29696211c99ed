//! A client for servers on this machine: each request on its own connection, without proxy and name look-up.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, Uri, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::body::pool::Pool;
use crate::body::{Budget, ClientBody, Limits, Pace, PacedBody, read_up_to};
use crate::dialect::Dialect;
use crate::tasks::Tasks;

/// The longest body of a request or an answer, in bytes.
const MAX_BODY_BYTES: usize = 8 << 20;

/// The longest pause of the other side.
const MAX_PAUSE: Duration = Duration::from_secs(20);

/// Sends requests, each on a connection of its own.
#[derive(Clone, Debug)]
pub(super) struct Client {
    tasks: Tasks,
    limits: Limits,
    dialect: &'static dyn Dialect,
}

/// A complete answer.
#[derive(Debug)]
pub(super) struct Response {
    /// Its status.
    pub(super) status: StatusCode,
    /// Its header fields.
    pub(super) headers: HeaderMap,
    /// Its body.
    pub(super) body: Bytes,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The URI has no authority.
    #[error("{0} is not an address")]
    Address(Uri),
    /// The connection was not established.
    #[error("no connection")]
    Connect(#[from] std::io::Error),
    /// The connection broke.
    #[error("the connection broke")]
    Http(#[from] hyper::Error),
    /// The request is invalid.
    #[error("the request is invalid")]
    Request(#[from] http::Error),
    /// The answer is incomplete.
    #[error("the answer is incomplete")]
    Body(#[from] crate::body::ReadError),
}

/// The limits of bodies, for client and server.
pub(super) fn limits() -> Limits {
    Limits { max_body: MAX_BODY_BYTES, budget: Budget::new(4 * MAX_BODY_BYTES), pool: Pool::default() }
}

/// A body that may pause for a while.
pub(super) fn paced(body: Incoming) -> ClientBody {
    PacedBody::new(body, Pace::without_minimum(MAX_PAUSE))
}

// === impl Client ===

impl Client {
    /// A client of this dialect whose connections run as tasks of `tasks`.
    pub(super) fn new(tasks: Tasks, dialect: &'static dyn Dialect) -> Self {
        Self { tasks, limits: limits(), dialect }
    }

    /// Posts a request to the model.
    pub(super) async fn post(&self, uri: Uri, body: Bytes) -> Result<Response, RequestError> {
        self.send(Method::POST, uri, body).await
    }

    /// Sends a GET request.
    pub(super) async fn get(&self, uri: Uri) -> Result<Response, RequestError> {
        self.send(Method::GET, uri, Bytes::new()).await
    }

    async fn send(&self, method: Method, uri: Uri, body: Bytes) -> Result<Response, RequestError> {
        let Some(authority) = uri.authority().map(ToString::to_string) else { return Err(RequestError::Address(uri)) };
        let stream = TcpStream::connect(&authority).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // A connection error is also returned to the sender.
        self.tasks.spawn(async move { drop(connection.await) });
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        let mut request = Request::builder()
            .method(method)
            .uri(target)
            .header(header::HOST, authority)
            .header(self.dialect.key_field(), "Bearer demo")
            .header(header::CONTENT_TYPE, "application/json");
        if let Some((name, version)) = self.dialect.version_field() {
            request = request.header(name, version);
        }
        let request = request.body(Full::new(body))?;
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = read_up_to(paced(body), &self.limits).await?;
        Ok(Response { status: head.status, headers: head.headers, body })
    }
}
