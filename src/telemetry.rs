//! Log lines: text for people, JSON for collectors, on standard error.

use serde::{Deserialize, Serialize};

/// `[log]` of `proxy.toml`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The form of a line.
    pub format: Format,
    /// The least level that is logged.
    pub level: Level,
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// One readable line an event.
    #[default]
    Text,
    /// One JSON object an event.
    Json,
}

/// How grave an event must be to be logged.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Only what broke.
    Error,
    /// What broke or was left undone.
    Warn,
    /// Also one line an edited request.
    #[default]
    Info,
    /// Also one line for every other request.
    Debug,
    /// Everything.
    Trace,
}
