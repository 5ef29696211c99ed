//! Checks of `[summarize]`.

use std::time::Duration;

use super::{MAX_PERIOD, NOT_A_VARIABLE_NAME, is_variable_name};
use crate::config::error::ConfigError;
use crate::edit::keep::Keep;
use crate::edit::summarize::{Backend, Endpoint, Settings};
use crate::units::Period;
use crate::upstream::target::{BaseUrl, BaseUrlError};

/// The largest accepted number of retries.
const MAX_RETRIES: usize = 100;

/// Returns the first error; `error` builds it from a path and a message.
pub(super) fn check(settings: &Settings, error: &dyn Fn(&[&str], String) -> ConfigError) -> Result<(), ConfigError> {
    let in_table = |keys: &[&str], message: String| Err(error(&[&["summarize"], keys].concat(), message));
    let least = Period(Duration::from_millis(1));
    for (key, period, least) in
        [("timeout", settings.timeout, least), ("cooldown", settings.cooldown, Period(Duration::ZERO))]
    {
        if !(least..=MAX_PERIOD).contains(&period) {
            return in_table(&[key], format!("{period} is out of range; allowed: {least} to {MAX_PERIOD}"));
        }
    }
    let retries = settings.retry.max_retries;
    if retries > MAX_RETRIES {
        let message = format!("{retries} is out of range; allowed: 0 to {MAX_RETRIES}");
        return in_table(&["retry", "max_retries"], message);
    }
    if settings.instruction.is_some() && settings.instruction_file.is_some() {
        let message = "summarize.instruction says it already; allowed: one of the two";
        return in_table(&["instruction_file"], message.to_owned());
    }
    if settings.backend == Backend::Api && settings.model.is_some() {
        let message = "the API does not ask summarize.model; allowed: \"model\", \"auto\", or no summarize.model";
        return in_table(&["backend"], message.to_owned());
    }
    if settings.max_tokens == Some(0) {
        return in_table(&["max_tokens"], "0 is out of range; allowed: 1 or more".to_owned());
    }
    if settings.preserve_skills.as_ref().is_some_and(|skills| skills.tool.is_empty()) {
        return in_table(&["preserve_skills", "tool"], "empty; allowed: the name of a tool".to_owned());
    }
    check_keep(settings).map_or(Ok(()), |(key, message)| in_table(key, message))?;
    for (n, endpoint) in settings.failover.iter().enumerate() {
        check_endpoint(endpoint)
            .map_or(Ok(()), |(key, message)| in_table(&["failover", &n.to_string(), key], message))?;
    }
    let model = settings.model.as_ref().and_then(check_endpoint);
    model.map_or(Ok(()), |(key, message)| in_table(&["model", key], message))
}

/// Checks that a conversation that reaches the trigger has messages that may be summarised.
fn check_keep(settings: &Settings) -> Option<(&'static [&'static str], String)> {
    let conditions = &settings.trigger.0;
    let tokens = conditions.iter().filter_map(|condition| condition.tokens).min();
    let mut parts = conditions.iter().filter_map(|condition| condition.fraction);
    let own = settings.preserve_user_messages.max_tokens;
    match (settings.keep, tokens) {
        (Keep::Tokens(kept), Some(least)) if kept >= least => Some((
            &["keep"],
            format!("{kept} tokens are all of a conversation of {least} (summarize.trigger); allowed: fewer"),
        )),
        (Keep::Fraction(kept), _) if parts.any(|part| kept >= part) => Some((
            &["keep"],
            "the fraction is all of a conversation that reaches summarize.trigger; allowed: a smaller one".to_owned(),
        )),
        (_, Some(least)) if own.is_some_and(|own| own >= least) => Some((
            &["preserve_user_messages", "max_tokens"],
            format!("as many as the {least} of summarize.trigger; allowed: fewer"),
        )),
        _ => None,
    }
}

/// Checks one model endpoint. Returns the wrong key and the message.
fn check_endpoint(endpoint: &Endpoint) -> Option<(&'static str, String)> {
    let url: Result<BaseUrl, BaseUrlError> = endpoint.base_url.parse();
    if let Err(error) = url {
        // The URL is not shown: it may contain a password.
        return Some(("base_url", error.to_string()));
    }
    if endpoint.model.trim().is_empty() {
        return Some(("model", "empty; allowed: the name of a model".to_owned()));
    }
    let name = endpoint.api_key_env.as_deref();
    name.is_some_and(|name| !is_variable_name(name)).then(|| ("api_key_env", NOT_A_VARIABLE_NAME.to_owned()))
}
