//! Presets and goals: named sets of defaults below the user's settings. Each is written as a piece of `proxy.toml`.
//!
//! Presets make of one request what the systems of the same names make of it, within the rules of abridge: results that the model has
//! not read stay, each call keeps its result, and a request that is not understood is forwarded unchanged.

use serde::{Deserialize, Serialize};

use super::{ConfigError, value::LocatedValue};
use crate::planner::Goal;

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
        match self {
            Self::Default => Ok(written),
            Self::Eino => written.over("preset eino", include_str!("preset/eino.toml")),
            Self::Langchain => written.over("preset langchain", include_str!("preset/langchain.toml")),
            Self::Agno => written.over("preset agno", include_str!("preset/agno.toml")),
        }
    }
}

/// Lays settings on those of a goal. BENCHMARKS.md has the figures that they follow from.
pub(super) fn apply_goal_under(goal: Goal, written: LocatedValue) -> Result<LocatedValue, ConfigError> {
    let settings = match goal {
        Goal::Careful => include_str!("goal/careful.toml"),
        Goal::Balanced => include_str!("goal/balanced.toml"),
        Goal::Thrifty => include_str!("goal/thrifty.toml"),
    };
    written.over("policy.goal", settings)
}
