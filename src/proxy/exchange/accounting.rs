//! Accounting when a request has ended: its history entry, its metrics, and abridge's share of its time.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use tokio::time::Instant;

use super::{AnswerHead, EditState, Exchange};
use crate::body::Budget;
use crate::dialect::{AnswerEnd, Dialect, Usage};
use crate::engine::factors::Factors;
use crate::engine::{EngineError, WaitCause};
use crate::history::{Entry, History, Outcome, share_of};
use crate::inspect::{Changes, short};
use crate::ledger::Ledger;
use crate::metrics::{AnswerUsage, Metrics};
use crate::plan::{Plan, Report, SkipReason};
use crate::platform::since_1970;
use crate::proxy::ProxyError;
use crate::proxy::cache_ledger::{Billed, CacheLedger, EarlierRequest};
use crate::proxy::inspection::PendingInspection;
use crate::proxy::notices::Notices;
use crate::proxy::prefix_tracker::{CacheScope, PrefixTracker};
use crate::relay::tap::TapReport;
use crate::tokens::factor::{Bill, Factor};

/// Where ended requests are accounted for.
#[derive(Debug)]
pub(in crate::proxy) struct Accounting {
    /// Entries about the last requests.
    pub(in crate::proxy) history: History,
    /// Metrics of all requests.
    pub(in crate::proxy) metrics: Metrics,
    /// The prefixes of the prompts that were sent.
    pub(in crate::proxy) prefixes: PrefixTracker,
    /// What prompt caches have served.
    pub(in crate::proxy) caches: CacheLedger,
    /// Whether other processes send requests of the same conversations, too.
    pub(in crate::proxy) is_shared: bool,
    /// What answers have cost.
    pub(in crate::proxy) ledger: Ledger,
    /// What tokens are counted as.
    pub(in crate::proxy) factors: Arc<Factors>,
    /// Warnings that are logged once.
    pub(in crate::proxy) notices: Notices,
    /// The memory for the bodies of all requests, of which decoders of answers get some.
    pub(in crate::proxy) budget: Budget,
}

/// A request that is a conversation.
#[derive(Debug)]
pub(in crate::proxy) struct Conversation {
    pub(super) dialect: &'static dyn Dialect,
    /// A copy: the URI of a request keeps all bytes alive that were read with it.
    pub(super) path: Box<str>,
    /// Its length before the edits.
    pub(super) bytes: usize,
    /// Whether its content coding could be decoded.
    pub(in crate::proxy) readable: bool,
    pub(super) cache: CacheScope,
}

/// Measures the time that abridge itself adds to a request.
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy) struct OverheadTimer {
    pub(super) began: Instant,
    excluded: Duration,
    /// When the last wait that was excluded ended, which is that for the body.
    pub(super) body_read: Option<Instant>,
}

impl Conversation {
    /// One that could be decoded.
    pub(in crate::proxy) fn new(dialect: &'static dyn Dialect, uri: &Uri, bytes: usize, cache: CacheScope) -> Self {
        Self { dialect, path: uri.path().into(), bytes, readable: true, cache }
    }
}

// === impl OverheadTimer ===

impl OverheadTimer {
    /// Starts now.
    pub(in crate::proxy) fn start() -> Self {
        Self { began: Instant::now(), excluded: Duration::ZERO, body_read: None }
    }

    /// Awaits `wait`, which also depends on the client, and excludes that time.
    pub(in crate::proxy) async fn excluding<F: Future>(&mut self, wait: F) -> F::Output {
        let began = Instant::now();
        let output = wait.await;
        let ended = Instant::now();
        self.excluded += ended.duration_since(began);
        self.body_read = Some(ended);
        output
    }

    /// The present time, and the time that abridge added until now, without `waited`.
    pub(super) fn read(&self, waited: Duration) -> (Instant, Duration) {
        let now = Instant::now();
        (now, now.duration_since(self.began).saturating_sub(self.excluded + waited))
    }
}

// === impl Accounting ===

impl Accounting {
    /// Counts a request that was answered with an error of abridge itself.
    pub(in crate::proxy) fn failed(&self, error: &ProxyError) {
        self.metrics.count_error(error.code());
        let shed_by = match error {
            ProxyError::TooManyRequests { .. } => "in_flight",
            ProxyError::OverShare { .. } | ProxyError::TooManyConnections { .. } => "share",
            ProxyError::TooManyBytes => "memory",
            ProxyError::Upstream(_) => return self.history.count_failed(),
            _ => return self.history.count(|requests| &mut requests.refused),
        };
        self.metrics.count_shed(shed_by);
        self.history.count(|requests| &mut requests.shed);
    }

    /// Whether the prompt cache of an upstream has lost the conversation of a plan.
    pub(in crate::proxy) fn has_expired(&self, scope: CacheScope, upstream: &str, plan: &Plan) -> bool {
        let model = plan.report.model.as_deref().map(short).unwrap_or_default();
        let received = plan.basis.received.as_deref();
        received.is_some_and(|received| self.caches.has_expired(scope, upstream, &model, received, Instant::now()))
    }
}

// === impl Exchange ===

impl Exchange {
    /// Adds the exchange to metrics and history. Only the first call has an effect.
    pub(super) fn account(&mut self, tap_report: &TapReport, end: AnswerEnd) {
        let Some(accounting) = self.accounting.take() else { return };
        accounting.metrics.observe_added(self.edit.is_some(), self.added);
        accounting.metrics.count_upstream(self.upstream.as_str(), self.answer.is_some());
        let Some(mut entry) = self.entry(tap_report, end) else {
            return accounting.history.count(|requests| &mut requests.passed);
        };
        let mut earlier = None;
        if let Some(report) = self.report() {
            accounting.metrics.count_edits(report, entry.outcome == Outcome::Edited);
            accounting.notices.note(report);
            if !(report.changes.is_empty() && report.left_out.is_empty()) {
                accounting.history.note_changes(self.id.to_string(), Changes::of(report));
            }
            let is_answer = self.answer.is_some_and(|answer| answer.status.is_success());
            let is_complete = end == AnswerEnd::Complete;
            if is_answer {
                earlier = self.account_for_cache(&accounting.caches, tap_report.planned().filter(|_| is_complete));
            }
            if is_answer && is_complete {
                self.learn_from_bill(&accounting, report, tap_report);
                accounting.metrics.count_answer(&AnswerUsage {
                    model: entry.model.as_deref(),
                    duration: self.ended.unwrap_or_else(Instant::now).duration_since(self.sent),
                    billed: tap_report.usage.map(|usage| [usage.input, usage.cached, usage.output]),
                    predicted: entry.predicted_cached(),
                });
            }
        }
        if let Some(figures) = self.enter_into_ledger(&accounting, tap_report, earlier)
            && figures.unreported + figures.unpriced == 0
        {
            (entry.edited_cost, entry.unedited_cost) = (Some(figures.edited_cost), Some(figures.unedited_cost));
        }
        self.end_trace(&entry);
        let Some(inspection) = self.pending_inspection.take() else {
            accounting.history.push(entry);
            return;
        };
        entry.inspectable = true;
        entry.seq = accounting.history.push(entry.clone());
        self.keep_messages(inspection, entry);
    }

    /// The share of the tokens, 0 to 1, that is a known prefix; `None` if no tokens were counted.
    pub(super) fn known_prefix_share(&self) -> Option<f64> {
        let edit = self.edit.as_ref().filter(|edit| !edit.dry_run)?;
        let model = edit.report.as_ref()?.model.as_deref().unwrap_or_default();
        self.accounting.as_ref()?.prefixes.track(self.conversation.as_ref()?.cache, model, &edit.segments)
    }

    /// Learns what the tokens of the model are billed as, and whether the upstream cuts prompts.
    fn learn_from_bill(&self, accounting: &Accounting, report: &Report, tap_report: &TapReport) {
        let (Some(edit), Some(usage), Some(model)) = (&self.edit, tap_report.planned(), report.model.as_deref()) else {
            return;
        };
        let Some(billing) = &self.billing else { return };
        let (tokens, bytes) = if edit.dry_run {
            (report.tokens_before, report.bytes_before)
        } else {
            (report.tokens_after, report.bytes_after)
        };
        if let Some((tokens, counted)) = tokens.zip(edit.basis.counted.filter(|counted| counted.is_whole)) {
            let bill = Bill { counted: tokens as u64, factor: counted.factor, billed: usage.input };
            accounting.factors.learn(self.upstream.as_str(), model, bill);
        }
        // An estimate where no tokens were counted.
        let sent = tokens.unwrap_or(bytes / 4) as u64;
        let meter = &billing.rules.planner.meter;
        accounting.notices.stalls.note(meter, self.upstream.as_str(), &short(model), sent, usage.input);
    }

    /// Accounts for what the prompt cache has served, if that is known, and remembers the request. Returns what is known of the
    /// one that this one continues.
    fn account_for_cache(&self, caches: &CacheLedger, usage: Option<Usage>) -> Option<EarlierRequest> {
        let (edit, conversation) = (self.edit.as_ref()?, self.conversation.as_ref()?);
        let (received, report) = (edit.basis.received.as_deref()?, edit.report.as_ref()?);
        let counted = edit.basis.counted?;
        let sent = if edit.dry_run { report.tokens_before } else { report.tokens_after };
        let input = usage.map(|usage| usage.input).or(sent.map(|tokens| tokens as u64))?;
        let tokens = edit.segments.iter().map(|segment| segment.tokens as u64).sum();
        let billed = Billed {
            scope: conversation.cache,
            upstream: self.upstream.as_str(),
            model: &report.model.as_deref().map(short).unwrap_or_default(),
            received,
            received_tokens: if edit.dry_run { input } else { report.received_tokens(input) },
            at: self.sent,
            segments: &edit.segments,
            known: self.prefix_kept.map_or(0, |share| share_of(share, tokens)),
            input,
            cached: usage.map(|usage| usage.cached),
        };
        let is_known = counted.is_whole && (edit.dry_run || self.prefix_kept.is_some());
        is_known.then(|| caches.add(&billed, edit.dry_run))?
    }

    /// Writes the messages to the store in a task.
    fn keep_messages(&mut self, inspection: Box<PendingInspection>, entry: Entry) {
        // Nothing reads the report after this.
        let report = self.edit.as_mut().and_then(|edit| edit.edited.report.take()).unwrap_or_default();
        let id = self.id;
        self.tasks.spawn(async move {
            if let Err(error) = inspection.keep(entry, report).await {
                tracing::debug!(request_id = %id, %error, "the messages of a request are not kept");
            }
        });
    }

    /// The history entry; `None` if the request is not a conversation.
    fn entry(&self, tap_report: &TapReport, end: AnswerEnd) -> Option<Entry> {
        let Conversation { path, bytes, readable, .. } = self.conversation.as_ref()?;
        let edit = self.edit.as_ref();
        let report = self.report();
        let answer = self.answer.map(|AnswerHead { status, after, .. }| (status.as_u16(), millis(after)));
        let ended = self.ended.unwrap_or_else(Instant::now);
        let total = ended.duration_since(self.timer.began);
        let left_out = |is_it: fn(SkipReason) -> bool| {
            report.is_some_and(|report| report.left_out.iter().any(|left| is_it(left.why)))
        };
        let window = || self.billing.as_ref()?.rules.planner.meter.window(report?.model.as_deref());
        Some(Entry {
            seq: 0,
            id: self.id.to_string(),
            time: (since_1970().as_secs_f64() - total.as_secs_f64()).max(0.0),
            model: report.and_then(|report| report.model.as_deref()).map(short),
            conversation: edit.and_then(|edit| edit.basis.conversation),
            title: None,
            client: self.billing.as_ref().map(|billing| short(&billing.client)).unwrap_or_default(),
            path: short(path),
            upstream: self.upstream.as_str().to_owned(),
            outcome: edit.map_or(Outcome::Passed, |edit| edit.outcome(*readable)),
            edits: report.map(Report::counts).unwrap_or_default(),
            messages: report.map_or(0, |report| report.messages_before),
            bytes_before: report.map_or(*bytes, |report| report.bytes_before),
            bytes_after: report.map_or(*bytes, |report| report.bytes_after),
            tokens_before: report.and_then(|report| report.tokens_before),
            tokens_after: report.and_then(|report| report.tokens_after),
            token_factor: edit.and_then(EditState::token_factor),
            offloaded_bytes: edit.map_or(0, |edit| edit.offloaded_bytes as u64),
            added_ms: millis(self.added),
            summary_ms: edit.and_then(|edit| edit.waits.total(WaitCause::Summary)).map(millis),
            first_byte_ms: answer.map(|(_, after)| after),
            total_ms: millis(total),
            status: answer.map(|(status, _)| status),
            end,
            input_tokens: tap_report.usage.map(|usage| usage.input),
            cached_tokens: tap_report.usage.map(|usage| usage.cached),
            output_tokens: tap_report.usage.map(|usage| usage.output),
            prefix_kept: self.prefix_kept,
            stop_reason: tap_report.stop_reason.clone(),
            regrets: report.map(|report| report.regrets).unwrap_or_default(),
            edited_cost: None,
            unedited_cost: None,
            window: edit.and_then(|edit| edit.basis.window.or_else(window)),
            beyond_window: report.and_then(|report| report.beyond_window),
            does_not_pay: left_out(|why| why == SkipReason::TooLittle),
            held_back: report.is_none() || left_out(|why| why != SkipReason::TooLittle),
            inspectable: false,
        })
    }
}

impl EditState {
    /// Returns what the tokens were counted as, if they were.
    pub(super) fn token_factor(&self) -> Option<Factor> {
        self.basis.counted.map(|counted| counted.factor)
    }

    fn outcome(&self, readable: bool) -> Outcome {
        let is_understood =
            self.parse_error.is_none() && !matches!(self.error, Some(EngineError::Panic | EngineError::NoMemory));
        match self.report.as_ref().map(Report::has_edits) {
            Some(true) if self.dry_run => Outcome::WouldBeEdited,
            Some(true) => Outcome::Edited,
            None if !(readable && is_understood) => Outcome::NotUnderstood,
            Some(false) | None => Outcome::Unedited,
        }
    }
}

/// Milliseconds, to the microsecond.
fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}
