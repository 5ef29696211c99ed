//! `POST /abridge/reload`: has the settings read again, as `SIGHUP` does, and answers what came of it.

use std::sync::OnceLock;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use tokio::sync::{mpsc, oneshot};

use super::Proxy;
use crate::admin;

/// Takes the outcome of a reload: the error, if the old settings stay in force.
pub(super) type ReloadReply = oneshot::Sender<Result<(), String>>;

/// The way of requests for a reload to who reads the settings.
#[derive(Debug, Default)]
pub(super) struct Reloads(OnceLock<mpsc::Sender<ReloadReply>>);

/// How many requests for a reload wait; further ones wait for a place.
const QUEUE: usize = 1;

impl Proxy {
    /// The requests for a reload. Until they are taken here, and when the receiver is gone, they are refused.
    pub fn reloads(&self) -> mpsc::Receiver<ReloadReply> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        // A second receiver gets none.
        let _ = self.reloads.0.set(sender);
        receiver
    }

    /// Asks for a reload, and answers when it is done.
    pub(super) async fn answer_reload(&self) -> Response<Full<Bytes>> {
        let (reply, outcome) = oneshot::channel();
        if let Some(reloads) = self.reloads.0.get() {
            // Without a receiver the reply is dropped.
            let _ = reloads.send(reply).await;
        } else {
            drop(reply);
        }
        match outcome.await {
            Ok(Ok(())) => admin::text(StatusCode::OK, "settings reloaded\n"),
            Ok(Err(error)) => {
                let text = format!("settings not reloaded; the old ones stay in force: {error}\n");
                admin::text(StatusCode::UNPROCESSABLE_ENTITY, text)
            }
            Err(_) => admin::text(StatusCode::SERVICE_UNAVAILABLE, "settings are not reloaded by this abridge\n"),
        }
    }
}
