//! One request to a server on this machine, over a connection of its own: no proxy, no name to look up.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, Uri, header};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::body::pool::Pool;
use crate::body::{Budget, Limits, read_up_to};
use crate::tasks::Tasks;

/// The longest body, of a request or of an answer.
const MOST: usize = 8 << 20;

/// How long the other side may pause.
const PAUSE: Duration = Duration::from_secs(20);

/// Sends requests, each on a connection of its own.
#[derive(Clone, Debug)]
pub(super) struct Client {
    tasks: Tasks,
    limits: Limits,
}

/// A whole answer.
#[derive(Debug)]
pub(super) struct Answer {
    /// Its status.
    pub(super) status: StatusCode,
    /// Its header fields.
    pub(super) headers: HeaderMap,
    /// Its body.
    pub(super) body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// It cannot be asked for.
    #[error("{0} is no address")]
    Address(Uri),
    /// Nobody listens.
    #[error("no connection")]
    Connect(#[from] std::io::Error),
    /// The connection broke.
    #[error("the connection broke")]
    Http(#[from] hyper::Error),
    /// The request is none.
    #[error("no request")]
    Request(#[from] http::Error),
    /// The answer did not come whole.
    #[error("the answer did not come whole")]
    Body(#[from] crate::body::ReadError),
}

/// What bodies may take, on either side.
pub(super) fn limits() -> Limits {
    Limits { max_body: MOST, pause: PAUSE, budget: Budget::new(4 * MOST), pool: Pool::default() }
}

// === impl Client ===

impl Client {
    /// Its connections are tasks among these.
    pub(super) fn new(tasks: Tasks) -> Self {
        Self { tasks, limits: limits() }
    }

    /// Posts a chat request.
    pub(super) async fn post(&self, uri: Uri, body: Bytes) -> Result<Answer, NoAnswer> {
        self.send(Method::POST, uri, body).await
    }

    /// Gets what is there.
    pub(super) async fn get(&self, uri: Uri) -> Result<Answer, NoAnswer> {
        self.send(Method::GET, uri, Bytes::new()).await
    }

    async fn send(&self, method: Method, uri: Uri, body: Bytes) -> Result<Answer, NoAnswer> {
        let Some(authority) = uri.authority().map(ToString::to_string) else { return Err(NoAnswer::Address(uri)) };
        let stream = TcpStream::connect(&authority).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // What breaks it is told to who sends.
        self.tasks.spawn(async move { drop(connection.await) });
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        let request = Request::builder()
            .method(method)
            .uri(target)
            .header(header::HOST, authority)
            .header(header::AUTHORIZATION, "Bearer demo")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = read_up_to(body, &self.limits).await?.bytes;
        Ok(Answer { status: head.status, headers: head.headers, body })
    }
}
