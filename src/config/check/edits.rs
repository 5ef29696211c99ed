//! Checks of the settings of edits, and of what these may go by: prices, tools and handlers.

use super::{Checked, Checker, MAX_PERIOD, MIN_PERIOD, known, repeated};
use crate::config::Config;
use crate::edit::clear_tool_results::{AtLeast, Frontier};
use crate::edit::summarize::Endpoint;
use crate::edit::tools::Truncate;
use crate::edit::trigger::Keep;
use crate::edit::trigger::Moment;
use crate::engine::handlers::{HandlerUrl, HandlerUrlError};
use crate::platform::sockets;
use crate::recall;
use crate::server::listen::{Address, local_url};
use crate::tokens::prices::{self, Price};
use crate::upstream::target::BaseUrl;

/// The longest name of a handler, in bytes.
const MAX_HANDLER_NAME: usize = 64;

impl Checker<'_> {
    pub(super) fn edits(&self) -> Checked {
        if let Some(edit) = repeated(&self.config.policy.edits) {
            let name = toml::Value::try_from(edit).map(|name| name.to_string()).unwrap_or_default();
            return self.refuse(&["policy", "edits"], format!("{name} is there twice; allowed: once"));
        }
        let Config { clear_tool_results: clear, truncate_tool_results: truncate, language, .. } = self.config;
        let blank = "would be a text of nothing but blanks, which upstreams refuse; allowed: a text that has more";
        if clear.may_clear_to_blank(*language) {
            return self.refuse(&["clear_tool_results", "placeholder"], blank);
        }
        if truncate.notice.as_ref().is_some_and(|notice| notice.trim().is_empty()) {
            return self.refuse(&["truncate_tool_results", "notice"], blank);
        }
        self.truncation()?;
        self.clearing()?;
        self.handlers()?;
        self.summarize()
    }

    fn truncation(&self) -> Checked {
        let Config { truncate_tool_results: truncate, recall, language, server, .. } = self.config;
        let mut listen = server.listen.0.clone();
        for address in &mut listen {
            if let Address::Tcp(address) = address
                && address.port() == 0
            {
                address.set_port(u16::MAX); // the longest port that the system may choose
            }
        }
        // The same default as in the edit.
        let public_url = recall.public_url.clone().or_else(|| local_url(&listen, self.config.tls.is_some()));
        let least = truncate.longest_notice(&recall::Settings { public_url, ..recall.clone() }, *language);
        let of_tools = self.config.tools.iter().filter_map(|(name, tool)| match tool.truncate {
            Some(Truncate::To(limits)) => Some((vec!["tools", name, "truncate", "max_bytes"], limits.max_bytes?)),
            _ => None,
        });
        let all = [(vec!["truncate_tool_results", "max_bytes"], truncate.max_bytes)].into_iter().chain(of_tools);
        for (path, max_bytes) in all {
            if max_bytes < least {
                let message = format!(
                    "{max_bytes} is out of range; allowed: {least} or more; the length of the longest notice in place of a truncated text"
                );
                return self.refuse_any(&[&path, &["truncate_tool_results", "notice"]], message);
            }
        }
        Ok(())
    }

    fn clearing(&self) -> Checked {
        let settings = &self.config.clear_tool_results;
        let needs_sticky = match (settings.when, settings.clear_at_least) {
            _ if settings.frontier != Frontier::Sliding => None,
            (Some(Moment::Turn), _) => Some(("when", "turn")),
            (_, Some(AtLeast::Auto)) => Some(("clear_at_least", "auto")),
            _ => None,
        };
        if let Some((key, value)) = needs_sticky {
            let message = format!(
                "{value:?} needs results that stay cleared, and frontier = \"sliding\" decides anew for each request; allowed: frontier = \"sticky\""
            );
            return self.refuse(&["clear_tool_results", key], message);
        }
        for (name, tool) in &self.config.tools {
            for (key, argument) in [("reads", &tool.reads), ("edits", &tool.edits)] {
                let message = match argument.as_deref() {
                    Some("") => "empty; allowed: the name of an argument",
                    Some(_) if tool.reads.is_some() && tool.edits.is_some() => {
                        "a call reads a file or writes it; allowed: one of reads and edits"
                    }
                    _ => continue,
                };
                return self.refuse(&["tools", name, key], message);
            }
        }
        for (n, table) in self.config.prices.iter().enumerate() {
            let n = n.to_string();
            let prices::Settings { model: _, upstream: _, read, write, on_break, input, output } = table;
            if read.is_some_and(|read| read > Price::INPUT) {
                let message = "more than a token that no cache knows; allowed: 0 to 1";
                return self.refuse(&["prices", &n, "read"], message);
            }
            if write.zip(*read).is_some_and(|(write, read)| write < read) {
                let message = "less than a token that is read costs; allowed: read or more";
                return self.refuse(&["prices", &n, "write"], message);
            }
            if (read, write, on_break, input, output) == (&None, &None, &None, &None, &None) {
                let message = "the table sets nothing; allowed: at least one of read, write, break, input and output";
                return self.refuse(&["prices", &n], message);
            }
        }
        Ok(())
    }

    fn handlers(&self) -> Checked {
        let config = self.config;
        for (name, handler) in &config.handlers {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
            if name.is_empty() || name.len() > MAX_HANDLER_NAME || !name.bytes().all(is_plain) {
                let message = "not a name of a handler; allowed: up to 64 letters, digits, _ and -";
                return self.refuse(&["handlers", name], message);
            }
            let fault = match handler.url.parse() {
                Err(HandlerUrlError) => Some(HandlerUrlError.to_string()),
                Ok(HandlerUrl::Unix(_)) => sockets::available().err().map(|error| error.to_string()),
                Ok(HandlerUrl::Http(_)) => None,
            };
            if let Some(fault) = fault {
                return self.refuse(&["handlers", name, "url"], fault);
            }
            self.within(&["handlers", name, "timeout"], handler.timeout, MIN_PERIOD..=MAX_PERIOD)?;
            self.variable_name(&["handlers", name, "key_env"], handler.key_env.as_deref())?;
        }
        for (path, name) in named(config) {
            if let Err(message) = known("handlers", &config.handlers, name) {
                return self.refuse(&path, message);
            }
            if !config.store.enabled {
                let message = "answers of handlers are kept in the store, and there is none; allowed: no handler, or store.enabled = true";
                return self.refuse(&path, message);
            }
        }
        Ok(())
    }

    fn summarize(&self) -> Checked {
        let settings = &self.config.summarize;
        let in_table = |keys: &[&str], message: &str| self.refuse(&[&["summarize"], keys].concat(), message);
        if settings.max_tokens == Some(0) {
            return in_table(&["max_tokens"], "0 is out of range; allowed: 1 or more");
        }
        if settings.preserve_skills.as_ref().is_some_and(|skills| skills.tool.is_empty()) {
            return in_table(&["preserve_skills", "tool"], "empty; allowed: the name of a tool");
        }
        // A conversation that reaches the trigger has messages that may be summarised.
        let conditions = &settings.trigger.0;
        let tokens = conditions.iter().filter_map(|condition| condition.tokens).min();
        let mut parts = conditions.iter().filter_map(|condition| condition.fraction);
        let own = settings.preserve_user_messages.max_tokens;
        match (settings.keep, tokens) {
            (Keep::Tokens(kept), Some(least)) if kept >= least => {
                let all = format!("{kept} tokens are all of a conversation of {least} (summarize.trigger)");
                return in_table(&["keep"], &format!("{all}; allowed: fewer"));
            }
            (Keep::Fraction(kept), _) if parts.any(|part| kept >= part) => {
                let all = "the fraction is all of a conversation that reaches summarize.trigger";
                return in_table(&["keep"], &format!("{all}; allowed: a smaller one"));
            }
            (_, Some(least)) if own.is_some_and(|own| own >= least) => {
                let message = format!("as many as the {least} of summarize.trigger; allowed: fewer");
                return in_table(&["preserve_user_messages", "max_tokens"], &message);
            }
            _ => {}
        }
        for (n, endpoint) in settings.failover.iter().enumerate() {
            self.endpoint(&["summarize", "failover", &n.to_string()], endpoint)?;
        }
        settings.model.as_ref().map_or(Ok(()), |model| self.endpoint(&["summarize", "model"], model))
    }

    /// Checks the endpoint of a model, whose settings are in `table`.
    fn endpoint(&self, table: &[&str], endpoint: &Endpoint) -> Checked {
        let key = |key| [table, &[key]].concat();
        if let Err(error) = endpoint.base_url.parse::<BaseUrl>() {
            // The URL is not shown: it may contain a password.
            return self.refuse(&key("base_url"), error.to_string());
        }
        if endpoint.model.trim().is_empty() {
            return self.refuse(&key("model"), "empty; allowed: the name of a model");
        }
        self.variable_name(&key("api_key_env"), endpoint.api_key_env.as_deref())
    }
}

/// The handlers that settings name, and where.
fn named(config: &Config) -> Vec<(Vec<&str>, &str)> {
    let mut named = Vec::new();
    let edits = [
        ("patch_tool_calls", "handler", &config.patch_tool_calls.handler),
        ("truncate_tool_results", "handler", &config.truncate_tool_results.handler),
        ("clear_tool_results", "handler", &config.clear_tool_results.handler),
        ("summarize", "input_handler", &config.summarize.input_handler),
        ("summarize", "finalize_handler", &config.summarize.finalize_handler),
        ("tokens", "handler", &config.tokens.handler),
    ];
    for (table, key, handler) in edits {
        named.extend(handler.as_deref().map(|handler| (vec![table, key], handler)));
    }
    for (tool, settings) in &config.tools {
        let keys = [("truncate_handler", &settings.truncate_handler), ("clear_handler", &settings.clear_handler)];
        for (key, handler) in keys {
            // An empty name says that the edit's handler is not asked.
            let handler = handler.as_deref().filter(|handler| !handler.is_empty());
            named.extend(handler.map(|handler| (vec!["tools", tool, key], handler)));
        }
    }
    named
}
