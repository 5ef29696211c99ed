//! The clients of handlers: one question, posted as JSON over HTTP or a Unix socket, and its answer within limits.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST, HeaderValue};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::sync::Semaphore;

use super::AskError;
use crate::body::RequestBody;
use crate::events::WebhookUrl;
use crate::handler::{Handler, MAX_ANSWER, Settings};
use crate::platform::sockets;
use crate::setup_error::SetupError;
use crate::upstream::Upstream;
use crate::upstream::connect::Proxies;
use crate::upstream::post::{json_post, post_client};

/// Where a handler is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum HandlerUrl {
    /// A URL.
    Http(WebhookUrl),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// Not the address of a handler. It is not shown, as its path and its query may hold a secret.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not the address of a handler; allowed: an http:// or https:// URL without user, or unix:/path")]
pub struct HandlerUrlError;

/// The clients of all handlers, by name.
#[derive(Clone, Debug, Default)]
pub struct HandlerClients(BTreeMap<String, HandlerClient>);

/// The client of one handler.
#[derive(Clone, Debug)]
pub(in crate::engine) struct HandlerClient {
    target: Target,
    /// How long it may take.
    pub(in crate::engine) timeout: Duration,
    key: Option<HeaderValue>,
    /// Each handler has its own: one that hangs is in no other's way.
    pub(super) places: Arc<Semaphore>,
}

/// How many questions to a handler are under way at a time, of all requests.
const MAX_CALLS: usize = 32;

#[derive(Clone, Debug)]
enum Target {
    Http(Box<Upstream>, Uri),
    Unix(PathBuf),
}

// === impl HandlerUrl ===

impl FromStr for HandlerUrl {
    type Err = HandlerUrlError;

    fn from_str(text: &str) -> Result<Self, HandlerUrlError> {
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(_) => Err(HandlerUrlError),
            None => text.parse().map(Self::Http).map_err(|_| HandlerUrlError),
        }
    }
}

// === impl HandlerClients ===

impl HandlerClients {
    /// The clients of the settings. `key` returns the value of the `authorization` field for a handler.
    ///
    /// # Errors
    ///
    /// If an address is invalid, and as [`Upstream::new`].
    pub fn new(
        settings: &Settings,
        proxies: &Proxies,
        key: impl Fn(&str) -> Option<HeaderValue>,
    ) -> Result<Self, SetupError> {
        let client =
            |(name, handler): (&String, &Handler)| Ok((name.clone(), HandlerClient::new(handler, proxies, key(name))?));
        settings.iter().map(client).collect::<Result<_, _>>().map(Self)
    }

    /// The client of a handler.
    pub(in crate::engine) fn get(&self, name: &str) -> Option<&HandlerClient> {
        self.0.get(name)
    }
}

// === impl HandlerClient ===

impl HandlerClient {
    fn new(handler: &Handler, proxies: &Proxies, key: Option<HeaderValue>) -> Result<Self, SetupError> {
        let target = match handler.url.parse().map_err(|error: HandlerUrlError| SetupError::new(error.to_string()))? {
            HandlerUrl::Unix(path) => Target::Unix(path),
            HandlerUrl::Http(url) => {
                Target::Http(Box::new(post_client(&url, handler.timeout, proxies)?), url.uri().clone())
            }
        };
        Ok(Self { target, timeout: handler.timeout.0, key, places: Arc::new(Semaphore::new(MAX_CALLS)) })
    }

    /// Posts a question, and reads the answer, whose text has at most so many bytes.
    pub(super) async fn post(&self, json: Bytes, most_bytes: usize) -> Result<Bytes, AskError> {
        // Each byte of the text may be escaped, and something stands around it.
        let most = 6 * most_bytes.max(MAX_ANSWER) + 4096;
        match &self.target {
            Target::Http(client, uri) => {
                let sent = client.send(self.request(uri.clone(), json).into()).await;
                read(sent.map_err(no_connection)?, most).await
            }
            Target::Unix(path) => {
                let socket = sockets::connect(path).await.map_err(no_connection)?;
                let connected = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await;
                let (mut sender, connection) = connected.map_err(no_connection)?;
                let mut request = self.request(Uri::from_static("/"), json);
                request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
                // The connection ends when the sender is dropped.
                let asking = async move {
                    let sent = sender.send_request(request).await;
                    read(sent.map_err(no_connection)?, most).await
                };
                tokio::join!(asking, connection).0
            }
        }
    }

    fn request(&self, target: Uri, json: Bytes) -> Request<RequestBody> {
        let mut request = json_post(target, json);
        request.headers_mut().extend(self.key.clone().map(|key| (AUTHORIZATION, key)));
        request
    }
}

fn no_connection<E>(_: E) -> AskError {
    AskError::new("failed", "no connection to it, or it broke off")
}

#[expect(clippy::disallowed_methods, reason = "an answer of a limited length")]
async fn read(answer: Response<Incoming>, most: usize) -> Result<Bytes, AskError> {
    if answer.status() != StatusCode::OK {
        return Err(AskError::new("failed", format!("it answered {}", answer.status())));
    }
    let read = Limited::new(answer.into_body(), most).collect().await;
    let read = read.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => AskError::new("failed", format!("its answer has more than {most} bytes")),
        None => no_connection(error),
    })?;
    Ok(read.to_bytes())
}
