//! The cost of a session's requests, as billed and under a policy.
//!
//! # What was paid
//! The recorded usage of each request at the list prices of its model: other input, tokens written to the cache for five
//! minutes and for an hour, tokens read from it, and output. Sub-agents are included. Whatever the agent does not write into
//! its files is not, such as calls for titles.
//!
//! # What a policy would have cost
//! The policy's request is counted beside the recorded one, and the recorded input is scaled by the ratio, so that a request
//! without edits costs what was paid. The upstream's cache is what was recorded: where it had nearly all that the request had
//! in common with the one before, it has all that the policy's request has in common with the policy's one before; where it
//! had less, since it had expired or lost the prompt, it has no more than that. Tokens that the cache does not have are written
//! to it with the lifetimes of the recorded request. Output is as recorded. Each recall is one more request, and each call for
//! a summary is paid for.

use serde::Serialize;

use super::sessions::Step;
use super::{Measure, Transcript};
use crate::dialect::Usage;
use crate::tokens::prices::{KnownRates, Nanodollars, Rates};
use crate::units::prorated;

/// A request as it was counted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Counted {
    /// Its tokens.
    pub(super) tokens: usize,
    /// Those that it has in common with the request before; `None` for the first one.
    pub(super) shared: Option<usize>,
}

/// What some requests have cost.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Paid {
    /// The sum, in billionths of a dollar.
    pub dollars: Nanodollars,
    /// The number of requests in it.
    pub requests: usize,
    /// The number of requests without recorded usage, or of a model without a price.
    pub unpriced: usize,
}

/// The bill of one segment of a session under a policy.
pub(super) struct Bill<'a> {
    steps: &'a [Step],
    unedited: &'a [Counted],
    rates: &'a KnownRates,
    /// The tokens of a summary.
    summary_tokens: usize,
    pub(super) dollars: Nanodollars,
}

/// The cost of the requests as billed.
pub(super) fn paid(steps: &[Step], rates: &KnownRates) -> Paid {
    let mut paid = Paid::default();
    for step in steps {
        match step.usage.zip(rates_of(step, rates)) {
            Some((usage, rates)) => {
                paid.dollars = sum([paid.dollars, rates.cost(&usage)]);
                paid.requests += 1;
            }
            None => paid.unpriced += 1,
        }
    }
    paid
}

/// The sum of some amounts.
pub(super) fn sum(amounts: impl IntoIterator<Item = Nanodollars>) -> Nanodollars {
    Nanodollars(amounts.into_iter().fold(0, |sum, amount| sum.saturating_add(amount.0)))
}

fn rates_of(step: &Step, rates: &KnownRates) -> Option<Rates> {
    rates.of_model(step.model.as_deref().unwrap_or_default())
}

// === impl Paid ===

impl Paid {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            dollars: sum([self.dollars, other.dollars]),
            requests: self.requests + other.requests,
            unpriced: self.unpriced + other.unpriced,
        }
    }
}

// === impl Bill ===

impl<'a> Bill<'a> {
    /// Of a segment of which nothing is sent yet.
    pub(super) fn new(segment: &'a Transcript, measure: Measure<'a>) -> Self {
        let summary_tokens = measure.conditions.summary_source.stand_in().unwrap_or_default();
        let (steps, unedited, rates) = (&segment.steps, measure.counted, &measure.planner.rates);
        Self { steps, unedited, rates, summary_tokens, dollars: Nanodollars::default() }
    }

    /// A request as the policy sends it.
    pub(super) fn add(&mut self, request: usize, sent: Counted) {
        self.charge(request, |usage, was| under_policy(usage, was, sent));
    }

    /// One more request, directly after the one of this number, whose answer has so many tokens.
    pub(super) fn add_recall(&mut self, request: usize, sent: Counted, output: u64) {
        self.charge(request, |usage, was| {
            let input = scale(usage.input, sent.tokens, was.tokens);
            let cached = scale(usage.input, sent.shared.unwrap_or_default(), was.tokens).min(input);
            Usage { output, ..usage.with_input(input, cached) }
        });
    }

    /// A call for a summary before a request. None of it is written to the cache.
    pub(super) fn add_summary_call(&mut self, request: usize, call: Counted) {
        let output = u64::try_from(self.summary_tokens).unwrap_or(u64::MAX);
        self.charge(request, |usage, was| {
            let input = scale(usage.input, call.tokens, was.tokens);
            let cached = scale(usage.input, call.shared.unwrap_or_default(), was.tokens).min(input);
            Usage { input, cached, output, ..Usage::default() }
        });
    }

    fn charge(&mut self, request: usize, usage: impl FnOnce(Usage, Counted) -> Usage) {
        let Some((step, was)) = self.steps.get(request).zip(self.unedited.get(request)) else { return };
        if let Some((recorded, rates)) = step.usage.zip(rates_of(step, self.rates)) {
            self.dollars = sum([self.dollars, rates.cost(&usage(recorded, *was))]);
        }
    }
}

/// The usage of a request as a policy sends it. `usage` is the recorded one, of the request that was counted as `was`.
fn under_policy(usage: Usage, was: Counted, sent: Counted) -> Usage {
    /// Of what two requests have in common, the part that a cache has if it has not expired, in percent.
    const NEARLY_ALL: u64 = 90;
    let billed = |counted| scale(usage.input, counted, was.tokens);
    let input = billed(sent.tokens);
    let cached = match (was.shared.map(billed), sent.shared.map(billed)) {
        (Some(before), Some(now)) if usage.cached.saturating_mul(100) >= before.saturating_mul(NEARLY_ALL) => {
            (now + usage.cached).saturating_sub(before)
        }
        (Some(_), Some(now)) => usage.cached.min(now),
        _ => scale(usage.cached, sent.tokens, was.tokens),
    };
    usage.with_input(input, cached)
}

/// `number` times `part` of `whole`.
fn scale(number: u64, part: usize, whole: usize) -> u64 {
    let wide = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    prorated(number, wide(part), wide(whole))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::prices::PriceList;

    fn usage(input: u64, cached: u64, written: u64, written_hour: u64) -> Usage {
        Usage { input, cached, written, written_hour, output: 100 }
    }

    fn counted(tokens: usize, shared: usize) -> Counted {
        Counted { tokens, shared: Some(shared) }
    }

    #[test]
    fn a_request_without_edits_costs_what_was_paid() {
        for usage in [usage(1000, 900, 97, 90), usage(1000, 0, 997, 0), usage(1003, 1003, 0, 0), usage(7, 3, 0, 0)] {
            for was in [counted(500, 450), counted(333, 333), counted(1, 0), Counted { tokens: 77, shared: None }] {
                assert_eq!(under_policy(usage, was, was), usage, "{was:?}");
            }
        }
    }

    #[test]
    fn a_cache_that_had_all_has_what_the_policys_requests_have_in_common() {
        // 2 billed tokens for each one that is counted; 4 tokens at the end are not written.
        let recorded = usage(1000, 900, 96, 48);
        assert_eq!(under_policy(recorded, counted(500, 450), counted(300, 100)), usage(600, 200, 396, 198));
        assert_eq!(under_policy(recorded, counted(500, 450), counted(300, 298)), usage(600, 596, 0, 0));
        // Nine tenths are nearly all; less is what was left of an expired cache.
        let nearly = usage(1000, 810, 186, 0);
        assert_eq!(under_policy(nearly, counted(500, 450), counted(300, 250)), usage(600, 410, 186, 0));
        let expired = usage(1000, 808, 188, 0);
        assert_eq!(under_policy(expired, counted(500, 450), counted(300, 250)), usage(600, 500, 96, 0));
        // An upstream that does not say what it writes.
        assert_eq!(under_policy(usage(1000, 0, 0, 0), counted(500, 450), counted(300, 250)), usage(600, 0, 0, 0));
    }

    #[test]
    fn recalls_and_summaries_are_on_the_bill_and_requests_without_a_price_are_not() {
        let step =
            |model: &str| Step { usage: Some(usage(1000, 900, 96, 0)), model: Some(model.into()), ..Step::default() };
        let (steps, was) = ([step("claude-opus-4-5"), step("nobodys-model")], [counted(500, 450), counted(500, 450)]);
        let rates = KnownRates::new(PriceList::new(&[], &[], "api.anthropic.com"));
        let charged = |charge: &dyn Fn(&mut Bill<'_>)| {
            let dollars = Nanodollars::default();
            let mut bill = Bill { steps: &steps, unedited: &was, rates: &rates, summary_tokens: 40, dollars };
            charge(&mut bill);
            bill.dollars.0
        };
        // $5 a million for input, 6.25 for what is written, 0.5 for what is read, 25 for output.
        let recorded = 4 * 5000 + 96 * 6250 + 900 * 500 + 100 * 25_000;
        assert_eq!(charged(&|bill| bill.add(0, counted(500, 450))), recorded);
        assert_eq!(charged(&|bill| bill.add(1, counted(500, 450))), 0);
        assert_eq!(charged(&|bill| bill.add(7, counted(500, 450))), 0);
        let recall = 4 * 5000 + 196 * 6250 + 1000 * 500 + 60 * 25_000;
        assert_eq!(charged(&|bill| bill.add_recall(0, counted(600, 500), 60)), recall);
        let summary = 200 * 5000 + 900 * 500 + 40 * 25_000;
        assert_eq!(charged(&|bill| bill.add_summary_call(0, counted(550, 450))), summary);
        let paid = paid(&steps, &rates);
        assert_eq!(paid, Paid { dollars: Nanodollars(recorded), requests: 1, unpriced: 1 });
    }
}
