//! Edits a request body: plans it, gets the summary that the plan needs, stores what the plan takes out, and splices
//! the result.
//!
//! The engine never fails. A body that cannot be read is forwarded as it came. A text that cannot be stored stays in
//! the body: the request is planned again without the edits that need the store. No body that names a payload goes
//! upstream before that payload is durable.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::body::{Budget, Lease};
use crate::dialect::{Dialect, ParseError};
use crate::edit::summarize;
use crate::events::Events;
use crate::ledger::Ledger;
use crate::payload::{Caller, Keys, OffloadedPayload};
use crate::plan::{Basis, Plan, PromptSegment, Report};
use crate::planner::{PlanSettings, Planner, SummaryTiming};
use crate::span::splice;
use crate::store::Store;
use crate::string_index::IndexedBody;
use crate::tasks::Tasks;

pub mod bookkeeper;
mod disks;
pub mod export;
pub mod factors;
mod flight;
pub mod handlers;
pub mod kept_recalls;
pub mod manual_summary;
mod planning;
pub mod summaries;
pub mod summarizer;

use bookkeeper::Bookkeeper;
use disks::{Disks, PersistError};
use factors::Factors;
use flight::SummaryError;
use handlers::{Answers, HandlerClients};
use kept_recalls::KeptRecalls;
use planning::{PlanError, Planning};
use summaries::Summaries;
use summarizer::{Endpoints, Summarizer, SummaryOrigin};

/// Edits the bodies of all requests. There is one per process.
#[derive(Debug)]
pub struct Engine {
    /// Why the store of the settings could not be opened, in one sentence for operators.
    pub(crate) lacks_store: Option<String>,
    /// The keys that payloads are named with.
    pub(crate) keys: Keys,
    /// The summaries that are known. The index is empty until it is read from the store.
    pub(crate) summaries: Arc<Summaries>,
    /// What tokens are counted as.
    pub(crate) factors: Arc<Factors>,
    /// The answers of handlers.
    pub(crate) answers: Arc<Answers>,
    /// The recalls that are put back into conversations.
    pub(crate) kept_recalls: Arc<KeptRecalls>,
    /// Makes summaries.
    pub(crate) summarizer: Arc<Summarizer>,
    /// Keeps what answers have cost.
    pub(crate) bookkeeper: Bookkeeper,
    /// The memory that plans may take.
    pub(crate) budget: Budget,
    // How many long bodies are planned at a time.
    long_work: Arc<Semaphore>,
}

/// The part of the engine's configuration that a reload replaces.
#[derive(Debug)]
pub struct EngineConfig {
    /// Plans the edits of a body.
    pub planner: Planner,
    /// The models that summaries are requested from, other than the client's own.
    pub endpoints: Endpoints,
    /// The clients of the handlers that edits ask.
    pub handlers: HandlerClients,
    /// The name of the policy that says so; [`Self::NO_POLICY`] for the settings themselves.
    pub policy: Arc<str>,
}

/// How one request is to be edited.
#[derive(Clone, Copy, derive_more::Debug)]
pub struct EditOptions<'a> {
    /// The caller that sends the request.
    pub caller: Caller,
    /// The name of the upstream that it goes to.
    pub upstream: &'a str,
    /// Whether the edits are applied or only reported.
    pub mode: EditMode,
    /// When a summary is made.
    pub when: SummaryTiming,
    /// Builds the origin of a summary call. `None`: no summary is made.
    #[debug(skip)]
    pub origin: Option<&'a (dyn Fn() -> SummaryOrigin + Sync)>,
    /// Whether the prompt cache has lost the conversation of a plan. `None`: it is not known.
    #[debug(skip)]
    pub has_expired: Option<&'a (dyn Fn(&Plan) -> bool + Sync)>,
    /// Whether all bound reasoning so far is left out, as the upstream has refused it.
    pub strips_now: bool,
    /// Set if texts alone may change, to how many messages at the beginning stay as they are.
    pub in_place: Option<usize>,
}

impl<'a> EditOptions<'a> {
    /// A request whose edits are applied and whose cache is not known; no summary is made for it unless it gets an origin.
    pub fn new(caller: Caller, upstream: &'a str, when: SummaryTiming) -> Self {
        Self {
            caller,
            upstream,
            mode: EditMode::Apply,
            when,
            origin: None,
            has_expired: None,
            strips_now: false,
            in_place: None,
        }
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
#[derive(Clone, Debug, Default)]
pub struct EditedBody {
    /// The body in pieces. An unchanged body is one piece: the allocation that came in.
    pub body: Vec<Bytes>,
    /// The feature of the upstream that it uses, which its header has to name.
    pub beta: Option<&'static str>,
    /// The changes that were made; `None` if the body could not be read.
    pub report: Option<Report>,
    /// Why the body could not be read.
    pub parse_error: Option<ParseError>,
    /// The failure that kept the engine from applying all edits.
    pub error: Option<EngineError>,
    /// Why a summary that the request waited for was not made.
    pub summary_error: Option<SummaryError>,
    /// The waits of the request.
    pub waits: Waits,
    /// The length in bytes of the texts that were taken out and are in the store.
    pub offloaded_bytes: usize,
    /// The parts of the edited body that the model reads, where their tokens were counted.
    pub segments: Vec<PromptSegment>,
    /// The payloads that the edits take out, or would take out in a dry run.
    pub offloads: Vec<OffloadedPayload>,
    /// The facts that were known when the body was planned.
    pub basis: Basis,
    /// The memory that all this takes, if it is much.
    pub lease: Option<Arc<Lease>>,
}

/// All that one request has waited for, in order.
#[derive(Clone, Debug, Default)]
pub struct Waits(pub Vec<Wait>);

/// One wait.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// The reason.
    pub cause: WaitCause,
    /// When it began.
    pub began: Instant,
    /// How long it took.
    pub took: Duration,
}

/// The reasons why a request waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum WaitCause {
    /// The store, until the payloads are durable.
    Store,
    /// A summary.
    Summary,
    /// Answers of handlers.
    Handlers,
}

/// Why the engine did not apply all edits.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineError {
    /// An edit has a bug and panicked; the request is forwarded as it came.
    #[error("an edit panicked")]
    Panic,
    /// The budget does not have the memory to plan the edits; the request is forwarded as it came.
    #[error("the edits could not be planned within server.max_buffered")]
    NoMemory,
    /// The payloads are not durable, so they stay in the body.
    #[error(transparent)]
    NotPersisted(#[from] PersistError),
}

// === impl EditedBody ===

impl EditedBody {
    /// An unchanged body that was not planned.
    pub fn untouched(body: Bytes) -> Self {
        Self { body: vec![body], ..Self::default() }
    }

    /// Whether the body differs from the one that came in.
    pub fn changed(&self) -> bool {
        self.report.as_ref().is_some_and(|report| report.has_edits() || report.adds_tool)
    }

    /// Whether the tool is added by which the model reads what was taken out.
    pub fn adds_tool(&self) -> bool {
        self.report.as_ref().is_some_and(|report| report.adds_tool)
    }

    fn planned(body: Bytes, planned: Result<Box<Plan>, PlanError>, error: Option<EngineError>) -> Self {
        match planned {
            Ok(plan) => {
                let Plan { splices, beta, segments, report, offloads, basis, .. } = *plan;
                let (body, report) = (splice(&body, &splices), Some(report));
                Self { body, beta, report, error, segments, offloads, basis, ..Self::default() }
            }
            Err(PlanError::Parse(error)) => Self { parse_error: Some(error), ..Self::untouched(body) },
            Err(PlanError::Engine(error)) => Self { error: Some(error), ..Self::untouched(body) },
        }
    }
}

// === impl Waits ===

impl Waits {
    /// Adds a wait that ends now.
    fn add(&mut self, cause: WaitCause, began: Instant) {
        self.0.push(Wait { cause, began, took: began.elapsed() });
    }

    /// How long the request waited for this; `None` if it did not wait.
    pub fn total(&self, cause: WaitCause) -> Option<Duration> {
        let times = self.0.iter().filter(|wait| wait.cause == cause).map(|wait| wait.took);
        times.reduce(|total, took| total + took)
    }
}

/// Edits a body without a running proxy: the plan's offloads are not stored.
pub fn edit_body(planner: &Planner, dialect: &dyn Dialect, body: Bytes) -> EditedBody {
    let plan = planner.plan(dialect, &body).map(Box::new).map_err(PlanError::Parse);
    EditedBody::planned(body, plan, None)
}

// === impl EngineConfig ===

impl EngineConfig {
    /// The name of the settings where a policy has none.
    pub const NO_POLICY: &str = "default";

    /// The same with other settings of plans.
    #[must_use]
    pub fn under(&self, settings: PlanSettings) -> Arc<Self> {
        Arc::new(Self {
            planner: self.planner.under(settings),
            endpoints: self.endpoints.clone(),
            handlers: self.handlers.clone(),
            policy: Arc::clone(&self.policy),
        })
    }

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
        let (summaries, ledger) =
            (Arc::new(Summaries::new(Disks::new(store.clone(), most, &tasks))), Ledger::default());
        let answers = Arc::new(Answers::new(Arc::clone(&summaries)));
        let (known, kept) = (Arc::clone(&summaries), Arc::clone(&answers));
        let summarizer = Summarizer::new(known, kept, tasks, events, ledger.clone());
        // Each long body keeps a processor busy, and takes memory until it is decoded or planned.
        let max_long_work = thread::available_parallelism().map_or(1, usize::from);
        Self {
            lacks_store: None,
            keys,
            factors: Arc::new(Factors::new(Arc::clone(&summaries))),
            kept_recalls: Arc::new(KeptRecalls::new(Arc::clone(&summaries))),
            summarizer: Arc::new(summarizer),
            bookkeeper: Bookkeeper::new(ledger, store),
            budget: Budget::new(usize::MAX),
            long_work: Arc::new(Semaphore::new(max_long_work)),
            summaries,
            answers,
        }
    }

    /// Waits until a long body may be decoded or planned.
    pub async fn begin_long_work(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.long_work).acquire_owned().await.ok() // never closed
    }

    /// One sentence for operators about the store, with the fix.
    pub fn store_notice(&self) -> Option<String> {
        self.store().map_or_else(|| self.lacks_store.clone(), Store::notice)
    }

    /// How long a request waits for the store at the longest.
    pub fn store_timeout(&self) -> Duration {
        self.summaries.disks.breaker.timeout
    }

    /// The store of payloads and summaries.
    pub fn store(&self) -> Option<&dyn Store> {
        self.summaries.disks.store.as_deref()
    }

    /// The store, for tasks that outlive a request.
    pub fn shared_store(&self) -> Option<Arc<dyn Store>> {
        self.summaries.disks.store.clone()
    }

    /// The namespace of the caller with this credential. All requests without a credential share one.
    pub fn caller(&self, credential: Option<&[u8]>) -> Caller {
        self.keys.caller(credential.unwrap_or_default())
    }

    /// Edits a body by `config`. When it returns, the payloads that the body names are durable.
    pub async fn edit_body(
        &self,
        config: &Arc<EngineConfig>,
        dialect: &'static dyn Dialect,
        body: impl Into<IndexedBody>,
        options: EditOptions<'_>,
    ) -> Box<EditedBody> {
        // What waits for handlers and summaries is large, and most requests wait for neither.
        Box::pin(Planning::new(self, config, dialect, body.into(), options).run()).await
    }
}

#[cfg(test)]
mod tests;
