//! `abridge replay`: recorded requests under the present settings.

use std::path::PathBuf;

use crate::cli::{Exit, print};
use crate::config::Config;
use crate::payload::Keys;
use crate::planner::Planner;
use crate::replay::{Chosen, Replay};

/// What to replay.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Folders with recorded exchanges, at any depth
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Prints what differs. `choose` says whether these settings also hold for folders that have their own.
pub fn run(args: &Args, config: &Config, choose: fn(Planner) -> Chosen) -> anyhow::Result<Exit> {
    // A recording says where clients reached abridge.
    let planner = config.planner(None, config.meter(), Keys::well_known());
    let replay = Replay::run(&args.dirs, &choose(planner));
    let text = if args.json { serde_json::to_string_pretty(&replay)? } else { replay.to_string() };
    print([text, "\n".to_owned()])?;
    Ok(if replay.is_clean() { Exit::Ok } else { Exit::No })
}
