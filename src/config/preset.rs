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

const EINO: &str = r#"
[policy]
edits = ["patch_tool_calls", "truncate_tool_results", "clear_tool_results", "summarize"]
[truncate_tool_results]
max_bytes = 50000
[clear_tool_results]
trigger = { tokens = 30000 }
keep = { rounds = 1 }
keep_reads = 0
when = "any"
clear_at_least = 0
clear_media = false
growth_guard = false
frontier = "sliding"
[summarize]
trigger = { tokens = 160000 }
keep = { rounds = 0 }
[tokens]
counter = "estimate"
"#;

const LANGCHAIN: &str = r#"
[policy]
edits = ["patch_tool_calls", "clear_tool_results"]
[patch_tool_calls]
orphans = "drop"
[clear_tool_results]
trigger = { tokens = 100000 }
keep = { results = 3 }
keep_reads = 0
when = "any"
clear_at_least = 0
clear_tool_inputs = false
placeholder = "[cleared]"
offload = false
growth_guard = false
frontier = "sliding"
[tokens]
counter = "estimate"
"#;

const AGNO: &str = r#"
[policy]
edits = ["patch_tool_calls", "filter_tool_calls"]
[filter_tool_calls]
max_tool_calls = 3
"#;

impl Preset {
    /// Lays the user's settings on the preset.
    pub(super) fn apply_under(self, written: LocatedValue) -> Result<LocatedValue, ConfigError> {
        let (name, text) = match self {
            Self::Default => return Ok(written),
            Self::Eino => ("preset eino", EINO),
            Self::Langchain => ("preset langchain", LANGCHAIN),
            Self::Agno => ("preset agno", AGNO),
        };
        let mut settings = LocatedValue::from_file(Path::new(name), text)?;
        settings.overlay(written);
        Ok(settings)
    }
}
