//! Makes summaries: calls a model, checks its answer, retries, asks other models, and stores the result.
//!
//! One task makes the summary of one beginning of a conversation, however many requests wait for it. They wait for
//! `summarize.timeout`, and then go on without it. No call begins after that time, but an answer that keeps coming is read to
//! its end, for later requests. After a failure, no summary is tried again for `summarize.cooldown`.

use std::sync::Arc;

use http::uri::Authority;
use http::{HeaderMap, Uri};
use quick_cache::sync::Cache;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::EngineConfig;
use super::flight::SummaryError;
use super::handlers::Answers;
use super::summaries::{Claim, Leader, Summaries};
use crate::body::Budget;
use crate::dialect::{Dialect, Usage};
use crate::events::Events;
use crate::held::Held;
use crate::ledger::{Assignment, Ledger};
use crate::payload::Caller;
use crate::plan::SummaryJob;
use crate::tasks::Tasks;
use crate::upstream::Upstream;

mod call;
mod endpoints;
mod stream;
mod task;

pub use endpoints::Endpoints;
use task::SummaryTask;

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
    tasks: Tasks,
    events: Events,
    permits: Semaphore,
    /// The models that have refused a request and taken it in the plain form, by host and name.
    plain_only: Cache<(Option<Authority>, Option<String>), ()>,
    counts: Held<SummaryCounts>,
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

/// How many models that take the plain form alone are remembered.
const MAX_PLAIN_ONLY: usize = 256;

// === impl Summarizer ===

impl Summarizer {
    /// Creates a summarizer that puts summaries into `summaries`.
    pub(super) fn new(
        summaries: Arc<Summaries>,
        answers: Arc<Answers>,
        tasks: Tasks,
        events: Events,
        ledger: Ledger,
    ) -> Self {
        Self {
            summaries,
            answers,
            tasks,
            events,
            permits: Semaphore::new(MAX_CONCURRENT),
            plain_only: Cache::new(MAX_PLAIN_ONLY),
            counts: Held::default(),
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
                timeout_at(until, flight.join()).await.unwrap_or(Err(SummaryError::TimedOut(within)))
            }
            Claim::Lead(leader) => {
                let made = leader.flight.join();
                self.lead(config, job, origin, leader);
                made.await
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
        self.counts.with(|counts| *counts)
    }

    fn lead(self: &Arc<Self>, config: &Arc<EngineConfig>, job: SummaryJob, origin: SummaryOrigin, leader: Leader) {
        let (summarizer, config, flight) = (Arc::clone(self), Arc::clone(config), Arc::clone(&leader.flight));
        let (began, calls) = (Instant::now(), Held::default());
        let task = SummaryTask { summarizer, config, job, origin, flight, began, calls };
        self.tasks.spawn(task.run(leader));
    }
}
