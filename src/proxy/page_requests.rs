//! Requests of web pages for the upstream: refused if the page's host or origin is not allowed.

use http::Request;

use super::Proxy;
use crate::admin::access::{self, AccessError, ConnectionInfo};
use crate::body::ClientBody;

impl Proxy {
    /// The reason to refuse a request for the upstream, if a page sends it that may not.
    pub(super) fn page_error(&self, request: &Request<ClientBody>, connection: ConnectionInfo) -> Option<AccessError> {
        let is_page_request = access::is_page_request(request);
        is_page_request.then(|| self.live.load().access.check_page_request(request, connection).err()).flatten()
    }
}
