//! Plays one transcript through one policy.

use std::collections::{BTreeMap, BTreeSet};

use super::figures::RequestFigures;
use super::sent_request::{SentRequest, SharedPrefix};
use super::summaries::{SummaryCache, SummarySource};
use super::{Figures, Prices, Transcript, TranscriptError};
use crate::dialect;
use crate::plan::{Action, Need};
use crate::planner::Planner;
use crate::span::{joined, splice};

/// Plays the transcript and returns its counts.
pub fn play(
    transcript: &Transcript,
    planner: &Planner,
    prices: Prices,
    summary_source: SummarySource<'_>,
) -> Result<Figures, TranscriptError> {
    let mut summaries = SummaryCache::default();
    let gauge = planner.meter.for_model(transcript.model());
    let mut figures = Figures::default();
    let (mut cleared, mut truncated, mut offloaded) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
    let mut before: Option<SentRequest> = None;
    for body in transcript.requests() {
        // A request that is not understood is sent unchanged, as in the proxy.
        let dialect = dialect::of_body(&body);
        let outcome = loop {
            let context = planner.anonymous(&summaries.0);
            let mut outcome = planner.policy.plan(dialect, &body, &context);
            let needs = outcome.as_mut().ok().and_then(|plan| plan.needs.take());
            let Some(Need::Make(job)) = needs else { break outcome };
            let waits = job.waits;
            let (call, made) = summaries.make(*job, summary_source, planner, &gauge, before.as_ref())?;
            figures.add_summary_call(call, made);
            if !waits {
                break outcome; // it is there for the next request
            }
        };
        let body = match outcome {
            Ok(plan) => {
                for change in &plan.report.changes {
                    match change.action {
                        Action::Clear { message } => drop(cleared.insert(message)),
                        Action::Truncate { message } => drop(truncated.insert(message)),
                        _ => {}
                    }
                }
                offloaded.extend(plan.offloads.iter().map(|job| (job.key, job.payload.len())));
                joined(splice(&body, &plan.splices))
            }
            Err(_) => body,
        };
        let sent = SentRequest::new(body, &gauge, before.as_ref())?;
        let shared_prefix =
            before.as_ref().map_or(SharedPrefix { tokens: 0, whole: true }, |before| sent.shared_prefix(before));
        figures.add_request(RequestFigures {
            tokens: sent.tokens(),
            shared: shared_prefix.tokens,
            window: gauge.window(),
            moved: !shared_prefix.whole,
        });
        before = Some(sent);
    }
    figures.results_cleared = cleared.len();
    figures.results_truncated = truncated.len();
    figures.bytes_offloaded = offloaded.values().sum();
    figures.compute_cost(prices);
    Ok(figures)
}
