//! Upgraded connections, such as websockets: copies bytes both ways until one side ends.

use http::{HeaderMap, HeaderValue, Request};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::headers;
use crate::body::ClientBody;

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

    /// Sets the upgrade on the request for the upstream.
    pub(super) fn set_headers(&self, headers: &mut HeaderMap) {
        headers::set_upgrade(headers, self.protocol.clone());
    }

    /// Joins the two connections once both are upgraded. Returns when either side ends.
    pub(super) async fn join(self, upstream: OnUpgrade) {
        let (client, upstream) = match tokio::try_join!(self.client, upstream) {
            Ok(both) => both,
            Err(error) => return tracing::debug!(%error, "a protocol upgrade failed"),
        };
        if let Err(error) = copy(client, upstream).await {
            tracing::debug!(%error, "a tunnel broke off");
        }
    }
}

async fn copy(client: Upgraded, upstream: Upgraded) -> std::io::Result<()> {
    copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(upstream)).await.map(|_| ())
}
