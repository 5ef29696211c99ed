//! Who asks abridge itself, by what is shown: whose payloads and events it gets.

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{Either, Full};
use hyper::body::Incoming;

use super::{Proxy, headers};
use crate::admin::access::{Door, Way};
use crate::admin::events::Stream;
use crate::admin::{self, Reader};
use crate::events::Audience;

impl Proxy {
    /// Who recalls, as far as it matters.
    pub(super) fn reader(&self, headers: &HeaderMap, way: Way) -> Reader<'_> {
        let live = self.live.load();
        // Who came to the address of operators was let in as one.
        let is_operator = || matches!(way.door, Door::Operators(_)) || live.access.is_operator(headers);
        if !live.require_auth || is_operator() {
            return Reader::Anybody;
        }
        let Some(shown) = headers::credential(headers) else { return Reader::Stranger };
        Reader::Caller(self.engine.keys(), self.engine.caller(Some(shown)))
    }

    /// What happens, for who may know it.
    pub(super) fn listen(&self, request: &Request<Incoming>, way: Way) -> Response<Either<Full<Bytes>, Stream>> {
        let access = &self.live.load().access;
        let audience = match headers::credential(request.headers()) {
            _ if access.is_operator(request.headers()) => Some(Audience::All),
            Some(shown) => Some(Audience::Caller(self.engine.caller(Some(shown)))),
            None => access.trusts(request, way.peer).then_some(Audience::All),
        };
        let state = admin::events::State { events: &self.events, stop: &self.stopping, audience };
        admin::events::answer(request, &state)
    }
}
