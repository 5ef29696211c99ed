//! Edits a request body: plans it, gets the summary that the plan needs, stores what the plan takes out, and splices
//! the result.
//!
//! The engine never fails. A body that cannot be read is forwarded as it came. A text that cannot be stored stays in
//! the body: the request is planned again without the edits that need the store. No body that names a payload goes
//! upstream before that payload is durable.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use crate::dialect::{Dialect, ParseError};
use crate::edit::summarize;
use crate::events::Events;
use crate::payload::{Caller, Chain, Keys, Lifetime};
use crate::plan::{Basis, Need, OffloadedPayload, Plan, PromptSegment, Report, SkipReason, SummaryJob};
use crate::planner::{Offload, PlanContext, Planner, SummaryTiming};
use crate::span::splice;
use crate::store::{Store, StoreError};
use crate::summary::{NoSummaries, Summary, SummaryIndex, SummaryState};
use crate::tasks::{Tasks, run_blocking};
use crate::units::Period;

mod breaker;
mod error;
pub mod export;
mod flight;
pub mod manual_summary;
mod persist;
mod recent_summaries;
pub mod summaries;
pub mod summarizer;

use breaker::BreakerError;
use error::SummaryError;
use persist::{DiskBreakers, PersistError};
use summaries::Summaries;
use summarizer::{Endpoints, Summarizer, SummaryCounts, SummaryOrigin};

/// Edits the bodies of all requests. There is one per process.
#[derive(Debug)]
pub struct Engine {
    store: Option<Arc<dyn Store>>,
    keys: Keys,
    breakers: DiskBreakers,
    summaries: Arc<Summaries>,
    summarizer: Summarizer,
}

/// The part of the engine's configuration that a reload replaces.
#[derive(Debug)]
pub struct EngineConfig {
    /// Plans the edits of a body.
    pub planner: Planner,
    /// The models that summaries are requested from, other than the client's own.
    pub endpoints: Endpoints,
}

/// How one request is to be edited.
#[derive(Clone, Copy)]
pub struct EditOptions<'a> {
    /// The caller that sends the request.
    pub caller: Caller,
    /// Whether the edits are applied or only reported.
    pub mode: EditMode,
    /// When a summary is made.
    pub when: SummaryTiming,
    /// Builds the origin of a summary call. `None`: no summary is made.
    pub origin: Option<&'a (dyn Fn() -> SummaryOrigin + Sync)>,
}

impl fmt::Debug for EditOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { caller, mode, when, .. } = self;
        f.debug_struct("EditOptions")
            .field("caller", caller)
            .field("mode", mode)
            .field("when", when)
            .finish_non_exhaustive()
    }
}

/// Whether the edits are applied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EditMode {
    /// The edits are applied.
    Apply,
    /// The edits are reported only: nothing is stored, and no summary is made.
    DryRun,
}

/// A body after editing, with what was done to it.
#[derive(Clone, Debug)]
pub struct EditedBody {
    /// The body in pieces. An unchanged body is one piece: the allocation that came in.
    pub body: Vec<Bytes>,
    /// The changes that were made; `None` if the body could not be read.
    pub report: Option<Report>,
    /// Why the body could not be read.
    pub parse_error: Option<ParseError>,
    /// The failure that kept the engine from applying all edits.
    pub error: Option<EngineError>,
    /// Why a summary that the request waited for was not made.
    pub summary_error: Option<SummaryError>,
    /// How long the request waited for a summary; `None` if it did not wait.
    pub summary_time: Option<Duration>,
    /// The length in bytes of the texts that were taken out and are in the store.
    pub offloaded_bytes: usize,
    /// The parts of the edited body that the model reads, where their tokens were counted.
    pub segments: Vec<PromptSegment>,
    /// The payloads that the edits take out, or would take out in a dry run.
    pub offloads: Vec<OffloadedPayload>,
    /// What was known when the body was planned.
    pub basis: Basis,
}

/// Why the engine did not apply all edits.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineError {
    /// An edit has a bug and panicked; the request is forwarded as it came.
    #[error("an edit panicked")]
    Panic,
    /// The store refused the payloads, so they stay in the body.
    #[error("the payloads could not be stored")]
    NotStored(#[source] StoreError),
    /// The store did not answer within this time, so the payloads stay in the body.
    #[error("the payloads were not stored within {} (store.timeout)", Period(*.0))]
    TimedOut(Duration),
    /// The store is still busy with an operation that exceeded this time for an earlier request, so the payloads stay
    /// in the body.
    #[error("the payloads were not stored, since the disk has not answered for more than {} (store.timeout)", Period(*.0))]
    BreakerOpen(Duration),
    /// The payloads could not be written to `recall.export_dir`, so they stay in the body.
    #[error("the payloads could not be written to recall.export_dir")]
    NotExported(#[source] Arc<io::Error>),
    /// The runtime no longer runs blocking tasks because the process is shutting down.
    #[error("the payloads were not stored, because abridge is shutting down")]
    ShuttingDown,
}

/// Bodies of at least this many bytes are planned on a blocking thread, and so are shorter ones whose tokens may have
/// to be counted.
///
/// Without counting, planning takes less than 1 ms per MiB, so a shorter body delays other events by less than 2 ms.
/// With counting it takes up to 100 ms per MiB, or 1 ms if all messages were counted before, which is not known in
/// advance.
const BLOCKING_FROM: usize = 2 << 20;

/// For shorter bodies, in bytes, a shared store is not asked for summaries, unless the triggers are lower than usual.
const LOOK_UP_FROM: usize = 16 << 10;

/// How often a request is planned at most: its summary may be loaded, made, and loaded again.
const MAX_PLANS: usize = 4;

// === impl EngineError ===

impl From<PersistError> for EngineError {
    fn from(error: PersistError) -> Self {
        match error {
            PersistError::Store(error) => Self::NotStored(error),
            PersistError::Breaker(BreakerError::TimedOut(timeout)) => Self::TimedOut(timeout),
            PersistError::Breaker(BreakerError::Open(timeout)) => Self::BreakerOpen(timeout),
            PersistError::Export(error) => Self::NotExported(Arc::new(error)),
            PersistError::ShuttingDown => Self::ShuttingDown,
        }
    }
}

// === impl Edited ===

impl EditedBody {
    /// An unchanged body that was not planned.
    pub fn untouched(body: Bytes) -> Self {
        Self {
            body: vec![body],
            report: None,
            parse_error: None,
            error: None,
            summary_error: None,
            summary_time: None,
            offloaded_bytes: 0,
            segments: Vec::new(),
            offloads: Vec::new(),
            basis: Basis::default(),
        }
    }

    /// Whether the body differs from the one that came in.
    pub fn changed(&self) -> bool {
        self.report.as_ref().is_some_and(|report| !report.changes.is_empty())
    }

    fn planned(body: Bytes, planned: Result<Plan, PlanError>, error: Option<EngineError>) -> Self {
        match planned {
            Ok(Plan { splices, segments, report, offloads, basis, .. }) => Self {
                body: splice(&body, &splices),
                report: Some(report),
                segments,
                offloads,
                basis,
                error,
                ..Self::untouched(body)
            },
            Err(PlanError::Parse(error)) => Self { parse_error: Some(error), ..Self::untouched(body) },
            Err(PlanError::Panic) => Self { error: Some(EngineError::Panic), ..Self::untouched(body) },
        }
    }
}

/// Edits a body without a running proxy: what the plan takes out is not stored.
pub fn edit_body(planner: &Planner, dialect: &dyn Dialect, body: Bytes) -> EditedBody {
    let plan = planner.plan(dialect, &body).map_err(PlanError::Parse);
    EditedBody::planned(body, plan, None)
}

// === impl EngineConfig ===

impl EngineConfig {
    /// The directory that payloads are also written to, as files that an agent can read.
    pub fn export_dir(&self) -> Option<PathBuf> {
        self.planner.settings.recall.export_dir.as_ref().map(PathBuf::from)
    }

    /// The settings of `summarize`.
    pub fn summarize(&self) -> &summarize::Settings {
        &self.planner.settings.summarize
    }
}

// === impl Engine ===

impl Engine {
    /// Creates an engine that stores payloads in `store` and names them with `keys`. Without a store, no edit takes out
    /// a text that must be recallable. A request waits for the disk for `most` at the longest.
    pub fn new(store: Option<Arc<dyn Store>>, most: Duration, keys: Keys, tasks: Tasks, events: Events) -> Self {
        let breakers = DiskBreakers::new(most, &tasks);
        let summaries = Arc::new(Summaries::new(store.clone(), breakers.store.clone()));
        let summarizer = Summarizer::new(Arc::clone(&summaries), store.clone(), breakers.clone(), tasks, events);
        Self { store, keys, breakers, summaries, summarizer }
    }

    /// The summaries that are known. The index is empty until it is read from the store.
    pub fn summaries(&self) -> &Arc<Summaries> {
        &self.summaries
    }

    /// Counters of the summaries that this process made.
    pub fn summary_counts(&self) -> SummaryCounts {
        self.summarizer.counts()
    }

    /// Makes one summary, and returns it when it is stored.
    pub async fn summarize(
        &self,
        config: &Arc<EngineConfig>,
        job: SummaryJob,
        origin: SummaryOrigin,
    ) -> Result<Option<Arc<Summary>>, SummaryError> {
        let key = job.key;
        self.summarizer.make(config, job, origin).await?;
        Ok(match self.summaries.state(key) {
            SummaryState::Summary(summary) => Some(summary),
            _ => None,
        })
    }

    /// The keys that payloads are named with.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// How long a request waits for the store at the longest.
    pub fn store_timeout(&self) -> Duration {
        self.breakers.store.timeout()
    }

    /// The store of payloads and summaries.
    pub fn store(&self) -> Option<&dyn Store> {
        self.store.as_deref()
    }

    /// The store, for tasks that outlive a request.
    pub fn shared_store(&self) -> Option<Arc<dyn Store>> {
        self.store.clone()
    }

    /// The namespace of the caller with this credential. All requests without a credential share one.
    pub fn caller(&self, credential: Option<&[u8]>) -> Caller {
        self.keys.caller(credential.unwrap_or_default())
    }

    /// The hash chain that names the beginnings of this caller's conversations, apart from those of another `scope`.
    pub fn chain(&self, caller: Caller, scope: &[u8]) -> Chain {
        self.keys.chain(caller, scope)
    }

    /// Edits a body by `config`. When it returns, the payloads that the body names are durable.
    pub async fn edit_body(
        &self,
        config: &Arc<EngineConfig>,
        dialect: &'static dyn Dialect,
        body: Bytes,
        options: EditOptions<'_>,
    ) -> EditedBody {
        let offload = if self.store.is_some() { Offload::Possible } else { Offload::Impossible };
        let request = Request { config, dialect, body: &body, options, offload };
        self.look_up_summaries(&request).await;
        let mut wait = SummaryWait::default();
        let planned = self.plan_with_summaries(&request, &mut wait).await;
        let (offloads, lifetime) = match &planned {
            Ok(plan) if options.mode == EditMode::Apply => (plan.offloads.as_slice(), plan.lifetime),
            _ => (&[][..], Lifetime::default()),
        };
        let persisted = match wait.persisted.take() {
            Some(persisted) => persisted,
            None => self.persist(config, offloads, lifetime).await,
        };
        let Err(error) = persisted else {
            self.summaries.flush_uses().await;
            let offloaded_bytes = offloads.iter().map(|offload| offload.payload.len()).sum();
            return EditedBody { offloaded_bytes, ..wait.add_to(EditedBody::planned(body, planned, None)) };
        };
        let request =
            Request { offload: Offload::Impossible, options: EditOptions { origin: None, ..options }, ..request };
        let planned = self.plan_with_summaries(&request, &mut wait).await;
        wait.add_to(EditedBody::planned(body, planned, Some(error)))
    }

    /// Looks up what other processes know of the conversation's summaries, if they use the store too.
    async fn look_up_summaries(&self, request: &Request<'_>) {
        let Request { config, dialect, body, options: EditOptions { caller, .. }, .. } = *request;
        if body.len() < LOOK_UP_FROM.min(config.planner.policy.counts_from()) || !self.summaries.is_shared() {
            return;
        }
        let (config, text) = (Arc::clone(config), body.clone());
        let root = move || config.planner.policy.root(dialect, &text, &config.planner.context(caller, &NoSummaries));
        let root = if body.len() >= BLOCKING_FROM { run_blocking(root).await.ok().flatten() } else { root() };
        if let Some(root) = root {
            self.summaries.look(root).await;
        }
    }

    /// Plans a request, and gets the summaries that the plan needs. `wait` holds what the wait cost and why a summary
    /// is missing.
    async fn plan_with_summaries(&self, request: &Request<'_>, wait: &mut SummaryWait) -> Result<Plan, PlanError> {
        let Request { config, options, .. } = request;
        // One deadline covers all summaries that a request waits for.
        let mut deadline = None;
        for _ in 1..MAX_PLANS {
            // A plan that was made before the index was read may not know all stored summaries.
            let index_was_read = self.summaries.is_index_read();
            let mut plan = self.plan(request).await?;
            match plan.needs.take() {
                None => return Ok(plan),
                Some(Need::Load(beginning)) => self.summaries.load(beginning).await,
                Some(Need::Make(job)) => {
                    let Some(origin) = options.origin.filter(|_| options.mode == EditMode::Apply) else {
                        return Ok(plan);
                    };
                    if !index_was_read {
                        self.summaries.wait_for_index().await;
                        continue;
                    }
                    if options.when == SummaryTiming::Triggered && self.summaries.recent.has_similar(&job.outline) {
                        plan.report.set_summary_skip_reason(SkipReason::Rewritten);
                        return Ok(plan);
                    }
                    // While the breaker is open a summary could not be stored, so none is requested.
                    if let Err(error) = self.breakers.store.check() {
                        wait.error = Some(error.into());
                        return Ok(plan);
                    }
                    // The summarizing model reads what the other edits have left, and may repeat the handles in it.
                    let persisted = wait.persisted.insert(self.persist(config, &plan.offloads, plan.lifetime).await);
                    if persisted.is_err() {
                        return Ok(plan);
                    }
                    if !job.waits {
                        self.summarizer.spawn(config, *job, origin());
                        return Ok(plan);
                    }
                    let (began, within) = (Instant::now(), config.summarize().timeout.0);
                    let deadline = *deadline.get_or_insert(began + within);
                    let making = self.summarizer.make(config, *job, origin());
                    let made = timeout_at(deadline, making).await.unwrap_or(Err(SummaryError::TimedOut(within)));
                    *wait.time.get_or_insert_default() += began.elapsed();
                    if let Err(error) = made {
                        wait.error = Some(error);
                        return Ok(plan);
                    }
                    // The next plan uses the summary, and has other offloads.
                    wait.persisted = None;
                }
            }
        }
        self.plan(request).await
    }

    /// Plans a body, on a blocking thread if planning may take long.
    async fn plan(&self, request: &Request<'_>) -> Result<Plan, PlanError> {
        let Request { config, dialect, body, options: EditOptions { caller, when, .. }, offload } = *request;
        let long = body.len() >= BLOCKING_FROM.min(config.planner.policy.counts_from());
        let (config, body, summaries) = (Arc::clone(config), body.clone(), Arc::clone(&self.summaries));
        let plan = move || {
            let context = PlanContext { offload, summarize: when, ..config.planner.context(caller, &*summaries) };
            let planned = catch_unwind(AssertUnwindSafe(|| config.planner.policy.plan(dialect, &body, &context)));
            planned.map_err(|_| PlanError::Panic)?.map_err(PlanError::Parse)
        };
        if long { run_blocking(plan).await.unwrap_or(Err(PlanError::Panic)) } else { plan() }
    }

    /// Stores all payloads that a plan takes out. If one cannot be stored, the plan must not be used.
    async fn persist(
        &self,
        config: &EngineConfig,
        offloads: &[OffloadedPayload],
        lifetime: Lifetime,
    ) -> Result<(), EngineError> {
        let Some(store) = self.shared_store().filter(|_| !offloads.is_empty()) else { return Ok(()) };
        let payloads = offloads.iter().map(|offload| (offload.key, offload.payload.clone())).collect();
        Ok(self.breakers.persist(store, config.export_dir(), payloads, lifetime).await?)
    }
}

/// The input of one planning run.
#[derive(Clone, Copy)]
struct Request<'a> {
    config: &'a Arc<EngineConfig>,
    dialect: &'static dyn Dialect,
    body: &'a Bytes,
    options: EditOptions<'a>,
    offload: Offload,
}

/// The result of waiting for summaries.
#[derive(Default)]
struct SummaryWait {
    time: Option<Duration>,
    error: Option<SummaryError>,
    /// The result of storing the plan's payloads, if that was done before a summary was requested.
    persisted: Option<Result<(), EngineError>>,
}

impl SummaryWait {
    fn add_to(self, edited: EditedBody) -> EditedBody {
        EditedBody { summary_time: self.time, summary_error: self.error, ..edited }
    }
}

/// Why a body could not be planned.
enum PlanError {
    Parse(ParseError),
    Panic,
}

#[cfg(test)]
mod tests;
