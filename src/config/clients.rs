//! The clients of the upstreams, each with its own key.

use anyhow::Context;

use super::{Config, Environment};
use crate::upstream::{Settings, Upstream, UpstreamName, routes};

/// An upstream, its settings, and its client.
#[derive(Debug)]
pub struct Client {
    /// Its settings, complete.
    pub settings: Settings,
    /// Its name.
    pub name: UpstreamName,
    /// The client, or the reason why there is none.
    pub upstream: anyhow::Result<Upstream>,
}

/// The clients of all upstreams, that of `[upstream]` first.
pub fn all(config: &Config, environment: &Environment) -> Vec<Client> {
    let client = |route: Option<&routes::Settings>| Client {
        settings: settings(config, route),
        name: route.map_or_else(UpstreamName::default, |route| UpstreamName::of_a_route(&route.name)),
        upstream: of(config, environment, route),
    };
    std::iter::once(None).chain(config.upstreams.iter().map(Some)).map(client).collect()
}

/// The warning for an open relay: every client may use abridge at its owner's expense.
pub const OPEN_RELAY: &str = "other machines can reach server.listen, abridge adds a key or a header of its own to requests, and every client may use it; name the clients in [clients], set tls.client_ca, or listen on a loopback address";

/// Whether abridge adds its own key or header to requests, or spends a key for summaries.
pub fn add_headers(config: &Config, environment: &Environment) -> bool {
    let upstreams = &config.upstreams;
    !environment.model_keys.is_empty()
        || !config.upstream.headers.is_empty()
        || upstreams.iter().any(|route| !route.over(&config.upstream).headers.is_empty())
}

/// The client of a table of `[[upstreams]]`, or of `[upstream]`.
pub fn of(config: &Config, environment: &Environment, route: Option<&routes::Settings>) -> anyhow::Result<Upstream> {
    let settings = settings(config, route);
    let key = settings.api_key_env.as_ref().and_then(|name| environment.model_keys.get(name));
    let key = key.map(|key| key.header(settings.api_key_header)).transpose()?;
    let upstream = Upstream::new(&settings, &environment.proxies, key);
    let Some(route) = route else { return upstream.context("[upstream]") };
    let upstream = upstream.with_context(|| format!("[[upstreams]] {:?}", route.name))?;
    Ok(upstream.named(&route.name, route.strip_path.clone()))
}

fn settings(config: &Config, route: Option<&routes::Settings>) -> Settings {
    route.map_or_else(|| config.upstream.clone(), |route| route.over(&config.upstream))
}
