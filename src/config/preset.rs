//! Presets: named sets of defaults below the user's settings. Each is written as a piece of `proxy.toml`.
//!
//! They make of one request what the systems of the same names make of it, within the rules of abridge: what the model has
//! not read stays, each call keeps its result, and a request that is not understood is forwarded unchanged.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{ConfigError, value::LocatedValue};

/// A set of defaults.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// The defaults that are shown here.
    #[default]
    Default,
    /// The values of Eino's middlewares: patch, reduction, summarization.
    Eino,
    /// The values of `ClearToolUsesEdit` of the package `langchain`.
    Langchain,
    /// The value 3 of Agno's `max_tool_calls_from_history`.
    Agno,
}

impl Preset {
    /// Lays the user's settings on the preset.
    pub(super) fn apply_under(self, written: LocatedValue) -> Result<LocatedValue, ConfigError> {
        let (name, text) = match self {
            Self::Default => return Ok(written),
            Self::Eino => ("preset eino", include_str!("preset/eino.toml")),
            Self::Langchain => ("preset langchain", include_str!("preset/langchain.toml")),
            Self::Agno => ("preset agno", include_str!("preset/agno.toml")),
        };
        let mut settings = LocatedValue::from_file(Path::new(name), text)?;
        settings.overlay(written);
        Ok(settings)
    }
}
