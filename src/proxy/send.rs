//! Sends requests to the upstream: target, header fields and body, and for upgrades, such as to websockets, a tunnel.

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderValue, Request, Response, Uri, Version};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::headers;
use crate::body::peek::PeekableBody;
use crate::body::{ClientBody, RequestBody};
use crate::engine::EditedBody;
use crate::upstream::{self, Upstream, UpstreamError};

/// Sends a request to `target` and waits for the head of the answer.
pub(super) async fn send_request(
    upstream: &Upstream,
    mut request: Request<RequestBody>,
    target: Uri,
    tunnel: Option<&Tunnel>,
) -> Result<Response<PeekableBody>, UpstreamError> {
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
    pub(super) fn from_request(request: &mut Request<ClientBody>) -> Option<Self> {
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
