//! `abridge check-config`: the settings in effect, as TOML.

use crate::cli::{Exit, print};
use crate::config::{Config, Environment, Sources};

/// Prints the settings if they are right, the environment that they name included; otherwise the error says why not.
pub fn run(sources: &Sources, config: &Config) -> anyhow::Result<Exit> {
    Environment::read(&sources.variables, config)?;
    print([config.to_toml()?])?;
    Ok(Exit::Ok)
}
