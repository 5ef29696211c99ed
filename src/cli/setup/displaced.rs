//! Where the requests of a client went before abridge stood between: the base URLs that its settings name, as upstreams of abridge.

use super::clients::{Client, claude_host};
use super::{edit, jsonc};
use crate::cli::claude_code::BASE_URL;
use crate::cli::{ANTHROPIC, CHATGPT};
use crate::config::{Config, Sources, Variables};
use crate::upstream::routes;
use crate::upstream::target::BaseUrl;

/// The API of a base URL.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Api {
    OpenAi,
    Anthropic,
}

/// A base URL of a client.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Displaced {
    client: Client,
    api: Api,
    /// As the client has it.
    url: String,
    /// As an upstream of abridge, whose path replaces the `/v1` of a request.
    upstream: String,
}

/// How a client forms its paths.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Form {
    /// The base URL has the version.
    Versioned,
    /// The client adds `/v1`.
    Host,
}

/// The base URLs in the settings of a client, other than abridge at `url`.
pub(super) fn of_client(client: Client, text: &str, variables: &Variables, url: &str) -> Vec<Displaced> {
    use Api::{Anthropic, OpenAi};
    use Form::{Host, Versioned};
    let set = |names: &[&str]| variables.first_set(names).ok().flatten().map(|(_, value)| value.to_owned());
    let in_profile = |names: &[&str]| edit::assigned(text, names).or_else(|| set(names));
    let one = |api, form, url: Option<String>| url.map(|url| (api, form, url));
    let found: Vec<_> = match client {
        Client::Codex => vec![one(OpenAi, Versioned, edit::codex_url(text))],
        Client::ClaudeCode => {
            let host = claude_host(text, variables);
            vec![one(Anthropic, if host.variable == BASE_URL { Host } else { Versioned }, host.url)]
        }
        Client::Opencode => [(OpenAi, "openai"), (Anthropic, "anthropic")]
            .map(|(api, name)| one(api, Versioned, jsonc::get(text, &["provider", name, "options", "baseURL"])))
            .into(),
        Client::Aider => vec![one(OpenAi, Versioned, edit::yaml_value(text, "openai-api-base"))],
        Client::Goose => vec![
            one(OpenAi, Host, edit::yaml_value(text, "OPENAI_HOST")),
            one(Anthropic, Host, edit::yaml_value(text, "ANTHROPIC_HOST")),
        ],
        Client::Continue => {
            let api = |maker: &str| if maker == "anthropic" { Anthropic } else { OpenAi };
            let bases = edit::continue_bases(text).into_iter();
            bases.map(|(maker, url)| one(api(&maker), Versioned, Some(url))).collect()
        }
        Client::Shell => vec![
            one(OpenAi, Versioned, in_profile(&["OPENAI_BASE_URL", "OPENAI_API_BASE"])),
            one(Anthropic, Host, in_profile(&[BASE_URL])),
        ],
        _ => Vec::new(),
    };
    let found = found.into_iter().flatten().filter(|(_, _, found)| !is_below(found, url));
    let found = found.map(|(api, form, url)| Displaced { client, api, upstream: as_upstream(&url, form), url });
    let mut displaced: Vec<_> = found.collect();
    displaced.dedup();
    displaced
}

/// The last lines of the output: where requests went before, and the command that serves the clients and sends them there.
pub(super) fn afterwards(displaced: &[Displaced], sources: &Sources, config: &Config) -> String {
    let (mut lines, mut flags) = (Vec::new(), Vec::new());
    let is_codex_elsewhere = displaced.iter().any(|of| of.client == Client::Codex);
    let openai = BaseUrl::default().to_string();
    for (api, name, maker) in [(Api::OpenAi, "", openai), (Api::Anthropic, "anthropic=", ANTHROPIC.to_owned())] {
        let mut upstream = None;
        for Displaced { client, url, upstream: there, .. } in displaced.iter().filter(|of| of.api == api) {
            let settled = named_by_settings(config, api).or_else(|| upstream.clone());
            lines.push(match settled.filter(|settled| settled != there) {
                _ if there.parse::<BaseUrl>().is_err() => {
                    format!("{client} sent its requests to {}, which abridge cannot have as an upstream\n", without_user(url))
                }
                None => {
                    upstream = Some(there.clone());
                    format!("{client} sent its requests to {url}; that is an upstream of abridge now: --upstream {name}{there}\n")
                }
                Some(other) => format!(
                    "{client} sent its requests to {url}, and abridge will send them to {other}; to keep both, run another abridge \
                     with --listen and --upstream {name}{there}, and set {client} up with --url\n"
                ),
            });
        }
        if !names_upstreams(config) || upstream.is_some() {
            flags.push(format!("--upstream {name}{}", upstream.unwrap_or(maker)));
        }
    }
    if !names_upstreams(config) && !is_codex_elsewhere {
        flags.push(format!("--upstream chatgpt={CHATGPT}"));
    }
    let given = sources.file.as_ref().map(|file| format!("--config {}", file.display()));
    let given = given.into_iter().chain(sources.flags.listen.iter().map(|address| format!("--listen {address}")));
    let flags = given.chain(flags).collect::<Vec<_>>().join(" \\\n    ");
    let command = format!("abridge serve {flags}");
    format!("{}abridge must run while these clients do:\n  {}\n", lines.concat(), command.trim_end())
}

/// Whether the settings of abridge name upstreams.
fn names_upstreams(config: &Config) -> bool {
    config.upstream.url != BaseUrl::default() || !config.upstreams.is_empty()
}

/// Where the settings of abridge send requests in an API, if they say so.
fn named_by_settings(config: &Config, api: Api) -> Option<String> {
    let messages = config.upstreams.iter().find(|upstream| routes::Settings::speaks_messages(upstream));
    let route = messages.filter(|_| api == Api::Anthropic).map(|route| &route.url);
    let url = route.or(Some(&config.upstream.url).filter(|_| names_upstreams(config)))?;
    Some(url.to_string())
}

fn as_upstream(url: &str, form: Form) -> String {
    let bare = url.trim_end_matches('/');
    let has_path = bare.split_once("://").is_some_and(|(_, rest)| rest.contains('/'));
    if form == Form::Host && has_path { format!("{bare}/v1") } else { bare.to_owned() }
}

fn is_below(url: &str, folder: &str) -> bool {
    url.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A URL without the user in it, who may have a password.
fn without_user(url: &str) -> String {
    url.rsplit_once('@').map_or_else(|| url.to_owned(), |(_, host)| format!("***@{host}"))
}
