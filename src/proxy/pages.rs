//! Pages in a browser that ask for what is the upstream's.

use http::Request;
use hyper::body::Incoming;

use super::Proxy;
use super::respond::ProxyError;
use crate::admin::access::{self, Refused, Way};
use crate::body::Unread;

impl Proxy {
    /// Why a request for the upstream goes no further, if a page makes it that may not.
    pub(super) fn refused_page(&self, request: &Request<Incoming>, way: Way) -> Option<Refused> {
        let is_of_page = access::is_of_page(request, way);
        is_of_page.then(|| self.live.load().access.check_page(request).err()).flatten()
    }

    /// The answer to such a page, which may still be sending.
    pub(super) fn turn_away(&self, request: Request<Incoming>, refused: Refused) -> ProxyError {
        let (parts, body) = request.into_parts();
        self.linger(&parts.headers, Unread::All(body));
        ProxyError::Page(refused)
    }
}
