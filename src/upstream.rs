//! The upstream: one pooled client, its time-outs, and how a client's path becomes the upstream's.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::units::Period;

pub mod target;

use target::BaseUrl;

/// `[upstream]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where requests go, path and all: `https://api.openai.com/v1`.
    pub url: BaseUrl,
    /// The version of HTTP that is spoken to it.
    pub http: HttpVersion,
    /// How long a connection may take, TLS included.
    pub connect_timeout: Period,
    /// How long the upstream may take to send its response head. Answers that are not streamed come only when they are finished.
    pub first_byte_timeout: Period,
    /// How long the upstream may pause in the middle of a body.
    pub idle_timeout: Period,
    /// How long an unused connection is kept for the next request.
    pub pool_idle_timeout: Period,
    /// A PEM file with roots to trust besides the system's.
    pub ca_file: Option<PathBuf>,
    /// The environment variable that holds the key to send as `authorization: Bearer …`, in place of the client's.
    pub api_key_env: Option<String>,
    /// Headers that are set on every request, in place of the client's of that name.
    pub headers: BTreeMap<HeaderName, HeaderValue>,
}

/// The version of HTTP that is spoken to the upstream.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum HttpVersion {
    /// HTTP/1.1: uploads are two to three times faster than over HTTP/2.
    #[default]
    #[serde(rename = "1.1")]
    Http11,
    /// HTTP/2, over TLS by ALPN, in the clear by prior knowledge.
    #[serde(rename = "2")]
    Http2,
}

pub use target::{HeaderName, HeaderValue};

impl Default for Settings {
    fn default() -> Self {
        Self {
            url: BaseUrl::default(),
            http: HttpVersion::default(),
            connect_timeout: Period::secs(10),
            first_byte_timeout: Period::secs(900),
            idle_timeout: Period::secs(600),
            pool_idle_timeout: Period::secs(20),
            ca_file: None,
            api_key_env: None,
            headers: BTreeMap::new(),
        }
    }
}
