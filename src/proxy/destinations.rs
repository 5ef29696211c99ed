//! Where requests go: the upstreams of the settings, each with the edits of its requests and what is known of its models.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use http::HeaderMap;

use super::WindowDiscovery;
use super::compress::CompressRules;
use super::experiment::Experiment;
use super::keep_alive::KeepAlive;
use super::second_try::Arm;
use crate::dialect::Dialect;
use crate::string_index::IndexedBody;
use crate::tasks::run_blocking;
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
