//! The ledger's entry about an answer: what it was billed, and what it would have been billed in its other form.

use std::sync::Arc;

use http::HeaderMap;
use http::header::USER_AGENT;

use super::{Accounting, EditState, Exchange, headers};
use crate::ledger::{Account, Figures, Forms, client_of};
use crate::proxy::Destination;
use crate::proxy::cache_ledger::Earlier;
use crate::relay::tap::TapReport;
use crate::tokens::Usage;
use crate::tokens::prices::KnownRates;

/// Who pays for a request, and at which rates.
#[derive(Debug)]
pub(in crate::proxy) struct Payer {
    rates: Arc<KnownRates>,
    policy: Arc<str>,
    client: String,
    caller: String,
}

impl Payer {
    /// Who sends a request with these header fields to this upstream.
    pub(in crate::proxy) fn new(destination: &Destination, fields: &HeaderMap) -> Self {
        let text = |name| fields.get(name).and_then(|value| value.to_str().ok());
        Self {
            rates: Arc::clone(&destination.rules.planner.rates),
            policy: Arc::clone(&destination.rules.policy),
            client: client_of(text(USER_AGENT)),
            caller: text(headers::CLIENT).unwrap_or_default().to_owned(),
        }
    }
}

impl Exchange {
    /// Enters the answer into the ledger. `earlier` is what is known of the request that this one continues.
    pub(super) fn enter_into_ledger(&self, accounting: &Accounting, tap_report: &TapReport, earlier: Option<Earlier>) {
        let (Some(payer), Some(edit)) = (&self.payer, &self.edit) else { return };
        if !self.answer.is_some_and(|answer| answer.status.is_success()) {
            return;
        }
        let report = edit.report.as_deref();
        let model = report.and_then(|report| report.model.clone()).unwrap_or_default();
        let is_edited = report.is_some_and(|report| !report.changes.is_empty());
        let mut figures = Figures {
            requests: 1,
            edited: u64::from(is_edited),
            asked_again: report.map_or(0, |report| (report.regrets.repeated + report.regrets.recalled) as u64),
            ..Figures::default()
        };
        match tap_report.usage {
            Some(billed) => {
                let other =
                    if is_edited { self.other_usage(accounting, edit, tap_report, billed, earlier) } else { billed };
                (figures.billed, figures.other_input) = (billed, other.input);
                match payer.rates.of_model(&model) {
                    Some(rates) => (figures.cost, figures.other_cost) = (rates.cost(&billed), rates.cost(&other)),
                    None => figures.unpriced = 1,
                }
            }
            None => figures.unreported = 1,
        }
        let account = Account {
            upstream: self.upstream.to_string(),
            model,
            policy: payer.policy.to_string(),
            client: payer.client.clone(),
            caller: payer.caller.clone(),
            dry_run: edit.dry_run,
        };
        accounting.ledger.add(account, figures);
    }

    /// The usage of the request without its edits, or in a dry run with them.
    fn other_usage(
        &self,
        accounting: &Accounting,
        edit: &EditState,
        tap_report: &TapReport,
        billed: Usage,
        earlier: Option<Earlier>,
    ) -> Usage {
        let Some(report) = edit.report.as_deref() else { return billed };
        let (before, after) = report.sizes();
        // Of several rounds, which only edits have made necessary, the other form would have had one.
        let billed =
            if tap_report.is_joined { billed.of_input(report.tokens_after.unwrap_or(0) as u64) } else { billed };
        let tokens: u64 = edit.segments.iter().map(|segment| segment.tokens as u64).sum();
        let known = |share: Option<f64>, input: u64| share.map(|share| crate::history::share_of(share, input));
        let received = earlier.map(|earlier| earlier.received);
        let mut forms = Forms { is_warm: earlier.is_some_and(|earlier| earlier.is_warm), ..Forms::default() };
        if edit.dry_run {
            (forms.sent, forms.other) = (before, after);
            let planned = tokens.saturating_mul(billed.input) / before.max(1);
            let share = self.conversation.as_ref().and_then(|conversation| {
                accounting.prefixes.track(conversation.cache.of_dry_runs(), report.model.as_deref()?, &edit.segments)
            });
            (forms.sent_known, forms.other_known) = (received, known(share, planned).filter(|_| received.is_some()));
        } else {
            (forms.sent, forms.other) = (after, before);
            (forms.sent_known, forms.other_known) = (known(self.prefix_kept, billed.input), received);
        }
        forms.other_usage(&billed)
    }
}
