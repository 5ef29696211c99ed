//! The task that makes one summary: which models are called, with which input, and how failures are retried.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::call::{self, CallError, Retry};
use super::endpoints::{Candidate, RequestSpec, tokens_of};
use super::{Summarizer, SummaryOrigin};
use crate::body::Lease;
use crate::dialect::{Answer, Stop, Usage};
use crate::edit::summarize::{PromptMode, answer, instruction};
use crate::engine::EngineConfig;
use crate::engine::disks::PersistError;
use crate::engine::flight::{Flight, SummaryError};
use crate::engine::summaries::{Leader, Turn};
use crate::events::{Event, EventKind};
use crate::handler::{self, HandlerAsk, MAX_ANSWER};
use crate::held::Held;
use crate::ledger::Figures;
use crate::payload::{Lifetime, Place};
use crate::plan::SummaryJob;
use crate::summary::{InputElement, Summary, SummaryInput};
use crate::tasks::run_blocking;
use crate::tokens::Gauge;

/// One summary being made.
pub(super) struct SummaryTask {
    pub(super) summarizer: Arc<Summarizer>,
    pub(super) config: Arc<EngineConfig>,
    pub(super) job: SummaryJob,
    pub(super) origin: SummaryOrigin,
    pub(super) flight: Arc<Flight>,
    pub(super) began: Instant,
    pub(super) calls: Held<Calls>,
}

/// The calls so far.
#[derive(Clone, Copy, Default)]
pub(super) struct Calls {
    number: usize,
    /// Their billed tokens.
    usage: Option<Usage>,
}

/// A summary with the number of its tokens.
struct CountedSummary {
    summary: Summary,
    tokens: usize,
}

/// How many times `summarize.timeout` a summary may take as long as its answer keeps coming.
const STEADY: u32 = 15;

/// The first pause between two attempts, and the longest, without jitter.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// How often the input is halved for a model that refuses it as too long.
const MAX_HALVINGS: usize = 2;

/// The token limit of a summary if the settings give none.
const DEFAULT_MAX_TOKENS: usize = 8192;

/// The longest input that a handler is sent, in bytes.
const MAX_INPUT: usize = 4 << 20;

/// A reserve of tokens for the request beside its messages and its instruction.
const SLACK: usize = 64;

impl SummaryTask {
    /// Makes the summary, from the event that announces it to its end.
    pub(super) async fn run(self, leader: Leader) {
        let Self { summarizer, config, job, began, .. } = &self;
        let within = config.summarize().timeout.0;
        let longest = within.saturating_mul(STEADY);
        let turn = summarizer.summaries.take_turn(Place { root: job.root, beginning: job.key }, &self.flight);
        let lease = match timeout(within, turn).await {
            Ok(Ok(Turn::Make(lease))) => lease,
            Ok(Ok(Turn::Made)) => return leader.end(Ok(())),
            Ok(Err(error)) => return leader.end(Err(error)),
            // Another process still reads a slow answer. Later requests use it once it is stored, and do not wait for it.
            Err(_) => return leader.fail(SummaryError::TimedOut(within), longest),
        };
        let (model, Range { start: from, end: to }) = (job.model.clone(), job.covers.clone());
        self.publish(EventKind::SummaryBefore { model, from, to, tokens: job.tokens, waits: job.waits });
        let mut input = Lease::default();
        let making = timeout(longest, self.written(&mut input));
        let written = match lease.as_ref() {
            None => making.await,
            Some(lease) => tokio::select! {
                made = making => made,
                never = lease.renew() => match never {},
            },
        };
        let stored = match written.unwrap_or(Err(SummaryError::TimedOut(longest))) {
            Ok(CountedSummary { summary, tokens }) => {
                let content = summary.text.clone();
                self.persist(summary).await.map(|()| (tokens, content))
            }
            Err(error) => Err(error),
        };
        let (milliseconds, tokens_before) = (millis(*began), job.tokens);
        let (tokens_after, content) = stored.as_ref().ok().cloned().unzip();
        let error = stored.as_ref().err().map(ToString::to_string);
        match &error {
            None => tracing::info!(model = job.model, tokens_before, tokens_after, milliseconds, "a summary was made"),
            Some(error) => {
                tracing::warn!(model = job.model, tokens_before, milliseconds, error, "a summary was not made");
            }
        }
        let Calls { number, usage } = self.calls.with(|calls| *calls);
        self.publish(EventKind::SummaryAfter { tokens_before, tokens_after, error, milliseconds, usage, content });
        summarizer.counts.with(|counts| *(if stored.is_ok() { &mut counts.made } else { &mut counts.failed }) += 1);
        let Err(error) = stored else {
            let Self { summarizer, job, .. } = self;
            summarizer.summaries.recent.note(job.outline);
            return leader.end(Ok(()));
        };
        let is_free = number == 0 && matches!(error, SummaryError::Abandoned | SummaryError::Busy);
        let cooldown = (!is_free).then_some(config.summarize().cooldown.0);
        if let Some(lease) = lease {
            lease.release(cooldown).await;
        }
        match cooldown {
            Some(cooldown) => leader.fail(error, cooldown),
            None => leader.end(Err(error)),
        }
    }

    /// Stores a summary, and before it the transcript that it names.
    async fn persist(&self, summary: Summary) -> Result<(), SummaryError> {
        let (job, summaries) = (&self.job, Arc::clone(&self.summarizer.summaries));
        let disks = summaries.disks.clone();
        let transcript = job.transcript.iter().cloned().collect();
        disks.persist(self.config.export_dir(), transcript, Lifetime::Usual).await?;
        let place = Place { root: job.root, beginning: job.key };
        let stored = disks.breaker.call(async move { summaries.put(place, summary).await }).await;
        let is_theirs = stored.map_err(PersistError::Breaker)?.map_err(PersistError::Store)?;
        self.summarizer.counts.with(|counts| counts.theirs += u64::from(is_theirs));
        Ok(())
    }

    fn publish(&self, kind: EventKind) {
        let SummaryOrigin { request_id, caller, .. } = &self.origin;
        self.summarizer.events.publish(Event { request_id: request_id.clone(), caller: Some(*caller), kind });
    }

    /// When no call begins any more.
    fn deadline(&self) -> Instant {
        self.began + self.config.summarize().timeout.0
    }

    /// Calls one model after the other until one has produced a summary. The input is paid for by `lease`.
    async fn written(&self, lease: &mut Lease) -> Result<CountedSummary, SummaryError> {
        let _place = tokio::select! {
            place = self.summarizer.permits.acquire() => place.map_err(|_| SummaryError::ShuttingDown)?,
            () = self.flight.abandoned() => return Err(SummaryError::Abandoned),
        };
        let SummaryJob { source, transcript, .. } = &self.job;
        let messages: usize = source.messages.iter().map(|piece| piece.json.len()).sum();
        let transcript = transcript.as_ref().map_or(0, |transcript| transcript.payload.len());
        *lease = self.origin.budget.lease(source.body.len() + messages + transcript).ok_or(SummaryError::Busy)?;
        let candidates = self.config.endpoints.candidates(&self.origin);
        let mut last = no_request();
        let source = self.rewritten_input().await.map_or(Cow::Borrowed(source), Cow::Owned);
        for (n, one) in candidates.iter().enumerate() {
            // A silent model leaves time for those after it.
            let left = self.deadline().saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let idle_timeout = left / u32::try_from(candidates.len() - n).unwrap_or(u32::MAX);
            if !self.flight.is_wanted() {
                return Err(SummaryError::Abandoned);
            }
            match self.ask(one, &source, idle_timeout).await {
                Ok(written) => return Ok(written),
                Err(error) => last = error,
            }
        }
        Err(SummaryError::Failed(last.to_string().into()))
    }

    /// Calls one model, with retries.
    async fn ask(
        &self,
        candidate: &Candidate<'_>,
        source: &SummaryInput,
        idle_timeout: Duration,
    ) -> Result<CountedSummary, CallError> {
        let (host, model) = (candidate.target.authority().cloned(), self.model_of(candidate).map(str::to_owned));
        let (asked, plain_only) = ((host, model), &self.summarizer.plain_only);
        let mut spec = self.spec(candidate, source.clone(), plain_only.get(&asked).is_some());
        let mut was_refused = false;
        let (mut number, mut n_repeated, mut n_halved) = (0, 0, 0);
        loop {
            number += 1;
            let error = match self.attempt(candidate, &spec, number, idle_timeout).await {
                Ok(written) => {
                    if was_refused {
                        plain_only.insert(asked, ());
                    }
                    return Ok(written);
                }
                Err(error) => error,
            };
            let goes_on = self.flight.is_wanted() && Instant::now() < self.deadline();
            let retry = if goes_on { error.retry } else { Retry::Never };
            match retry {
                Retry::Plain if spec.input != PromptMode::Plain => {
                    tracing::info!(host = candidate.target.host(), model = candidate.model, %error, "the upstream refused a call for a summary, which is made once more as plain text");
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
                    let pause = pause.unwrap_or_else(|| backoff(u32::try_from(n_repeated).unwrap_or(u32::MAX)));
                    if Instant::now() + pause >= self.deadline() {
                        return Err(error);
                    }
                    tokio::select! {
                        () = sleep(pause) => {}
                        () = self.flight.abandoned() => return Err(error),
                    }
                }
                _ => return Err(error),
            }
        }
    }

    /// Makes one call and publishes its event.
    async fn attempt(
        &self,
        candidate: &Candidate<'_>,
        spec: &RequestSpec,
        number: usize,
        idle_timeout: Duration,
    ) -> Result<CountedSummary, CallError> {
        self.calls.with(|calls| calls.number += 1);
        self.summarizer.counts.with(|counts| counts.calls += 1);
        let (phase, began) = (candidate.phase, Instant::now());
        let written = self.call(candidate, spec, idle_timeout).await;
        let model = self.model_of(candidate).map(str::to_owned);
        let (error, milliseconds) = (written.as_ref().err().map(ToString::to_string), millis(began));
        tracing::debug!(?phase, number, model, error, milliseconds, "called a model for a summary");
        self.publish(EventKind::SummaryAttempt { phase, number, model, error, milliseconds });
        written
    }

    async fn call(
        &self,
        candidate: &Candidate<'_>,
        spec: &RequestSpec,
        idle_timeout: Duration,
    ) -> Result<CountedSummary, CallError> {
        let dialect = self.origin.dialect;
        let body = spec.request(dialect, candidate.model).ok_or_else(no_request)?;
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

    /// The name of the model that a call asks.
    fn model_of<'a>(&'a self, candidate: &Candidate<'a>) -> Option<&'a str> {
        candidate.model.or(self.job.model.as_deref())
    }

    fn bill(&self, candidate: &Candidate<'_>, answer: &Answer) {
        let model = self.model_of(candidate).unwrap_or_default();
        let of = [&*self.config.policy, self.origin.upstream.name().as_str(), model];
        let (rates, calls) = (&self.config.planner.rates, Figures { summaries: 1, ..Figures::default() });
        self.summarizer.ledger.add_own(rates, of, answer.usage, calls, self.origin.assignment.as_ref());
        if let Some(usage) = answer.usage {
            let Usage { input, cached, output, .. } = usage;
            self.summarizer.counts.with(|counts| counts.usage += Usage { input, cached, output, ..Usage::default() });
            self.calls.with(|calls| *calls.usage.get_or_insert_default() += usage);
        }
    }

    /// The summary that replaces the messages, if it is smaller than they are.
    async fn counted(&self, text: String) -> Result<CountedSummary, CallError> {
        let tokens = self.tokens(&text).await?;
        answer::smaller(tokens, self.job.below_tokens)?;
        let transcript = self.job.transcript.as_ref().map(|transcript| transcript.key);
        let SummaryJob { tokens_replaced, n_elements: made_at, .. } = self.job;
        Ok(CountedSummary { summary: Summary { text, tokens_replaced, made_at, transcript }, tokens })
    }

    /// The tokens of a text in a request of the client.
    async fn tokens(&self, text: &str) -> Result<usize, CallError> {
        let (gauge, text) = (self.gauge(None), text.to_owned());
        let counted = run_blocking(move || gauge.text(&text)).await;
        counted.map_err(|_| CallError::new("the tokens of the answer could not be counted", Retry::Never))
    }

    /// The token counter of a model, or of the request's model.
    fn gauge(&self, model: Option<&str>) -> Gauge {
        let own = self.job.model.as_deref();
        let gauge = self.config.planner.meter.for_model(model.or(own));
        if model.is_none_or(|model| own == Some(model)) { gauge.billed_at(self.job.factor) } else { gauge }
    }

    /// The first request to a model.
    fn spec(&self, candidate: &Candidate<'_>, source: SummaryInput, plain_only: bool) -> RequestSpec {
        let (summarize, language) = (self.config.summarize(), self.config.planner.settings.language);
        // Another model has nothing of the conversation in its prompt cache, and needs no more of it.
        let is_other = candidate.model.is_some_and(|model| self.job.model.as_deref() != Some(model));
        let input = match summarize.input {
            PromptMode::Cached if is_other => PromptMode::Fresh,
            input => input,
        };
        let window = self.gauge(candidate.model).window;
        let quarter = window.map_or(usize::MAX, |window| window / 4);
        let max_tokens = summarize.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS.min(quarter));
        let instruction = instruction::instruction(summarize, language).to_owned();
        let words = instruction.len() + instruction::words(language).middle_left_out.len();
        let (is_cut, most_tokens) = (false, usize::MAX);
        let mut spec = RequestSpec { input, language, source, is_cut, most_tokens, max_tokens, instruction };
        if plain_only || input == PromptMode::Plain {
            spec.become_plain();
        }
        if let Some(window) = window {
            spec.fit(window.saturating_sub(max_tokens + words.div_ceil(2) + SLACK));
        }
        spec
    }
}

// === handlers ===

/// The handlers that are asked while a summary is made. If one fails, the summary is made without it. Their answers are kept
/// with the summary, and nowhere else.
impl SummaryTask {
    /// The input of the model by `summarize.input_handler`: one message in place of all that is summarised.
    async fn rewritten_input(&self) -> Option<SummaryInput> {
        let handler = self.config.summarize().input_handler.as_deref()?;
        let source = &self.job.source;
        let (leading, region) = source.split()?;
        let lines: Vec<_> = region.iter().filter_map(|message| str::from_utf8(&message.json).ok()).collect();
        let text = lines.join("\n");
        let most_bytes = text.len();
        let answer = self.consult(handler, "summarize_input", text, most_bytes).await?;
        let json = self.origin.dialect.render_user_message(&answer);
        // As many tokens as its messages had: it is no longer than they are.
        let tokens = region.iter().map(|message| message.tokens).sum();
        let message = InputElement { json, tokens, opens: true, must_alternate: false };
        let messages = leading.iter().cloned().chain([message]).collect();
        Some(SummaryInput { messages, ..source.clone() })
    }

    /// The summary, as `summarize.finalize_handler` has it.
    async fn finalized(&self, summary: String) -> String {
        let Some(handler) = self.config.summarize().finalize_handler.as_deref() else { return summary };
        let answer = self.consult(handler, "summarize_finalize", summary.clone(), MAX_ANSWER).await;
        answer.unwrap_or(summary)
    }

    async fn consult(&self, handler: &str, edit: &'static str, text: String, most_bytes: usize) -> Option<String> {
        if text.len() > MAX_INPUT {
            return None;
        }
        let ask = HandlerAsk {
            key: self.job.key,
            handler: handler.into(),
            edit,
            conversation: Some(self.job.root),
            tool: String::new(),
            arguments: String::new(),
            text,
            left_out: None,
            most_bytes,
        };
        let patience = Instant::now() + self.config.handlers.get(handler)?.timeout;
        match self.summarizer.answers.ask(&self.config, &ask, patience.min(self.deadline())).await {
            handler::Answer::Replace { text } => Some(text),
            _ => None,
        }
    }
}

// === helpers ===

fn no_request() -> CallError {
    CallError::new("no request can be made of what the client sent", Retry::Never)
}

/// How long to wait before the `n`th retry: twice as long each time, and up to half of that as jitter.
fn backoff(n: u32) -> Duration {
    let (first, longest) = BACKOFF;
    let pause = first.saturating_mul(2_u32.saturating_pow(n.saturating_sub(1))).min(longest);
    let [dice, ..] = RandomState::new().hash_one(n).to_ne_bytes();
    pause + pause * u32::from(dice) / 510
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_with_up_to_half_as_jitter() {
        for (n, seconds) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (99, 10)] {
            let pause = Duration::from_secs(seconds);
            let pauses: Vec<_> = (0..64).map(|_| backoff(n)).collect();
            assert!(pauses.iter().all(|one| (pause..=pause * 3 / 2).contains(one)), "{pauses:?}");
            assert!(pauses.iter().any(|one| *one != pauses[0]), "{pauses:?}");
        }
    }
}
