//! `abridge summarize`: prints a request body with a summary in place of old messages, whatever the trigger.

use bytes::Bytes;

use crate::cli::rewrite::{BodyArgs, read_input};
use crate::cli::{Exit, print, print_error};
use crate::engine::EditedBody;
use crate::engine::manual_summary::{ManualOutcome, ManualSummaryError};

/// Prints the summarised body. A body that is not understood is printed unchanged; one with nothing to summarise is
/// printed with the other edits.
pub fn run(
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
