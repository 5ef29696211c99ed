//! The task that makes one summary: which models are called, with which input, and how failures are retried.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::call::{self, CallError, Retry};
use super::endpoints::Candidate;
use super::{Summarizer, SummaryError, SummaryOrigin, millis};
use crate::body::Lease;
use crate::dialect::{Answer, Dialect, Stop, Usage};
use crate::edit::Language;
use crate::edit::summarize::{PromptMode, answer, as_text, fit, instruction};
use crate::engine::EngineConfig;
use crate::engine::flight::Flight;
use crate::events::{EventKind, Phase};
use crate::ledger::Figures;
use crate::plan::SummaryJob;
use crate::summary::{Prompt, Summary, SummaryInput};
use crate::tasks::run_blocking;
use crate::tokens::Gauge;

/// One summary being made.
pub(super) struct SummaryTask<'a> {
    pub(super) summarizer: &'a Summarizer,
    pub(super) config: &'a EngineConfig,
    pub(super) job: &'a SummaryJob,
    pub(super) origin: &'a SummaryOrigin,
    pub(super) flight: &'a Flight,
    /// The billed tokens of the calls so far.
    pub(super) usage: Option<Usage>,
    /// The number of calls so far.
    pub(super) n_calls: usize,
    /// The share of the memory budget that the input takes.
    pub(super) lease: Option<Lease>,
    /// The input of the model, if a handler has rewritten it.
    pub(super) rewritten: Option<SummaryInput>,
    pub(super) deadline: Instant,
}

/// A summary with the number of its tokens.
pub(super) struct CountedSummary {
    pub(super) summary: Summary,
    pub(super) tokens: usize,
}

/// Why a model is not called any more.
#[derive(derive_more::From)]
enum CandidateError {
    /// No request waits for the summary.
    Abandoned,
    /// A call failed, and no retry is left.
    #[from]
    Failed(CallError),
}

/// One call, whose event is published when it ends or is dropped.
struct Attempt<'a> {
    summarizer: &'a Summarizer,
    origin: &'a SummaryOrigin,
    phase: Phase,
    number: usize,
    model: Option<String>,
    began: Instant,
    is_published: bool,
}

/// The parameters of a request.
struct RequestSpec {
    input: PromptMode,
    language: Language,
    /// The part of the conversation to summarize that fits.
    source: SummaryInput,
    /// Whether something is left out of its middle.
    is_cut: bool,
    /// The most tokens of it in the plain form, which can be cut anywhere.
    most_tokens: usize,
    max_tokens: usize,
    instruction: String,
}

/// How often the input is halved for a model that refuses it as too long.
const MAX_HALVINGS: usize = 2;

/// The token limit of a summary if the settings give none.
const DEFAULT_MAX_TOKENS: usize = 8192;

/// A reserve of tokens for the request beside its messages and its instruction.
const SLACK: usize = 64;

impl SummaryTask<'_> {
    /// Calls one model after the other until one has produced a summary.
    pub(super) async fn run(&mut self) -> Result<CountedSummary, SummaryError> {
        let _place = tokio::select! {
            place = self.summarizer.permits.acquire() => place.map_err(|_| SummaryError::ShuttingDown)?,
            () = self.flight.abandoned() => return Err(SummaryError::Abandoned),
        };
        let SummaryJob { source, transcript, .. } = self.job;
        let messages: usize = source.messages.iter().map(|piece| piece.json.len()).sum();
        let transcript = transcript.as_ref().map_or(0, |transcript| transcript.payload.len());
        let bytes = source.body.len() + messages + transcript;
        self.lease = Some(self.origin.budget.lease(bytes).ok_or(SummaryError::Busy)?);
        let candidates = self.config.endpoints.candidates(self.origin);
        let mut last = CallError::NoRequest;
        self.rewritten = self.rewritten_input().await;
        for (n, one) in candidates.iter().enumerate() {
            // A silent model leaves time for those after it.
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let idle_timeout = left / u32::try_from(candidates.len() - n).unwrap_or(u32::MAX);
            match self.ask(one, idle_timeout).await {
                Ok(written) => return Ok(written),
                Err(CandidateError::Abandoned) => return Err(SummaryError::Abandoned),
                Err(CandidateError::Failed(error)) => last = error,
            }
        }
        Err(SummaryError::Failed(last.to_string().into()))
    }

    /// Calls one model, with retries.
    async fn ask(
        &mut self,
        candidate: &Candidate<'_>,
        idle_timeout: Duration,
    ) -> Result<CountedSummary, CandidateError> {
        let (name, gauge) = (candidate.name(self.job.model.as_deref()), self.gauge(candidate.model));
        let plain_only = self.summarizer.plain_only.lock().await.contains(&name);
        let mut spec = self.spec(candidate, &gauge, plain_only);
        let (mut n_repeated, mut n_halved, mut was_refused) = (0, 0, false);
        for number in 1.. {
            if !self.flight.is_wanted() {
                return Err(CandidateError::Abandoned);
            }
            let error = match self.attempt(candidate, &spec, number, idle_timeout).await {
                Ok(written) => {
                    if was_refused {
                        self.summarizer.note_plain_only(name).await;
                    }
                    return Ok(written);
                }
                Err(error) => error,
            };
            let retry = if Instant::now() < self.deadline { error.retry() } else { Retry::Never };
            match retry {
                Retry::Plain if spec.input != PromptMode::Plain => {
                    tracing::info!(model = name, %error, "the upstream refused a call for a summary, which is made once more as plain text");
                    was_refused = true;
                    spec.become_plain();
                }
                Retry::Shorter if n_halved < MAX_HALVINGS => {
                    let most_tokens = spec.most_tokens.min(tokens_of(&spec.source)) / 2;
                    spec.become_plain();
                    spec.most_tokens = most_tokens;
                    n_halved += 1;
                }
                Retry::Same(pause) if n_repeated < self.config.summarize().retry.max_retries => {
                    n_repeated += 1;
                    let n = u32::try_from(n_repeated).unwrap_or(u32::MAX);
                    let pause = pause.unwrap_or_else(|| self.summarizer.backoff(n));
                    if Instant::now() + pause >= self.deadline {
                        return Err(error.into());
                    }
                    tokio::select! {
                        () = sleep(pause) => {}
                        () = self.flight.abandoned() => return Err(CandidateError::Abandoned),
                    }
                }
                _ => return Err(error.into()),
            }
        }
        Err(CandidateError::Abandoned)
    }

    /// Makes one call and publishes its event.
    async fn attempt(
        &mut self,
        candidate: &Candidate<'_>,
        spec: &RequestSpec,
        number: usize,
        idle_timeout: Duration,
    ) -> Result<CountedSummary, CallError> {
        self.n_calls += 1;
        self.summarizer.counts.with(|counts| counts.calls += 1);
        let model = candidate.model.or(self.job.model.as_deref()).map(str::to_owned);
        let (summarizer, origin) = (self.summarizer, self.origin);
        let mut attempt = Attempt {
            summarizer,
            origin,
            phase: candidate.phase,
            number,
            model,
            began: Instant::now(),
            is_published: false,
        };
        let written = self.call(candidate, spec, idle_timeout).await;
        attempt.publish(written.as_ref().err().map(ToString::to_string));
        written
    }

    async fn call(
        &mut self,
        candidate: &Candidate<'_>,
        spec: &RequestSpec,
        idle_timeout: Duration,
    ) -> Result<CountedSummary, CallError> {
        let dialect = self.origin.dialect;
        let body = spec.request(dialect, candidate.model).ok_or(CallError::NoRequest)?;
        let answer = call::call(candidate, dialect, body, &self.config.summarize().retry, idle_timeout).await?;
        self.bill(candidate, &answer);
        let stop = match &answer.stop_reason {
            _ if answer.calls_tool => Stop::ToolCall,
            Some(reason) => dialect.stop(reason),
            None => Stop::Done,
        };
        let summary = answer::checked(answer.text.as_deref().unwrap_or_default(), stop)?;
        if summary.len() <= answer::SHORTEST_BYTES {
            answer::long_enough(self.tokens(&summary).await?, self.job.tokens)?;
        }
        let summary = self.finalized(summary).await;
        self.counted(self.job.frame.around(&summary)).await
    }

    fn bill(&mut self, candidate: &Candidate<'_>, answer: &Answer) {
        let model = candidate.model.or(self.job.model.as_deref()).unwrap_or_default();
        let of = [&*self.config.policy, self.origin.upstream.name().as_str(), model];
        let (rates, calls) = (&self.config.planner.rates, Figures { summaries: 1, ..Figures::default() });
        self.summarizer.ledger.add_own(rates, of, answer.usage, calls, self.origin.assignment.as_ref());
        if let Some(usage) = answer.usage {
            let Usage { input, cached, output, .. } = usage;
            self.summarizer.counts.with(|counts| counts.usage += Usage { input, cached, output, ..Usage::default() });
            *self.usage.get_or_insert_default() += usage;
        }
    }

    /// The summary that replaces the messages, if it is smaller than they are.
    async fn counted(&self, text: String) -> Result<CountedSummary, CallError> {
        let tokens = self.tokens(&text).await?;
        answer::smaller(tokens, self.job.tokens)?;
        let transcript = self.job.transcript.as_ref().map(|transcript| transcript.key);
        let SummaryJob { tokens_replaced, n_elements: made_at, .. } = *self.job;
        Ok(CountedSummary { summary: Summary { text, tokens_replaced, made_at, transcript }, tokens })
    }

    /// The tokens of a text in a request of the client.
    async fn tokens(&self, text: &str) -> Result<usize, CallError> {
        let (gauge, text) = (self.gauge(None), text.to_owned());
        run_blocking(move || gauge.text(&text)).await.map_err(|_| CallError::NotCounted)
    }

    /// The token counter of a model, or of the request's model.
    fn gauge(&self, model: Option<&str>) -> Gauge {
        let own = self.job.model.as_deref();
        let gauge = self.config.planner.meter.for_model(model.or(own));
        if model.is_none_or(|model| own == Some(model)) { gauge.billed_at(self.job.factor) } else { gauge }
    }

    /// The first request to a model.
    fn spec(&self, candidate: &Candidate<'_>, gauge: &Gauge, plain_only: bool) -> RequestSpec {
        let (summarize, language) = (self.config.summarize(), self.config.planner.settings.language);
        // Another model has nothing of the conversation in its prompt cache, and needs no more of it.
        let is_other = candidate.model.is_some_and(|model| self.job.model.as_deref() != Some(model));
        let input = match summarize.input {
            PromptMode::Cached if is_other => PromptMode::Fresh,
            input => input,
        };
        let quarter = gauge.window().map_or(usize::MAX, |window| window / 4);
        let max_tokens = summarize.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS.min(quarter));
        let instruction = instruction::instruction(summarize, language).into_owned();
        let words = instruction.len() + instruction::middle_left_out(language).len();
        let source = self.rewritten.as_ref().unwrap_or(&self.job.source).clone();
        let (is_cut, most_tokens) = (false, usize::MAX);
        let mut spec = RequestSpec { input, language, source, is_cut, most_tokens, max_tokens, instruction };
        if plain_only || input == PromptMode::Plain {
            spec.become_plain();
        }
        if let Some(window) = gauge.window() {
            spec.fit(window.saturating_sub(max_tokens + words.div_ceil(2) + SLACK));
        }
        spec
    }
}

impl RequestSpec {
    /// Leaves out the middle if the source has more tokens than this.
    fn fit(&mut self, most_tokens: usize) {
        if self.input == PromptMode::Plain {
            self.most_tokens = most_tokens;
            return;
        }
        let fitted = fit::fitted(&self.source, most_tokens);
        self.is_cut |= fitted.messages.len() < self.source.messages.len();
        self.source = fitted;
    }

    /// Takes the plain form, which has none of the client's instructions and tools.
    fn become_plain(&mut self) {
        self.input = PromptMode::Plain;
        self.source.messages.drain(..self.source.n_leading.min(self.source.messages.len()));
        (self.source.n_leading, self.source.base_tokens) = (0, 0);
    }

    fn request(&self, dialect: &dyn Dialect, model: Option<&str>) -> Option<Bytes> {
        let &Self { input, language, ref source, is_cut, most_tokens, max_tokens, ref instruction } = self;
        let mut instruction = Cow::Borrowed(instruction.as_str());
        let is_plain = input == PromptMode::Plain;
        if is_cut || is_plain && tokens_of(source) > most_tokens {
            instruction = format!("{instruction}\n\n{}", instruction::middle_left_out(language)).into();
        }
        let system = instruction::system(language);
        if is_plain {
            instruction = as_text::prompt(source, dialect, &[system, &instruction], most_tokens)?.into();
        }
        dialect.summary_request(source, &Prompt { input, system, instruction: &instruction, max_tokens, model })
    }
}

// === impl Attempt ===

impl Attempt<'_> {
    fn publish(&mut self, error: Option<String>) {
        self.is_published = true;
        let (phase, number, milliseconds) = (self.phase, self.number, millis(self.began));
        let model = self.model.take();
        tracing::debug!(?phase, number, model, error, milliseconds, "called a model for a summary");
        self.summarizer.publish(self.origin, EventKind::SummaryAttempt { phase, number, model, error, milliseconds });
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.is_published {
            self.publish(Some("the call was cancelled or took too long".to_owned()));
        }
    }
}

// === helpers ===

fn tokens_of(source: &SummaryInput) -> usize {
    source.base_tokens + fit::tokens(&source.messages)
}
