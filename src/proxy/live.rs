//! The configuration that a reload can replace while the proxy runs, and what the app does with a proxy.
//!
//! It says where requests go: to one of the upstreams of the settings, each with the edits of its requests and what is known of its
//! models. `[experiment]` has another policy for part of the conversations, so that the bills of both can be compared. `POST
//! /abridge/reload` has the settings read again as `SIGHUP` does.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;
use tokio::sync::{mpsc, oneshot};

use super::compress::{self, CompressRules};
use super::fair_shares::OpenConnection;
use super::keep_alive::KeepAlive;
use super::second_try::Arm;
use super::{OwnAnswer, Proxy, WindowDiscovery, responses};
use crate::admin::access::Access;
use crate::admin::clients::Clients;
use crate::body::Requests;
use crate::dialect::Dialect;
use crate::history::History;
use crate::ledger::{Assignment, Savings};
use crate::string_index::IndexedBody;
use crate::tasks::run_blocking;
use crate::units::Fraction;
use crate::upstream::Upstream;
use crate::upstream::routes::{RequestFacts, Routes, model_of};
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
    /// The history of the last requests.
    pub fn history(&self) -> &History {
        &self.accounting.history
    }

    /// The current configuration.
    pub fn live(&self) -> Arc<LiveConfig> {
        self.live.load_full()
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

    /// The requests for a reload. Until they are taken here, and when the receiver is gone, they are refused.
    pub fn reloads(&self) -> mpsc::Receiver<ReloadReply> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        // A second receiver gets none.
        let _ = self.reloads.set(sender);
        receiver
    }

    /// Asks for a reload, and answers when it is done.
    pub(super) async fn answer_reload(&self) -> OwnAnswer {
        let (reply, outcome) = oneshot::channel();
        if let Some(reloads) = self.reloads.get() {
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

/// All upstreams.
pub type Destinations = Routes<Destination>;

/// An upstream, and how requests to it are handled.
#[derive(Debug)]
pub struct Destination {
    /// Where requests go.
    pub upstream: Upstream,
    /// How requests are edited.
    pub usual: Arm,
    /// Another policy for some conversations, if one is tried.
    pub experiment: Option<Experiment>,
    /// What keeps prompt caches while tools run; `None` if `[keep_alive]` is off.
    pub keep_alive: Option<Arc<KeepAlive>>,
    /// Fetches the context windows of the upstream's models.
    pub windows: WindowDiscovery,
    /// How messages of gateways are edited; `None` if `[compress]` is off.
    pub compress: Option<CompressRules>,
    /// Whether it has been found out that the upstream answers no requests for a compaction.
    pub lacks_compaction: AtomicBool,
}

impl Destinations {
    /// The upstream of a request whose body was read; `text` is the decoded body, if it could be decoded. The body is
    /// parsed only where a route asks for the model.
    pub(super) async fn of_body(
        &self,
        path: &str,
        headers: &HeaderMap,
        dialect: &'static dyn Dialect,
        text: Option<&IndexedBody>,
    ) -> &Destination {
        let model = match text.filter(|_| self.ask_for_the_model()) {
            // On another thread, as it may be long and an error in a reader must not end the request.
            Some(text) => {
                let text = text.clone();
                run_blocking(move || model_of(dialect, &text, text.strings())).await.ok().flatten()
            }
            None => None,
        };
        self.find(&RequestFacts { path, headers, model: model.as_deref() })
    }
}

/// Settings of `[experiment]`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct ExperimentSettings {
    /// The part of the conversations that is edited by `policy` and not as usual. A conversation stays in its arm for life, and
    /// begins anew with another first message of the user.
    ///
    /// Not set: every conversation is edited as usual.
    ///
    /// Example: `0.1`
    pub share: Option<Fraction>,
    /// The policy that is tried: one of the `policies`, or `"none"` for no edits.
    #[default(NO_EDITS.to_owned())]
    pub policy: String,
}

/// The policy without edits, which every configuration has.
pub const NO_EDITS: &str = "none";

/// An experiment with the conversations of an upstream.
#[derive(Debug)]
pub struct Experiment {
    /// How the chosen conversations are edited.
    pub tried: Arm,
    /// Which part of all is chosen.
    pub share: Fraction,
}

impl Destination {
    /// The usual arm, and the one that an experiment tries.
    pub fn arms(&self) -> impl Iterator<Item = &Arm> {
        std::iter::once(&self.usual).chain(self.experiment.as_ref().map(|experiment| &experiment.tried))
    }

    /// The arm of a conversation.
    pub(super) fn arm(&self, assignment: Option<&Assignment>) -> &Arm {
        let experiment = self.experiment.as_ref().filter(|_| assignment.is_some_and(|assignment| assignment.is_tried));
        experiment.map_or(&self.usual, |experiment| &experiment.tried)
    }
}

impl Experiment {
    /// The arm of a conversation with this name.
    pub(super) fn assign(&self, name: [u8; 16]) -> Assignment {
        // The last two bytes are the caller's, and equal in all its conversations.
        let number = u128::from_be_bytes(name);
        #[expect(clippy::cast_possible_truncation, reason = "two parts of a hash")]
        let (drawn, conversation) = ((number >> 96) as u32, (number >> 32) as u64);
        let is_tried = f64::from(drawn) < self.share.get() * f64::from(u32::MAX);
        Assignment { policy: Arc::clone(&self.tried.rules.policy), is_tried, conversation }
    }
}
