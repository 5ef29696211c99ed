//! Where operators are served, and what they show.

use serde::{Deserialize, Serialize};

use super::listen::Addresses;

/// `[admin]` of `proxy.toml`. Who is let in, and to what, says [`crate::admin::access`].
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where paths below `/abridge/` are served and nothing else: `host:port` or `unix:/path`, one or a list.
    pub listen: Option<Addresses>,
    /// The environment variable that holds the token of operators.
    pub token_env: Option<String>,
    /// Names of this machine besides `localhost`, loopback addresses and the host of `recall.public_url`.
    pub hosts: Vec<String>,
    /// Origins of pages elsewhere that may ask the upstream with a key of abridge's own, such as `https://chat.example`.
    pub origins: Vec<String>,
}
