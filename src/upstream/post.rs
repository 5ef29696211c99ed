//! The posts of abridge: events to a webhook, questions to a handler, traces to a collector.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, USER_AGENT};
use http::{HeaderMap, Method, Request, Response, Uri};
use tokio::time::timeout;

use super::connect::Proxies;
use super::target::BaseUrlError;
use super::{Settings, Upstream, UpstreamError};
use crate::body::{self, RequestBody};
use crate::events::WebhookUrl;
use crate::setup_error::SetupError;
use crate::units::Period;

/// Why a post has no answer.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// No answer in time.
    #[error("it did not answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// No answer at all.
    // Who is posted to is not the upstream of requests.
    #[error("{}", .0.kind.to_string().replace("the upstream", "it"))]
    Send(#[source] UpstreamError),
}

/// How long an answer's body is read and discarded, so that the connection can be reused.
const MAX_DISCARD: Duration = Duration::from_secs(1);

/// The client for posts to one URL.
pub fn post_client(url: &WebhookUrl, connect_timeout: Period, proxies: &Proxies) -> Result<Upstream, SetupError> {
    let settings = Settings {
        url: url.origin().parse().map_err(|error: BaseUrlError| SetupError::new(error.to_string()))?,
        connect_timeout,
        ..Settings::default()
    };
    Upstream::new(&settings, proxies, None)
}

/// A request that posts JSON in abridge's name.
pub fn json_post(target: Uri, json: Bytes) -> Request<RequestBody> {
    let mut request = json_post_with(target, HeaderMap::new(), json);
    let name = HeaderValue::from_static(concat!("abridge/", env!("CARGO_PKG_VERSION")));
    request.headers_mut().insert(USER_AGENT, name);
    request
}

/// A request that posts JSON, with these header fields besides those of the body.
pub fn json_post_with(target: Uri, mut headers: HeaderMap, json: Bytes) -> Request<RequestBody> {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(json.len()));
    let mut request = Request::new(RequestBody::buffered(&[json]));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = target;
    *request.headers_mut() = headers;
    request
}

/// Sends a post, and returns the head of the answer, which has this much time. The body is discarded.
pub async fn send_post(
    client: &Upstream,
    request: Request<RequestBody>,
    within: Duration,
) -> Result<Response<()>, PostError> {
    let answered = timeout(within, client.send(request.into())).await.map_err(|_| PostError::Timeout(within))?;
    let (head, rest) = answered.map_err(PostError::Send)?.into_parts();
    body::discard(rest, MAX_DISCARD).await;
    Ok(Response::from_parts(head, ()))
}
