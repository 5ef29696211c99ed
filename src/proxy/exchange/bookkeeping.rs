//! What leaves with an exchange that has ended: its entry in the ledger, with the bill and the bill without the edits, or in a dry
//! run with them; and its trace, which begins when the request is sent.

use std::sync::Arc;
use std::time::SystemTime;

use http::HeaderMap;
use http::header::USER_AGENT;
use tokio::time::Instant;

use super::{Accounting, EditState, Exchange};
use crate::engine::EngineConfig;
use crate::history::{Entry, share_of};
use crate::ledger::{Account, Assignment, Counterfactual, Figures, client_of};
use crate::otel::{Exporter, RequestTrace};
use crate::plan::Report;
use crate::proxy::cache_ledger::EarlierRequest;
use crate::proxy::keep_alive::CallsAccount;
use crate::relay::tap::TapReport;
use crate::tokens::Usage;
use crate::units::prorated;

/// The facts of a request for the ledger.
#[derive(Debug)]
pub(in crate::proxy) struct BillingContext {
    /// They have the prices, the meter and the name of the policy.
    pub(super) rules: Arc<EngineConfig>,
    /// The program that sends the request.
    pub(super) client: String,
    /// The experiment that the conversation is in.
    pub(in crate::proxy) assignment: Option<Assignment>,
}

impl BillingContext {
    /// Of a request with these header fields.
    pub(in crate::proxy) fn new(rules: &Arc<EngineConfig>, fields: &HeaderMap, assignment: Option<Assignment>) -> Self {
        let user_agent = fields.get(USER_AGENT).and_then(|value| value.to_str().ok());
        Self { rules: Arc::clone(rules), client: client_of(user_agent).to_owned(), assignment }
    }
}

impl Exchange {
    /// The account for calls that abridge makes because of this request.
    pub(super) fn calls_account(&self) -> Option<CallsAccount> {
        let BillingContext { rules, assignment, .. } = self.billing.as_ref()?;
        let model = self.edit.as_ref().and_then(|edit| edit.report.as_ref()?.model.clone()).unwrap_or_default();
        let (ledger, rules) = (self.accounting.as_ref()?.ledger.clone(), Arc::clone(rules));
        Some(CallsAccount { ledger, rules, model, assignment: assignment.clone() })
    }

    /// Enters the answer into the ledger, and returns what was entered. `earlier` is what is known of the request that this one
    /// continues.
    pub(super) fn enter_into_ledger(
        &self,
        accounting: &Accounting,
        tap_report: &TapReport,
        earlier: Option<EarlierRequest>,
    ) -> Option<Figures> {
        let (billing, edit) = (self.billing.as_ref()?, self.edit.as_ref()?);
        if !self.answer?.status.is_success() {
            return None;
        }
        let report = edit.report.as_ref();
        let model = report.and_then(|report| report.model.clone()).unwrap_or_default();
        let edited = report.filter(|report| report.has_edits());
        let mut figures = Figures {
            requests: 1,
            edited: u64::from(edited.is_some()),
            asked_again: report.map_or(0, |report| (report.regrets.repeated + report.regrets.recalled) as u64),
            ..Figures::default()
        };
        // Dry runs share prefixes with each other, edited or not.
        let dry_share = self.conversation.as_ref().filter(|_| edit.dry_run).and_then(|conversation| {
            accounting.prefixes.track(conversation.cache.of_dry_runs(), &model, &edit.segments)
        });
        if let Some((billed, planned)) = tap_report.usage.zip(tap_report.planned()) {
            let unsent = edited.map_or(billed, |report| {
                let share = if edit.dry_run { dry_share } else { self.prefix_kept };
                let has_seen_all = earlier.is_some() && !accounting.is_shared;
                unsent_usage(edit, report, planned, share, earlier, has_seen_all)
            });
            let (edited, unedited) = if edit.dry_run { (unsent, billed) } else { (billed, unsent) };
            figures.billed = billed;
            (figures.edited_input, figures.unedited_input) = (edited.input, unedited.input);
            match billing.rules.planner.rates.dollars(&model) {
                Some(rates) => {
                    (figures.edited_cost, figures.unedited_cost) = (rates.cost(&edited), rates.cost(&unedited));
                }
                None => figures.unpriced = 1,
            }
        } else {
            figures.unreported = 1;
        }
        let caller = self.client.as_ref().and_then(|name| name.to_str().ok());
        let account = Account {
            upstream: self.upstream.as_str().to_owned(),
            model,
            policy: (*billing.rules.policy).to_owned(),
            client: billing.client.clone(),
            caller: caller.unwrap_or_default().to_owned(),
            dry_run: edit.dry_run,
        };
        accounting.ledger.add(account, &figures, billing.assignment.as_ref());
        Some(figures)
    }

    /// Begins the trace of a request that was planned and is to be sent, if traces are sent. Its header names the trace.
    pub(in crate::proxy) fn begin_trace(&mut self, exporter: Option<&Exporter>, headers: &mut HeaderMap) {
        let Some((exporter, conversation)) = exporter.zip(self.conversation.as_ref()) else { return };
        let sent = Moment::now();
        let trace = exporter.begin(&conversation.path, sent.time_of(self.timer.began), sent.time, headers);
        self.traced = Some(Box::new(Traced { trace, sent }));
    }

    /// Ends the trace.
    pub(super) fn end_trace(&mut self, entry: &Entry) {
        let Some((traced, conversation)) = self.traced.take().zip(self.conversation.as_ref()) else { return };
        let Traced { trace, sent } = *traced;
        let began = self.timer.began;
        let read = self.timer.body_read.unwrap_or(began);
        let span = |name, began: Instant, ended: Instant| (name, sent.time_of(began), sent.time_of(ended));
        let mut steps = vec![span("read", began, read), span("plan", read, sent.instant)];
        let waits = self.edit.iter().flat_map(|edit| edit.waits.0.iter());
        steps.extend(waits.map(|wait| span(wait.cause.into(), wait.began, wait.began + wait.took)));
        let at = sent.time_of(self.ended.unwrap_or_else(Instant::now));
        trace.end(entry, conversation.dialect.facts().provider, &steps, at);
    }
}

/// The usage of an edited request without its edits, or of a request of a dry run with them. `billed` is the usage of one round,
/// because only edits make several necessary. `share` is the part of the edited request that an earlier edited request has in
/// common with it. `has_seen_all` says that no other process has sent requests of the conversation.
fn unsent_usage(
    edit: &EditState,
    report: &Report,
    billed: Usage,
    share: Option<f64>,
    earlier: Option<EarlierRequest>,
    has_seen_all: bool,
) -> Usage {
    let sent = billed.input;
    if report.requests_cache && !edit.dry_run {
        // No one else has asked for the cache. The mark itself has no tokens.
        let input = if report.changes.is_empty() { sent } else { report.received_tokens(sent) };
        return Usage { written: 0, written_hour: 0, ..billed.with_input(input, 0) };
    }
    let edited_shared = |edited: u64| share.map(|share| share_of(share, edited));
    let (input, shared, sent_shared) = if edit.dry_run {
        let input = report.edited_tokens(sent);
        (input, edited_shared(input).unwrap_or(0), earlier.map(|earlier| earlier.received))
    } else {
        let input = report.received_tokens(sent);
        let counted = edit.basis.received.as_deref().zip(report.tokens_before);
        let new = counted.map_or(input, |(received, n)| prorated(received.new_tokens as u64, input, n as u64));
        let history = if has_seen_all { 0 } else { input.saturating_sub(new) };
        (input, earlier.map_or(0, |earlier| earlier.received).max(history), edited_shared(sent))
    };
    if earlier.is_none() && share.is_none() {
        // No tokens were counted, so nothing is known of either request.
        return billed.of_input(input);
    }
    let is_warm = earlier.is_some_and(|earlier| earlier.is_warm);
    Counterfactual { input, shared, is_known: earlier.is_some(), sent_shared, is_warm }.usage(&billed)
}

/// A trace, and when its request was sent.
#[derive(Debug)]
pub(super) struct Traced {
    trace: RequestTrace,
    sent: Moment,
}

/// One moment in both clocks, by which times of the one become those of the other.
#[derive(Clone, Copy, Debug)]
struct Moment {
    instant: Instant,
    time: SystemTime,
}

// === impl Moment ===

impl Moment {
    #[expect(clippy::disallowed_methods, reason = "spans have the time of their request")]
    fn now() -> Self {
        Self { instant: Instant::now(), time: SystemTime::now() }
    }

    fn time_of(&self, instant: Instant) -> SystemTime {
        self.time - self.instant.saturating_duration_since(instant) + instant.saturating_duration_since(self.instant)
    }
}
