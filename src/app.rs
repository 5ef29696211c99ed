//! Wiring: the settings become a running proxy.

use std::path::PathBuf;

use crate::config::{Config, Environment, Sources};
use crate::telemetry::LevelHandle;

/// What a proxy is started with.
#[derive(Debug)]
pub struct Launch {
    /// Where the settings came from, to be read again at SIGHUP.
    pub sources: Sources,
    /// The settings.
    pub config: Config,
    /// What the environment says besides.
    pub environment: Environment,
    /// The folder that edited exchanges are recorded in.
    pub record: Option<PathBuf>,
    /// Sets the log level anew at SIGHUP.
    pub level: LevelHandle,
}

/// Serves until a signal ends it.
pub fn serve(_launch: Launch) -> anyhow::Result<()> {
    anyhow::bail!("not wired yet")
}
