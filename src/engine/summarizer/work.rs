//! One summary being written: who is asked, for how much, and what is done about each failure.

use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::call::{self, CallError, Remedy};
use super::endpoints::Candidate;
use super::{Origin, Shared, millis};
use crate::body::Lease;
use crate::dialect::{Dialect, Stop, Usage};
use crate::edit::Language;
use crate::edit::summarize::{Input, answer, fit, instruction};
use crate::engine::Rules;
use crate::engine::error::SummaryError;
use crate::engine::flight::Flight;
use crate::events::{Phase, What};
use crate::plan::SummaryEffect;
use crate::summary::{Prompt, Source, Summary};
use crate::tasks::run_blocking;
use crate::tokens::Gauge;

/// A summary that is being written.
pub(super) struct Work<'a> {
    pub(super) shared: &'a Shared,
    pub(super) rules: &'a Rules,
    pub(super) effect: &'a SummaryEffect,
    pub(super) origin: &'a Origin,
    pub(super) flight: &'a Flight,
    /// What the calls were billed.
    pub(super) usage: Option<Usage>,
    /// How many there were.
    pub(super) n_calls: usize,
    /// Pays for what is summarised, as long as that is needed.
    pub(super) lease: Option<Lease>,
}

/// A summary that is written, and its tokens.
pub(super) struct Written {
    pub(super) summary: Summary,
    pub(super) tokens: usize,
}

/// Why somebody is not asked any more.
enum Stopped {
    /// Nobody waits.
    Deserted,
    /// There is no hope.
    Failed(CallError),
}

/// One call that is told when it ends, however that is.
struct Attempt<'a> {
    shared: &'a Shared,
    origin: &'a Origin,
    phase: Phase,
    number: usize,
    model: Option<String>,
    began: Instant,
    told: bool,
}

/// How a request is made.
struct Shape {
    input: Input,
    language: Language,
    /// What is summarised, as far as it fits.
    source: Source,
    /// Whether something is missing from its middle.
    is_cut: bool,
    max_tokens: usize,
    instruction: String,
}

/// How often the input is halved for a model that says that it is too long.
const MOST_HALVINGS: usize = 2;

/// The most tokens of a summary, where the settings do not say.
const MAX_TOKENS: usize = 8192;

/// Tokens of a request beside its messages and its instruction, to be on the safe side.
const SLACK: usize = 64;

impl Work<'_> {
    /// Asks one after the other, until somebody has written a summary.
    pub(super) async fn write(&mut self, deadline: Instant) -> Result<Written, SummaryError> {
        let _place = tokio::select! {
            place = self.shared.places.acquire() => place.map_err(|_| SummaryError::Ending)?,
            () = self.flight.abandoned() => return Err(SummaryError::Deserted),
        };
        let SummaryEffect { source, transcript, .. } = self.effect;
        let messages: usize = source.messages.iter().map(|piece| piece.json.len()).sum();
        let transcript = transcript.as_ref().map_or(0, |transcript| transcript.payload.len());
        let bytes = source.body.len() + messages + transcript;
        self.lease = Some(self.origin.budget.lease(bytes).ok_or(SummaryError::Busy)?);
        let candidates = self.rules.endpoints.candidates(self.origin);
        let mut last = CallError::NoRequest;
        for (n, one) in candidates.iter().enumerate() {
            // Whoever says nothing shall leave time for those who can be asked after it.
            let left = deadline.saturating_duration_since(Instant::now());
            let silence = left / u32::try_from(candidates.len() - n).unwrap_or(u32::MAX);
            match self.ask(one, deadline, silence).await {
                Ok(written) => return Ok(written),
                Err(Stopped::Deserted) => return Err(SummaryError::Deserted),
                Err(Stopped::Failed(error)) => last = error,
            }
        }
        Err(SummaryError::Failed(last.to_string().into()))
    }

    /// Asks one of them, as often as there is hope.
    async fn ask(
        &mut self,
        candidate: &Candidate<'_>,
        deadline: Instant,
        silence: Duration,
    ) -> Result<Written, Stopped> {
        let (name, gauge) = (candidate.name(self.effect.model.as_deref()), self.gauge(candidate.model));
        let refuses_tools = self.shared.plain.lock().await.contains(&name);
        let mut shape = self.shape(candidate, &gauge, refuses_tools);
        let (mut n_repeated, mut n_halved, mut was_refused) = (0, 0, false);
        for number in 1.. {
            if !self.flight.is_wanted() {
                return Err(Stopped::Deserted);
            }
            let error = match self.attempt(candidate, &shape, number, silence).await {
                Ok(written) => {
                    if was_refused {
                        self.shared.refuses_tools(name).await;
                    }
                    return Ok(written);
                }
                Err(error) => error,
            };
            match error.remedy() {
                Remedy::Plainer if shape.input == Input::Cached => {
                    was_refused = true;
                    shape.input = Input::Fresh;
                }
                Remedy::Shorter if n_halved < MOST_HALVINGS && shape.fit(tokens_of(&shape.source) / 2) => n_halved += 1,
                Remedy::Again(pause) if n_repeated < self.rules.summarize().retry.max_retries => {
                    n_repeated += 1;
                    let n = u32::try_from(n_repeated).unwrap_or(u32::MAX);
                    let pause = pause.unwrap_or_else(|| self.shared.pause(n));
                    if Instant::now() + pause >= deadline {
                        return Err(error.into());
                    }
                    tokio::select! {
                        () = sleep(pause) => {}
                        () = self.flight.abandoned() => return Err(Stopped::Deserted),
                    }
                }
                _ => return Err(error.into()),
            }
        }
        Err(Stopped::Deserted)
    }

    /// One call, told to whoever listens.
    async fn attempt(
        &mut self,
        candidate: &Candidate<'_>,
        shape: &Shape,
        number: usize,
        silence: Duration,
    ) -> Result<Written, CallError> {
        self.n_calls += 1;
        self.shared.counts.calls.fetch_add(1, Ordering::Relaxed);
        let model = candidate.model.or(self.effect.model.as_deref()).map(str::to_owned);
        let (shared, origin) = (self.shared, self.origin);
        let mut attempt =
            Attempt { shared, origin, phase: candidate.phase, number, model, began: Instant::now(), told: false };
        let written = self.call(candidate, shape, silence).await;
        attempt.tell(written.as_ref().err().map(ToString::to_string));
        written
    }

    async fn call(
        &mut self,
        candidate: &Candidate<'_>,
        shape: &Shape,
        silence: Duration,
    ) -> Result<Written, CallError> {
        let dialect = self.origin.dialect;
        let body = shape.request(dialect, candidate.model).ok_or(CallError::NoRequest)?;
        let answer = call::call(candidate, dialect, body, silence).await?;
        if let Some(usage) = answer.usage {
            self.shared.add(usage);
            *self.usage.get_or_insert_default() += usage;
        }
        let stop = match &answer.stop_reason {
            _ if answer.calls_tool => Stop::ToolCall,
            Some(reason) => dialect.stop(reason),
            None => Stop::Done,
        };
        let summary = answer::checked(answer.text.as_deref().unwrap_or_default(), stop)?;
        let text = self.effect.frame.around(&summary);
        let (gauge, measured) = (self.gauge(None), text.clone());
        let tokens = run_blocking(move || gauge.text(&measured)).await.map_err(|_| CallError::Unmeasured)?;
        answer::smaller(tokens, self.effect.tokens)?;
        let transcript = self.effect.transcript.as_ref().map(|transcript| transcript.key);
        Ok(Written { summary: Summary { text, tokens_replaced: self.effect.tokens_replaced, transcript }, tokens })
    }

    /// What counts for a model, or for that of the request.
    fn gauge(&self, model: Option<&str>) -> Gauge {
        self.rules.planner.meter.for_model(model.or(self.effect.model.as_deref()))
    }

    /// The first request that somebody is sent.
    fn shape(&self, candidate: &Candidate<'_>, gauge: &Gauge, refuses_tools: bool) -> Shape {
        let (summarize, language) = (self.rules.summarize(), self.rules.planner.parts.language);
        // No other model has anything of the conversation in its cache, and none needs to know more of it.
        let is_other = candidate.model.is_some_and(|model| self.effect.model.as_deref() != Some(model));
        let input = if is_other || refuses_tools { Input::Fresh } else { summarize.input };
        let quarter = gauge.window().map_or(usize::MAX, |window| window / 4);
        let max_tokens = summarize.max_tokens.unwrap_or(MAX_TOKENS.min(quarter));
        let instruction = instruction::instruction(summarize, language).into_owned();
        let words = instruction.len() + instruction::middle_left_out(language).len();
        let source = self.effect.source.clone();
        let mut shape = Shape { input, language, source, is_cut: false, max_tokens, instruction };
        if let Some(window) = gauge.window() {
            shape.fit(window.saturating_sub(max_tokens + words.div_ceil(2) + SLACK));
        }
        shape
    }
}

impl Shape {
    /// Leaves out the middle of what has more tokens than this. Whether anything was left out.
    fn fit(&mut self, most_tokens: usize) -> bool {
        let fitted = fit::fitted(&self.source, most_tokens);
        let is_shorter = fitted.messages.len() < self.source.messages.len();
        self.source = fitted;
        self.is_cut |= is_shorter;
        is_shorter
    }

    fn request(&self, dialect: &dyn Dialect, model: Option<&str>) -> Option<Bytes> {
        let &Self { input, language, ref source, is_cut, max_tokens, ref instruction } = self;
        let mut instruction = Cow::Borrowed(instruction.as_str());
        if is_cut {
            instruction = format!("{instruction}\n\n{}", instruction::middle_left_out(language)).into();
        }
        let system = instruction::system(language);
        dialect.summary_request(source, &Prompt { input, system, instruction: &instruction, max_tokens, model })
    }
}

// === impl Attempt ===

impl Attempt<'_> {
    fn tell(&mut self, error: Option<String>) {
        self.told = true;
        let (phase, number, milliseconds) = (self.phase, self.number, millis(self.began));
        let model = self.model.take();
        tracing::debug!(?phase, number, model, error, milliseconds, "asked for a summary");
        self.shared.publish(self.origin, What::SummaryAttempt { phase, number, model, error, milliseconds });
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.told {
            self.tell(Some("it took too long".to_owned()));
        }
    }
}

impl From<CallError> for Stopped {
    fn from(error: CallError) -> Self {
        Self::Failed(error)
    }
}

// === helpers ===

fn tokens_of(source: &Source) -> usize {
    source.base_tokens + source.messages.iter().map(|piece| piece.tokens).sum::<usize>()
}
