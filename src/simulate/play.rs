//! Sends the requests of one transcript under one policy, and makes its summaries.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use super::bill::Counted;
use super::sent_request::SentRequest;
use super::transcript::{Insertion, N_INSERTED};
use super::{Figures, Judged, Measure, Outcome, Sightings, Transcript, TranscriptError};
use crate::dialect::{self, ParseError};
use crate::edit::summarize::instruction;
use crate::payload::{ChainKey, PayloadKey};
use crate::plan::{Action, Need, Plan, SummaryJob};
use crate::planner::{ColdPasses, PlanContext, Planner};
use crate::span::{joined, splice};
use crate::summary::{Prompt, Summary, SummaryState};
use crate::tokens::Gauge;

/// Sends the requests of one session, one after another.
#[derive(Clone, derive_more::Debug)]
pub(super) struct Player<'a> {
    #[debug(skip)]
    measure: Measure<'a>,
    gauge: Gauge,
    summaries: HashMap<ChainKey, SummaryState>,
    figures: Figures,
    cleared: BTreeSet<usize>,
    truncated: BTreeSet<usize>,
    offloaded: BTreeMap<PayloadKey, usize>,
    pub(super) before: Option<SentRequest>,
    /// Each request, as it was sent.
    sent: Vec<Counted>,
    /// The calls for summaries since the last request.
    pub(super) summary_calls: Vec<Counted>,
    /// The requests at which the prompt cache had expired, by their numbers of messages.
    cold: Vec<usize>,
    pub(super) has_edited: bool,
    /// What was seen of the proxy that edits in place of the planner.
    sightings: Sightings,
}

// === impl Player ===

impl<'a> Player<'a> {
    /// A player of a session that asks `model`.
    pub(super) fn new(model: Option<&str>, measure: Measure<'a>) -> Self {
        Self {
            measure,
            gauge: measure.planner.meter.for_model(model),
            summaries: HashMap::new(),
            figures: Figures::default(),
            cleared: BTreeSet::new(),
            truncated: BTreeSet::new(),
            offloaded: BTreeMap::new(),
            before: None,
            sent: Vec::new(),
            summary_calls: Vec::new(),
            cold: Vec::new(),
            has_edited: false,
            sightings: Sightings::default(),
        }
    }

    /// Edits and sends a request of a transcript with what is inserted, in order, among its messages. Its prompt cache may have been
    /// kept by calls.
    pub(super) fn play(
        &mut self,
        transcript: &Transcript,
        request: usize,
        inserted: &[Insertion],
        is_kept: bool,
    ) -> Result<(), TranscriptError> {
        let Some(&n) = transcript.request_lengths.get(request) else { return Ok(()) };
        if !is_kept && transcript.was_cold(request) {
            self.cold.push(n + N_INSERTED * inserted.len());
        }
        let body = transcript.request(n, inserted);
        let edited = self.edit(&body)?;
        let sent = match self.measure.whole.filter(|_| inserted.is_empty() && edited == body) {
            Some(whole) => whole.beginning(n, edited),
            None => self.count(edited)?,
        };
        self.send(sent);
        Ok(())
    }

    /// The last request, as it was sent.
    pub(super) fn last_sent(&self) -> Counted {
        self.sent.last().copied().unwrap_or_default()
    }

    /// Edits a request and sends it.
    pub(super) fn edit_and_send(&mut self, body: &Bytes) -> Result<&SentRequest, TranscriptError> {
        let edited = self.edit(body)?;
        let sent = self.count(edited)?;
        Ok(self.send(sent))
    }

    fn edit(&mut self, body: &Bytes) -> Result<Bytes, TranscriptError> {
        if let Some(judged) = self.measure.judged {
            return Ok(self.edit_through(judged, body));
        }
        // A request that is not understood is sent unchanged, as in the proxy.
        Ok(match self.plan(body)? {
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
                joined(splice(body, &plan.splices))
            }
            Err(_) => body.clone(),
        })
    }

    /// Has the proxy under test edit a request.
    fn edit_through(&mut self, judged: &Judged, body: &Bytes) -> Bytes {
        let (sent, further) = self.sightings.enter(body, judged);
        for request in further {
            let Ok(request) = SentRequest::new(request, &self.gauge, None) else { continue };
            let call = request.counted(self.before.as_ref());
            self.figures.add_summary_call(call, true);
            self.summary_calls.push(call);
        }
        self.has_edited |= sent != *body;
        sent
    }

    /// Plans a request, and has the summaries made that it waits for.
    fn plan(&mut self, body: &Bytes) -> Result<Result<Plan, ParseError>, TranscriptError> {
        let Measure { planner, conditions, whole, .. } = self.measure;
        let dialect = whole.map_or_else(|| dialect::of_body(body), |whole| whole.dialect);
        loop {
            let cold_passes = ColdPasses::At(&self.cold);
            let context = PlanContext { cold_passes, ..planner.anonymous(&self.summaries) };
            let mut planned = planner.policy.plan(dialect, body, &context);
            let needs = planned.as_mut().ok().and_then(|plan| plan.needs.take());
            let Some(Need::Make(job)) = needs else { return Ok(planned) };
            let (waits, key) = (job.waits, job.key);
            let call = measure_call(&job, planner, &self.gauge, self.before.as_ref())?;
            let summary = match conditions.model {
                Some(model) => model(*job),
                None => stand_in(&job, conditions.summary_tokens, &self.gauge),
            };
            self.figures.add_summary_call(call, summary.is_some());
            self.summary_calls.push(call);
            self.summaries.insert(key, summary.map_or(SummaryState::CoolingDown, SummaryState::Summary));
            if !waits {
                return Ok(planned); // it is there for the next request
            }
        }
    }

    /// Counts a request as it is sent.
    fn count(&self, body: Bytes) -> Result<SentRequest, TranscriptError> {
        let before = self.before.as_ref();
        match self.measure.whole {
            Some(whole) => SentRequest::of(whole.dialect, body, &self.gauge, before),
            None => SentRequest::new(body, &self.gauge, before),
        }
    }

    fn send(&mut self, sent: SentRequest) -> &SentRequest {
        let prefix = self.before.as_ref().map(|before| sent.shared_prefix(before));
        let counted = Counted { tokens: sent.tokens(), shared: prefix.map(|prefix| prefix.tokens) };
        self.enter(counted, prefix.is_some_and(|prefix| !prefix.whole));
        self.before.insert(sent)
    }

    /// Enters a request that was sent, and does not begin with the one before if it has `moved`.
    pub(super) fn enter(&mut self, sent: Counted, moved: bool) {
        self.sent.push(sent);
        self.figures.add_request(sent, self.gauge.window, moved);
    }

    /// Returns what has become of the session.
    pub(super) fn finish(mut self) -> Outcome {
        self.figures.results_cleared = self.cleared.len();
        self.figures.results_truncated = self.truncated.len();
        self.figures.bytes_offloaded = self.offloaded.values().sum();
        self.figures.compute_cost(self.measure.conditions.prices);
        self.sightings.micros.sort_unstable();
        let sightings = self.measure.judged.map(|_| self.sightings);
        let tokens = self.sent.iter().map(|sent| sent.tokens).collect();
        Outcome { figures: self.figures, sightings, tokens, ..Outcome::default() }
    }
}

// === summaries ===

/// The default limit of an answer, in tokens.
const DEFAULT_MAX_TOKENS: usize = 8192;

/// A summary of about so many tokens, within the usual frame, unless it is larger than what it replaces.
fn stand_in(job: &SummaryJob, tokens: usize, gauge: &Gauge) -> Option<Arc<Summary>> {
    let text = job.frame.around(&vec!["word"; tokens].join(" "));
    let dialect = dialect::of_body(&job.source.body);
    let message = dialect.render_user_message(&text);
    let transcript = job.transcript.as_ref().map(|job| job.key);
    let SummaryJob { tokens_replaced, n_elements: made_at, .. } = *job;
    let summary = Summary { text, tokens_replaced, made_at, transcript };
    (dialect.element_tokens(gauge, &message) < job.tokens).then(|| Arc::new(summary))
}

/// The input of the call for a summary, and the part of it that a cache with the request before could serve.
fn measure_call(
    job: &SummaryJob,
    planner: &Planner,
    gauge: &Gauge,
    before: Option<&SentRequest>,
) -> Result<Counted, TranscriptError> {
    let (settings, language) = (&planner.settings.summarize, planner.settings.language);
    let instruction = instruction::instruction(settings, language);
    let max_tokens = settings.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
    let (input, system) = (settings.input, &*instruction::words(language).system);
    let prompt = Prompt { input, system, instruction, max_tokens, model: None };
    let dialect = dialect::of_body(&job.source.body);
    let Some(body) = dialect.summary_request(&job.source, &prompt) else { return Ok(Counted::default()) };
    Ok(SentRequest::new(body, gauge, before)?.counted(before))
}
