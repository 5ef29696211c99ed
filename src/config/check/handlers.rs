//! Checks of `[handlers]`, and of the settings that name them.

use super::{Checker, MAX_PERIOD, MIN_PERIOD};
use crate::config::Config;
use crate::config::error::ConfigError;
use crate::engine::handlers::{HandlerUrl, HandlerUrlError};
use crate::platform::sockets;

/// The longest name of a handler, in bytes.
const MAX_NAME: usize = 64;

impl Checker<'_> {
    pub(super) fn handlers(&self) -> Result<(), ConfigError> {
        let config = self.config;
        for (name, handler) in &config.handlers {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
            if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(is_plain) {
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
            if !config.handlers.contains_key(name) {
                let known: Vec<_> = config.handlers.keys().map(String::as_str).collect();
                let allowed =
                    if known.is_empty() { "none, as [handlers] is empty".to_owned() } else { known.join(", ") };
                return self.refuse(&path, format!("there is no handlers.{name}; allowed: {allowed}"));
            }
            if !config.store.enabled {
                let message = "answers of handlers are kept in the store, and there is none; allowed: no handler, or store.enabled = true";
                return self.refuse(&path, message);
            }
        }
        Ok(())
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
