//! `abridge check-config`: prints the settings in effect, as TOML.

use crate::cli::{Exit, print};
use crate::config::{Config, Environment, Sources};

/// Prints the settings. Fails if they are invalid, or if an environment variable that they name is missing.
pub fn run(sources: &Sources, config: &Config) -> anyhow::Result<Exit> {
    Environment::read(&sources.variables, config)?;
    let clear_tool_results = config.clear_tool_results.written_out();
    print([Config { clear_tool_results, ..config.clone() }.to_toml()?])
}
