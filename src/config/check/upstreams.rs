//! Checks of `[upstream]` and `[[upstreams]]`.

use super::{Checked, Checker, MAX_PERIOD, MIN_PERIOD};
use crate::upstream::{Settings, UpstreamName, routes};

/// Headers that depend on the connection or on the body, and that the sender of a request computes.
const CONNECTION_HEADERS: &str = "connection content-encoding content-length expect host keep-alive proxy-authenticate \
    proxy-authorization proxy-connection te trailer transfer-encoding upgrade";

/// The longest name of an upstream, in bytes: it is a label of metrics.
const MAX_NAME_BYTES: usize = 40;

impl Checker<'_> {
    /// Checks all upstreams.
    pub(super) fn upstreams(&self) -> Checked {
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
}
