//! Checks of `[clear_tool_results]`, and of what it may go by: prices, and the tools that read and write files.

use crate::config::error::ConfigError;
use crate::edit::clear_tool_results::{AtLeast, Frontier, Settings};
use crate::edit::tools;
use crate::edit::trigger::Moment;
use crate::tokens::prices::{self, Exception, Price};

/// Returns the first error; `error` builds it from a path and a message.
pub(super) fn check(
    settings: &Settings,
    prices: &prices::Settings,
    tools: &tools::Settings,
    error: &dyn Fn(&[&str], String) -> ConfigError,
) -> Result<(), ConfigError> {
    if settings.frontier == Frontier::Sliding {
        for (key, value, is_set) in [
            ("when", "turn", settings.when == Some(Moment::Turn)),
            ("clear_at_least", "auto", settings.clear_at_least == Some(AtLeast::Auto)),
        ] {
            if is_set {
                let message = format!(
                    "{value:?} needs results that stay cleared, and frontier = \"sliding\" decides anew for each request; allowed: frontier = \"sticky\""
                );
                return Err(error(&["clear_tool_results", key], message));
            }
        }
    }
    for (name, tool) in tools {
        for (key, argument) in [("reads", &tool.reads), ("edits", &tool.edits)] {
            let message = match argument.as_deref() {
                Some("") => "empty; allowed: the name of an argument",
                Some(_) if tool.reads.is_some() && tool.edits.is_some() => {
                    "a call reads a file or writes it; allowed: one of reads and edits"
                }
                _ => continue,
            };
            return Err(error(&["tools", name, key], message.to_owned()));
        }
    }
    check_prices(prices).map_or(Ok(()), |(path, message)| {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        Err(error(&path, message))
    })
}

/// The path of the first price that is wrong, and a message.
fn check_prices(prices: &prices::Settings) -> Option<(Vec<String>, String)> {
    let path = |keys: &[&str]| ["prices"].iter().chain(keys).map(|key| (*key).to_owned()).collect::<Vec<_>>();
    if let Some((key, message)) = check_pair(prices.read, prices.write) {
        return Some((path(&[key]), message));
    }
    prices.of.iter().enumerate().find_map(|(n, exception)| {
        let n = n.to_string();
        if let Some((key, message)) = check_pair(exception.read.or(prices.read), exception.write.or(prices.write)) {
            return Some((path(&["of", &n, key]), message));
        }
        Some((path(&["of", &n]), check_exception(exception)?))
    })
}

fn check_exception(exception: &Exception) -> Option<String> {
    let Exception { model, upstream, read, write, on_break } = exception;
    match (model, upstream) {
        (None, None) => Some("the table fits every request; allowed: model or upstream, or the keys in [prices]"),
        _ if read.is_none() && write.is_none() && on_break.is_none() => {
            Some("the table sets nothing; allowed: at least one of read, write and break")
        }
        _ => None,
    }
    .map(str::to_owned)
}

/// The key of a price that is wrong, and a message.
fn check_pair(read: Option<Price>, write: Option<Price>) -> Option<(&'static str, String)> {
    if read.is_some_and(|read| read > Price::INPUT) {
        return Some(("read", "more than a token that no cache knows; allowed: 0 to 1".to_owned()));
    }
    (write? < read?).then(|| ("write", "less than a token that is read costs; allowed: read or more".to_owned()))
}
