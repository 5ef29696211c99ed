//! What belongs to each upstream, and the choice of the one that a request goes to.

use std::borrow::Cow;

use http::HeaderMap;

use super::{RequestFacts, RequestMatch};
use crate::dialect::Dialect;
use crate::string_index::StringIndex;

/// The `[[upstreams]]` in their order, each with what belongs to it, and what belongs to `[upstream]`.
#[derive(Clone, Debug)]
pub struct Routes<T> {
    routes: Vec<(RequestMatch, T)>,
    default: T,
}

impl<T> Routes<T> {
    /// The `[[upstreams]]`, and `[upstream]` for all other requests.
    pub fn new(routes: Vec<(RequestMatch, T)>, default: T) -> Self {
        Self { routes, default }
    }

    /// `[upstream]` for all requests.
    pub fn only(default: T) -> Self {
        Self::new(Vec::new(), default)
    }

    /// That of `[upstream]`.
    pub fn default(&self) -> &T {
        &self.default
    }

    /// All of them, that of `[upstream]` first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        std::iter::once(&self.default).chain(self.routes.iter().map(|(_, route)| route))
    }

    /// Whether the choice may depend on the model.
    pub fn ask_for_the_model(&self) -> bool {
        self.routes.iter().any(|(matcher, _)| matcher.asks_for_the_model())
    }

    /// That of a request.
    pub fn find(&self, request: &RequestFacts<'_>) -> &T {
        let route = self.routes.iter().find(|(matcher, _)| matcher.holds(request));
        route.map_or(&self.default, |(_, route)| route)
    }

    /// That of a request of which the header fields are not known: only the path, or no path but that of its dialect.
    pub fn find_without_headers(&self, path: Option<&str>, dialect: &dyn Dialect, body: &[u8]) -> &T {
        let path = path.unwrap_or_else(|| dialect.path());
        let of_body = || model_of(dialect, body, StringIndex::EMPTY);
        let model = if self.ask_for_the_model() { of_body() } else { None };
        let model = model.map(Box::from).or_else(|| dialect.path_facts(path).model);
        self.find(&RequestFacts { path, headers: &HeaderMap::new(), model: model.as_deref() })
    }
}

/// The model that a body asks for; none if the body cannot be parsed.
pub fn model_of(dialect: &dyn Dialect, body: &[u8], strings: &StringIndex) -> Option<String> {
    let model = dialect.parse_indexed(body, strings).ok()?.model;
    model.map(Cow::into_owned).or_else(|| strings.path().model.as_deref().map(str::to_owned))
}
