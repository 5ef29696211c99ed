//! From a request body to the body that goes upstream: plan, have the summary made that the plan needs, store what it takes out,
//! splice.
//!
//! It never fails. What is not understood goes on as it came. What cannot be stored is not taken out: the request is planned
//! again without the edits that would need it. And nothing that names a payload goes upstream before the payload is kept for good.

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
use crate::payload::{Caller, Chain, Keys};
use crate::plan::{Basis, Need, OffloadEffect, Plan, Report, Stretch, SummaryEffect, Why};
use crate::planner::{Offload, Planner, Situation, When};
use crate::span::splice;
use crate::store::{Clock, Store, StoreError};
use crate::summary::{Memory, Recollection, Summary};
use crate::tasks::{Tasks, run_blocking};
use crate::units::Period;

pub mod by_hand;
mod error;
pub mod export;
mod flight;
mod patience;
mod rewritten;
pub mod summaries;
pub mod summarizer;

use error::SummaryError;
use patience::{Late, Patience};
use summaries::Summaries;
use summarizer::{Counted, Endpoints, Origin, Summarizer};

/// Edits the bodies of all requests. One for the whole process.
#[derive(Debug)]
pub struct Engine {
    store: Option<Arc<dyn Store>>,
    keys: Keys,
    disks: Disks,
    summaries: Arc<Summaries>,
    summarizer: Summarizer,
}

/// How long requests wait for what is written, and summaries with them.
#[derive(Clone, Debug)]
struct Disks {
    store: Patience,
    // Files are written elsewhere, mostly.
    export: Patience,
}

/// What a reload replaces of it.
#[derive(Debug)]
pub struct Rules {
    /// Makes plans.
    pub planner: Planner,
    /// Who makes summaries, beside the model that a client asks.
    pub endpoints: Endpoints,
}

/// One request, as far as the edits are concerned.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// Whose it is.
    pub caller: Caller,
    /// What is wanted.
    pub wanted: Wanted,
    /// When a summary is wanted.
    pub when: When,
    /// Says in whose name a summary may be made. None: none is made.
    pub origin: Option<&'a (dyn Fn() -> Origin + Sync)>,
}

impl fmt::Debug for Asked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { caller, wanted, when, .. } = self;
        f.debug_struct("Asked")
            .field("caller", caller)
            .field("wanted", wanted)
            .field("when", when)
            .finish_non_exhaustive()
    }
}

/// What is wanted of the edits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wanted {
    /// They are made.
    Made,
    /// They are reported: nothing is stored, and no summary is made.
    Reported,
}

/// A body after the edits.
#[derive(Clone, Debug)]
pub struct Edited {
    /// The body in pieces. Where nothing changed, it is the one piece that came.
    pub body: Vec<Bytes>,
    /// What was done; none if the request was not understood.
    pub report: Option<Report>,
    /// Why the request was not understood.
    pub skipped: Option<ParseError>,
    /// What went wrong here, so that less was done than could be.
    pub trouble: Option<Trouble>,
    /// Why a summary was not made that the request has waited for.
    pub unmade: Option<SummaryError>,
    /// How long the request has waited for a summary, if it has.
    pub summary_time: Option<Duration>,
    /// The length of what was taken out and is in the store.
    pub offloaded_bytes: usize,
    /// What the model reads of it, where that was counted.
    pub reads: Vec<Stretch>,
    /// What was taken out, or would be.
    pub offloads: Vec<OffloadEffect>,
    /// What was known when it was planned.
    pub basis: Basis,
}

/// What went wrong.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Trouble {
    /// An edit has a bug; the request went on as it came.
    #[error("an edit panicked")]
    Panic,
    /// What was to be taken out could not be stored, so it stayed.
    #[error("what was to be taken out could not be stored")]
    NotStored(#[source] StoreError),
    /// The store did not answer in time; as above.
    #[error("what was to be taken out was not stored within {} (store.timeout)", Period(*.0))]
    Slow(Duration),
    /// The store has not done yet what an earlier request has waited for so long; as above.
    #[error("what was to be taken out was not stored, since the disk has been silent for more than {} (store.timeout)", Period(*.0))]
    Silent(Duration),
    /// What was to be taken out could not be written to `recall.export_dir`; as above.
    #[error("what was to be taken out could not be written to recall.export_dir")]
    NotExported(#[source] Arc<io::Error>),
    /// Threads that may block are no more: the process ends.
    #[error("what was to be taken out was not stored, because abridge is ending")]
    Ending,
}

/// A body from this length on, in bytes, is planned away from the threads that serve requests, and a shorter one if its tokens
/// may have to be counted.
///
/// Where nothing is counted, planning takes less than a millisecond for a MiB, so a shorter body delays no event by more
/// than two. Where tokens are counted it is up to 100 ms for a MiB, or 1 ms if all of it was seen before, which is not known
/// beforehand.
const HOP_FROM: usize = 2 << 20;

/// How often a request is planned at most: a summary may be read, made, and read again.
const ROUNDS: usize = 4;

// === impl Trouble ===

impl From<Late> for Trouble {
    fn from(late: Late) -> Self {
        match late {
            Late::Now(most) => Self::Slow(most),
            Late::Before(most) => Self::Silent(most),
        }
    }
}

// === impl Edited ===

impl Edited {
    /// A body that was not looked at.
    pub fn untouched(body: Bytes) -> Self {
        Self {
            body: vec![body],
            report: None,
            skipped: None,
            trouble: None,
            unmade: None,
            summary_time: None,
            offloaded_bytes: 0,
            reads: Vec::new(),
            offloads: Vec::new(),
            basis: Basis::default(),
        }
    }

    /// Whether the body is another one now.
    pub fn changed(&self) -> bool {
        self.report.as_ref().is_some_and(|report| !report.changes.is_empty())
    }

    fn planned(body: Bytes, planned: Result<Plan, Unplanned>, trouble: Option<Trouble>) -> Self {
        match planned {
            Ok(Plan { splices, reads, report, offloads, basis, .. }) => Self {
                body: splice(&body, &splices),
                report: Some(report),
                reads,
                offloads,
                basis,
                trouble,
                ..Self::untouched(body)
            },
            Err(Unplanned::NotUnderstood(error)) => Self { skipped: Some(error), ..Self::untouched(body) },
            Err(Unplanned::Panic) => Self { trouble: Some(Trouble::Panic), ..Self::untouched(body) },
        }
    }
}

/// Edits a body where nobody serves: whatever the plan takes out is not stored.
pub fn edit_body(planner: &Planner, dialect: &dyn Dialect, body: Bytes) -> Edited {
    let plan = planner.plan(dialect, &body).map_err(Unplanned::NotUnderstood);
    Edited::planned(body, plan, None)
}

// === impl Rules ===

impl Rules {
    /// The folder that payloads are also written to, as files that an agent can read.
    pub fn export_dir(&self) -> Option<PathBuf> {
        self.planner.parts.recall.export_dir.as_ref().map(PathBuf::from)
    }

    /// How summaries are made.
    pub fn summarize(&self) -> &summarize::Settings {
        &self.planner.parts.summarize
    }
}

// === impl Engine ===

impl Engine {
    /// An engine that stores there, and names payloads with these keys. Without a store, nothing is taken out that would be
    /// lost. A request waits for the disk for `most`.
    pub fn new(store: Option<Arc<dyn Store>>, most: Duration, keys: Keys, tasks: Tasks, events: Events) -> Self {
        let disks = Disks { store: Patience::new(most, tasks.clone()), export: Patience::new(most, tasks.clone()) };
        let summaries = Arc::new(Summaries::new(store.clone(), disks.store.clone()));
        let summarizer = Summarizer::new(Arc::clone(&summaries), store.clone(), disks.clone(), tasks, events);
        Self { store, keys, disks, summaries, summarizer }
    }

    /// What is remembered of summaries. Nothing is, before somebody reads its index.
    pub fn summaries(&self) -> &Arc<Summaries> {
        &self.summaries
    }

    /// Numbers about summaries.
    pub fn summaries_made(&self) -> Counted {
        self.summarizer.counted()
    }

    /// Has one summary made, as for a request that waits for it.
    pub async fn summarize(
        &self,
        rules: &Arc<Rules>,
        effect: SummaryEffect,
        origin: Origin,
    ) -> Result<Option<Arc<Summary>>, SummaryError> {
        let key = effect.key;
        self.summarizer.make(rules, effect, origin).await?;
        Ok(match self.summaries.recall(key) {
            Recollection::Summary(summary) => Some(summary),
            _ => None,
        })
    }

    /// What names payloads.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// How long a request waits for the store.
    pub fn patience(&self) -> Duration {
        self.disks.store.most()
    }

    /// Where payloads are.
    pub fn store(&self) -> Option<&dyn Store> {
        self.store.as_deref()
    }

    /// The same, for what outlives a request.
    pub fn shared_store(&self) -> Option<Arc<dyn Store>> {
        self.store.clone()
    }

    /// The namespace of who shows this credential. All who show none share one.
    pub fn caller(&self, credential: Option<&[u8]>) -> Caller {
        self.keys.caller(credential.unwrap_or_default())
    }

    /// Names the beginnings of what this caller says, apart from those under another `scope`.
    pub fn chain(&self, caller: Caller, scope: &[u8]) -> Chain {
        self.keys.chain(caller, scope)
    }

    /// Edits a body by `rules`. When it returns, what was taken out is kept for good.
    pub async fn edit_body(
        &self,
        rules: &Arc<Rules>,
        dialect: &'static dyn Dialect,
        body: Bytes,
        asked: Asked<'_>,
    ) -> Edited {
        let offload = if self.store.is_some() { Offload::Possible } else { Offload::Impossible };
        let request = Request { rules, dialect, body: &body, asked, offload };
        let mut waited = Waited::default();
        let planned = self.plan_fully(&request, &mut waited).await;
        let offloads = match &planned {
            Ok(plan) if asked.wanted == Wanted::Made => plan.offloads.as_slice(),
            _ => &[],
        };
        let fulfilled = match waited.fulfilled.take() {
            Some(fulfilled) => fulfilled,
            None => self.fulfil(rules, offloads).await,
        };
        let Err(trouble) = fulfilled else {
            self.summaries.note_uses().await;
            let offloaded_bytes = offloads.iter().map(|effect| effect.payload.len()).sum();
            return Edited { offloaded_bytes, ..waited.put_into(Edited::planned(body, planned, None)) };
        };
        let request = Request { offload: Offload::Impossible, asked: Asked { origin: None, ..asked }, ..request };
        let planned = self.plan_fully(&request, &mut waited).await;
        waited.put_into(Edited::planned(body, planned, Some(trouble)))
    }

    /// The plan for a request, with the summaries that it needs, as far as they can be had; and why one cannot.
    async fn plan_fully(&self, request: &Request<'_>, waited: &mut Waited) -> Result<Plan, Unplanned> {
        let Request { rules, asked, .. } = request;
        // Those who wait for summaries do so for one time-out, however many they are.
        let mut deadline = None;
        for _ in 1..ROUNDS {
            // A plan that was begun before may know of some of the summaries only.
            let index_was_read = self.summaries.is_read();
            let mut plan = self.plan(request).await?;
            match plan.needs.take() {
                None => return Ok(plan),
                Some(Need::Load(beginning)) => self.summaries.load(beginning).await,
                Some(Need::Make(effect)) => {
                    let Some(origin) = asked.origin.filter(|_| asked.wanted == Wanted::Made) else { return Ok(plan) };
                    if !index_was_read {
                        self.summaries.until_read().await;
                        continue;
                    }
                    if asked.when == When::Triggered && self.summaries.rewritten.is_nearly(&effect.outline) {
                        plan.report.summary_left_out(Why::Rewritten);
                        return Ok(plan);
                    }
                    // What could not be kept is not asked for.
                    if let Err(late) = self.disks.store.is_not_late() {
                        waited.unmade = Some(late.into());
                        return Ok(plan);
                    }
                    // Who summarises reads what the other edits have left, and may repeat what that names.
                    let fulfilled = waited.fulfilled.insert(self.fulfil(rules, &plan.offloads).await);
                    if fulfilled.is_err() {
                        return Ok(plan);
                    }
                    if !effect.waits {
                        self.summarizer.begin(rules, *effect, origin());
                        return Ok(plan);
                    }
                    let (began, within) = (Instant::now(), rules.summarize().timeout.0);
                    let deadline = *deadline.get_or_insert(began + within);
                    let making = self.summarizer.make(rules, *effect, origin());
                    let made = timeout_at(deadline, making).await.unwrap_or(Err(SummaryError::Slow(within)));
                    *waited.time.get_or_insert_default() += began.elapsed();
                    if let Err(error) = made {
                        waited.unmade = Some(error);
                        return Ok(plan);
                    }
                    // The next plan has the summary, and other offloads.
                    waited.fulfilled = None;
                }
            }
        }
        self.plan(request).await
    }

    /// The plan for a body, made where it delays nobody.
    async fn plan(&self, request: &Request<'_>) -> Result<Plan, Unplanned> {
        let Request { rules, dialect, body, asked: Asked { caller, when, .. }, offload } = *request;
        let long = body.len() >= HOP_FROM.min(rules.planner.policy.counts_from());
        let (rules, body, summaries) = (Arc::clone(rules), body.clone(), Arc::clone(&self.summaries));
        let plan = move || {
            let situation = Situation { offload, summarize: when, ..rules.planner.situation(caller, &*summaries) };
            let planned = catch_unwind(AssertUnwindSafe(|| rules.planner.policy.plan(dialect, &body, &situation)));
            planned.map_err(|_| Unplanned::Panic)?.map_err(Unplanned::NotUnderstood)
        };
        if long { run_blocking(plan).await.unwrap_or(Err(Unplanned::Panic)) } else { plan() }
    }

    /// Keeps what a plan takes out. All of it, or the plan is not to be used.
    async fn fulfil(&self, rules: &Rules, offloads: &[OffloadEffect]) -> Result<(), Trouble> {
        let Some(store) = self.shared_store().filter(|_| !offloads.is_empty()) else { return Ok(()) };
        let payloads: Vec<_> = offloads.iter().map(|effect| (effect.key, effect.payload.clone())).collect();
        let exported = rules.export_dir().map(|dir| (dir, payloads.clone()));
        self.disks.store.wait(async move { store.keep_all(payloads).await }).await?.map_err(Trouble::NotStored)?;
        let Some((dir, payloads)) = exported else { return Ok(()) };
        // It would take a thread, and keep it.
        self.disks.export.is_not_late()?;
        let exporting = run_blocking(move || export::write_all(&dir, &payloads, Clock::system().now()));
        let written = self.disks.export.wait(exporting).await?;
        written.map_err(|_| Trouble::Ending)?.map_err(|error| Trouble::NotExported(Arc::new(error)))
    }
}

/// A request that is to be planned.
#[derive(Clone, Copy)]
struct Request<'a> {
    rules: &'a Arc<Rules>,
    dialect: &'static dyn Dialect,
    body: &'a Bytes,
    asked: Asked<'a>,
    offload: Offload,
}

/// What came of waiting for summaries.
#[derive(Default)]
struct Waited {
    time: Option<Duration>,
    unmade: Option<SummaryError>,
    /// Whether what the plan takes out is stored, if that was tried before a summary was asked for.
    fulfilled: Option<Result<(), Trouble>>,
}

impl Waited {
    fn put_into(self, edited: Edited) -> Edited {
        Edited { summary_time: self.time, unmade: self.unmade, ..edited }
    }
}

/// Why there is no plan.
enum Unplanned {
    NotUnderstood(ParseError),
    Panic,
}

#[cfg(test)]
mod tests;
