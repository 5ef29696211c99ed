//! Makes summaries: calls a model, checks its answer, retries, asks other models, and stores the result.
//!
//! One task makes the summary of one beginning of a conversation, however many requests wait for it. They wait for
//! `summarize.timeout`, and then go on without it. No call begins after that time, but an answer that keeps coming is read to
//! its end, for later requests. After a failure, no summary is tried again for `summarize.cooldown`.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Uri};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use super::EngineConfig;
use super::error::SummaryError;
use super::handlers::Answers;
use super::persist::DiskBreakers;
use super::summaries::{Claim, Leader, Lease, Summaries, Turn};
use crate::body::Budget;
use crate::dialect::{Dialect, Usage};
use crate::events::{Event, EventKind, Events};
use crate::held::Held;
use crate::ledger::{Assignment, Ledger};
use crate::payload::{Caller, Lifetime, Place};
use crate::plan::SummaryJob;
use crate::store::Store;
use crate::summary::Summary;
use crate::tasks::Tasks;
use crate::upstream::Upstream;

mod call;
mod endpoints;
mod hooks;
mod stream;
mod task;
mod words;

pub use endpoints::{EndpointError, Endpoints};
use task::{CountedSummary, SummaryTask};

/// The request that a summary is made for.
#[derive(Clone, Debug)]
pub struct SummaryOrigin {
    /// The request's id, for events.
    pub request_id: Option<String>,
    /// The caller that sends the request.
    pub caller: Caller,
    /// The dialect of the request.
    pub dialect: &'static dyn Dialect,
    /// The target that the request goes to.
    pub target: Uri,
    /// The end-to-end headers of the request.
    pub headers: HeaderMap,
    /// The upstream that the request goes to.
    pub upstream: Upstream,
    /// The memory budget of request bodies, which pays for the call: the call may outlive its request.
    pub budget: Budget,
    /// The experiment that the conversation is in.
    pub assignment: Option<Assignment>,
}

/// Makes summaries.
#[derive(Debug)]
pub struct Summarizer {
    summaries: Arc<Summaries>,
    answers: Arc<Answers>,
    store: Option<Arc<dyn Store>>,
    breakers: DiskBreakers,
    tasks: Tasks,
    events: Events,
    permits: Semaphore,
    // Models that refuse requests in other forms than the plain one, by host and name.
    plain_only: Mutex<HashSet<String>>,
    counts: Held<SummaryCounts>,
    jitter: RandomState,
    ledger: Ledger,
}

/// Counters of the summaries of this process.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct SummaryCounts {
    /// Summaries that were made.
    pub made: u64,
    /// Summaries that could not be made.
    pub failed: u64,
    /// Requests that waited for a summary that another request had begun.
    pub joined: u64,
    /// Summaries that were not used, because another process had stored its own first.
    #[serde(skip)]
    pub theirs: u64,
    /// Calls to models.
    pub calls: u64,
    /// The billed tokens of the calls.
    #[serde(rename = "billed")]
    pub usage: Usage,
}

/// How many summaries are made at a time.
const MAX_CONCURRENT: usize = 16;

/// How many models that take plain requests alone are remembered.
const MAX_PLAIN_ONLY: usize = 256;

/// How many times `summarize.timeout` a summary may take as long as its answer keeps coming.
const STEADY: u32 = 15;

/// The first pause between two attempts, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

// === impl Summarizer ===

impl Summarizer {
    /// Creates a summarizer that puts summaries into `summaries`.
    pub(super) fn new(
        summaries: Arc<Summaries>,
        answers: Arc<Answers>,
        store: Option<Arc<dyn Store>>,
        breakers: DiskBreakers,
        tasks: Tasks,
        events: Events,
        ledger: Ledger,
    ) -> Self {
        Self {
            summaries,
            answers,
            store,
            breakers,
            tasks,
            events,
            permits: Semaphore::new(MAX_CONCURRENT),
            plain_only: Mutex::default(),
            counts: Held::default(),
            jitter: RandomState::new(),
            ledger,
        }
    }

    /// Makes a summary, or waits for the task that makes it. After `Ok`, [`Summaries`] has it.
    pub async fn make(
        self: &Arc<Self>,
        config: &Arc<EngineConfig>,
        job: SummaryJob,
        origin: SummaryOrigin,
    ) -> Result<(), SummaryError> {
        match self.summaries.claim(job.key, false) {
            Claim::Stored => Ok(()),
            Claim::CoolingDown => Err(SummaryError::CoolingDown),
            Claim::Join(flight) => {
                self.counts.with(|counts| counts.joined += 1);
                let within = config.summarize().timeout.0;
                let until = flight.began + within;
                timeout_at(until, flight.join().wait()).await.unwrap_or(Err(SummaryError::TimedOut(within)))
            }
            Claim::Lead(leader) => {
                let waiter = Arc::clone(&leader.flight).join();
                self.lead(config, job, origin, leader);
                waiter.wait().await
            }
        }
    }

    /// Makes a summary in the background, unless it is being made or too many are.
    pub fn spawn(self: &Arc<Self>, config: &Arc<EngineConfig>, job: SummaryJob, origin: SummaryOrigin) {
        if self.permits.available_permits() == 0 {
            return;
        }
        if let Claim::Lead(leader) = self.summaries.claim(job.key, true) {
            self.lead(config, job, origin, leader);
        }
    }

    /// The current counters.
    pub fn counts(&self) -> SummaryCounts {
        SummaryCounts { theirs: self.summaries.n_theirs(), ..self.counts.with(|counts| *counts) }
    }

    fn lead(self: &Arc<Self>, config: &Arc<EngineConfig>, job: SummaryJob, origin: SummaryOrigin, leader: Leader) {
        let (summarizer, config) = (Arc::clone(self), Arc::clone(config));
        self.tasks.spawn(async move { summarizer.run(&config, job, &origin, leader).await });
    }
}

// === one summary ===

impl Summarizer {
    /// Makes one summary, from the event that announces it to its end.
    async fn run(&self, config: &EngineConfig, job: SummaryJob, origin: &SummaryOrigin, leader: Leader) {
        let began = Instant::now();
        let flight = Arc::clone(&leader.flight);
        let within = config.summarize().timeout.0;
        let place = Place { root: job.root, beginning: job.key };
        let longest = within.saturating_mul(STEADY);
        let lease = match timeout(within, self.summaries.take_turn(place, &flight)).await {
            Ok(Ok(Turn::Make(lease))) => lease,
            Ok(Ok(Turn::Made)) => return leader.succeed(),
            Ok(Err(error)) => return leader.abandon(error),
            // Another process still reads a slow answer. Later requests use it once it is stored, and do not wait for it.
            Err(_) => return leader.fail(SummaryError::TimedOut(within), longest),
        };
        self.publish(
            origin,
            EventKind::SummaryBefore {
                model: job.model.clone(),
                from: job.covers.start,
                to: job.covers.end,
                tokens: job.tokens,
                waits: job.waits,
            },
        );
        let mut task = SummaryTask {
            summarizer: self,
            config,
            job: &job,
            origin,
            flight: &flight,
            usage: None,
            n_calls: 0,
            lease: None,
            rewritten: None,
            deadline: began + within,
        };
        let making = timeout(longest, task.run());
        let written = renewing(lease.as_ref(), making).await.unwrap_or(Err(SummaryError::TimedOut(longest)));
        let (usage, n_calls) = (task.usage, task.n_calls);
        let persisted = match written {
            Ok(CountedSummary { summary, tokens }) => {
                let content = summary.text.clone();
                self.persist(config, &job, summary).await.map(|()| (tokens, content))
            }
            Err(error) => Err(error),
        };
        let milliseconds = millis(began);
        let (tokens_before, error) = (job.tokens, persisted.as_ref().err().map(ToString::to_string));
        let (tokens_after, content) = persisted.as_ref().ok().cloned().unzip();
        match &error {
            None => {
                tracing::info!(model = job.model, tokens_before, tokens_after, milliseconds, "a summary was made");
            }
            Some(error) => {
                tracing::warn!(model = job.model, tokens_before, milliseconds, error, "a summary was not made");
            }
        }
        self.publish(
            origin,
            EventKind::SummaryAfter { tokens_before, tokens_after, error, milliseconds, usage, content },
        );
        self.counts.with(|counts| *(if persisted.is_ok() { &mut counts.made } else { &mut counts.failed }) += 1);
        let Err(error) = persisted else {
            self.summaries.recent.note(job.outline);
            return leader.succeed();
        };
        let is_free = n_calls == 0 && matches!(error, SummaryError::Abandoned | SummaryError::Busy);
        let cooldown = (!is_free).then_some(config.summarize().cooldown.0);
        if let Some(lease) = lease {
            lease.release(cooldown).await;
        }
        match cooldown {
            Some(cooldown) => leader.fail(error, cooldown),
            None => leader.abandon(error),
        }
    }

    /// Stores a summary, and before it the transcript that it names.
    async fn persist(&self, config: &EngineConfig, job: &SummaryJob, summary: Summary) -> Result<(), SummaryError> {
        if let (Some(transcript), Some(store)) = (&job.transcript, self.store.clone()) {
            let offloads = vec![transcript.clone()];
            self.breakers.persist(store, config.export_dir(), offloads, Lifetime::Usual).await?;
        }
        let (summaries, place) = (Arc::clone(&self.summaries), Place { root: job.root, beginning: job.key });
        self.breakers
            .store
            .call(async move { summaries.put(place, summary).await })
            .await?
            .map_err(SummaryError::NotStored)
    }

    fn publish(&self, origin: &SummaryOrigin, kind: EventKind) {
        self.events.publish(Event { request_id: origin.request_id.clone(), caller: Some(origin.caller), kind });
    }

    /// How long to wait before the `n`th retry: twice as long each time, plus up to half of that as jitter.
    fn backoff(&self, n: u32) -> Duration {
        let (first, longest) = BACKOFF;
        let pause = first.saturating_mul(2_u32.saturating_pow(n.saturating_sub(1))).min(longest);
        let dice = self.jitter.hash_one((n, self.counts().calls)) % 1000;
        pause + pause * u32::try_from(dice).unwrap_or_default() / 2000
    }

    /// Remembers a model that refused a request in another form and accepted a plain one.
    async fn note_plain_only(&self, name: String) {
        let mut plain_only = self.plain_only.lock().await;
        if plain_only.len() < MAX_PLAIN_ONLY {
            plain_only.insert(name);
        }
    }
}

// === helpers ===

/// Makes a summary, and renews the lease meanwhile.
async fn renewing<T>(lease: Option<&Lease>, making: impl Future<Output = T>) -> T {
    let Some(lease) = lease else { return making.await };
    tokio::select! {
        made = making => made,
        never = lease.renew() => match never {},
    }
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
