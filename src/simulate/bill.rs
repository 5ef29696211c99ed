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
//!
//! # Calls of `[keep_alive]`
//! They are made by the rules of the proxy, after each request in Messages whose answer calls tools: each reads the prompt from the
//! cache and writes one token. Where a cache is kept for the next request, that finds all that it has in common with the one before.

use std::mem;

use serde::Serialize;

use super::sessions::Step;
use super::{Measure, Transcript};
use crate::dialect::Usage;
use crate::tokens::cache_calls::CacheCalls;
use crate::tokens::prices::{Nanodollars, PriceList, Rates};
use crate::units::{grouped, prorated};

/// A request as it was counted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Counted {
    /// Its tokens.
    pub(super) tokens: usize,
    /// Those that it has in common with the request before; `None` for the first one.
    pub(super) shared: Option<usize>,
}

/// What some requests have cost.
#[derive(Clone, Copy, Debug, Default, derive_more::Add, Eq, PartialEq, Serialize)]
pub struct Paid {
    /// The sum, in billionths of a dollar.
    pub dollars: Nanodollars,
    /// The number of requests in it.
    pub requests: usize,
    /// The number of requests without recorded usage, or of a model without a price.
    pub unpriced: usize,
}

/// The calls that have kept prompt caches while tools ran.
#[derive(Clone, Copy, Debug, Default, derive_more::Add, derive_more::Display, Eq, PartialEq, Serialize)]
#[display("{} calls for {cost}, which save {saved}", grouped(*calls))]
pub struct KeptCaches {
    /// The number of calls.
    pub calls: usize,
    /// The cost of the calls.
    pub cost: Nanodollars,
    /// The amount by which the next requests cost less.
    pub saved: Nanodollars,
}

/// The bill of one segment of a session under a policy.
pub(super) struct Bill<'a> {
    segment: &'a Transcript,
    unedited: &'a [Counted],
    rates: &'a PriceList,
    /// The tokens of a summary.
    summary_tokens: usize,
    calls: Option<CacheCalls>,
    pub(super) dollars: Nanodollars,
    pub(super) kept: KeptCaches,
    /// Whether calls have kept the prompt cache for the next request.
    pub(super) is_kept: bool,
}

/// The cost of the requests as billed.
pub(super) fn paid(steps: &[Step], rates: &PriceList) -> Paid {
    let mut paid = Paid::default();
    for step in steps {
        match step.usage.zip(rates_of(step, rates)) {
            Some((usage, rates)) => {
                paid.dollars = paid.dollars + rates.cost(&usage);
                paid.requests += 1;
            }
            None => paid.unpriced += 1,
        }
    }
    paid
}

fn rates_of(step: &Step, rates: &PriceList) -> Option<Rates> {
    rates.dollars(step.model.as_deref().unwrap_or_default())
}

// === impl Bill ===

impl<'a> Bill<'a> {
    /// Of a segment of which nothing is sent yet.
    pub(super) fn new(segment: &'a Transcript, measure: Measure<'a>) -> Self {
        // Where nothing is written to a cache, no mark of the client's asks for one.
        let is_written = segment.steps.iter().any(|step| step.usage.is_some_and(|usage| usage.written > 0));
        let after = measure.keep_alive.filter(|_| is_written);
        Self {
            segment,
            unedited: measure.counted,
            rates: &measure.planner.rates,
            summary_tokens: measure.conditions.summary_tokens,
            calls: after.map(|after| CacheCalls::new(after, segment.has_hour_marks())),
            dollars: Nanodollars::default(),
            kept: KeptCaches::default(),
            is_kept: false,
        }
    }

    /// A request as the policy sends it, and the calls after it.
    pub(super) fn add(&mut self, request: usize, sent: Counted) {
        let is_kept = mem::take(&mut self.is_kept);
        let Some((recorded, was, rates)) = self.recorded(request) else { return };
        let mut usage = under_policy(recorded, was, sent);
        if is_kept {
            let lost = rates.cost(&usage);
            let [_, shared] = input_of(recorded, was, was);
            usage = under_policy(Usage { cached: recorded.cached.max(shared), ..recorded }, was, sent);
            self.kept.saved = self.kept.saved + Nanodollars(lost.0.saturating_sub(rates.cost(&usage).0));
        }
        self.dollars = self.dollars + rates.cost(&usage);
        self.keep(request, usage, rates);
    }

    /// The calls that keep the cache of a request until the next one.
    fn keep(&mut self, request: usize, usage: Usage, rates: Rates) {
        let cached = usage.cached.saturating_add(usage.written);
        let pause = self.segment.pause_for_tools(request).filter(|_| cached >= CacheCalls::SHORTEST);
        let Some((rules, pause)) = self.calls.zip(pause) else { return };
        let (calls, is_kept) = rules.within(pause);
        self.is_kept = is_kept;
        let call = rates.cost(&Usage { cached, written: 0, written_hour: 0, output: 1, ..usage });
        let cost = Nanodollars(call.0.saturating_mul(calls as u64));
        self.kept = self.kept + KeptCaches { calls, cost, ..KeptCaches::default() };
        self.dollars = self.dollars + cost;
    }

    /// One more request, directly after the one of this number, whose answer has so many tokens.
    pub(super) fn add_recall(&mut self, request: usize, sent: Counted, output: u64) {
        self.charge(request, |usage, was| {
            let [input, cached] = input_of(usage, was, sent);
            Usage { output, ..usage.with_input(input, cached) }
        });
    }

    /// A call for a summary before a request. None of it is written to the cache.
    pub(super) fn add_summary_call(&mut self, request: usize, call: Counted) {
        let output = u64::try_from(self.summary_tokens).unwrap_or(u64::MAX);
        self.charge(request, |usage, was| {
            let [input, cached] = input_of(usage, was, call);
            Usage { input, cached, output, ..Usage::default() }
        });
    }

    fn charge(&mut self, request: usize, usage: impl FnOnce(Usage, Counted) -> Usage) {
        if let Some((recorded, was, rates)) = self.recorded(request) {
            self.dollars = self.dollars + rates.cost(&usage(recorded, was));
        }
    }

    /// The recorded usage of a request, how it was counted, and the prices of its model.
    fn recorded(&self, request: usize) -> Option<(Usage, Counted, Rates)> {
        let (step, was) = self.segment.steps.get(request).zip(self.unedited.get(request))?;
        Some((step.usage?, *was, rates_of(step, self.rates)?))
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

/// The tokens of a request as they would be billed, and those that it has in common with the one before.
fn input_of(usage: Usage, was: Counted, sent: Counted) -> [u64; 2] {
    [sent.tokens, sent.shared.unwrap_or_default().min(sent.tokens)].map(|n| scale(usage.input, n, was.tokens))
}

/// `number` times `part` of `whole`.
fn scale(number: u64, part: usize, whole: usize) -> u64 {
    prorated(number, part as u64, whole as u64)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::simulate::sessions::Step;
    use crate::tokens::prices::PriceList;

    fn usage(input: u64, cached: u64, written: u64, written_hour: u64) -> Usage {
        Usage { input, cached, written, written_hour, output: 100 }
    }

    fn bill<'a>(segment: &'a Transcript, unedited: &'a [Counted], rates: &'a PriceList) -> Bill<'a> {
        let (dollars, kept) = Default::default();
        Bill { segment, unedited, rates, summary_tokens: 0, calls: None, dollars, kept, is_kept: false }
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
        let (steps, was) = (vec![step("claude-opus-4-5"), step("nobodys-model")], [counted(500, 450); 2]);
        let segment = Transcript { steps, ..Transcript::default() };
        let rates = PriceList::new(&[], &[], "api.anthropic.com");
        let charged = |charge: &dyn Fn(&mut Bill<'_>)| {
            let mut bill = Bill { summary_tokens: 40, ..bill(&segment, &was, &rates) };
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
        let paid = paid(&segment.steps, &rates);
        assert_eq!(paid, Paid { dollars: Nanodollars(recorded), requests: 1, unpriced: 1 });
    }

    #[test]
    fn calls_of_keep_alive_are_on_the_bill_and_what_they_keep_is_read() {
        let element = |kind: &str| format!(r#"{{"role":"user","content":[{{"type":"{kind}"}}]}}"#);
        let played = |pause: i64, kind: &str, input: u64| {
            let body = format!("{},{}", element("text"), element(kind));
            let step = |at, messages, cached, written| {
                let usage = Some(Usage { input, cached, written, written_hour: 0, output: 100 });
                Step { usage, model: Some("claude-opus-4-5".into()), at: Some(at), messages, ..Step::default() }
            };
            let steps = vec![step(5, 1, 0, input), step(5 + pause, 2, 0, input)];
            let message_ends = vec![element("text").len(), body.len()];
            let segment = Transcript { body: body.into(), steps, message_ends, ..Transcript::default() };
            let was = [Counted { tokens: 100, shared: None }, counted(100, 90)];
            let rates = PriceList::new(&[], &[], "api.anthropic.com");
            let calls = Some(CacheCalls::new(Duration::from_secs(280), false));
            let mut bill = Bill { calls, ..bill(&segment, &was, &rates) };
            (0..2).for_each(|request| bill.add(request, was[request]));
            let KeptCaches { calls, cost, saved } = bill.kept;
            let unkept = 2 * (input * 6250 + 100 * 25_000);
            assert_eq!(bill.dollars.0, unkept + cost.0 - saved.0);
            (calls, cost.0, saved.0)
        };
        let (call, saved) = (30_000 * 500 + 25_000, 27_000 * (6250 - 500));
        assert_eq!(played(300, "tool_result", 30_000), (1, call, saved));
        assert_eq!(played(1000, "tool_result", 30_000), (3, 3 * call, saved));
        assert_eq!(played(1420, "tool_result", 30_000), (4, 4 * call, 0), "too late after the fourth");
        for none in
            [played(280, "tool_result", 30_000), played(900, "text", 30_000), played(900, "tool_result", 19_999)]
        {
            assert_eq!(none, (0, 0, 0));
        }
    }
}
