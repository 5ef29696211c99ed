//! TLS on the listener.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `[tls]` of `proxy.toml`: both files, or no TLS.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// PEM file with the certificate chain, the server's own first.
    pub cert: PathBuf,
    /// PEM file with the private key.
    pub key: PathBuf,
}
