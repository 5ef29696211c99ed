//! Requests that only ask how many tokens a turn has. They get the edits of the turn, so that what is sent is counted.

use http::{Request, Response};

use super::request::{Purpose, ReadRequest};
use super::respond::ProxyError;
use super::send::request_body;
use super::{Proxy, ResponseBody, relay, send};
use crate::body::ClientBody;
use crate::dialect::Dialect;

// === impl Proxy ===

impl Proxy {
    /// Serves a request that only counts. Nothing is stored for it, no summary is made for it, and it is neither in the
    /// history nor recorded: the turn itself is.
    pub(super) async fn count(
        &self,
        dialect: &'static dyn Dialect,
        request: Request<ClientBody>,
    ) -> Result<Response<ResponseBody>, ProxyError> {
        let live = self.live.load_full();
        let mut read = self.receive(&live, dialect, request).await?;
        let edited = self.edited(&mut read, Purpose::Count).await.edited;
        let ReadRequest { id, mut parts, bytes, destination, target, dry_run, permit, timer, .. } = read;
        let mut exchange = self.exchange(id, permit, timer);
        let body = request_body(&mut parts.headers, bytes, &edited, dry_run);
        exchange.set_edited(edited, dry_run);
        let upstream = &destination.upstream;
        let answer = send(upstream, Request::from_parts(parts, body), target, &mut exchange).await?;
        Ok(relay(upstream, answer, exchange))
    }
}
