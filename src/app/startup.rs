//! Output at startup: at most eight lines for people; with `[[upstreams]]` one more that names them, and one more for each.
//! The first line, with the address, is the one that scripts wait for.

use std::io::{self, Write};
use std::time::Duration;

use tokio_util::sync::DropGuard;

use super::Running;
use crate::config::{Config, Environment, Secret, clients};
use crate::dialect;
use crate::edit::clear_tool_results::AtLeast;
use crate::edit::trigger::{Condition, Moment, Trigger};
use crate::planner::EditName;
use crate::proxy::Destinations;
use crate::server::listen::Address;
use crate::store::StoreEngine;
use crate::tasks::Tasks;
use crate::telemetry::{Format, Level};
use crate::tokens::models;
use crate::units::grouped;
use crate::upstream::probe::Probe;
use crate::upstream::{Upstream, routes};

/// The maximum time for the upstream to answer the probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether startup output is logged, and not written as lines for people: the log is JSON for a collector, or its level hides
/// information.
pub(super) fn is_logged(config: &Config) -> bool {
    config.log.format == Format::Json || matches!(config.log.level, Level::Error | Level::Warn)
}

/// Prints the address for clients. This is not a log line, so no log level hides it.
pub(super) fn announce_listener(address: &Address, tls: bool) {
    write_stderr(format!("abridge: listening on {}\n", listen_url(address, tls)));
}

/// Prints the address for operators: of TCP that of the page, with the token if there is one to print.
pub(super) fn announce_operators(address: &Address, tls: bool, token: Option<&Secret>) {
    let url = listen_url(address, tls);
    let page = if matches!(address, Address::Tcp(_)) { page_url(&url, token) } else { url };
    write_stderr(format!("abridge: operators at {page}\n"));
}

/// Prints or logs the main settings.
pub(super) fn report_settings(
    config: &Config,
    environment: &Environment,
    running: &Running,
    page: Option<String>,
    token_kept: Option<&io::Result<()>>,
    logged: bool,
) {
    if let Some(Err(error)) = token_kept {
        tracing::warn!(%error, "the operators' token cannot be kept, so it ends with this process, and `abridge status` and `diff` do not know it; set admin.token_env, or make the state folder one that can be written to");
    }
    if config.serves_strangers() && clients::add_headers(config, environment) {
        tracing::warn!("{}", clients::OPEN_RELAY);
    }
    let originals = running.proxy.engine.store_notice().unwrap_or_else(|| describe_storage(config, environment));
    if logged {
        let edits = describe_edits(config);
        let upstreams = describe_routes(config);
        return tracing::info!(upstream = %chat_url(config), upstreams, edits, originals, dry_run = config.dry_run, "serving");
    }
    let mut lines = vec![("upstream", chat_url(config))];
    lines.extend(describe_routes(config).map(|routes| ("upstreams", routes)));
    lines.push(("edits", describe_edits(config)));
    lines.push(("originals", originals));
    lines.push(("windows", describe_windows(config)));
    lines.extend(running.address.as_ref().map(|address| ("clients", describe_clients(config, address))));
    lines.extend(page.map(|page| ("page", page)));
    write_stderr(lines.iter().map(|(label, text)| format_line(label, text)).collect::<String>());
}

/// Spawns a task for each upstream that probes it and reports the result, if `probe` is on. They stop when the returned guards are
/// dropped.
pub(super) fn spawn_probes(config: &Config, upstreams: &Destinations, tasks: &Tasks, logged: bool) -> Vec<DropGuard> {
    let probed = upstreams.iter().filter(|_| config.upstream.probe);
    probed.map(|to| tasks.spawn_guarded(probe(to.upstream.clone(), logged))).collect()
}

async fn probe(upstream: Upstream, logged: bool) {
    let name = upstream.name();
    let Probe { said: seen, fix, .. } = Probe::run(&upstream, PROBE_TIMEOUT).await;
    match (logged, fix) {
        (false, None) => write_stderr(format_line("reachable", &seen)),
        (false, Some(fix)) => write_stderr(format_line("not well", &format!("{seen}; fix: {fix}"))),
        (true, None) => tracing::info!(upstream = %name, seen, "the upstream is reachable"),
        (true, Some(fix)) => tracing::warn!(upstream = %name, seen, fix, "the upstream is not well"),
    }
}

// === contents of the lines ===

fn chat_url(config: &Config) -> String {
    let url = &config.upstream.url;
    url.join(&http::Uri::from_static(dialect::default().path())).map_or_else(|_| url.to_string(), |url| url.to_string())
}

/// The `[[upstreams]]`; none if there are none.
fn describe_routes(config: &Config) -> Option<String> {
    let route = |upstream: &routes::Settings| format!("{} at {}", upstream.name, upstream.url);
    let routes: Vec<_> = config.upstreams.iter().map(route).collect();
    (!routes.is_empty()).then(|| routes.join("; "))
}

/// The variables that lead clients here.
fn describe_clients(config: &Config, address: &str) -> String {
    let speaks_messages = config.upstreams.iter().any(|upstream| upstream.speaks(routes::DialectName::Messages));
    let anthropic = if speaks_messages { format!(" ANTHROPIC_BASE_URL={address}") } else { String::new() };
    format!("export OPENAI_BASE_URL={address}/v1{anthropic}")
}

/// Where an operator's browser finds the page if it is on an address for clients.
pub(super) fn describe_page(address: Option<&Address>, tls: bool, token: Option<&Secret>) -> String {
    let Some(address) = address else {
        return "none: other machines can reach server.listen; set admin.listen = \"127.0.0.1:8788\"".to_owned();
    };
    let page = page_url(&listen_url(address, tls), token);
    if token.is_some() { page } else { format!("{page}, which asks for the token of admin.token_env") }
}

/// The page's address. A token that abridge has made is behind `#`: no browser sends that.
fn page_url(url: &str, token: Option<&Secret>) -> String {
    let token = token.map(|token| format!("#token={}", token.expose())).unwrap_or_default();
    format!("{url}/abridge/{token}")
}

/// The edits of the policy, when each one acts, and whom summaries are asked of.
fn describe_edits(config: &Config) -> String {
    let edits: Vec<_> = config.policy.edits.iter().filter_map(|edit| describe_edit(*edit, config)).collect();
    match (edits.is_empty(), config.dry_run) {
        (true, _) => "none: every request is forwarded unedited".to_owned(),
        (false, true) => format!("none, this is a dry run; it would {}", edits.join("; ")),
        (false, false) => edits.join("; "),
    }
}

/// An edit and when it acts; none if its settings leave it nothing to do.
fn describe_edit(edit: EditName, config: &Config) -> Option<String> {
    let when = match edit {
        EditName::FilterToolCalls => format!(" before the last {}", grouped(config.filter_tool_calls.max_tool_calls?)),
        EditName::TruncateToolResults => format!(" over {} bytes", grouped(config.truncate_tool_results.max_bytes)),
        EditName::ClearToolResults => {
            let settings = &config.clear_tool_results;
            let sooner = if settings.moment() == Moment::Turn { ", sooner where a user's turn begins" } else { "" };
            let pays = if settings.at_least() == Some(AtLeast::Auto) { ", if that pays" } else { "" };
            format!(" from {}{sooner}{pays}", describe_trigger(&settings.trigger))
        }
        EditName::Summarize => {
            let whom = match &config.summarize.model {
                None => "the upstream with the client's key".to_owned(),
                Some(own) => format!("{} at {} with the key of summarize.model", own.model, own.base_url),
            };
            format!(" from {}, by calls to {whom}", describe_trigger(&config.summarize.trigger))
        }
        EditName::PatchToolCalls | EditName::DeduplicateToolResults | EditName::RequestPromptCache => String::new(),
    };
    Some(format!("{}{when}", <&str>::from(edit)))
}

fn describe_trigger(trigger: &Trigger) -> String {
    trigger.0.iter().map(describe_condition).collect::<Vec<_>>().join(" or ")
}

fn describe_condition(condition: &Condition) -> String {
    let tokens = condition.tokens.map(|n| format!("{} tokens", grouped(n)));
    let messages = condition.messages.map(|n| format!("{} messages", grouped(n)));
    let part = condition.fraction.map(|part| format!("{} % of the window", part.of(100)));
    let all: Vec<_> = [tokens, messages, part].into_iter().flatten().collect();
    all.join(" and ") + if condition.without_window { " where the window is unknown" } else { "" }
}

/// The context windows that are known before the first request.
fn describe_windows(config: &Config) -> String {
    let known = |model: &models::Settings| Some(format!("{} = {}, ", model.pattern, grouped(model.context_window?)));
    let known: String = config.models.iter().filter_map(known).collect();
    let others = if config.tokens.ask_upstream { ", others as the upstream's /models says" } else { "" };
    format!("{known}well-known models by name{others}")
}

/// Where the originals are stored, and for how long.
fn describe_storage(config: &Config, environment: &Environment) -> String {
    let store = &config.store;
    let (place, shared) = match store.engine {
        StoreEngine::File => (store.file(environment.state.as_deref()).map(|file| file.display().to_string()), ""),
        engine => (Some(engine.to_string()), ", with all processes that share it"),
    };
    let Some(place) = place.filter(|_| store.enabled) else {
        return "not stored; edits that need the store take nothing out (store.enabled = false)".to_owned();
    };
    let (keep_for, most, read) = (store.keep_for, store.max_bytes, config.handle_access());
    format!("kept in {place} for {keep_for} after their last use, {most} at most{shared}; read {read}")
}

// === formatting and output ===

fn listen_url(address: &Address, tls: bool) -> String {
    match address {
        Address::Tcp(address) => format!("{}://{address}", if tls { "https" } else { "http" }),
        Address::Unix(_) => address.to_string(),
    }
}

fn format_line(label: &str, text: &str) -> String {
    // Some lines contain text from a server: control characters are replaced, so that none ends a line or controls the
    // terminal.
    let text: String = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    format!("abridge: {label}: {text}\n")
}

fn write_stderr(lines: impl AsRef<[u8]>) {
    // A failed write to standard error cannot be reported anywhere.
    let _ = io::stderr().write_all(lines.as_ref());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describes_a_trigger_with_units_and_joining_words() {
        let tokens = Condition { messages: Some(8), ..Condition::tokens(160_000) };
        let trigger = Trigger(vec![tokens, Condition::fraction(0.8)]);
        assert_eq!(describe_trigger(&trigger), "160,000 tokens and 8 messages or 80 % of the window");
    }

    #[test]
    fn by_default_results_are_cleared_sooner_where_a_turn_begins_and_if_that_pays() {
        let expected = "; clear_tool_results from 80,000 tokens or 50 % of the window, sooner where a user's turn begins, if that pays;";
        assert!(describe_edits(&Config::default()).contains(expected));
        let mut fixed = Config::default();
        fixed.clear_tool_results.when = Some(Moment::Any);
        assert!(describe_edits(&fixed).contains("; clear_tool_results from 80,000 tokens or 50 % of the window;"));
    }

    #[test]
    fn filters_act_if_they_have_a_number_of_calls() {
        let mut config = Config::default();
        config.policy.edits = vec![EditName::FilterToolCalls];
        assert!(describe_edits(&config).starts_with("none"));
        config.filter_tool_calls.max_tool_calls = Some(1000);
        assert_eq!(describe_edits(&config), "filter_tool_calls before the last 1,000");
    }

    #[test]
    fn control_characters_in_a_line_are_replaced() {
        assert_eq!(format_line("reachable", "a\nb\u{1b}[31m"), "abridge: reachable: a\u{fffd}b\u{fffd}[31m\n");
    }
}
