//! Checks that deserialisation cannot make: ranges, formats, and settings that contradict each other.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use http::uri::{Authority, PathAndQuery};

use super::Config;
use super::error::ConfigError;
use super::value::LocatedValue;
use crate::admin::access::Exposure;
use crate::admin::is_admin_path;
use crate::edit::tools::Truncate;
use crate::platform::sockets;
use crate::recall;
use crate::server::listen::{Address, local_url};
use crate::units::{ByteSize, Period};

mod clearing;
mod handlers;
mod store;
mod summarize;
mod upstreams;

/// The shortest accepted period of a setting that takes none but a positive one, and the longest of any.
const MIN_PERIOD: Period = Period(Duration::from_millis(1));
const MAX_PERIOD: Period = Period(Duration::from_hours(365 * 24));

/// Returns the first error, with the location of the setting.
pub(super) fn check(config: &Config, written: &LocatedValue) -> Result<(), ConfigError> {
    let checker = Checker { config, written };
    checker.limits()?;
    checker.times()?;
    checker.addresses()?;
    checker.admin()?;
    checker.tls()?;
    checker.upstreams()?;
    checker.store()?;
    checker.inspect()?;
    checker.compress()?;
    checker.policy()?;
    checker.placeholders()?;
    checker.truncation()?;
    checker.clearing()?;
    checker.handlers()?;
    checker.summarize()
}

/// Whether the text is an origin as browsers write it, without a path.
fn is_origin(text: &str) -> bool {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    host.is_some_and(|host| host.parse::<Authority>().is_ok_and(|host| !host.as_str().contains('@')))
}

/// The first of some values that is there before.
fn repeated<T: PartialEq>(values: &[T]) -> Option<&T> {
    let again = values.iter().enumerate().find(|(n, value)| values.iter().take(*n).any(|earlier| earlier == *value));
    again.map(|(_, value)| value)
}

fn has_free_port(address: &Address) -> bool {
    matches!(address, Address::Tcp(address) if address.port() == 0)
}

struct Checker<'a> {
    config: &'a Config,
    written: &'a LocatedValue,
}

impl Checker<'_> {
    fn limits(&self) -> Result<(), ConfigError> {
        let server = &self.config.server;
        let events = &self.config.events;
        for (path, n, least, most) in [
            (["server", "workers"], server.workers, 0, 1024),
            (["server", "max_connections"], server.max_connections, 1, 10_000_000),
            (["server", "max_in_flight"], server.max_in_flight, 1, 10_000_000),
            (["events", "listeners"], events.listeners, 0, 10_000),
            (["events", "queue"], events.queue, 1, 65_536),
        ] {
            self.within(&path, n, least..=most)?;
        }
        let tool = &self.config.recall.tool;
        self.within(&["recall", "tool", "rounds"], tool.rounds, 1..=64)?;
        let min_lines = self.config.deduplicate_tool_results.min_lines;
        self.within(&["deduplicate_tool_results", "min_lines"], min_lines, 0..=10_000)?;
        for (path, size, least, most) in [
            (&["server", "max_body"][..], server.max_body, ByteSize(1), ByteSize::mib(2048)),
            (&["server", "min_body_rate"], server.min_body_rate, ByteSize(0), ByteSize::mib(1024)),
            (&["recall", "tool", "max_bytes"], tool.max_bytes, ByteSize(64 << 10), ByteSize::mib(256)),
        ] {
            self.within(path, size, least..=most)?;
        }
        let most = ByteSize::mib(1 << 20);
        if server.max_buffered > most {
            let message = format!("{} is out of range; allowed: at most {most}", server.max_buffered);
            return self.refuse(&["server", "max_buffered"], message);
        }
        if server.max_body > server.max_buffered {
            let message = format!(
                "a body of {} (server.max_body) does not fit into {} (server.max_buffered); allowed: max_buffered at least as large",
                server.max_body, server.max_buffered
            );
            return Err(self.error_at_any(&[&["server", "max_body"], &["server", "max_buffered"]], message));
        }
        Ok(())
    }

    fn compress(&self) -> Result<(), ConfigError> {
        let prefix = &self.config.compress.prefix;
        let is_path = prefix.starts_with('/') && !prefix.ends_with('/') && prefix.parse::<PathAndQuery>().is_ok();
        let is_own = is_admin_path(prefix) || prefix.contains(['?', '#']);
        if prefix.is_empty() || (is_path && !is_own) {
            return Ok(());
        }
        let allowed =
            "allowed: nothing, or a path that begins with \"/\" and does not end with one, not below /abridge";
        self.refuse(&["compress", "prefix"], format!("{prefix:?} is not such a path; {allowed}"))
    }

    fn times(&self) -> Result<(), ConfigError> {
        let Config { server, events, recall, .. } = self.config;
        let (least, none) = (MIN_PERIOD, Period(Duration::ZERO));
        for (path, period, least) in [
            (&["server", "header_timeout"][..], server.header_timeout, least),
            (&["server", "body_timeout"], server.body_timeout, least),
            (&["server", "min_body_rate_after"], server.min_body_rate_after, none),
            (&["server", "write_timeout"], server.write_timeout, least),
            (&["server", "grace"], server.grace, none),
            (&["events", "heartbeat"], events.heartbeat, least),
            (&["events", "webhook_timeout"], events.webhook_timeout, least),
            (&["recall", "tool", "timeout"], recall.tool.timeout, least),
        ] {
            self.within(path, period, least..=MAX_PERIOD)?;
        }
        Ok(())
    }

    fn addresses(&self) -> Result<(), ConfigError> {
        let Config { server, admin, .. } = self.config;
        let operators = admin.listen.as_ref();
        for (path, addresses) in [(["server", "listen"], Some(&server.listen)), (["admin", "listen"], operators)] {
            let mut sockets = addresses.iter().flat_map(|all| &all.0).filter(|one| matches!(one, Address::Unix(_)));
            if let (Some(socket), Err(error)) = (sockets.next(), sockets::available()) {
                return self.refuse(&path, format!("{socket}: {error}"));
            }
        }
        let fixed: Vec<_> = server.listen.0.iter().filter(|address| !has_free_port(address)).collect();
        match repeated(&fixed) {
            Some(address) => self.refuse(&["server", "listen"], format!("{address} is there twice; allowed: once")),
            None => Ok(()),
        }
    }

    fn admin(&self) -> Result<(), ConfigError> {
        let admin = &self.config.admin;
        self.variable_name(&["admin", "token_env"], admin.token_env.as_deref())?;
        let is_host = |host: &String| host.parse::<Authority>().is_ok_and(|authority| authority.host() == host);
        if let Some(host) = admin.hosts.iter().find(|host| !is_host(host)) {
            let message = format!("{host:?} is not a host; allowed: names and addresses without scheme, port or path");
            return self.refuse(&["admin", "hosts"], message);
        }
        if let Some(origin) = admin.origins.iter().find(|origin| !is_origin(origin)) {
            let message = format!(
                "{origin:?} is not an origin; allowed: http:// or https://, a host and perhaps a port, no more"
            );
            return self.refuse(&["admin", "origins"], message);
        }
        for address in admin.listen.iter().flat_map(|listen| &listen.0) {
            let message = match address {
                _ if !has_free_port(address) && self.config.server.listen.0.contains(address) => {
                    "is in server.listen too; allowed: another address"
                }
                Address::Tcp(tcp) if Exposure::of(*tcp) == Exposure::Network && admin.token_env.is_none() => {
                    "can be reached from other machines, so operators need a token; allowed: a loopback address, a Unix socket, or admin.token_env = \"NAME\" with the token in the variable NAME"
                }
                _ => continue,
            };
            return self.refuse(&["admin", "listen"], format!("{address} {message}"));
        }
        Ok(())
    }

    fn tls(&self) -> Result<(), ConfigError> {
        let Some(tls) = &self.config.tls else { return Ok(()) };
        let missing = match (tls.cert.as_os_str().is_empty(), tls.key.as_os_str().is_empty()) {
            (true, _) => "cert",
            (false, true) => "key",
            (false, false) => return Ok(()),
        };
        let message = format!("{missing:?} is missing or empty; allowed: both cert and key, or no [tls] at all");
        Err(self.error_at_any(&[&["tls", missing], &["tls"]], message))
    }

    fn inspect(&self) -> Result<(), ConfigError> {
        let (keep, most) = (self.config.inspect.keep, crate::inspect::MAX_REQUESTS);
        self.within(&["inspect", "keep"], keep, 0..=most)?;
        if keep > 0 && !self.config.store.enabled {
            let message = "messages are kept in the store, and there is none; allowed: 0, or store.enabled = true";
            return self.refuse(&["inspect", "keep"], message);
        }
        Ok(())
    }

    fn policy(&self) -> Result<(), ConfigError> {
        let Some(edit) = repeated(&self.config.policy.edits) else { return Ok(()) };
        let name = toml::Value::try_from(edit).map(|name| name.to_string()).unwrap_or_default();
        Err(self.error(&["policy", "edits"], format!("{name} is there twice; allowed: once")))
    }

    fn placeholders(&self) -> Result<(), ConfigError> {
        let Config { clear_tool_results: clear, truncate_tool_results: truncate, language, .. } = self.config;
        let blank = "would be a text of nothing but blanks, which upstreams refuse; allowed: a text that has more";
        if clear.may_clear_to_blank(*language) {
            return self.refuse(&["clear_tool_results", "placeholder"], blank);
        }
        match &truncate.notice {
            Some(notice) if notice.trim().is_empty() => self.refuse(&["truncate_tool_results", "notice"], blank),
            _ => Ok(()),
        }
    }

    fn truncation(&self) -> Result<(), ConfigError> {
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
                return Err(self.error_at_any(&[&path, &["truncate_tool_results", "notice"]], message));
            }
        }
        Ok(())
    }

    /// Refuses a value that is out of its range.
    fn within<T: Copy + Display + PartialOrd>(
        &self,
        path: &[&str],
        value: T,
        range: RangeInclusive<T>,
    ) -> Result<(), ConfigError> {
        if range.contains(&value) {
            return Ok(());
        }
        let (least, most) = range.into_inner();
        self.refuse(path, format!("{value} is out of range; allowed: {least} to {most}"))
    }

    /// Refuses a name that no environment variable has, and does not show it: the user may have written the key itself.
    fn variable_name(&self, path: &[&str], name: Option<&str>) -> Result<(), ConfigError> {
        let is_name = |name: &str| {
            !name.starts_with(|c: char| c.is_ascii_digit())
                && !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        if name.is_none_or(is_name) {
            return Ok(());
        }
        let message =
            "not the name of an environment variable; allowed: letters, digits and _ (the name, never the key itself)";
        self.refuse(path, message)
    }

    fn refuse(&self, path: &[&str], message: impl Into<String>) -> Result<(), ConfigError> {
        Err(self.error(path, message.into()))
    }

    fn error(&self, path: &[&str], message: String) -> ConfigError {
        self.error_at_any(&[path], message)
    }

    /// An error in the values at these paths, with the location of the first one that was written.
    fn error_at_any(&self, paths: &[&[&str]], message: String) -> ConfigError {
        match paths.iter().find(|path| self.written.get(path).is_some()) {
            Some(path) => self.written.error_at(path, message),
            None => ConfigError::unlocated(message),
        }
    }
}
