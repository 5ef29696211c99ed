//! The three choices of `policy.goal`, each as a piece of `proxy.toml` below presets and the user's settings.

use std::path::Path;

use super::{ConfigError, value::LocatedValue};
use crate::planner::Goal;

/// What each goal sets. BENCHMARKS.md has the figures that they follow from.
const SETTINGS: [(Goal, &str); 3] = [
    (
        Goal::Careful,
        r"
        deduplicate_tool_results.min_lines = 0
        [clear_tool_results]
        trigger = [{ tokens = 100000 }, { fraction = 0.5 }]
        keep = { results = 3 }
        keep_reads = 20
        [reasoning]
        ended_turns = 'keep'
        ",
    ),
    (
        Goal::Balanced,
        r"
        deduplicate_tool_results.min_lines = 6
        [clear_tool_results]
        trigger = [{ tokens = 80000 }, { fraction = 0.5 }]
        keep = { results = 3 }
        keep_reads = 10
        [reasoning]
        ended_turns = 'keep'
        ",
    ),
    (
        Goal::Thrifty,
        r"
        deduplicate_tool_results.min_lines = 6
        [clear_tool_results]
        trigger = [{ tokens = 60000 }, { fraction = 0.5 }]
        keep = { results = 3 }
        keep_reads = 0
        [reasoning]
        ended_turns = 'clear'
        ",
    ),
];

/// Lays settings on those of a goal.
pub(super) fn apply_under(goal: Goal, written: LocatedValue) -> Result<LocatedValue, ConfigError> {
    let text = SETTINGS.iter().find(|(of, _)| *of == goal).map_or("", |(_, text)| text);
    let mut settings = LocatedValue::from_file(Path::new("policy.goal"), text)?;
    settings.overlay(written);
    Ok(settings)
}
