//! The request as the upstream gets it.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, Request, Response, Uri, Version};

use super::headers;
use super::tunnel::Tunnel;
use crate::body::ahead::Ahead;
use crate::body::{Lease, Outgoing};
use crate::engine::EditedBody;
use crate::upstream::{Upstream, UpstreamError};

/// Sends a request to `target`, and waits for the head of its answer.
pub(super) async fn ask(
    upstream: &Upstream,
    mut request: Request<Outgoing>,
    target: Uri,
    tunnel: Option<&Tunnel>,
) -> Result<Response<Ahead>, UpstreamError> {
    *request.uri_mut() = target;
    *request.version_mut() = Version::HTTP_11;
    headers::to_upstream(request.headers_mut());
    if let Some(tunnel) = tunnel {
        tunnel.ask(request.headers_mut());
    }
    Ok(upstream.send(request).await?.map(Ahead::from))
}

/// The body for the upstream: the client's own bytes, unless an edit changed them.
pub(super) fn outgoing(
    headers: &mut HeaderMap,
    bytes: Bytes,
    lease: Arc<Lease>,
    edited: &EditedBody,
    dry_run: bool,
) -> Outgoing {
    if dry_run || !edited.changed() {
        headers::set_length(headers, bytes.len());
        return Outgoing::held(&[bytes], lease);
    }
    headers::set_length(headers, edited.body.iter().map(Bytes::len).sum());
    headers.remove(CONTENT_ENCODING);
    Outgoing::held(&edited.body, lease)
}
