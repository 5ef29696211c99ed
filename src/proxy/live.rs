//! The configuration that a reload can replace while the proxy runs, `POST /abridge/reload`, which has the settings read again
//! as `SIGHUP` does, and what else the app does with a proxy.

use std::sync::{Arc, OnceLock};

use http::StatusCode;
use tokio::sync::{mpsc, oneshot};

use super::{Destination, Destinations, OpenConnection, OwnAnswer, Proxy, compress, responses};
use crate::admin::access::Access;
use crate::admin::clients::Clients;
use crate::body::in_flight::Requests;
use crate::history::History;
use crate::ledger::Savings;
use crate::{admin, inspect, recall};

/// The configuration that a reload can replace while the proxy runs.
#[derive(Debug)]
pub struct LiveConfig {
    /// Where requests go, and which edits run.
    pub destinations: Destinations,
    /// Access control for the paths below `/abridge/`.
    pub access: Access,
    /// Whether a recall needs the credential of the conversation.
    pub recall_auth: recall::Auth,
    /// The clients that may use abridge.
    pub clients: Clients,
    /// What becomes of websockets that would carry conversations.
    pub responses: responses::Settings,
    /// Whether gateways are served, and where.
    pub compress: compress::Settings,
    /// How many edited requests keep their messages for inspection.
    pub inspect: inspect::Settings,
    /// Whether edits are reported but not made.
    pub dry_run: bool,
}

/// Takes the outcome of a reload: the error, if the old settings stay in force.
pub(super) type ReloadReply = oneshot::Sender<Result<(), String>>;

/// The way of requests for a reload to who reads the settings.
#[derive(Debug, Default)]
pub(super) struct Reloads(OnceLock<mpsc::Sender<ReloadReply>>);

/// How many requests for a reload wait; further ones wait for a place.
const QUEUE: usize = 1;

// === impl LiveConfig ===

impl LiveConfig {
    /// A name for the version and all settings that the bytes of a request depend on.
    pub fn fingerprint(&self) -> String {
        let all: Vec<_> =
            self.destinations.iter().flat_map(Destination::arms).map(|arm| &arm.rules.planner.settings).collect();
        let parts = serde_json::to_vec(&(env!("CARGO_PKG_VERSION"), all)).unwrap_or_default();
        blake3::hash(&parts).to_hex().chars().take(12).collect()
    }
}

// === impl Proxy ===

impl Proxy {
    /// Replaces the configuration. Running requests keep the old one.
    pub fn reload(&self, live: LiveConfig) {
        self.live.store(Arc::new(live));
    }

    /// The history of the last requests.
    pub fn history(&self) -> &History {
        &self.accounting.history
    }

    /// The current configuration.
    pub fn live(&self) -> Arc<LiveConfig> {
        self.live.load_full()
    }

    /// Makes `/abridge/readyz` report 503, and ends the event streams.
    pub fn drain(&self) {
        self.stopping.cancel();
    }

    /// Stores what the ledger has counted.
    pub async fn save_ledger(&self) {
        self.engine.bookkeeper().save().await;
    }

    /// The savings of the edits since the start; `None` if no answer has reported its tokens.
    pub fn savings(&self) -> Option<Savings> {
        self.accounting.ledger.savings()
    }

    /// Why no request was edited, in words; none if one was, or if edits are only reported.
    pub fn why_unedited(&self) -> Option<String> {
        let live = self.live();
        let is_off = |destination: &Destination| destination.usual.rules.planner.settings.policy.edits.is_empty();
        let are_off = live.destinations.iter().all(is_off);
        self.accounting.history.totals().requests.why_unedited(are_off).filter(|_| !live.dry_run)
    }

    /// Notes that a client's connection is open until what is returned is dropped.
    pub(crate) fn connected(&self, requests: &Arc<Requests>) -> OpenConnection {
        self.keep_alives.connections.open(requests)
    }

    /// Whether connections may be kept open between their requests.
    pub(crate) fn keeps_open(&self) -> bool {
        self.live.load().destinations.iter().any(|destination| destination.keep_alive.is_some())
    }

    /// How many summaries were made.
    pub fn summaries_made(&self) -> u64 {
        self.engine.summary_counts().made
    }

    /// The requests for a reload. Until they are taken here, and when the receiver is gone, they are refused.
    pub fn reloads(&self) -> mpsc::Receiver<ReloadReply> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        // A second receiver gets none.
        let _ = self.reloads.0.set(sender);
        receiver
    }

    /// Asks for a reload, and answers when it is done.
    pub(super) async fn answer_reload(&self) -> OwnAnswer {
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
