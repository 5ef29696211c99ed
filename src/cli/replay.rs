//! `abridge replay`: compares recorded requests with what the present settings make of them.

use std::path::PathBuf;

use crate::cli::{Exit, print};
use crate::config::Config;
use crate::payload::Keys;
use crate::planner::Planner;
use crate::replay::{Replay, ReplayPolicy};
use crate::upstream::routes::Routes;

/// Arguments of `replay`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Folders with recorded exchanges, at any depth
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Replay under policies.NAME [default: the policy of the upstream that each request goes to]
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
}

/// Prints the differences. `choose` decides whether these settings override the policies in the folders.
pub fn run(args: &Args, config: &Config, choose: fn(Routes<Planner>) -> ReplayPolicy) -> anyhow::Result<Exit> {
    // The address of abridge comes from the recording.
    let planners = config.planners(args.policy.as_deref(), None, config.meter(), Keys::well_known())?;
    let policy = if args.policy.is_some() { ReplayPolicy::Explicit(planners) } else { choose(planners) };
    let replay = Replay::run(&args.dirs, &policy);
    let text = if args.json { serde_json::to_string_pretty(&replay)? } else { replay.to_string() };
    print([text, "\n".to_owned()])?;
    Ok(if replay.is_clean() { Exit::Ok } else { Exit::No })
}
