//! What is said at start: eight lines at most, for people. What a script waits for comes first.

use std::fmt::Write as _;
use std::io::Write;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use crate::config::{Config, Environment};
use crate::dialect;
use crate::edit::trigger::{Condition, Trigger};
use crate::planner::EditName;
use crate::server::listen::Address;
use crate::tasks::Tasks;
use crate::telemetry::{Colour, Format, Level};
use crate::units::grouped;
use crate::upstream::Upstream;
use crate::upstream::probe::Probe;

/// How long the upstream may take to show that it is there.
const PATIENCE: Duration = Duration::from_secs(2);

/// How the start is told.
#[derive(Clone, Copy, Debug)]
pub(super) enum Voice {
    /// As lines on standard error.
    Lines(Colour),
    /// As events of the log: it is for a collector, or leaves out all that is well.
    Log,
}

impl Voice {
    /// As the log is set.
    pub(super) fn of(config: &Config, colour: Colour) -> Self {
        let is_quiet = matches!(config.log.level, Level::Error | Level::Warn);
        if config.log.format == Format::Json || is_quiet { Self::Log } else { Self::Lines(colour) }
    }
}

/// The line that tells a person, or a script that waits for it, where to go. It is no log line, so no level hides it.
pub(super) fn announce(address: &Address, tls: bool) {
    say(format!("abridge: listening on {}\n", url_of(address, tls)));
}

/// The same for operators.
pub(super) fn announce_operators(address: &Address, tls: bool) {
    let folder = if matches!(address, Address::Tcp(_)) { "/abridge/" } else { "" };
    say(format!("abridge: operators at {}{folder}\n", url_of(address, tls)));
}

/// Tells what is going to happen. `address` is where clients reach us.
pub(super) fn tell(config: &Config, environment: &Environment, address: Option<&str>, voice: Voice) {
    let Voice::Lines(colour) = voice else {
        let edits = edits(config);
        return tracing::info!(upstream = %joined(config), edits, dry_run = config.dry_run, "serving");
    };
    let mut lines = Vec::from([("upstream", joined(config)), ("edits", edits(config))]);
    lines.push(("originals", originals(config, environment)));
    lines.push(("windows", windows(config)));
    lines.extend(address.map(|address| ("clients", format!("export OPENAI_BASE_URL={address}/v1"))));
    say(lines.iter().map(|(label, text)| line(label, text, colour)).collect::<String>());
}

/// Asks the upstream whether it is there, beside the requests, and tells. It ends with what it returns.
pub(super) fn probe(config: &Config, upstream: Upstream, tasks: &Tasks, voice: Voice) -> Option<DropGuard> {
    if !config.upstream.probe {
        return None;
    }
    let stop = CancellationToken::new();
    let (stopped, settings) = (stop.clone(), config.upstream.clone());
    tasks.spawn(async move {
        let Some(probed) = stopped.run_until_cancelled(Probe::run(&upstream, PATIENCE)).await else { return };
        let seen = probed.outcome.describe(&probed.url, &upstream);
        let fix = probed.outcome.advice(&settings);
        match (voice, fix) {
            (Voice::Lines(colour), None) => say(line("reachable", &seen, colour)),
            (Voice::Lines(colour), Some(fix)) => say(line("not well", &format!("{seen}; fix: {fix}"), colour)),
            (Voice::Log, None) => tracing::info!(seen, "the upstream is reachable"),
            (Voice::Log, Some(fix)) => tracing::warn!(seen, fix, "the upstream is not well"),
        }
    });
    Some(stop.drop_guard())
}

// === what the lines say ===

fn joined(config: &Config) -> String {
    let url = &config.upstream.url;
    url.join(&http::Uri::from_static(dialect::default().path())).map_or_else(|_| url.to_string(), |url| url.to_string())
}

/// What is edited and when.
fn edits(config: &Config) -> String {
    let mut edits = Vec::new();
    for edit in &config.policy.edits {
        edits.push(match edit {
            EditName::PatchToolCalls => "patch dangling tool calls".to_owned(),
            EditName::FilterToolCalls => match config.filter_tool_calls.max_tool_calls {
                Some(most) => format!("leave out all but the last {} tool calls", grouped(most)),
                None => continue,
            },
            EditName::TruncateToolResults => {
                format!("cut results over {} bytes", grouped(config.truncate_tool_results.max_bytes))
            }
            EditName::ClearToolResults => {
                format!("clear old results from {} on", trigger(&config.clear_tool_results.trigger))
            }
            EditName::Summarize => {
                let calls = match &config.summarize.model {
                    _ if config.dry_run => String::new(),
                    None => ", which makes calls to the upstream, with the client's key".to_owned(),
                    Some(model) => format!(
                        ", which makes calls to {} at {}, with the key of summarize.model",
                        model.model, model.base_url
                    ),
                };
                format!("summarise from {} on{calls}", trigger(&config.summarize.trigger))
            }
        });
    }
    match (edits.is_empty(), config.dry_run) {
        (true, _) => "none: every request goes on as it came".to_owned(),
        (false, true) => format!("none, this is a dry run; it would {}", edits.join("; ")),
        (false, false) => edits.join("; "),
    }
}

fn trigger(trigger: &Trigger) -> String {
    let either: Vec<_> = trigger.0.iter().map(condition).collect();
    either.join(" or ")
}

fn condition(condition: &Condition) -> String {
    let tokens = condition.tokens.map(|n| format!("{} tokens", grouped(n)));
    let messages = condition.messages.map(|n| format!("{} messages", grouped(n)));
    let part = condition.fraction.map(|part| format!("{} % of the window", part.of(100)));
    let all: Vec<_> = [tokens, messages, part].into_iter().flatten().collect();
    all.join(" and ")
}

/// Where the originals go, and for how long.
fn originals(config: &Config, environment: &Environment) -> String {
    let store = &config.store;
    match store.file(environment.state.as_deref()).filter(|_| store.enabled) {
        Some(file) => format!(
            "kept in {} for {} after their last use, {} at most",
            file.display(),
            store.keep_for,
            store.max_bytes
        ),
        None => "not kept, so nothing is taken out that could not be got back (store.enabled = false)".to_owned(),
    }
}

/// The windows that are known before anybody asks.
fn windows(config: &Config) -> String {
    let mut text = String::new();
    for model in &config.models {
        if let Some(window) = model.context_window {
            // Into a String nothing fails.
            let _written = write!(text, "{} = {}, ", model.pattern, grouped(window));
        }
    }
    text.push_str("well-known models by name");
    text.push_str(if config.tokens.ask_upstream { ", others as the upstream's /models says" } else { "" });
    text
}

// === how they are said ===

fn url_of(address: &Address, tls: bool) -> String {
    match address {
        Address::Tcp(address) => format!("{}://{address}", if tls { "https" } else { "http" }),
        Address::Unix(_) => address.to_string(),
    }
}

fn line(label: &str, text: &str, colour: Colour) -> String {
    // What a server has sent is in some lines; none may end a line or speak to the terminal.
    let text: String = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    match colour {
        Colour::On => format!("abridge: \u{1b}[1m{label}\u{1b}[0m: {text}\n"),
        Colour::Off => format!("abridge: {label}: {text}\n"),
    }
}

fn say(lines: impl AsRef<[u8]>) {
    // If nobody reads standard error, there is nobody to tell.
    let _ = std::io::stderr().write_all(lines.as_ref());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Fraction;

    #[test]
    fn tells_triggers_as_people_do() {
        let tokens = Condition { tokens: Some(160_000), messages: Some(8), ..Condition::default() };
        let part = Condition { fraction: Fraction::new(0.8), ..Condition::default() };
        let told = trigger(&Trigger(vec![tokens, part]));
        assert_eq!(told, "160,000 tokens and 8 messages or 80 % of the window");
    }

    #[test]
    fn no_line_ends_early_or_speaks_to_the_terminal() {
        assert_eq!(line("reachable", "a\nb\u{1b}[31m", Colour::Off), "abridge: reachable: a\u{fffd}b\u{fffd}[31m\n");
    }
}
