//! Plans one request: a state machine that plans the body again each time it has got something that the plan lacked.
//!
//! It may lack what other processes know of the conversation's summaries, a summary that the store has, the index of summaries,
//! whether the prompt cache has expired, answers of handlers, and a summary that is to be made.
//!
//! If payloads cannot be stored, it starts anew without the edits that need the store.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::disks::PersistError;
use super::flight::SummaryError;
use super::handlers::RequestAnswers;
use super::summarizer::SummaryOrigin;
use super::{EditMode, EditOptions, EditedBody, Engine, EngineConfig, EngineError, WaitCause, Waits};
use crate::body::{Lease, most_merged};
use crate::dialect::{Dialect, ParseError};
use crate::handler::Answer;
use crate::payload::ChainKey;
use crate::plan::{CountedWith, Need, Plan, SkipReason, SummaryJob};
use crate::planner::{Calibration, ColdPasses, LookUp, Offload, PlanContext, Sent, SummaryTiming};
use crate::string_index::IndexedBody;
use crate::tasks::run_blocking;
use crate::tokens::factor::Factor;

mod handlers;

/// One request while it is planned.
pub(super) struct Planning<'a> {
    pub(super) engine: &'a Engine,
    pub(super) config: &'a Arc<EngineConfig>,
    pub(super) dialect: &'static dyn Dialect,
    pub(super) body: IndexedBody,
    pub(super) options: EditOptions<'a>,
    // How often the body was planned.
    n_plans: usize,
    // One deadline covers all summaries that a request waits for.
    deadline: Option<Instant>,
    waits: Waits,
    summary_error: Option<SummaryError>,
    // Why payloads could not be stored; the plans made since then need no store.
    store_error: Option<EngineError>,
    // The factor of the tokens, once it was looked up.
    factor: Option<Factor>,
    look_up: LookUp,
    // Whether it was decided if the prompt cache has expired.
    knows_cache: bool,
    // The answers of handlers that this request has got, how often it has asked, and how long it waits for each of them.
    answers: Arc<HashMap<ChainKey, Arc<Answer>>>,
    n_asked: usize,
    time_left: BTreeMap<Arc<str>, Duration>,
    // The memory of the last plan.
    lease: Lease,
}

/// The next step.
enum State {
    /// Plan the body.
    Plan,
    /// Store the plan's payloads, and use it.
    Persist(Box<Plan>),
    /// Use the plan.
    Done(Result<Box<Plan>, PlanError>),
}

/// Why a body could not be planned.
pub(super) enum PlanError {
    Parse(ParseError),
    Engine(EngineError),
}

/// Bodies of at least this many bytes are planned on a blocking thread, and so are shorter ones whose tokens may have
/// to be counted.
///
/// Without counting, planning takes less than 1 ms per MiB, so a shorter body delays other events by less than 2 ms.
/// With counting it takes up to 30 ms per MiB, or 1 ms if all messages were counted before, which is not known in
/// advance.
pub(super) const BLOCKING_FROM: usize = 2 << 20;

/// Shorter bodies, in bytes, are parsed on the thread that serves the request, to learn whether their tokens may have to be
/// counted, which depends on the model's window. Where they may, the body is parsed once more, on a blocking thread.
const PARSED_INLINE_BELOW: usize = 64 << 10;

/// How often a request is planned at most: other processes may have made a summary, its prompt cache may have expired, and its
/// summary may be loaded, made, and loaded again.
const MAX_PLANS: usize = 6;

/// How often a request asks handlers at most: an answer may be the reason of another pass, which needs further answers.
const MAX_ASKED: usize = 8;

/// A plan that takes fewer bytes than this is not leased, nor is what planning a body below [`PARSED_INLINE_BELOW`] takes:
/// such bodies are planned one after the other.
const LEASED_FROM: usize = 16 << 10;

/// The most bytes that planning takes for each object of a body, and for 2 bytes of it. Measured were 450 to 770 bytes for each
/// object of 130,000 calls without a result, of 90,000 messages with one, and of as many empty messages, and twice the length
/// of texts that are all escapes.
const PER_OBJECT: usize = 800;
const PER_TWO_BYTES: usize = 5;

/// The most bytes that planning a body takes, besides the body. Braces in texts count, except before a line break.
fn most_to_plan(body: &[u8]) -> usize {
    if body.len() < PARSED_INLINE_BELOW {
        return 0;
    }
    let is_object = |at: &usize| body.get(at + 1) != Some(&b'\\');
    let n_objects = memchr::memchr_iter(b'{', body).filter(is_object).count();
    n_objects * PER_OBJECT + body.len() / 2 * PER_TWO_BYTES
}

impl<'a> Planning<'a> {
    pub(super) fn new(
        engine: &'a Engine,
        config: &'a Arc<EngineConfig>,
        dialect: &'static dyn Dialect,
        body: IndexedBody,
        options: EditOptions<'a>,
    ) -> Self {
        let look_up = if engine.summaries.is_shared() { LookUp::Pending } else { LookUp::Done };
        Self {
            engine,
            config,
            dialect,
            body,
            options,
            n_plans: 0,
            deadline: None,
            waits: Waits::default(),
            summary_error: None,
            store_error: None,
            factor: None,
            look_up,
            knows_cache: false,
            answers: Arc::default(),
            n_asked: 0,
            time_left: BTreeMap::new(),
            lease: Lease::default(),
        }
    }

    /// Runs all steps. When it returns, the payloads that the body names are durable.
    ///
    /// What few requests wait for is boxed, here and in the steps, so that the others do not carry it along.
    pub(super) async fn run(mut self) -> Box<EditedBody> {
        let mut state = State::Plan;
        loop {
            state = match state {
                State::Plan => self.plan().await,
                State::Persist(plan) => match self.persist(&plan).await {
                    Ok(()) => State::Done(Ok(plan)),
                    Err(error) => self.start_without_store(error),
                },
                State::Done(planned) => return self.finish(planned).await,
            }
        }
    }

    /// Plans the body, and decides what the plan lacks.
    async fn plan(&mut self) -> State {
        // A plan that was made before the index was read may not know all stored summaries.
        let index_was_read = self.engine.summaries.is_index_read();
        let n_learnt = self.engine.summaries.n_learnt();
        self.n_plans += 1;
        let mut plan = match self.calibrated().await {
            Ok(plan) => plan,
            Err(error) => return State::Done(Err(error)),
        };
        let roots: Vec<_> = [plan.basis.root, plan.basis.sent_root].into_iter().flatten().collect();
        if !roots.is_empty() {
            self.look_up = LookUp::Done;
            Box::pin(join_all(roots.iter().map(|root| self.engine.summaries.look(*root)))).await;
            let is_news = |root: &ChainKey| self.engine.summaries.has_learnt_since(n_learnt, *root);
            if roots.iter().any(is_news) || plan.needs == Some(Need::LookUp) {
                return State::Plan;
            }
        }
        if !plan.asks.is_empty() && self.n_asked < MAX_ASKED {
            return Box::pin(self.answer(std::mem::take(&mut plan.asks))).await;
        }
        if self.n_plans == MAX_PLANS {
            return State::Persist(plan);
        }
        if plan.basis.asks_what_was_sent && !index_was_read {
            return self.after_index().await;
        }
        if let Some(place) = plan.basis.cold_pass_place.filter(|_| !self.knows_cache && self.stores()) {
            if !index_was_read {
                return self.after_index().await;
            }
            self.knows_cache = true;
            let has_expired = self.options.has_expired.is_some_and(|has_expired| has_expired(&plan));
            if has_expired && Box::pin(self.engine.summaries.remember_cold_pass(place)).await {
                return State::Plan;
            }
        }
        match plan.needs.take() {
            Some(Need::Load(key)) => {
                Box::pin(self.engine.summaries.load(key)).await;
                State::Plan
            }
            Some(Need::Make(job)) => match self.origin() {
                None => State::Persist(plan),
                Some(_) if !index_was_read => self.after_index().await,
                Some(_) if self.was_made_of_similar(&job) => {
                    plan.report.set_summary_skip_reason(SkipReason::Rewritten);
                    State::Persist(plan)
                }
                Some(origin) => Box::pin(self.summarize(plan, *job, origin())).await,
            },
            Some(Need::LookUp) | None => State::Persist(plan),
        }
    }

    /// Plans again when the index of summaries was read.
    async fn after_index(&self) -> State {
        Box::pin(self.engine.summaries.wait_for_index()).await;
        State::Plan
    }

    /// Makes the summary that a plan lacks, or has it made if the request does not wait for it.
    async fn summarize(&mut self, plan: Box<Plan>, job: SummaryJob, origin: SummaryOrigin) -> State {
        let (engine, config) = (self.engine, self.config);
        // While the breaker is open a summary could not be stored, so none is requested.
        if let Err(error) = engine.summaries.disks.breaker.check().map_err(PersistError::Breaker) {
            self.summary_error = Some(error.into());
            return State::Persist(plan);
        }
        // The summarizing model reads what the other edits have left, and may repeat the handles in it.
        if let Err(error) = self.persist(&plan).await {
            return self.start_without_store(error);
        }
        if !job.waits {
            engine.summarizer.spawn(config, job, origin);
            return State::Done(Ok(plan));
        }
        let (began, within) = (Instant::now(), config.summarize().timeout.0);
        let deadline = *self.deadline.get_or_insert(began + within);
        let making = engine.summarizer.make(config, job, origin);
        let made = timeout_at(deadline, making).await.unwrap_or(Err(SummaryError::TimedOut(within)));
        self.waits.add(WaitCause::Summary, began);
        match made {
            // The next plan uses the summary, and has other payloads.
            Ok(()) => State::Plan,
            Err(error) => {
                self.summary_error = Some(error);
                State::Done(Ok(plan))
            }
        }
    }

    /// Starts anew with plans that need no store and make no summary.
    fn start_without_store(&mut self, error: EngineError) -> State {
        self.store_error = Some(error);
        self.options.origin = None;
        self.n_plans = 0;
        State::Plan
    }

    async fn finish(&mut self, planned: Result<Box<Plan>, PlanError>) -> Box<EditedBody> {
        if self.store_error.is_none() {
            self.engine.summaries.flush_uses().await;
        }
        if let Ok(plan) = &planned
            && self.options.mode == EditMode::Apply
        {
            Box::pin(self.engine.summaries.remember_sent(&plan.basis.sent_passes)).await;
        }
        let offloads = planned.as_ref().ok().filter(|_| self.stores()).map(|plan| plan.offloads.as_slice());
        let offloaded_bytes = offloads.unwrap_or_default().iter().map(|offload| offload.payload.len()).sum();
        let lease = (self.lease.bytes() > 0 && planned.is_ok()).then(|| Arc::new(std::mem::take(&mut self.lease)));
        let mut edited = Box::new(EditedBody::planned(self.body.bytes.clone(), planned, self.store_error.take()));
        (edited.summary_error, edited.waits) = (self.summary_error.take(), std::mem::take(&mut self.waits));
        (edited.lease, edited.offloaded_bytes) = (lease, offloaded_bytes);
        edited
    }

    // === helpers ===

    /// Plans the body; if tokens were counted of a conversation that is not known, once more with its factor.
    async fn calibrated(&mut self) -> Result<Box<Plan>, PlanError> {
        let plan = self.planned().await?;
        let Some(CountedWith { factor, unfrozen: Some(beginning), .. }) = plan.basis.counted else { return Ok(plan) };
        let (factors, model) = (&self.engine.factors, plan.report.model.as_deref().unwrap_or_default());
        let counted = Box::pin(self.counted_by_handler(beginning, model)).await;
        let learnt = counted.or_else(|| factors.learnt(self.options.upstream, model)).unwrap_or(factor);
        let settled = match self.options.mode {
            EditMode::Apply => Box::pin(factors.settle(beginning, learnt, factor)).await,
            EditMode::DryRun => Box::pin(factors.expected(beginning, learnt)).await,
        };
        self.factor = Some(settled);
        if settled == factor { Ok(plan) } else { self.planned().await }
    }

    /// Plans the body once, on a blocking thread if that may take long. What planning takes is leased before.
    async fn planned(&mut self) -> Result<Box<Plan>, PlanError> {
        self.lease.shrink_to(0);
        let needed = most_to_plan(&self.body);
        let (config, dialect, body) = (Arc::clone(self.config), self.dialect, self.body.clone());
        let EditOptions { caller, when, strips_now, in_place, .. } = self.options;
        let look_up = self.look_up;
        let can_store = self.engine.summaries.has_store() && self.store_error.is_none();
        let offload = if can_store { Offload::Possible } else { Offload::Impossible };
        let inline_below = BLOCKING_FROM.min(config.planner.policy.counts_from.max(PARSED_INLINE_BELOW));
        let is_short = body.len() < inline_below;
        let summaries = Arc::clone(&self.engine.summaries);
        let (factors, factor) = (Arc::clone(&self.engine.factors), self.factor);
        let (own, shared) = (Arc::clone(&self.answers), Arc::clone(&self.engine.answers));
        let answers = RequestAnswers { own, shared, can_ask: can_store };
        let is_calibrated = config.planner.settings.tokens.is_calibrated() && summaries.has_store();
        let plan = move |may_count: bool| {
            let calibration = match factor {
                Some(factor) => Calibration::Fixed(factor),
                None if is_calibrated => Calibration::Frozen(&*factors),
                None => Calibration::Table,
            };
            let context = config.planner.context(caller, &*summaries);
            let are_made = summaries.has_cold_passes();
            let cold_passes = if are_made { ColdPasses::Remembered(&*summaries) } else { context.cold_passes };
            let context = PlanContext {
                strings: body.strings(),
                offload,
                look_up,
                summarize: when,
                calibration,
                cold_passes,
                sent: Sent::Remembered(&*summaries),
                strips_now,
                in_place,
                answers: &answers,
                ..context
            };
            let policy = &config.planner.policy;
            let planned = catch_unwind(AssertUnwindSafe(|| {
                if may_count {
                    Some(policy.plan(dialect, &body, &context).map(Box::new))
                } else {
                    policy.plan_uncounted(dialect, &body, &context).transpose()
                }
            }));
            let planned = planned.map_err(|_| PlanError::Engine(EngineError::Panic)).transpose()?;
            Some(planned.and_then(|planned| planned.map_err(PlanError::Parse)))
        };
        let budget = &self.engine.budget;
        let lease = || budget.lease(needed).ok_or(PlanError::Engine(EngineError::NoMemory));
        if is_short {
            let lease = lease()?;
            if let Some(planned) = plan(false) {
                return self.keep(planned?, lease);
            }
        }
        // Who waits here holds nothing that others wait for.
        let turn = self.engine.begin_long_work().await;
        let lease = lease()?;
        // Both are held until the plan is made, even if the request is gone.
        let planned = run_blocking(move || (plan(true), lease, turn)).await;
        let Ok((Some(planned), lease, _)) = planned else { return Err(PlanError::Engine(EngineError::Panic)) };
        self.keep(planned?, lease)
    }

    /// Keeps the part of a lease that a plan takes once it is made.
    fn keep(&mut self, plan: Box<Plan>, mut lease: Lease) -> Result<Box<Plan>, PlanError> {
        let merged = most_merged(self.body.len(), plan.splices.len());
        let held = Some(plan.weight() + merged).filter(|held| *held >= LEASED_FROM).unwrap_or_default();
        if !self.engine.budget.extend_to(&mut lease, held) {
            return Err(PlanError::Engine(EngineError::NoMemory));
        }
        lease.shrink_to(held);
        self.lease = lease;
        Ok(plan)
    }

    /// Stores the payloads of a plan. After an error the plan must not be used.
    async fn persist(&mut self, plan: &Plan) -> Result<(), EngineError> {
        let offloads = plan.offloads.iter().filter(|_| self.stores());
        let offloads: Vec<_> = offloads.cloned().collect();
        if offloads.is_empty() || !self.engine.summaries.has_store() {
            return Ok(());
        }
        let began = Instant::now();
        let storing = self.engine.summaries.disks.persist(self.config.export_dir(), offloads, plan.lifetime);
        let stored = Box::pin(storing).await;
        self.waits.add(WaitCause::Store, began);
        Ok(stored?)
    }

    /// Whether payloads are stored.
    fn stores(&self) -> bool {
        self.options.mode == EditMode::Apply && self.store_error.is_none()
    }

    /// Builds the origin of a summary call; `None` if no summary is made.
    fn origin(&self) -> Option<&'a (dyn Fn() -> SummaryOrigin + Sync)> {
        self.options.origin.filter(|_| self.options.mode == EditMode::Apply)
    }

    /// Whether nearly the same messages were summarised a short time ago; a summary that someone asks for is made all
    /// the same.
    fn was_made_of_similar(&self, job: &SummaryJob) -> bool {
        self.options.when == SummaryTiming::Triggered && self.engine.summaries.recent.has_similar(&job.outline)
    }
}
