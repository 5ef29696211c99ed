//! Checks of the settings of edits, and of what these may go by: prices, tools and handlers.

use std::fmt;

use super::{Checked, Checker, MAX_PERIOD, MIN_PERIOD, known};
use crate::config::Config;
use crate::edit::clear_tool_results::{AtLeast, Frontier};
use crate::edit::summarize::Endpoint;
use crate::edit::tools::Truncate;
use crate::edit::trigger::{Keep, Moment};
use crate::engine::handlers::HandlerUrl;
use crate::recall;
use crate::server::listen::local_url;
use crate::tokens::prices::{self, Price};
use crate::upstream::target::BaseUrl;

/// The longest name of a handler, in bytes.
const MAX_HANDLER_NAME: usize = 64;

impl Checker<'_> {
    pub(super) fn edits(&self) -> Checked {
        let edits = &self.config.policy.edits;
        let again = edits.iter().enumerate().find(|(n, edit)| edits.iter().take(*n).any(|one| one == *edit));
        if let Some((_, edit)) = again {
            let name = toml::Value::try_from(edit).map(|name| name.to_string()).unwrap_or_default();
            return self.refuse(&["policy", "edits"], format!("{name} is there twice; allowed: once"));
        }
        let Config { clear_tool_results: clear, truncate_tool_results: truncate, .. } = self.config;
        let blank = "would be a text of nothing but blanks, which upstreams refuse; allowed: a text that has more";
        let has_text = |text: &Option<String>| text.as_ref().is_none_or(|text| !text.trim().is_empty());
        self.ensure(has_text(&clear.placeholder), &["clear_tool_results", "placeholder"], blank)?;
        self.ensure(has_text(&truncate.notice), &["truncate_tool_results", "notice"], blank)?;
        self.truncation()?;
        self.clearing()?;
        self.handlers()?;
        self.summarize()
    }

    fn truncation(&self) -> Checked {
        let Config { truncate_tool_results: truncate, recall, language, server, tls, .. } = self.config;
        // Where port 0 is set, the system may choose one of five digits.
        let with_port = |url: String| url.strip_suffix(":0").map_or(url.clone(), |host| format!("{host}:65535"));
        let address = local_url(&server.listen.0, tls.is_some()).map(with_port);
        let recall = recall::Settings { public_url: recall.public_url.clone().or(address), ..recall.clone() };
        let least = truncate.longest_notice(&recall, *language);
        let of_tools = self.config.tools.iter().filter_map(|(name, tool)| match tool.truncate {
            Some(Truncate::To(limits)) => Some((vec!["tools", name, "truncate", "max_bytes"], limits.max_bytes?)),
            _ => None,
        });
        let of_edit = (vec!["truncate_tool_results", "max_bytes"], truncate.max_bytes);
        of_tools.chain([of_edit]).try_for_each(|(path, max_bytes)| {
            let message = format_args!(
                "{max_bytes} is out of range; allowed: {least} or more; the length of the longest notice in place of a truncated text"
            );
            self.ensure_any(max_bytes >= least, &[&path, &["truncate_tool_results", "notice"]], message)
        })
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
        for (n, table) in self.config.prices.iter().enumerate() {
            let n = n.to_string();
            let prices::Settings { read, write, .. } = table;
            let message = "more than a token that no cache knows; allowed: 0 to 1";
            self.ensure(read.is_none_or(|read| read <= Price::INPUT), &["prices", &n, "read"], message)?;
            let message = "less than a token that is read costs; allowed: read or more";
            let is_more = write.zip(*read).is_none_or(|(write, read)| write >= read);
            self.ensure(is_more, &["prices", &n, "write"], message)?;
        }
        Ok(())
    }

    fn handlers(&self) -> Checked {
        let config = self.config;
        for (name, handler) in &config.handlers {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
            let is_name = (1..=MAX_HANDLER_NAME).contains(&name.len()) && name.bytes().all(is_plain);
            let message = "not a name of a handler; allowed: up to 64 letters, digits, _ and -";
            self.ensure(is_name, &["handlers", name], message)?;
            let url = handler.url.parse::<HandlerUrl>().map(drop);
            url.or_else(|error| self.refuse(&["handlers", name, "url"], error))?;
            self.within(&["handlers", name, "timeout"], handler.timeout, MIN_PERIOD..=MAX_PERIOD)?;
            self.variable_name(&["handlers", name, "key_env"], handler.key_env.as_deref())?;
        }
        for (path, name) in named(config) {
            known("handlers", &config.handlers, name).or_else(|message| self.refuse(&path, message))?;
            let message = "answers of handlers are kept in the store, and there is none; allowed: no handler, or store.enabled = true";
            self.ensure(config.store.enabled, &path, message)?;
        }
        Ok(())
    }

    fn summarize(&self) -> Checked {
        let settings = &self.config.summarize;
        let ensure = |is_right, keys: &[&str], message: fmt::Arguments<'_>| {
            self.ensure(is_right, &[&["summarize"], keys].concat(), message)
        };
        let message = format_args!("0 is out of range; allowed: 1 or more");
        ensure(settings.max_tokens != Some(0), &["max_tokens"], message)?;
        let has_tool = settings.preserve_skills.as_ref().is_none_or(|skills| !skills.tool.is_empty());
        ensure(has_tool, &["preserve_skills", "tool"], format_args!("empty; allowed: the name of a tool"))?;
        // A conversation that reaches the trigger has messages that may be summarised.
        let conditions = &settings.trigger.0;
        let tokens = conditions.iter().filter_map(|condition| condition.tokens).min();
        let mut parts = conditions.iter().filter_map(|condition| condition.fraction);
        let own = settings.preserve_user_messages.max_tokens;
        if let (Keep::Tokens(kept), Some(least)) = (settings.keep, tokens) {
            let all =
                format_args!("{kept} tokens are all of a conversation of {least} (summarize.trigger); allowed: fewer");
            ensure(kept < least, &["keep"], all)?;
        }
        if let Keep::Fraction(kept) = settings.keep {
            let all = "the fraction is all of a conversation that reaches summarize.trigger";
            ensure(parts.all(|part| kept < part), &["keep"], format_args!("{all}; allowed: a smaller one"))?;
        }
        if let Some((own, least)) = own.zip(tokens) {
            let message = format_args!("as many as the {least} of summarize.trigger; allowed: fewer");
            ensure(own < least, &["preserve_user_messages", "max_tokens"], message)?;
        }
        for (n, endpoint) in settings.failover.iter().enumerate() {
            self.endpoint(&["summarize", "failover", &n.to_string()], endpoint)?;
        }
        settings.model.as_ref().map_or(Ok(()), |model| self.endpoint(&["summarize", "model"], model))
    }

    /// Checks the endpoint of a model, whose settings are in `table`.
    fn endpoint(&self, table: &[&str], endpoint: &Endpoint) -> Checked {
        let key = |key| [table, &[key]].concat();
        // The URL is not shown: it may contain a password.
        endpoint.base_url.parse::<BaseUrl>().map(drop).or_else(|error| self.refuse(&key("base_url"), error))?;
        let is_named = !endpoint.model.trim().is_empty();
        self.ensure(is_named, &key("model"), "empty; allowed: the name of a model")?;
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
