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
    let default = Client {
        settings: config.upstream.clone(),
        name: UpstreamName::default(),
        upstream: of_default(config, environment),
    };
    let route = |settings: &routes::Settings| Client {
        settings: settings.over(&config.upstream),
        name: UpstreamName::of_a_route(&settings.name),
        upstream: of_route(config, environment, settings),
    };
    std::iter::once(default).chain(config.upstreams.iter().map(route)).collect()
}

/// The warning for an open relay: every client may use abridge at its owner's expense.
pub const OPEN_RELAY: &str = "other machines can reach server.listen, abridge adds a key or a header of its own to requests, and every client may use it; name the clients in [clients], set tls.client_ca, or listen on a loopback address";

/// Whether abridge adds its own key or header to requests, or spends a key for summaries.
pub fn add_headers(config: &Config, environment: &Environment) -> bool {
    let upstreams = &config.upstreams;
    environment.api_key.is_some()
        || !environment.upstream_keys.is_empty()
        || !environment.summarizer_keys.is_empty()
        || !config.upstream.headers.is_empty()
        || upstreams.iter().any(|route| !route.over(&config.upstream).headers.is_empty())
}

/// The client of `[upstream]`.
pub fn of_default(config: &Config, environment: &Environment) -> anyhow::Result<Upstream> {
    let settings = &config.upstream;
    let key = environment.api_key.as_ref().map(|key| key.header(settings.api_key_header)).transpose()?;
    Upstream::new(settings, &environment.proxies, key).context("[upstream]")
}

/// The client of a table of `[[upstreams]]`.
pub fn of_route(config: &Config, environment: &Environment, route: &routes::Settings) -> anyhow::Result<Upstream> {
    let settings = route.over(&config.upstream);
    let key = environment.upstream_keys.get(&route.name).map(|key| key.header(settings.api_key_header)).transpose()?;
    let upstream = Upstream::new(&settings, &environment.proxies, key);
    let upstream = upstream.with_context(|| format!("[[upstreams]] {:?}", route.name))?;
    Ok(upstream.named(&route.name, route.strip_path.clone()))
}
