//! Connections that change to another protocol, such as a websocket: bytes both ways, until one side ends.

use http::{HeaderMap, HeaderValue, Request};
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::headers;

/// A client's wish to change the protocol.
#[derive(Debug)]
pub(super) struct Tunnel {
    protocol: HeaderValue,
    client: OnUpgrade,
}

impl Tunnel {
    /// The wish, if the request has one.
    pub(super) fn asked_for(request: &mut Request<Incoming>) -> Option<Self> {
        let protocol = headers::upgrade(request.headers())?;
        Some(Self { protocol, client: hyper::upgrade::on(request) })
    }

    /// Hands the wish on to the upstream.
    pub(super) fn ask(&self, headers: &mut HeaderMap) {
        headers::set_upgrade(headers, self.protocol.clone());
    }

    /// Joins the two connections, once both have changed. Ends when either side does.
    pub(super) async fn join(self, upstream: OnUpgrade) {
        let (client, upstream) = match tokio::try_join!(self.client, upstream) {
            Ok(both) => both,
            Err(error) => return tracing::debug!(%error, "the protocol was not changed"),
        };
        if let Err(error) = copy(client, upstream).await {
            tracing::debug!(%error, "a tunnel broke off");
        }
    }
}

async fn copy(client: Upgraded, upstream: Upgraded) -> std::io::Result<()> {
    copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(upstream)).await.map(|_| ())
}
