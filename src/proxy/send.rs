//! Requests to the upstream: the head of one and its id, header fields and body, and for upgrades, such as to websockets, a tunnel.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Uri, Version};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::{ClientRequest, Destination, UpstreamAnswer, headers};
use crate::body::RequestBody;
use crate::body::peek::PeekableBody;
use crate::dialect::Dialect;
use crate::engine::EditedBody;
use crate::payload::Caller;
use crate::upstream::{self, Upstream, UpstreamError};

/// Sends a request to `target` and waits for the head of the answer.
pub(super) async fn send_request(
    upstream: &Upstream,
    mut request: Box<Request<RequestBody>>,
    target: Uri,
    tunnel: Option<&Tunnel>,
) -> Result<UpstreamAnswer, UpstreamError> {
    *request.uri_mut() = target;
    if request.version() == Version::HTTP_2 {
        headers::join_cookies(request.headers_mut());
    }
    *request.version_mut() = Version::HTTP_11;
    headers::to_upstream(request.headers_mut());
    if let Some(tunnel) = tunnel {
        headers::set_upgrade(request.headers_mut(), tunnel.protocol.clone());
    }
    Ok(upstream.send(request).await?.map(PeekableBody::from))
}

/// The body for the upstream: the client's bytes, unless an edit changed them. Sets the length to match.
pub(super) fn request_body(headers: &mut HeaderMap, bytes: Bytes, edited: &EditedBody, dry_run: bool) -> RequestBody {
    if dry_run || !edited.changed() {
        headers::set_length(headers, bytes.len());
        return RequestBody::buffered(&[bytes]);
    }
    headers::set_length(headers, edited.body.iter().map(Bytes::len).sum());
    headers.remove(CONTENT_ENCODING);
    if let Some(beta) = edited.beta {
        upstream::add_beta(headers, beta);
    }
    RequestBody::buffered(&edited.body)
}

/// A client's request to switch protocols.
#[derive(Debug)]
pub(super) struct Tunnel {
    protocol: HeaderValue,
    client: OnUpgrade,
}

impl Tunnel {
    /// Reads the upgrade of a request, if it has one.
    pub(super) fn from_request(request: &mut ClientRequest) -> Option<Self> {
        let protocol = headers::upgrade_protocol(request.headers())?;
        Some(Self { protocol, client: hyper::upgrade::on(request) })
    }

    /// Joins the two connections once both are upgraded. Returns when either side ends.
    pub(super) async fn join(self, upstream: OnUpgrade) {
        let (client, upstream) = match tokio::try_join!(self.client, upstream) {
            Ok(both) => both,
            Err(error) => return tracing::debug!(%error, "a protocol upgrade failed"),
        };
        if let Err(error) = copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(upstream)).await {
            tracing::debug!(%error, "a tunnel broke off");
        }
    }
}

/// A request without its body, with its destination.
#[derive(Clone, Debug)]
pub(super) struct RequestHead<'l> {
    pub(super) dialect: &'static dyn Dialect,
    pub(super) id: RequestId,
    pub(super) parts: Parts,
    pub(super) caller: Caller,
    pub(super) destination: &'l Destination,
    /// Its URI at the upstream.
    pub(super) target: Uri,
}

/// The id of one request of this process. It cannot be guessed from another one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct RequestId(pub(super) u64);

impl fmt::Display for RequestId {
    /// The same as `req_{:016x}` with fewer instructions: each edited request writes its id several times.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_be_bytes().map(|byte| [byte >> 4, byte & 15]);
        let mut text = *b"req_0000000000000000";
        for (place, digit) in text.iter_mut().skip(4).zip(digits.as_flattened()) {
            *place = digit + if *digit < 10 { b'0' } else { b'a' - 10 };
        }
        f.write_str(str::from_utf8(&text).unwrap_or_default())
    }
}

/// Generates request ids.
#[derive(Debug, Default)]
pub(super) struct RequestIds {
    key: RandomState,
    next: AtomicU64,
}

// === impl RequestIds ===

impl RequestIds {
    /// An id that this process has not used before.
    pub(super) fn next(&self) -> RequestId {
        RequestId(self.key.hash_one(self.next.fetch_add(1, Ordering::Relaxed)))
    }
}
