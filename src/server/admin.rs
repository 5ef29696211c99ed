//! The settings of the operators' addresses and token.

use serde::{Deserialize, Serialize};

use super::listen::Addresses;

/// `[admin]` of `proxy.toml`. [`crate::admin::access`] has the rules.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Addresses that serve the paths of operators below `/abridge/` and nothing else. An address that other machines
    /// can reach needs `token_env`. A change needs a restart.
    ///
    /// Not set: operators are served at `server.listen`, as far as that is a loopback address or a Unix socket.
    ///
    /// Example: `"127.0.0.1:8788"`
    pub listen: Option<Addresses>,
    /// The name of the environment variable with the operators' token, 16 characters or more, which operators send as
    /// `authorization: Bearer …`.
    ///
    /// Not set: abridge makes a token at its first start and keeps it in `abridge/operator-token` in the state folder.
    ///
    /// Example: `"ABRIDGE_TOKEN"`
    pub token_env: Option<String>,
    /// Names of this machine besides `localhost`, loopback addresses and the host of `recall.public_url`. Requests under
    /// other names get 403, because a web page may have made them (DNS rebinding): on loopback addresses all, elsewhere
    /// those that a browser marks.
    pub hosts: Vec<String>,
    /// Origins of web pages on other machines, such as `"https://chat.example"`, that may send requests to the upstream
    /// where abridge adds its own key or header. Other pages get 403; pages of this machine and clients other than
    /// browsers do not.
    pub origins: Vec<String>,
}
