//! Plays one transcript through one policy.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::figures::RequestFigures;
use super::sent_request::{SentRequest, SharedPrefix};
use super::summaries::{SummaryCache, SummarySource};
use super::{Conditions, Figures, Prices, Transcript, TranscriptError};
use crate::dialect::{self, ParseError};
use crate::payload::PayloadKey;
use crate::plan::{Action, Need, Plan};
use crate::planner::Planner;
use crate::span::{joined, splice};
use crate::tokens::Gauge;

/// Sends the requests of one session, one after another.
#[derive(Debug)]
pub(super) struct Player<'a> {
    planner: &'a Planner,
    summary_source: SummarySource<'a>,
    gauge: Gauge,
    summaries: SummaryCache,
    figures: Figures,
    cleared: BTreeSet<usize>,
    truncated: BTreeSet<usize>,
    offloaded: BTreeMap<PayloadKey, usize>,
    before: Option<SentRequest>,
    /// The tokens of each request.
    tokens: Vec<usize>,
    has_edited: bool,
}

/// What has become of a session.
#[derive(Debug)]
pub(super) struct Played {
    pub(super) figures: Figures,
    /// The tokens of each request.
    pub(super) tokens: Vec<usize>,
    /// Whether a request has been edited.
    pub(super) has_edited: bool,
    /// The summaries that were made.
    pub(super) summaries: SummaryCache,
}

/// Plays the transcript.
pub(super) fn play(
    transcript: &Transcript,
    planner: &Planner,
    conditions: &Conditions<'_>,
) -> Result<Played, TranscriptError> {
    let mut player = Player::new(transcript.model(), planner, conditions.summary_source, SummaryCache::default());
    for body in transcript.requests() {
        player.edit_and_send(body)?;
    }
    Ok(player.finish(conditions.prices))
}

/// The cost of the transcript without edits, as the policy counts tokens.
pub(super) fn play_unedited(
    transcript: &Transcript,
    planner: &Planner,
    prices: Prices,
) -> Result<u64, TranscriptError> {
    let source = SummarySource::default();
    let mut player = Player::new(transcript.model(), planner, source, SummaryCache::default());
    for body in transcript.requests() {
        player.send(body)?;
    }
    Ok(player.finish(prices).figures.cost)
}

// === impl Player ===

impl<'a> Player<'a> {
    /// A player of a session that asks `model`. `summaries` need not be made again.
    pub(super) fn new(
        model: Option<&str>,
        planner: &'a Planner,
        summary_source: SummarySource<'a>,
        summaries: SummaryCache,
    ) -> Self {
        Self {
            planner,
            summary_source,
            gauge: planner.meter.for_model(model),
            summaries,
            figures: Figures::default(),
            cleared: BTreeSet::new(),
            truncated: BTreeSet::new(),
            offloaded: BTreeMap::new(),
            before: None,
            tokens: Vec::new(),
            has_edited: false,
        }
    }

    /// Edits a request and sends it.
    pub(super) fn edit_and_send(&mut self, body: Bytes) -> Result<&SentRequest, TranscriptError> {
        // A request that is not understood is sent unchanged, as in the proxy.
        let body = match self.plan(&body)? {
            Ok(plan) => {
                for change in &plan.report.changes {
                    match change.action {
                        Action::Clear { message } => drop(self.cleared.insert(message)),
                        Action::Truncate { message } => drop(self.truncated.insert(message)),
                        _ => {}
                    }
                }
                self.offloaded.extend(plan.offloads.iter().map(|job| (job.key, job.payload.len())));
                self.has_edited |= !plan.is_empty();
                joined(splice(&body, &plan.splices))
            }
            Err(_) => body,
        };
        self.send(body)
    }

    /// Plans a request, and has the summaries made that it waits for.
    fn plan(&mut self, body: &Bytes) -> Result<Result<Plan, ParseError>, TranscriptError> {
        let dialect = dialect::of_body(body);
        loop {
            let context = self.planner.anonymous(&self.summaries.0);
            let mut planned = self.planner.policy.plan(dialect, body, &context);
            let needs = planned.as_mut().ok().and_then(|plan| plan.needs.take());
            let Some(Need::Make(job)) = needs else { return Ok(planned) };
            let waits = job.waits;
            let (call, made) =
                self.summaries.make(*job, self.summary_source, self.planner, &self.gauge, self.before.as_ref())?;
            self.figures.add_summary_call(call, made);
            if !waits {
                return Ok(planned); // it is there for the next request
            }
        }
    }

    /// Sends a request as it is.
    pub(super) fn send(&mut self, body: Bytes) -> Result<&SentRequest, TranscriptError> {
        let sent = SentRequest::new(body, &self.gauge, self.before.as_ref())?;
        let unmoved = SharedPrefix { tokens: 0, whole: true };
        let shared_prefix = self.before.as_ref().map_or(unmoved, |before| sent.shared_prefix(before));
        self.tokens.push(sent.tokens());
        self.figures.add_request(RequestFigures {
            tokens: sent.tokens(),
            shared: shared_prefix.tokens,
            window: self.gauge.window(),
            moved: !shared_prefix.whole,
        });
        Ok(self.before.insert(sent))
    }

    /// What has become of the session at these prices.
    pub(super) fn finish(mut self, prices: Prices) -> Played {
        self.figures.results_cleared = self.cleared.len();
        self.figures.results_truncated = self.truncated.len();
        self.figures.bytes_offloaded = self.offloaded.values().sum();
        self.figures.compute_cost(prices);
        let Self { figures, tokens, has_edited, summaries, .. } = self;
        Played { figures, tokens, has_edited, summaries }
    }
}
