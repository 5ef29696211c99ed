//! `abridge summarize`: a request body with a summary in it, whatever the trigger.

use std::io::{self, Write};
use std::path::PathBuf;

use bytes::Bytes;

use crate::cli::{Exit, complain, print};
use crate::engine::EditedBody;
use crate::engine::manual_summary::{ManualOutcome, ManualSummaryError};

/// Which body, and what to say about it.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The request body; - is standard input
    file: PathBuf,
    /// Print what was edited as JSON on standard error
    #[arg(long)]
    report: bool,
}

/// Prints the body as `summarize` leaves it. One that is not understood, or in which there is nothing to summarise, comes out as
/// the other edits leave it.
pub fn run(
    args: &Args,
    summarize: impl FnOnce(Bytes) -> anyhow::Result<(EditedBody, ManualOutcome)>,
) -> anyhow::Result<Exit> {
    let (edited, outcome) = summarize(super::rewrite::read(&args.file)?)?;
    match outcome {
        ManualOutcome::Made => {}
        ManualOutcome::Nothing => complain(&anyhow::anyhow!("there is nothing to summarise")),
        ManualOutcome::Failed(ManualSummaryError::NotUnderstood(error)) => {
            complain(&anyhow::Error::new(error).context("printed as it came"));
        }
        ManualOutcome::Failed(none) => return Err(none.into()),
    }
    print(&edited.body)?;
    if let Some(report) = edited.report.filter(|_| args.report) {
        writeln!(io::stderr(), "{}", serde_json::to_string_pretty(&report)?)?;
    }
    Ok(Exit::Ok)
}
