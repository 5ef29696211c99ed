//! Requests of web pages for the upstream: refused if the page's host or origin is not allowed.

use http::Request;

use super::Proxy;
use super::respond::ProxyError;
use crate::admin::access::{self, AccessError, ConnectionInfo};
use crate::body::{ClientBody, UnreadBody};

impl Proxy {
    /// The reason to refuse a request for the upstream, if a page sends it that may not.
    pub(super) fn page_error(&self, request: &Request<ClientBody>, connection: ConnectionInfo) -> Option<AccessError> {
        let is_page_request = access::is_page_request(request, connection);
        is_page_request.then(|| self.live.load().access.check_page_request(request).err()).flatten()
    }

    /// Refuses such a request, and discards the body that may still be arriving.
    pub(super) fn reject_page(&self, request: Request<ClientBody>, error: AccessError) -> ProxyError {
        let (parts, body) = request.into_parts();
        self.discard_unread(&parts.headers, UnreadBody::All(body));
        ProxyError::Page(error)
    }
}
