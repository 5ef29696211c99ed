//! Sends requests to the upstream: target, header fields and body.

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, Request, Response, Uri, Version};

use super::headers;
use super::tunnel::Tunnel;
use crate::body::RequestBody;
use crate::body::peek::PeekableBody;
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
        tunnel.set_headers(request.headers_mut());
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
