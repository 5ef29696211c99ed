//! What becomes of a summary that somebody asks for by hand.

use super::error::SummaryError;
use super::{Edited, Trouble};
use crate::dialect::ParseError;
use crate::edit::summarize::Summarize;
use crate::plan::{Action, LeftOut, Why};

/// What became of a summary that was asked for, whatever the trigger.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It stands in the body.
    Made,
    /// There is nothing that it could stand for; the body has the other edits, if any.
    Nothing,
    /// There is none.
    Failed(NoSummary),
}

/// Why there is no summary, though somebody asks for it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NoSummary {
    /// The body is no conversation.
    #[error("the body is not a conversation that can be read")]
    NotUnderstood(#[source] ParseError),
    /// The policy has no such edit.
    #[error("summarize is not in policy.edits")]
    Off,
    /// The transcript that it should name has no place.
    #[error(
        "there is no store for the transcript; store.enabled = true gives one, summarize.transcript = false needs none"
    )]
    NoStore,
    /// Nobody has made it.
    #[error("the summary was not made: {0}")]
    SummaryError(#[source] SummaryError),
    /// Something of ours went wrong.
    #[error("the summary was not made: {0}")]
    Trouble(#[source] Trouble),
    /// It is not known why.
    #[error("the summary was not made")]
    Unknown,
}

impl Edited {
    /// What became of the summary, if `summarize` runs.
    pub fn outcome(&self, summarize_runs: bool) -> Outcome {
        match self.try_outcome(summarize_runs) {
            Ok(true) => Outcome::Made,
            Ok(false) => Outcome::Nothing,
            Err(none) => Outcome::Failed(none),
        }
    }

    fn try_outcome(&self, summarize_runs: bool) -> Result<bool, NoSummary> {
        if let Some(error) = self.skipped {
            return Err(NoSummary::NotUnderstood(error));
        }
        if !summarize_runs {
            return Err(NoSummary::Off);
        }
        if let Some(unmade) = &self.unmade {
            return Err(NoSummary::SummaryError(unmade.clone()));
        }
        let report = self.report.as_ref();
        let (changes, left_out) = report.map(|report| (&*report.changes, &*report.left_out)).unwrap_or_default();
        if changes.iter().any(|change| matches!(change.action, Action::Summarize { .. })) {
            return Ok(true);
        }
        if let Some(trouble) = &self.trouble {
            return Err(NoSummary::Trouble(trouble.clone()));
        }
        match left_out.iter().find(|left_out| left_out.edit == Summarize::LABEL).map(|LeftOut { why, .. }| why) {
            None | Some(Why::TooLittle) => Ok(false),
            Some(Why::NoStore) => Err(NoSummary::NoStore),
            Some(Why::NoSummary | Why::NotSmaller | Why::Rewritten) => Err(NoSummary::Unknown),
        }
    }
}
