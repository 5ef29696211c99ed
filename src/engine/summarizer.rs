//! Has summaries made: calls a model, checks what it answers, tries again, asks others, and keeps the result.
//!
//! One summary is made at a time for one beginning of a conversation, however many wait for it, by a task of its own. It is
//! tried for `summarize.timeout`, and then not again for `summarize.cooldown`. Whoever waits goes on without one, then.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderMap, Uri};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, timeout};

use super::error::SummaryError;
use super::summaries::{Begin, Leader, Summaries};
use super::{Disks, Rules, export};
use crate::body::Budget;
use crate::dialect::{Dialect, Usage};
use crate::events::{Event, Events, What};
use crate::payload::Caller;
use crate::plan::SummaryEffect;
use crate::store::{Clock, Store};
use crate::summary::Summary;
use crate::tasks::{Tasks, run_blocking};
use crate::upstream::Upstream;

mod call;
mod endpoints;
mod stream;
mod work;

pub use endpoints::{EndpointError, Endpoints};
use work::{Work, Written};

/// The request that wants a summary.
#[derive(Debug)]
pub struct Origin {
    /// Its id, for events.
    pub request_id: Option<String>,
    /// Whose it is.
    pub caller: Caller,
    /// The dialect that it is written in.
    pub dialect: &'static dyn Dialect,
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
    disks: Disks,
    tasks: Tasks,
    events: Events,
    places: Semaphore,
    // Who has refused requests with tools: hosts and models.
    plain: Mutex<HashSet<String>>,
    counts: Counts,
    jitter: RandomState,
}

#[derive(Debug, Default)]
struct Counts {
    made: AtomicU64,
    failed: AtomicU64,
    joined: AtomicU64,
    calls: AtomicU64,
    input: AtomicU64,
    cached: AtomicU64,
    output: AtomicU64,
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

/// The first pause between two attempts, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

// === impl Summarizer ===

impl Summarizer {
    /// Makes summaries that are kept there.
    pub(super) fn new(
        summaries: Arc<Summaries>,
        store: Option<Arc<dyn Store>>,
        disks: Disks,
        tasks: Tasks,
        events: Events,
    ) -> Self {
        let shared = Shared {
            summaries,
            store,
            disks,
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
    pub async fn make(&self, rules: &Arc<Rules>, effect: SummaryEffect, origin: Origin) -> Result<(), SummaryError> {
        match self.shared.summaries.begin(effect.key, false) {
            Begin::Kept => Ok(()),
            Begin::NotNow => Err(SummaryError::NotNow),
            Begin::Join(flight) => {
                self.shared.counts.joined.fetch_add(1, Ordering::Relaxed);
                flight.join().wait().await
            }
            Begin::Yours(leader) => {
                let seat = Arc::clone(leader.flight()).join();
                self.spawn(rules, effect, origin, leader);
                seat.wait().await
            }
        }
    }

    /// Begins to make a summary that nobody waits for, unless it is being made or there are too many.
    pub fn begin(&self, rules: &Arc<Rules>, effect: SummaryEffect, origin: Origin) {
        if self.shared.places.available_permits() == 0 {
            return;
        }
        if let Begin::Yours(leader) = self.shared.summaries.begin(effect.key, true) {
            self.spawn(rules, effect, origin, leader);
        }
    }

    /// What was made so far.
    pub fn counted(&self) -> Counted {
        let Counts { made, failed, joined, calls, input, cached, output } = &self.shared.counts;
        let [made, failed, joined, calls, input, cached, output] =
            [made, failed, joined, calls, input, cached, output].map(|count| count.load(Ordering::Relaxed));
        Counted { made, failed, joined, calls, usage: Usage { input, cached, output } }
    }

    fn spawn(&self, rules: &Arc<Rules>, effect: SummaryEffect, origin: Origin, leader: Leader) {
        let (shared, rules) = (Arc::clone(&self.shared), Arc::clone(rules));
        self.shared.tasks.spawn(async move { shared.run(&rules, effect, &origin, leader).await });
    }
}

// === impl SummaryError ===

// === one summary ===

impl Shared {
    /// From the wish for a summary to its end.
    async fn run(&self, rules: &Rules, effect: SummaryEffect, origin: &Origin, leader: Leader) {
        let began = Instant::now();
        let flight = Arc::clone(leader.flight());
        self.publish(
            origin,
            What::SummaryBefore {
                model: effect.model.clone(),
                from: effect.covers.start,
                to: effect.covers.end,
                tokens: effect.tokens,
                waits: effect.waits,
            },
        );
        let mut work = Work {
            shared: self,
            rules,
            effect: &effect,
            origin,
            flight: &flight,
            usage: None,
            n_calls: 0,
            lease: None,
        };
        let within = rules.summarize().timeout.0;
        let written = timeout(within, work.write(began + within)).await.unwrap_or(Err(SummaryError::Slow(within)));
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
            Ok(_) => {
                self.summaries.rewritten.note(effect.outline);
                leader.made();
            }
            Err(unmade @ (SummaryError::Deserted | SummaryError::Busy)) if n_calls == 0 => leader.given_up(unmade),
            Err(unmade) => leader.failed(unmade, rules.summarize().cooldown.0),
        }
    }

    /// Keeps a summary, and before it what it names.
    async fn keep(&self, rules: &Rules, effect: &SummaryEffect, summary: Summary) -> Result<(), SummaryError> {
        if let (Some(transcript), Some(store)) = (&effect.transcript, self.store.clone()) {
            let payloads = vec![(transcript.key, transcript.payload.clone())];
            let exported = rules.export_dir().map(|dir| (dir, payloads.clone()));
            self.disks
                .store
                .wait(async move { store.keep_all(payloads).await })
                .await?
                .map_err(SummaryError::NotKept)?;
            if let Some((dir, payloads)) = exported {
                let exporting = run_blocking(move || export::write_all(&dir, &payloads, Clock::system().now()));
                let written = self.disks.export.wait(exporting).await?;
                written
                    .map_err(|_| SummaryError::Ending)?
                    .map_err(|error| SummaryError::NotExported(Arc::new(error)))?;
            }
        }
        let (summaries, key) = (Arc::clone(&self.summaries), effect.key);
        self.disks.store.wait(async move { summaries.keep(key, summary).await }).await?.map_err(SummaryError::NotKept)
    }

    fn publish(&self, origin: &Origin, what: What) {
        self.events.publish(Event { request_id: origin.request_id.clone(), caller: Some(origin.caller), what });
    }

    fn add(&self, usage: Usage) {
        let Usage { input, cached, output } = usage;
        for (count, n) in [(&self.counts.input, input), (&self.counts.cached, cached), (&self.counts.output, output)] {
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

// === helpers ===

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
