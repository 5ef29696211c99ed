//! The three choices of `policy.goal`, each as a piece of `proxy.toml` below presets and the user's settings.

use std::path::Path;

use super::{ConfigError, value::LocatedValue};
use crate::planner::Goal;

/// What each goal sets. BENCHMARKS.md has the figures that they follow from.
const SETTINGS: [(Goal, &str); 3] = [
    (Goal::Careful, "trigger = [{ tokens = 100000 }, { fraction = 0.5 }]\nkeep = { results = 3 }\nkeep_reads = 20"),
    (Goal::Balanced, "trigger = [{ tokens = 80000 }, { fraction = 0.5 }]\nkeep = { results = 3 }\nkeep_reads = 10"),
    (Goal::Thrifty, "trigger = [{ tokens = 60000 }, { fraction = 0.5 }]\nkeep = { results = 3 }\nkeep_reads = 0"),
];

/// Lays settings on those of a goal.
pub(super) fn apply_under(goal: Goal, written: LocatedValue) -> Result<LocatedValue, ConfigError> {
    let keys = SETTINGS.iter().find(|(of, _)| *of == goal).map_or("", |(_, keys)| keys);
    let text = format!("[clear_tool_results]\n{keys}");
    let mut settings = LocatedValue::from_file(Path::new("policy.goal"), &text)?;
    settings.overlay(written);
    Ok(settings)
}
