//! Checks of `[summarize]`.

use std::time::Duration;

use super::{Checker, MAX_PERIOD, MIN_PERIOD};
use crate::config::error::ConfigError;
use crate::edit::summarize::{Endpoint, Settings};
use crate::edit::trigger::Keep;
use crate::units::Period;
use crate::upstream::target::{BaseUrl, BaseUrlError};

/// The largest accepted number of retries.
const MAX_RETRIES: usize = 100;

impl Checker<'_> {
    pub(super) fn summarize(&self) -> Result<(), ConfigError> {
        let settings = &self.config.summarize;
        let in_table = |keys: &[&str], message: &str| self.refuse(&[&["summarize"], keys].concat(), message);
        self.within(&["summarize", "timeout"], settings.timeout, MIN_PERIOD..=MAX_PERIOD)?;
        self.within(&["summarize", "cooldown"], settings.cooldown, Period(Duration::ZERO)..=MAX_PERIOD)?;
        self.within(&["summarize", "retry", "max_retries"], settings.retry.max_retries, 0..=MAX_RETRIES)?;
        if settings.max_tokens == Some(0) {
            return in_table(&["max_tokens"], "0 is out of range; allowed: 1 or more");
        }
        if settings.preserve_skills.as_ref().is_some_and(|skills| skills.tool.is_empty()) {
            return in_table(&["preserve_skills", "tool"], "empty; allowed: the name of a tool");
        }
        check_keep(settings).map_or(Ok(()), |(key, message)| in_table(key, &message))?;
        for (n, endpoint) in settings.failover.iter().enumerate() {
            self.endpoint(&["summarize", "failover", &n.to_string()], endpoint)?;
        }
        settings.model.as_ref().map_or(Ok(()), |model| self.endpoint(&["summarize", "model"], model))
    }

    /// Checks the endpoint of a model, whose settings are in `table`.
    fn endpoint(&self, table: &[&str], endpoint: &Endpoint) -> Result<(), ConfigError> {
        let key = |key| [table, &[key]].concat();
        let url: Result<BaseUrl, BaseUrlError> = endpoint.base_url.parse();
        if let Err(error) = url {
            // The URL is not shown: it may contain a password.
            return self.refuse(&key("base_url"), error.to_string());
        }
        if endpoint.model.trim().is_empty() {
            return self.refuse(&key("model"), "empty; allowed: the name of a model");
        }
        self.variable_name(&key("api_key_env"), endpoint.api_key_env.as_deref())
    }
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
