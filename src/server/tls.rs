//! TLS on the listener.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `[tls]` of `proxy.toml`: both files, or no TLS. The two may come from different sources, the file and the environment;
/// so `Config::load` sees to it, and not the type, that neither is missing.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// PEM file with the certificate chain, the server's own first.
    pub cert: PathBuf,
    /// PEM file with the private key.
    pub key: PathBuf,
}
