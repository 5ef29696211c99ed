//! Where requests go: the upstreams of the settings, each with the edits of its requests and what is known of its models.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use http::HeaderMap;

use super::WindowDiscovery;
use super::rescue::RescuePolicy;
use crate::dialect::Dialect;
use crate::engine::EngineConfig;
use crate::tasks::run_blocking;
use crate::upstream::Upstream;
use crate::upstream::routes::{Matcher, RequestFacts};

/// All upstreams.
#[derive(Debug)]
pub struct Destinations {
    routes: Vec<(Matcher, Destination)>,
    default: Destination,
}

/// An upstream, and how requests to it are handled.
#[derive(Debug)]
pub struct Destination {
    /// Where requests go.
    pub upstream: Upstream,
    /// Which edits run, and how.
    pub rules: Arc<EngineConfig>,
    /// Fetches the context windows of the upstream's models.
    pub windows: WindowDiscovery,
    /// How requests that the upstream refuses are sent once more; `None` if `[rescue]` is off.
    pub rescue: Option<RescuePolicy>,
    /// Whether it has been found out that the upstream answers no requests for a compaction.
    pub lacks_compaction: AtomicBool,
}

impl Destinations {
    /// The `[[upstreams]]` in their order, and `[upstream]` for all other requests.
    pub fn new(routes: Vec<(Matcher, Destination)>, default: Destination) -> Self {
        Self { routes, default }
    }

    /// `[upstream]`.
    pub fn default(&self) -> &Destination {
        &self.default
    }

    /// All of them, `[upstream]` first.
    pub fn iter(&self) -> impl Iterator<Item = &Destination> {
        std::iter::once(&self.default).chain(self.routes.iter().map(|(_, destination)| destination))
    }

    /// The upstream of a request whose body is not read.
    pub(super) fn of_head(&self, path: &str, headers: &HeaderMap) -> &Destination {
        self.find(&RequestFacts { path, headers, model: None })
    }

    /// The upstream of a request whose body was read; `text` is the decoded body, if it could be decoded. The body is
    /// parsed only where a route asks for the model.
    pub(super) async fn of_body(
        &self,
        path: &str,
        headers: &HeaderMap,
        dialect: &'static dyn Dialect,
        text: Option<&Bytes>,
    ) -> &Destination {
        let model = match text.filter(|_| self.routes.iter().any(|(matcher, _)| matcher.asks_for_the_model())) {
            Some(text) => model_of(dialect, text.clone()).await,
            None => None,
        };
        self.find(&RequestFacts { path, headers, model: model.as_deref() })
    }

    fn find(&self, request: &RequestFacts<'_>) -> &Destination {
        let route = self.routes.iter().find(|(matcher, _)| matcher.holds(request));
        route.map_or(&self.default, |(_, destination)| destination)
    }
}

/// The model that a body asks for; none if the body cannot be parsed. On another thread, as it may be long and an error in
/// a reader must not end the request.
async fn model_of(dialect: &'static dyn Dialect, text: Bytes) -> Option<String> {
    run_blocking(move || dialect.parse(&text).ok()?.model.map(Cow::into_owned)).await.ok().flatten()
}
