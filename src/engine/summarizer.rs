//! Has summaries made: calls a model, checks what it answers, tries again, asks others, and keeps the result.
//!
//! One summary is made at a time for one beginning of a conversation, however many wait for it, by a task of its own. It is
//! tried for `summarize.timeout`, and then not again for `summarize.cooldown`. Whoever waits goes on without one, then.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Uri};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use super::flight::{Flight, Takeoff};
use super::summaries::{Begin, Summaries};
use super::{Rules, export};
use crate::body::{Budget, Lease};
use crate::edit::summarize::Input;
use crate::edit::summarize::answer::{self, Answer};
use crate::edit::summarize::{instruction, request};
use crate::events::{Event, Events, Phase, Usage, What};
use crate::payload::Caller;
use crate::plan::SummaryEffect;
use crate::store::{Store, StoreError};
use crate::summary::{Source, Summary};
use crate::tasks::{Tasks, blocking};
use crate::tokens::Gauge;
use crate::upstream::Upstream;

mod call;
mod endpoints;
mod stream;

use call::{CallError, Remedy};
use endpoints::Asked;
pub use endpoints::{EndpointError, Endpoints};

/// The request that wants a summary.
#[derive(Debug)]
pub struct Origin {
    /// Its id, for events.
    pub request_id: Option<String>,
    /// Whose it is.
    pub caller: Caller,
    /// Where it goes.
    pub target: Uri,
    /// Its headers, but for those of one hop.
    pub headers: HeaderMap,
    /// The upstream that it goes to.
    pub upstream: Upstream,
    /// What the bodies of requests may take: the call may outlive its request.
    pub budget: Budget,
}

/// Makes summaries. Clones share what is being made.
#[derive(Clone, Debug)]
pub struct Summarizer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    summaries: Arc<Summaries>,
    store: Option<Arc<dyn Store>>,
    tasks: Tasks,
    events: Events,
    places: Semaphore,
    // Who has refused requests with tools: hosts and models.
    plain: Mutex<HashSet<String>>,
    counts: Counts,
    jitter: RandomState,
}

/// Why there is no summary.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Unmade {
    /// It could not be made a short time ago.
    #[error("it could not be made a short time ago")]
    NotNow,
    /// It took too long.
    #[error("it was not made within {} ms", .0.as_millis())]
    Slow(Duration),
    /// Nobody who was asked has made it.
    #[error("{0}")]
    Failed(Arc<str>),
    /// It could not be kept.
    #[error("it could not be stored")]
    NotKept(#[source] StoreError),
    /// Its transcript could not be written to `recall.export_dir`.
    #[error("its transcript could not be written to recall.export_dir")]
    NotExported(#[source] Arc<std::io::Error>),
    /// Too many are being made, or what they are made from takes too much memory.
    #[error("too many summaries are being made")]
    Busy,
    /// Nobody waits for it any more.
    #[error("nobody waits for it any more")]
    Deserted,
    /// The task that made it has ended.
    #[error("abridge is ending, or has a bug")]
    Ending,
}

#[derive(Debug, Default)]
struct Counts {
    made: AtomicU64,
    failed: AtomicU64,
    joined: AtomicU64,
    calls: AtomicU64,
    prompt: AtomicU64,
    cached: AtomicU64,
    completion: AtomicU64,
}

/// Numbers about the summaries of this process.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counted {
    /// Those that were made.
    pub made: u64,
    /// Those that could not be made.
    pub failed: u64,
    /// Requests that waited for one that another had asked for.
    pub joined: u64,
    /// Calls.
    pub calls: u64,
    /// The tokens of these calls, as they were billed.
    pub usage: Usage,
}

/// How many summaries are made at a time.
const PLACES: usize = 16;

/// How many who refuse tools are remembered.
const MOST_PLAIN: usize = 256;

/// How often the input is halved for a model that says that it is too long.
const MOST_HALVINGS: usize = 2;

/// The most tokens of a summary, where the settings do not say.
const MAX_TOKENS: usize = 8192;

/// Tokens of a request beside its messages and its instruction, to be on the safe side.
const SLACK: usize = 64;

/// The first pause between two attempts, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// The longest that a summary waits for the disk.
const PATIENCE: Duration = Duration::from_secs(10);

// === impl Summarizer ===

impl Summarizer {
    /// Makes summaries that are kept there.
    pub fn new(summaries: Arc<Summaries>, store: Option<Arc<dyn Store>>, tasks: Tasks, events: Events) -> Self {
        let shared = Shared {
            summaries,
            store,
            tasks,
            events,
            places: Semaphore::new(PLACES),
            plain: Mutex::default(),
            counts: Counts::default(),
            jitter: RandomState::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Makes a summary, or waits for the one that is being made. When this has returned well, [`Summaries`] has it.
    pub async fn make(&self, rules: &Arc<Rules>, effect: SummaryEffect, origin: Origin) -> Result<(), Unmade> {
        match self.shared.summaries.begin(effect.key, false) {
            Begin::Kept => Ok(()),
            Begin::NotNow => Err(Unmade::NotNow),
            Begin::Join(flight) => {
                self.shared.counts.joined.fetch_add(1, Ordering::Relaxed);
                flight.board().wait().await
            }
            Begin::Yours(takeoff) => {
                let seat = Arc::clone(takeoff.flight()).board();
                self.spawn(rules, effect, origin, takeoff);
                seat.wait().await
            }
        }
    }

    /// Begins to make a summary that nobody waits for, unless it is being made or there are too many.
    pub fn begin(&self, rules: &Arc<Rules>, effect: SummaryEffect, origin: Origin) {
        if self.shared.places.available_permits() == 0 {
            return;
        }
        if let Begin::Yours(takeoff) = self.shared.summaries.begin(effect.key, true) {
            self.spawn(rules, effect, origin, takeoff);
        }
    }

    /// What was made so far.
    pub fn counted(&self) -> Counted {
        let Counts { made, failed, joined, calls, prompt, cached, completion } = &self.shared.counts;
        let [made, failed, joined, calls, prompt, cached, completion] =
            [made, failed, joined, calls, prompt, cached, completion].map(|count| count.load(Ordering::Relaxed));
        Counted { made, failed, joined, calls, usage: Usage { prompt, cached, completion } }
    }

    fn spawn(&self, rules: &Arc<Rules>, effect: SummaryEffect, origin: Origin, takeoff: Takeoff) {
        let (shared, rules) = (Arc::clone(&self.shared), Arc::clone(rules));
        self.shared.tasks.spawn(async move { shared.fly(&rules, effect, &origin, takeoff).await });
    }
}

// === one summary ===

impl Shared {
    /// From the wish for a summary to its end.
    async fn fly(&self, rules: &Rules, effect: SummaryEffect, origin: &Origin, takeoff: Takeoff) {
        let began = Instant::now();
        let flight = Arc::clone(takeoff.flight());
        self.publish(origin, What::SummaryBefore {
            model: effect.model.clone(),
            from: effect.covers.start,
            to: effect.covers.end,
            tokens: effect.tokens,
            waits: effect.waits,
        });
        let mut work = Work { shared: self, rules, effect: &effect, origin, flight: &flight, usage: None, n_calls: 0 };
        let within = rules.summarize.timeout.0;
        let written = timeout(within, work.write(began + within)).await.unwrap_or(Err(Unmade::Slow(within)));
        let (usage, n_calls) = (work.usage, work.n_calls);
        let kept = match written {
            Ok(Written { summary, tokens }) => {
                let content = summary.text.clone();
                self.keep(rules, &effect, summary).await.map(|()| (tokens, content))
            }
            Err(unmade) => Err(unmade),
        };
        let milliseconds = millis(began);
        let (tokens_before, error) = (effect.tokens, kept.as_ref().err().map(ToString::to_string));
        let (tokens_after, content) = kept.as_ref().ok().cloned().unzip();
        match &error {
            None => {
                tracing::info!(model = effect.model, tokens_before, tokens_after, milliseconds, "a summary was made");
            }
            Some(error) => {
                tracing::warn!(model = effect.model, tokens_before, milliseconds, error, "a summary was not made");
            }
        }
        self.publish(origin, What::SummaryAfter { tokens_before, tokens_after, error, milliseconds, usage, content });
        let count = if kept.is_ok() { &self.counts.made } else { &self.counts.failed };
        count.fetch_add(1, Ordering::Relaxed);
        match kept {
            Ok(_) => takeoff.made(),
            Err(unmade @ (Unmade::Deserted | Unmade::Busy)) if n_calls == 0 => takeoff.given_up(unmade),
            Err(unmade) => takeoff.failed(unmade, rules.summarize.cooldown.0),
        }
    }

    /// Keeps a summary, and before it what it names.
    async fn keep(&self, rules: &Rules, effect: &SummaryEffect, summary: Summary) -> Result<(), Unmade> {
        let keeping = async {
            if let (Some(transcript), Some(store)) = (&effect.transcript, &self.store) {
                let payloads = vec![(transcript.key, transcript.payload.clone())];
                store.keep_all(payloads.clone()).await.map_err(Unmade::NotKept)?;
                if let Some(dir) = rules.export_dir.clone() {
                    let written = blocking(move || export::write_all(&dir, &payloads)).await;
                    written.map_err(|_| Unmade::Ending)?.map_err(|error| Unmade::NotExported(Arc::new(error)))?;
                }
            }
            self.summaries.keep(effect.key, summary).await.map_err(Unmade::NotKept)
        };
        timeout(PATIENCE, keeping).await.unwrap_or(Err(Unmade::Slow(PATIENCE)))
    }

    fn publish(&self, origin: &Origin, what: What) {
        self.events.publish(Event { request_id: origin.request_id.clone(), caller: Some(origin.caller), what });
    }

    fn add(&self, usage: Usage) {
        let Usage { prompt, cached, completion } = usage;
        for (count, n) in
            [(&self.counts.prompt, prompt), (&self.counts.cached, cached), (&self.counts.completion, completion)]
        {
            count.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// How long to wait before the `n`th repetition: twice as long each time, and up to half as long again, so that those who
    /// failed together do not come back together.
    fn pause(&self, n: u32) -> Duration {
        let (first, longest) = BACKOFF;
        let pause = first.saturating_mul(2_u32.saturating_pow(n.saturating_sub(1))).min(longest);
        let dice = self.jitter.hash_one((n, self.counts.calls.load(Ordering::Relaxed))) % 1000;
        pause + pause * u32::try_from(dice).unwrap_or_default() / 2000
    }

    /// Somebody has refused a request with tools, and taken one without.
    async fn refuses_tools(&self, name: String) {
        let mut plain = self.plain.lock().await;
        if plain.len() < MOST_PLAIN {
            plain.insert(name);
        }
    }
}

// === calls ===

/// A summary that is being written.
struct Work<'a> {
    shared: &'a Shared,
    rules: &'a Rules,
    effect: &'a SummaryEffect,
    origin: &'a Origin,
    flight: &'a Flight,
    /// What the calls were billed.
    usage: Option<Usage>,
    n_calls: usize,
}

/// A summary that is written, and its tokens.
struct Written {
    summary: Summary,
    tokens: usize,
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
    /// What is summarised, as far as it fits.
    source: Source,
    max_tokens: usize,
    instruction: String,
}

impl Work<'_> {
    /// Asks one after the other, until somebody has written a summary.
    async fn write(&mut self, deadline: Instant) -> Result<Written, Unmade> {
        let _place = tokio::select! {
            place = self.shared.places.acquire() => place.map_err(|_| Unmade::Ending)?,
            () = self.flight.deserted() => return Err(Unmade::Deserted),
        };
        let bytes: usize = self.effect.source.messages.iter().map(|piece| piece.json.len()).sum();
        let _lease: Lease = self.origin.budget.lease(self.effect.source.body.len() + bytes).ok_or(Unmade::Busy)?;
        let asked = self.rules.endpoints.asked(self.origin);
        let mut last = CallError::NoRequest;
        for (n, one) in asked.iter().enumerate() {
            // Whoever says nothing shall leave time for those who can be asked after it.
            let left = deadline.saturating_duration_since(Instant::now());
            let silence = left / u32::try_from(asked.len() - n).unwrap_or(u32::MAX);
            match self.ask(one, deadline, silence).await {
                Ok(written) => return Ok(written),
                Err(Stopped::Deserted) => return Err(Unmade::Deserted),
                Err(Stopped::Failed(error)) => last = error,
            }
        }
        Err(Unmade::Failed(last.to_string().into()))
    }

    /// Asks one of them, as often as there is hope.
    async fn ask(&mut self, asked: &Asked<'_>, deadline: Instant, silence: Duration) -> Result<Written, Stopped> {
        let (name, gauge) = (asked.name(self.effect.model.as_deref()), self.gauge(asked.model));
        let refuses_tools = self.shared.plain.lock().await.contains(&name);
        let mut shape = self.shape(asked, &gauge, refuses_tools);
        let (mut n_repeated, mut n_halved, mut was_refused) = (0, 0, false);
        for number in 1.. {
            if !self.flight.is_wanted() {
                return Err(Stopped::Deserted);
            }
            let error = match self.attempt(asked, &shape, number, silence).await {
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
                Remedy::Shorter if n_halved < MOST_HALVINGS => {
                    n_halved += 1;
                    shape.source = request::fitted(&shape.source, tokens_of(&shape.source) / 2);
                }
                Remedy::Again(pause) if n_repeated < self.rules.summarize.retry.max_retries => {
                    n_repeated += 1;
                    let n = u32::try_from(n_repeated).unwrap_or(u32::MAX);
                    let pause = pause.unwrap_or_else(|| self.shared.pause(n));
                    if Instant::now() + pause >= deadline {
                        return Err(error.into());
                    }
                    tokio::select! {
                        () = sleep(pause) => {}
                        () = self.flight.deserted() => return Err(Stopped::Deserted),
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
        asked: &Asked<'_>,
        shape: &Shape,
        number: usize,
        silence: Duration,
    ) -> Result<Written, CallError> {
        self.n_calls += 1;
        self.shared.counts.calls.fetch_add(1, Ordering::Relaxed);
        let model = asked.model.or(self.effect.model.as_deref()).map(str::to_owned);
        let (shared, origin) = (self.shared, self.origin);
        let mut attempt = Attempt { shared, origin, phase: asked.phase, number, model, began: Instant::now(), told: false };
        let written = self.call(asked, shape, silence).await;
        attempt.tell(written.as_ref().err().map(ToString::to_string));
        written
    }

    async fn call(&mut self, asked: &Asked<'_>, shape: &Shape, silence: Duration) -> Result<Written, CallError> {
        let body = shape.request(asked.model, self.rules).ok_or(CallError::NoRequest)?;
        let heard = call::call(asked, body, silence).await?;
        if let Some(usage) = heard.usage {
            self.shared.add(usage);
            let sum = self.usage.get_or_insert_default();
            sum.prompt += usage.prompt;
            sum.cached += usage.cached;
            sum.completion += usage.completion;
        }
        let summary = answer::checked(Answer {
            text: &heard.text,
            finish_reason: heard.finish_reason.as_deref(),
            calls_tool: heard.calls_tool,
        })?;
        let text = self.effect.frame.around(&summary);
        let (gauge, measured) = (self.gauge(None), text.clone());
        let tokens = blocking(move || gauge.text(&measured)).await.map_err(|_| CallError::Unmeasured)?;
        answer::smaller(tokens, self.effect.tokens)?;
        let transcript = self.effect.transcript.as_ref().map(|transcript| transcript.key);
        Ok(Written { summary: Summary { text, tokens_replaced: self.effect.tokens_replaced, transcript }, tokens })
    }

    /// What counts for a model, or for that of the request.
    fn gauge(&self, model: Option<&str>) -> Gauge {
        self.rules.meter.for_model(model.or(self.effect.model.as_deref()))
    }

    /// The first request that somebody is sent.
    fn shape(&self, asked: &Asked<'_>, gauge: &Gauge, refuses_tools: bool) -> Shape {
        let Rules { summarize, language, .. } = self.rules;
        // No other model has anything of the conversation in its cache, and none needs to know more of it.
        let is_other = asked.model.is_some_and(|model| self.effect.model.as_deref() != Some(model));
        let input = if is_other || refuses_tools { Input::Fresh } else { summarize.input };
        let quarter = gauge.window().map_or(usize::MAX, |window| window / 4);
        let max_tokens = summarize.max_tokens.unwrap_or(MAX_TOKENS.min(quarter));
        let instruction = instruction::instruction(summarize, *language).into_owned();
        let source = &self.effect.source;
        let room = gauge.window().map(|window| window.saturating_sub(max_tokens + instruction.len().div_ceil(2) + SLACK));
        let source = match room.filter(|room| tokens_of(source) > *room) {
            Some(room) => request::fitted(source, room),
            None => source.clone(),
        };
        Shape { input, source, max_tokens, instruction }
    }
}

impl Shape {
    fn request(&self, model: Option<&str>, rules: &Rules) -> Option<Bytes> {
        let Self { input, source, max_tokens, instruction } = self;
        match input {
            Input::Cached => request::cached(source, instruction, *max_tokens, model),
            Input::Fresh => {
                request::fresh(source, instruction::system(rules.language), instruction, *max_tokens, model)
            }
        }
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

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
