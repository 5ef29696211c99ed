//! Makes the summaries of a simulated session.

use std::sync::Arc;

use super::TranscriptError;
use super::bill::Counted;
use super::sent_request::SentRequest;
use crate::dialect;
use crate::edit::summarize::instruction;
use crate::plan::SummaryJob;
use crate::planner::Planner;
use crate::summary::{Prompt, Summary};
use crate::tokens::Gauge;

/// The source of summaries in a simulation.
#[derive(Clone, Copy, derive_more::Debug)]
pub enum SummarySource<'a> {
    /// No model: a text of about so many tokens replaces each summary, within the usual frame.
    StandIn(usize),
    /// A model, whose calls may fail.
    #[debug("Model")]
    Model(&'a (dyn Fn(SummaryJob) -> Option<Arc<Summary>> + Sync)),
}

/// The default limit of an answer, in tokens.
const DEFAULT_MAX_TOKENS: usize = 8192;

impl Default for SummarySource<'_> {
    /// A stand-in text of about two pages.
    fn default() -> Self {
        Self::StandIn(1500)
    }
}

impl SummarySource<'_> {
    /// The tokens of the text that replaces each summary; `None` if a model makes summaries.
    pub(super) fn stand_in(self) -> Option<usize> {
        if let Self::StandIn(tokens) = self { Some(tokens) } else { None }
    }

    /// The summary that a job asks for, if there is one.
    pub(super) fn make(self, job: SummaryJob, gauge: &Gauge) -> Option<Arc<Summary>> {
        match self {
            Self::Model(make) => make(job),
            Self::StandIn(tokens) => stand_in_summary(&job, tokens, gauge),
        }
    }
}

/// A summary of meaningless words; `None` if it would be larger than what it replaces.
fn stand_in_summary(job: &SummaryJob, tokens: usize, gauge: &Gauge) -> Option<Arc<Summary>> {
    let text = job.frame.around(&vec!["word"; tokens].join(" "));
    let dialect = dialect::of_body(&job.source.body);
    let message = dialect.render_user_message(&text);
    let summary = Summary {
        text,
        tokens_replaced: job.tokens_replaced,
        made_at: job.n_elements,
        transcript: job.transcript.as_ref().map(|job| job.key),
    };
    (dialect.element_tokens(gauge, &message) < job.tokens).then(|| Arc::new(summary))
}

/// The input of the call for a summary, and the part of it that a cache with the request before could serve.
pub(super) fn measure_call(
    job: &SummaryJob,
    planner: &Planner,
    gauge: &Gauge,
    before: Option<&SentRequest>,
) -> Result<Counted, TranscriptError> {
    let (settings, language) = (&planner.settings.summarize, planner.settings.language);
    let instruction = instruction::instruction(settings, language);
    let max_tokens = settings.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
    let (input, system) = (settings.input, instruction::system(language));
    let prompt = Prompt { input, system, instruction: &instruction, max_tokens, model: None };
    let dialect = dialect::of_body(&job.source.body);
    let Some(body) = dialect.summary_request(&job.source, &prompt) else { return Ok(Counted::default()) };
    Ok(SentRequest::new(body, gauge, before)?.counted(before))
}
