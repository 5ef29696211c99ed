//! `abridge rewrite` and `abridge summarize`: print a request body as the proxy would send it. `abridge replay`: compares
//! recorded ones.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::cli::{Exit, print, print_error};
use crate::config::Config;
use crate::dialect;
use crate::engine::manual_summary::{ManualOutcome, ManualSummaryError};
use crate::engine::{EditedBody, edit_body};
use crate::payload::Keys;
use crate::planner::Planner;
use crate::replay::{Replay, ReplayPolicy};
use crate::upstream::routes::Routes;

/// Arguments of `rewrite` and `summarize`.
#[derive(clap::Args, Debug)]
pub struct BodyArgs {
    /// The file with the request body; - is standard input
    file: PathBuf,
    /// Print the changes as JSON on standard error
    #[arg(long)]
    report: bool,
}

/// Arguments of `rewrite`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    body: BodyArgs,
    /// Edit under policies.NAME [default: the policy of the upstream that the request goes to]
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
}

/// Arguments of `replay`.
#[derive(clap::Args, Debug)]
pub struct ReplayArgs {
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

/// The request body cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be read", file.display())]
pub struct InputError {
    file: PathBuf,
    source: io::Error,
}

/// Prints the body as a proxy with these settings sends it, except for what only a running proxy knows: handles are
/// those of [`Keys::well_known`], since they depend on the store's secret and on the client's credential; there are no
/// summaries; and no upstream has reported a context window. A body that is not understood is printed unchanged. In a
/// dry run, the edits are printed.
pub fn run(args: &Args, config: &Config) -> anyhow::Result<Exit> {
    let body = read_input(&args.body.file)?;
    let planners = config.planners(args.policy.as_deref(), config.address(), config.meter(), Keys::well_known())?;
    let dialect = dialect::of_body(&body);
    let mut edited = edit_body(planners.find_without_headers(None, dialect, &body), dialect, body);
    print(&edited.body)?;
    if let Some(error) = edited.parse_error.take() {
        print_error(&anyhow::Error::new(error).context("printed unchanged"));
    }
    args.body.report(&edited)
}

/// Prints the summarised body. A body that is not understood is printed unchanged; one with nothing to summarise is
/// printed with the other edits.
pub fn summarize(
    args: &BodyArgs,
    summarize: impl FnOnce(Bytes) -> anyhow::Result<(EditedBody, ManualOutcome)>,
) -> anyhow::Result<Exit> {
    let (edited, outcome) = summarize(read_input(&args.file)?)?;
    match outcome {
        Ok(true) => {}
        Ok(false) => print_error(&anyhow::anyhow!("there is nothing to summarise")),
        Err(ManualSummaryError::NotUnderstood(error)) => {
            print_error(&anyhow::Error::new(error).context("printed unchanged"));
        }
        Err(none) => return Err(none.into()),
    }
    print(&edited.body)?;
    args.report(&edited)
}

/// Prints the differences. `choose` decides whether these settings override the policies in the folders.
pub fn replay(args: &ReplayArgs, config: &Config, choose: fn(Routes<Planner>) -> ReplayPolicy) -> anyhow::Result<Exit> {
    // The address of abridge comes from the recording.
    let planners = config.planners(args.policy.as_deref(), None, config.meter(), Keys::well_known())?;
    let policy = if args.policy.is_some() { ReplayPolicy::Explicit(planners) } else { choose(planners) };
    let replay = Replay::run(&args.dirs, &policy);
    let text = if args.json { serde_json::to_string_pretty(&replay)? } else { replay.to_string() };
    print([text, "\n".to_owned()])?;
    Ok(if replay.is_clean() { Exit::Ok } else { Exit::No })
}

impl BodyArgs {
    /// Prints the changes, if they are wanted.
    fn report(&self, edited: &EditedBody) -> anyhow::Result<Exit> {
        if let Some(report) = edited.report.as_ref().filter(|_| self.report) {
            writeln!(io::stderr(), "{}", serde_json::to_string_pretty(report)?)?;
        }
        Ok(Exit::Ok)
    }
}

/// Reads a whole file, or standard input.
fn read_input(file: &Path) -> Result<Bytes, InputError> {
    let read = if file == Path::new("-") {
        let mut body = Vec::new();
        io::stdin().lock().read_to_end(&mut body).map(|_| body)
    } else {
        fs::read(file)
    };
    read.map(Bytes::from).map_err(|source| InputError { file: file.to_owned(), source })
}
