//! The ledger's entry about an answer: what it was billed, and what it would have been billed in its other form.

use std::sync::Arc;

use http::HeaderMap;
use http::header::USER_AGENT;

use super::{Accounting, EditState, Exchange, headers};
use crate::history::share_of;
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
                let other = self.other_usage(accounting, edit, tap_report, billed, earlier);
                let other = other.filter(|_| is_edited).unwrap_or(billed);
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
    ) -> Option<Usage> {
        let report = edit.report.as_deref()?;
        // Of several rounds, which only edits have made necessary, the other form would have had one.
        let sent =
            if tap_report.is_joined { report.tokens_after.map_or(billed.input, |n| n as u64) } else { billed.input };
        let billed = billed.of_input(sent);
        let other_input = if edit.dry_run { report.planned_tokens(sent) } else { report.received_tokens(sent) };
        let conversation = self.conversation.as_ref()?;
        let (cache, model) = (conversation.cache, report.model.as_deref().unwrap_or_default());
        let last = accounting.caches.last_input(cache, model, if edit.dry_run { sent } else { other_input }, self.sent);
        // A conversation that was counted for the first time may have begun before.
        let earlier = match earlier {
            Some(Earlier { received: 0, .. }) => last.or(earlier),
            known => known,
        };
        let received = earlier.map(|earlier| earlier.received);
        let known = |share: Option<f64>, input: u64| share.map(|share| share_of(share, input));
        let (sent_known, other_known) = if edit.dry_run {
            let share = accounting.prefixes.track(cache.of_dry_runs(), model, &edit.segments);
            (received, known(share, other_input).filter(|_| received.is_some()))
        } else {
            (known(self.prefix_kept, sent), received)
        };
        let is_warm = earlier.is_some_and(|earlier| earlier.is_warm);
        let forms = Forms { other_input, sent_known, other_known, is_warm };
        Some(forms.other_usage(&billed))
    }
}
