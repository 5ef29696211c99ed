//! The outcome of a summary that was requested explicitly, not by a trigger.

use super::flight::SummaryError;
use super::{EditedBody, EngineError};
use crate::dialect::ParseError;
use crate::edit::summarize::Summarize;
use crate::plan::{Action, SkipReason, SkippedChange};

/// Whether a summary was made; if not, there is nothing to summarise.
pub type ManualOutcome = Result<bool, ManualSummaryError>;

/// Why an explicitly requested summary was not made.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ManualSummaryError {
    /// The body is not a conversation.
    #[error("the body is not a conversation that can be read")]
    NotUnderstood(#[source] ParseError),
    /// The policy does not contain `summarize`.
    #[error("summarize is not in policy.edits")]
    Disabled,
    /// No store for the transcript that the summary should name.
    #[error(
        "there is no store for the transcript; store.enabled = true gives one, summarize.transcript = false needs none"
    )]
    NoStore,
    /// No summary was produced or stored.
    #[error("the summary was not made")]
    Summary(#[source] SummaryError),
    /// The engine failed.
    #[error("the summary was not made")]
    Engine(#[source] EngineError),
    /// There is a reason not to make one.
    #[error("the summary was not made: {0}")]
    SkippedChange(SkipReason),
    /// The reason is not known.
    #[error("the summary was not made")]
    Unknown,
}

impl EditedBody {
    /// The outcome of the summary; `has_summarize` says whether the policy contains `summarize`.
    pub fn manual_outcome(&self, has_summarize: bool) -> ManualOutcome {
        if let Some(error) = self.parse_error {
            return Err(ManualSummaryError::NotUnderstood(error));
        }
        if !has_summarize {
            return Err(ManualSummaryError::Disabled);
        }
        if let Some(error) = &self.summary_error {
            return Err(ManualSummaryError::Summary(error.clone()));
        }
        let report = self.report.as_ref();
        let (changes, left_out) = report.map(|report| (&*report.changes, &*report.left_out)).unwrap_or_default();
        if changes.iter().any(|change| matches!(change.action, Action::Summarize { .. })) {
            return Ok(true);
        }
        if let Some(error) = &self.error {
            return Err(ManualSummaryError::Engine(error.clone()));
        }
        match left_out.iter().find(|left_out| left_out.edit == Summarize::LABEL).map(|SkippedChange { why, .. }| why) {
            None | Some(SkipReason::TooLittle) => Ok(false),
            Some(SkipReason::NoStore) => Err(ManualSummaryError::NoStore),
            Some(why) => Err(ManualSummaryError::SkippedChange(*why)),
        }
    }
}
