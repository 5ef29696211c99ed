//! Checks that deserialisation cannot make: ranges, formats, and settings that contradict each other.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use http::uri::Authority;

use super::Config;
use super::error::ConfigError;
use super::value::LocatedValue;
use crate::admin::access::Exposure;
use crate::admin::is_admin_path;
use crate::inspect::MAX_REQUESTS;
use crate::recall::Via;
use crate::store::StoreEngine;
use crate::units::{ByteSize, Period};
use crate::upstream::{Settings, UpstreamName, routes};

mod edits;

/// The shortest accepted period of a setting that takes none but a positive one, and the longest of any.
const MIN_PERIOD: Period = Period(Duration::from_millis(1));
const MAX_PERIOD: Period = Period(Duration::from_hours(365 * 24));

/// A later call finds no cache, because one lives for five minutes.
const MAX_KEEP_ALIVE: Period = Period::secs(299);

/// Headers that depend on the connection or on the body, and that the sender of a request computes.
const CONNECTION_HEADERS: &str = "connection content-encoding content-length expect host keep-alive proxy-authenticate \
    proxy-authorization proxy-connection te trailer transfer-encoding upgrade";

/// The longest name of an upstream, in bytes: it is a label of metrics.
const MAX_NAME_BYTES: usize = 40;

/// The first error, if there is one.
type Checked = Result<(), ConfigError>;

/// Returns the first error, with the location of the setting.
pub(super) fn check(config: &Config, written: &LocatedValue) -> Checked {
    let checker = Checker { config, written };
    checker.limits()?;
    checker.admin()?;
    checker.tls()?;
    checker.upstreams()?;
    checker.store()?;
    checker.compress()?;
    checker.edits()
}

/// Whether the text is an origin as browsers write it, without a path.
fn is_origin(text: &str) -> bool {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    host.is_some_and(|host| host.parse::<Authority>().is_ok_and(|host| !host.as_str().contains('@')))
}

/// Says which names are allowed if a table has no such one.
pub(super) fn known<T>(table: &str, names: &BTreeMap<String, T>, name: &str) -> Result<(), String> {
    if names.contains_key(name) {
        return Ok(());
    }
    let allowed = names.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    let allowed = if allowed.is_empty() { format!("none, as [{table}] is empty") } else { allowed };
    Err(format!("there is no {table}.{name}; allowed: {allowed}"))
}

/// The keys of a path of plain ones.
fn keys(path: &str) -> Vec<&str> {
    path.split('.').collect()
}

struct Checker<'a> {
    config: &'a Config,
    written: &'a LocatedValue,
}

impl Checker<'_> {
    /// Checks numbers, sizes and times.
    fn limits(&self) -> Checked {
        let Config { server, events, recall, inspect, store, summarize, .. } = self.config;
        for (path, n, least, most) in [
            ("server.workers", server.workers, 0, 1024),
            ("server.max_connections", server.max_connections, 1, 10_000_000),
            ("server.max_in_flight", server.max_in_flight, 1, 10_000_000),
            ("events.listeners", events.listeners, 0, 10_000),
            ("events.queue", events.queue, 1, 65_536),
            ("recall.tool.rounds", recall.tool.rounds, 1, 64),
            ("inspect.keep", inspect.keep, 0, MAX_REQUESTS),
            ("store.replicas_acknowledge", store.replicas_acknowledge, 0, 8),
            ("summarize.retry.max_retries", summarize.retry.max_retries, 0, 100),
            ("deduplicate_tool_results.min_lines", self.config.deduplicate_tool_results.min_lines, 0, 10_000),
        ] {
            self.within(&keys(path), n, least..=most)?;
        }
        for (path, size, least, most) in [
            ("server.max_body", server.max_body, ByteSize(1), ByteSize::mib(2048)),
            ("server.min_body_rate", server.min_body_rate, ByteSize(0), ByteSize::mib(1024)),
            ("recall.tool.max_bytes", recall.tool.max_bytes, ByteSize(64 << 10), ByteSize::mib(256)),
            ("store.max_bytes", store.max_bytes, ByteSize::mib(1), ByteSize::mib(1 << 30)),
        ] {
            self.within(&keys(path), size, least..=most)?;
        }
        let none = Period(Duration::ZERO);
        for (path, period, least) in [
            ("server.header_timeout", server.header_timeout, MIN_PERIOD),
            ("server.body_timeout", server.body_timeout, MIN_PERIOD),
            ("server.min_body_rate_after", server.min_body_rate_after, none),
            ("server.write_timeout", server.write_timeout, MIN_PERIOD),
            ("server.grace", server.grace, none),
            ("events.heartbeat", events.heartbeat, MIN_PERIOD),
            ("events.webhook_timeout", events.webhook_timeout, MIN_PERIOD),
            ("recall.tool.timeout", recall.tool.timeout, MIN_PERIOD),
            ("store.keep_for", store.keep_for, Period::secs(60)),
            ("store.timeout", store.timeout, MIN_PERIOD),
            ("summarize.timeout", summarize.timeout, MIN_PERIOD),
            ("summarize.cooldown", summarize.cooldown, none),
        ] {
            self.within(&keys(path), period, least..=MAX_PERIOD)?;
        }
        self.within(&["keep_alive", "after"], self.config.keep_alive.after, MIN_PERIOD..=MAX_KEEP_ALIVE)?;
        let (body, buffered, most) = (server.max_body, server.max_buffered, ByteSize::mib(1 << 20));
        let range = format_args!("{buffered} is out of range; allowed: at most {most}");
        self.ensure(buffered <= most, &["server", "max_buffered"], range)?;
        let fit = format_args!(
            "a body of {body} (server.max_body) does not fit into {buffered} (server.max_buffered); allowed: max_buffered at least as large"
        );
        self.ensure_any(body <= buffered, &[&["server", "max_body"], &["server", "max_buffered"]], fit)
    }

    fn compress(&self) -> Checked {
        let prefix = &self.config.compress.prefix;
        let is_path = prefix.starts_with('/') && !prefix.ends_with('/') && !prefix.contains(['?', '#', ' ']);
        let message =
            "allowed: nothing, or a path that begins with \"/\" and does not end with one, not below /abridge";
        self.ensure(prefix.is_empty() || is_path && !is_admin_path(prefix), &["compress", "prefix"], message)
    }

    fn admin(&self) -> Checked {
        let admin = &self.config.admin;
        self.variable_name(&["admin", "token_env"], admin.token_env.as_deref())?;
        for host in &admin.hosts {
            let is_host = host.parse::<Authority>().is_ok_and(|authority| authority.host() == host);
            let allowed = "allowed: names and addresses without scheme, port or path";
            self.ensure(is_host, &["admin", "hosts"], format_args!("{host:?} is not a host; {allowed}"))?;
        }
        for origin in &admin.origins {
            let allowed = "allowed: http:// or https://, a host and perhaps a port, no more";
            let message = format_args!("{origin:?} is not an origin; {allowed}");
            self.ensure(is_origin(origin), &["admin", "origins"], message)?;
        }
        for address in admin.listen.iter().flat_map(|listen| &listen.0) {
            let is_known = admin.token_env.is_some() || address.exposure() != Exposure::Network;
            let message = "can be reached from other machines, so operators need a token; allowed: a loopback address, a Unix socket, or admin.token_env = \"NAME\" with the token in the variable NAME";
            self.ensure(is_known, &["admin", "listen"], format_args!("{address} {message}"))?;
        }
        Ok(())
    }

    fn tls(&self) -> Checked {
        let Some(tls) = &self.config.tls else { return Ok(()) };
        let files = [("cert", &tls.cert), ("key", &tls.key)];
        files.into_iter().try_for_each(|(key, path)| {
            let message = format_args!("{key:?} is missing or empty; allowed: both cert and key, or no [tls] at all");
            self.ensure_any(!path.as_os_str().is_empty(), &[&["tls", key], &["tls"]], message)
        })
    }

    /// Checks all upstreams.
    fn upstreams(&self) -> Checked {
        self.upstream(&["upstream"], &self.config.upstream)?;
        for (n, upstream) in self.config.upstreams.iter().enumerate() {
            let place = n.to_string();
            let table = ["upstreams", &place];
            self.name(&table, upstream, n)?;
            let is_path = upstream.strip_path.as_ref().is_none_or(|path| path.starts_with('/'));
            let message = "not a path; allowed: a path that begins with /, such as \"/anthropic\"";
            self.ensure(is_path, &[&table[..], &["strip_path"]].concat(), message)?;
            self.upstream(&table, &upstream.over(&self.config.upstream))?;
        }
        Ok(())
    }

    fn name(&self, table: &[&str], upstream: &routes::Settings, n: usize) -> Checked {
        let name = &upstream.name;
        let is_label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        let message = if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(is_label) {
            format!("{name:?} is no name; allowed: small letters, digits, - and _, {MAX_NAME_BYTES} at most")
        } else if name == UpstreamName::DEFAULT {
            "\"default\" is the name of [upstream]; allowed: another one".to_owned()
        } else if self.config.upstreams.iter().take(n).any(|earlier| earlier.name == *name) {
            format!("{name:?} is there twice; allowed: once")
        } else if upstream.requests().is_none() {
            format!(
                "{name:?} does not say which requests go there; allowed: a `when` beside it in [[upstreams]], or one of anthropic, messages, openai, chat_completions, responses"
            )
        } else {
            return Ok(());
        };
        self.refuse(&[table, &["name"]].concat(), message)
    }

    /// Checks one upstream, whose settings are in `table`.
    fn upstream(&self, table: &[&str], upstream: &Settings) -> Checked {
        let path = |keys: &[&'static str]| [table, keys].concat();
        for (key, period) in [
            ("connect_timeout", upstream.connect_timeout),
            ("first_byte_timeout", upstream.first_byte_timeout),
            ("idle_timeout", upstream.idle_timeout),
        ] {
            self.within(&path(&[key]), period, MIN_PERIOD..=MAX_PERIOD)?;
        }
        let message = format_args!("{} is where abridge itself listens; allowed: another server", upstream.url);
        self.ensure(!self.is_own_address(upstream), &path(&["url"]), message)?;
        self.variable_name(&path(&["api_key_env"]), upstream.api_key_env.as_deref())?;
        for name in upstream.headers.keys().map(|name| name.0.as_str()) {
            let message = match name {
                _ if CONNECTION_HEADERS.split(' ').any(|of| of == name) => {
                    "abridge sets this header itself; allowed: headers that no connection and no body depends on"
                        .to_owned()
                }
                _ if upstream.api_key_env.is_some() && name == upstream.api_key_header.name().as_str() => {
                    let setting = if table == ["upstream"] { "upstream.api_key_env" } else { "api_key_env" };
                    format!("{setting} sets this header; allowed: one of the two")
                }
                _ => continue,
            };
            return self.refuse(&[table, &["headers", name]].concat(), message);
        }
        Ok(())
    }

    fn is_own_address(&self, upstream: &Settings) -> bool {
        let target = upstream.url.to_string().replace("//localhost:", "//127.0.0.1:");
        let own = self.config.address();
        own.and_then(|own| target.strip_prefix(&own)).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    fn store(&self) -> Checked {
        let store = &self.config.store;
        let (is_file, is_redis) = (store.engine == StoreEngine::File, store.engine == StoreEngine::Redis);
        let message = "messages are kept in the store, and there is none; allowed: 0, or store.enabled = true";
        self.ensure(self.config.inspect.keep == 0 || store.enabled, &["inspect", "keep"], message)?;
        let has_name = store.path.as_deref().is_none_or(|path| !path.as_os_str().is_empty());
        self.ensure(has_name, &["store", "path"], "empty; allowed: the path of a file")?;
        let names = [&store.url_env, &store.secret_env, &store.old_secrets_env];
        for (key, name) in ["url_env", "secret_env", "old_secrets_env"].into_iter().zip(names) {
            self.variable_name(&["store", key], name.as_deref())?;
            let message = "not with store.engine = \"file\", which is one process's own; allowed: another engine";
            self.ensure(name.is_none() || !is_file, &["store", key], message)?;
        }
        let message = "on, and store.engine is \"file\", which is not encrypted; allowed: another engine, or a disk that encrypts";
        self.ensure(!store.seal || !is_file, &["store", "seal"], message)?;
        let message = "not 0, and store.engine is not \"redis\"; allowed: 0";
        self.ensure(store.replicas_acknowledge == 0 || is_redis, &["store", "replicas_acknowledge"], message)?;
        if is_file { Ok(()) } else { self.fleet() }
    }

    /// What several processes need to send the same bytes, and what they cannot share.
    fn fleet(&self) -> Checked {
        let Config { store, recall, .. } = self.config;
        let ensure = |is_right, path: [&str; 2], message: &str| {
            self.ensure_any(is_right, &[&path, &["store", "engine"]], message)
        };
        let message = "store.url_env is not set, and store.engine is not \"file\"; allowed: the name of the variable with the engine's URL";
        ensure(store.url_env.is_some(), ["store", "url_env"], message)?;
        let message = "set without store.secret_env; allowed: both, or neither";
        ensure(store.old_secrets_env.is_none() || store.secret_env.is_some(), ["store", "old_secrets_env"], message)?;
        let message = "on without store.secret_env, so the engine would hold the secret too; allowed: both, or neither";
        ensure(!store.seal || store.secret_env.is_some(), ["store", "seal"], message)?;
        let is_in_names = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let is_name = |name: &str| (1..=32).contains(&name.len()) && name.chars().all(is_in_names);
        let message = "not a part of a name; allowed: up to 32 lower-case letters, digits and _";
        ensure(store.namespace.as_deref().is_none_or(is_name), ["store", "namespace"], message)?;
        let message = "recall.public_url is not set, and store.engine is not \"file\": the texts of each process would name its own address; allowed: the URL at which the agents' tools reach all processes";
        ensure(!store.enabled || recall.public_url.is_some(), ["recall", "public_url"], message)?;
        let message = "files are one machine's own, and store.engine is not \"file\"; allowed: texts that are read back over HTTP";
        ensure(recall.via != Via::File, ["recall", "via"], message)?;
        ensure(recall.export_dir.is_none(), ["recall", "export_dir"], message)
    }

    /// Refuses a value that is out of its range.
    fn within<T: Copy + Display + PartialOrd>(&self, path: &[&str], value: T, range: RangeInclusive<T>) -> Checked {
        let (least, most) = (range.start(), range.end());
        let message = format_args!("{value} is out of range; allowed: {least} to {most}");
        self.ensure(range.contains(&value), path, message)
    }

    /// Refuses a name that no environment variable has, and does not show it: the user may have written the key itself.
    fn variable_name(&self, path: &[&str], name: Option<&str>) -> Checked {
        let is_in_names = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let is_name = |name: &str| name.starts_with(|c: char| !c.is_ascii_digit()) && name.chars().all(is_in_names);
        let message =
            "not the name of an environment variable; allowed: letters, digits and _ (the name, never the key itself)";
        self.ensure(name.is_none_or(is_name), path, message)
    }

    /// Refuses the value at a path unless it is right.
    fn ensure(&self, is_right: bool, path: &[&str], message: impl Display) -> Checked {
        self.ensure_any(is_right, &[path], message)
    }

    /// Refuses the values at these paths unless they are right together, with the location of the first one that was written.
    fn ensure_any(&self, is_right: bool, paths: &[&[&str]], message: impl Display) -> Checked {
        if is_right {
            return Ok(());
        }
        let written = paths.iter().find(|path| self.written.get(path).is_some());
        Err(self.written.error_at(written.or(paths.first()).copied().unwrap_or_default(), message.to_string()))
    }

    fn refuse(&self, path: &[&str], message: impl Display) -> Checked {
        self.ensure(false, path, message)
    }
}
