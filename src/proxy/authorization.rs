//! Authorization on abridge's own paths: which payloads and events a request may read, by its credential.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{Either, Full};

use super::{Proxy, headers};
use crate::admin::access::{ConnectionInfo, ListenerRole};
use crate::admin::events::EventStream;
use crate::admin::mcp;
use crate::admin::{self, Requester};
use crate::body::ClientBody;
use crate::events::Audience;

impl Proxy {
    /// The rights of a request that recalls a payload.
    pub(super) fn requester(&self, headers: &HeaderMap, connection: ConnectionInfo) -> Requester {
        let live = self.live.load();
        // On the operators' address, `Access::check` has already required the token.
        let is_operator =
            || matches!(connection.listener_role, ListenerRole::Operators(_)) || live.access.is_operator(headers);
        if !live.require_auth || is_operator() {
            return Requester::Unrestricted;
        }
        let Some(shown) = headers::credential(headers) else { return Requester::Unauthenticated };
        Requester::caller(self.engine.keys(), shown)
    }

    /// Whose data a request may read; `None` if it must show a credential.
    fn audience(&self, request: &Request<ClientBody>, connection: ConnectionInfo) -> Option<Audience> {
        let access = &self.live.load().access;
        match headers::credential(request.headers()) {
            _ if access.is_operator(request.headers()) => Some(Audience::All),
            Some(shown) => Some(Audience::Caller(self.engine.caller(Some(shown)))),
            None => access.is_trusted_without_credential(request, connection.peer).then_some(Audience::All),
        }
    }

    /// Answers `POST /abridge/mcp` with what the request may read.
    pub(super) async fn serve_mcp(
        &self,
        request: Request<ClientBody>,
        connection: ConnectionInfo,
    ) -> Response<Full<Bytes>> {
        let session = mcp::Session {
            recalls: Arc::clone(&self.recalls),
            store: self.engine.shared_store(),
            requester: self.requester(request.headers(), connection),
            audience: self.audience(&request, connection),
            keys: self.engine.keys().clone(),
        };
        self.mcp.answer(request, session).await
    }

    /// Answers `GET /abridge/events` with the events that the request may see.
    pub(super) fn serve_events(
        &self,
        request: &Request<ClientBody>,
        connection: ConnectionInfo,
    ) -> Response<Either<Full<Bytes>, EventStream>> {
        let audience = self.audience(request, connection);
        let state = admin::events::State { events: &self.events, stop: &self.stopping, audience };
        admin::events::answer(request, &state)
    }
}
