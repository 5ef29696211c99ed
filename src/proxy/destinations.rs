//! Where requests go: the upstreams of the settings, each with the edits of its requests and what is known of its models. By
//! `[experiment]`, part of the conversations is edited by another policy, so that the bills of both can be compared.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use http::HeaderMap;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::compress::CompressRules;
use super::keep_alive::KeepAlive;
use super::second_try::{Arm, BLOCKING_FROM};
use super::send::RequestHead;
use super::{Proxy, WindowDiscovery};
use crate::dialect::Dialect;
use crate::draft::{CONVERSATIONS, ParsedRequest, conversation_name};
use crate::ledger::Assignment;
use crate::string_index::IndexedBody;
use crate::tasks::{run_blocking, run_blocking_from};
use crate::units::Fraction;
use crate::upstream::Upstream;
use crate::upstream::routes::{RequestFacts, Routes, model_of};

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

impl Destination {
    /// Whether requests may get the tool by which the model reads what was taken out.
    pub(super) fn adds_recall_tool(&self) -> bool {
        self.usual.rules.planner.settings.recall.adds_tool()
    }
}

impl Destinations {
    /// Whether the model may control clearing.
    pub(super) fn accept_controls(&self) -> bool {
        self.iter().any(|destination| destination.usual.rules.planner.settings.recall.controls)
    }

    /// Whether tokens may be counted for any of them.
    pub(super) fn may_count(&self) -> bool {
        self.iter().flat_map(Destination::arms).any(|arm| arm.rules.planner.policy.counts_from() < usize::MAX)
    }

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
        let number = u128::from_be_bytes(name);
        #[expect(clippy::cast_possible_truncation, reason = "two parts of a hash")]
        let (drawn, conversation) = ((number >> 96) as u32, number as u64);
        let is_tried = f64::from(drawn) < self.share.get() * f64::from(u32::MAX);
        Assignment { policy: Arc::clone(&self.tried.rules.policy), is_tried, conversation }
    }
}

impl Proxy {
    /// The name of the conversation, by the first message of the user and not by instructions, which may have the time; `None` if
    /// nothing asks for it, or the request does not show its beginning.
    pub(super) async fn conversation_name(
        &self,
        head: &RequestHead<'_>,
        text: Option<&IndexedBody>,
    ) -> Option<[u8; 16]> {
        let RequestHead { dialect, caller, destination, .. } = *head;
        let is_asked_for = destination.experiment.is_some() || destination.keep_alive.is_some();
        let text = text.filter(|_| is_asked_for)?.clone();
        let (n_bytes, chain) = (text.len(), self.engine.chain(caller, CONVERSATIONS));
        let name = move || {
            let conversation = dialect.parse_indexed(&text, text.strings()).ok()?;
            let request = ParsedRequest { dialect, body: &text, conversation: &conversation };
            Some(*conversation_name(request, chain)?.as_bytes())
        };
        run_blocking_from(BLOCKING_FROM, n_bytes, name).await.ok().flatten()
    }
}
