//! Metrics of all requests, as OpenMetrics or Prometheus text at `/abridge/metrics`.
//!
//! During a request only its time is observed; everything else is counted by a separate task when the
//! answer has ended. Numbers that other modules keep are read when the metrics are scraped. No label contains content or
//! identifies a caller.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::histogram::exponential_buckets;
use smart_default::SmartDefault;
use strum::VariantArray;

use crate::held::Held;
use crate::plan::Report;

mod exposition;
mod models;

pub use exposition::{Exposition, Labels, TextFormat, labels};
pub use models::AnswerUsage;
use models::Models;

/// The metrics. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Shared>);

#[derive(Debug, SmartDefault)]
struct Shared {
    #[default(Histogram::new(OWN_TIMES))]
    edit: Histogram,
    #[default(Histogram::new(OWN_TIMES))]
    pass: Histogram,
    #[default(Histogram::new(CHUNK_TIMES))]
    chunks: Histogram,
    // Its clones are the running answers.
    streams: StreamGuard,
    counts: Held<AnswerCounts>,
}

/// The figures of an answer that has ended.
#[derive(Debug, Default)]
struct AnswerCounts {
    changes: BTreeMap<(&'static str, &'static str), u64>,
    left_out: BTreeMap<(&'static str, &'static str), u64>,
    regrets: [u64; 2],
    beyond_window: u64,
    edits: BTreeMap<&'static str, SizeTotals>,
    errors: BTreeMap<&'static str, u64>,
    sheds: BTreeMap<&'static str, u64>,
    // Requests that were answered and that were not, by the name of the upstream.
    upstreams: BTreeMap<String, [u64; 2]>,
    models: Models,
}

/// The sizes of what an edit changed, in bytes and tokens, each before and after.
#[derive(Clone, Copy, Debug, Default)]
struct SizeTotals {
    bytes: [u64; 2],
    tokens: [u64; 2],
}

/// Counts a running answer for as long as it lives.
#[derive(Clone, Debug, Default)]
pub struct StreamGuard(Arc<()>);

/// A count for each variant of an enum.
#[derive(Debug)]
pub struct Tally<K>(Box<[AtomicU64]>, PhantomData<K>);

// The upper bounds of histograms' buckets, ascending. A last bucket without a bound is added.

/// Bounds for abridge's own latency: 10 µs to 10 s.
pub const OWN_TIMES: [f64; 18] =
    [1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// Bounds for the time of one chunk: 100 ns to 10 ms.
const CHUNK_TIMES: [f64; 11] = [1e-7, 2.5e-7, 5e-7, 1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 1e-4, 1e-3, 1e-2];

/// Bounds for the duration of a model's answer, as OpenTelemetry recommends: 10 ms to 82 s.
pub fn answer_times() -> impl Iterator<Item = f64> {
    exponential_buckets(0.01, 2.0, 14)
}

/// Bounds for numbers of tokens, as OpenTelemetry recommends: 1 to 4^13.
pub fn token_counts() -> impl Iterator<Item = f64> {
    exponential_buckets(1.0, 4.0, 14)
}

// === impl Metrics ===

impl Metrics {
    /// Observes the latency that abridge added to a request, which went through the edits or was forwarded without.
    pub fn observe_added(&self, edits: bool, time: Duration) {
        let histogram = if edits { &self.0.edit } else { &self.0.pass };
        histogram.observe(time.as_secs_f64());
    }

    /// Observes how long one chunk was held before it was passed on.
    pub fn observe_chunk(&self, time: Duration) {
        self.0.chunks.observe(time.as_secs_f64());
    }

    /// Counts an answer as running until the guard is dropped.
    #[must_use]
    pub fn start_stream(&self) -> StreamGuard {
        self.0.streams.clone()
    }

    /// The number of running answers.
    pub fn streams(&self) -> u64 {
        Arc::strong_count(&self.0.streams.0) as u64 - 1
    }

    /// Counts whether a request has more tokens than the window of its model and, if it was edited, its changes.
    pub fn count_edits(&self, report: &Report, edited: bool) {
        self.0.counts.with(|counts| {
            counts.beyond_window += u64::from(report.beyond_window.is_some());
            if !edited {
                return;
            }
            for change in &report.changes {
                *counts.changes.entry((change.edit, change.action.label())).or_default() += 1;
                let totals = counts.edits.entry(change.edit).or_default();
                for (sums, sizes) in [(&mut totals.bytes, Some(change.bytes)), (&mut totals.tokens, change.tokens)] {
                    let [before, after] = sums;
                    *before += sizes.map_or(0, |sizes| sizes.before as u64);
                    *after += sizes.map_or(0, |sizes| sizes.after as u64);
                }
            }
            let [repeated, recalled] = &mut counts.regrets;
            *repeated += report.regrets.repeated as u64;
            *recalled += report.regrets.recalled as u64;
            for left_out in &report.left_out {
                *counts.left_out.entry((left_out.edit, left_out.why.into())).or_default() += 1;
            }
        });
    }

    /// How many calls have repeated one whose result was cleared, and how many have named a cleared result.
    pub fn regrets(&self) -> [u64; 2] {
        self.0.counts.with(|counts| counts.regrets)
    }

    /// Counts a complete, successful answer of a model.
    pub fn count_answer(&self, answer: &AnswerUsage<'_>) {
        self.0.counts.with(|counts| counts.models.add(answer));
    }

    /// Counts an answer by abridge itself with this code.
    pub fn count_error(&self, code: &'static str) {
        self.0.counts.with(|counts| *counts.errors.entry(code).or_default() += 1);
    }

    /// Counts a request that was sent to this upstream, and whether the upstream answered. Only names of the settings
    /// come here, so the number of labels is bounded.
    pub fn count_upstream(&self, name: &str, answered: bool) {
        self.0.counts.with(|counts| {
            if !counts.upstreams.contains_key(name) {
                counts.upstreams.insert(name.to_owned(), [0; 2]);
            }
            if let Some([with, without]) = counts.upstreams.get_mut(name) {
                *if answered { with } else { without } += 1;
            }
        });
    }

    /// How many requests each upstream has answered, and how many it has not.
    pub fn upstreams(&self) -> BTreeMap<String, [u64; 2]> {
        self.0.counts.with(|counts| counts.upstreams.clone())
    }

    /// Counts a request that was shed for this reason.
    pub fn count_shed(&self, reason: &'static str) {
        self.0.counts.with(|counts| *counts.sheds.entry(reason).or_default() += 1);
    }

    /// Writes these metrics.
    pub fn write(&self, exposition: &mut Exposition) {
        let Shared { edit, pass, chunks, .. } = &*self.0;
        let added = [("edit", edit), ("pass", pass)].map(|(way, times)| (labels([("way", way)]), times.clone()));
        exposition.times("abridge_added", added);
        exposition.times("abridge_chunk", [(Labels::new(), chunks.clone())]);
        exposition.gauge("abridge_streams", self.streams());
        self.0.counts.with(|counts| counts.write(exposition));
    }
}

// === impl AnswerCounts ===

impl AnswerCounts {
    fn write(&self, exposition: &mut Exposition) {
        let pairs = |counts: &BTreeMap<(&'static str, &'static str), u64>, name: &'static str| {
            let each = counts.iter().map(|((edit, other), n)| (labels([("edit", edit), (name, other)]), *n));
            each.collect::<Vec<_>>()
        };
        exposition.counters("abridge_changes", pairs(&self.changes, "action"));
        exposition.counters("abridge_left_out", pairs(&self.left_out, "why"));
        let [repeated, recalled] = self.regrets;
        let regrets = [("repeated", repeated), ("recalled", recalled)].map(|(kind, n)| (labels([("kind", kind)]), n));
        exposition.counters("abridge_regrets", regrets);
        exposition.counter("abridge_beyond_window", self.beyond_window);
        let sizes = |of: fn(&SizeTotals) -> [u64; 2]| {
            let each = self.edits.iter().flat_map(move |(edit, totals)| {
                let [before, after] = of(totals);
                [("before", before), ("after", after)].map(|(side, n)| (labels([("edit", edit), ("side", side)]), n))
            });
            each.collect::<Vec<_>>()
        };
        exposition.counters("abridge_edit_bytes", sizes(|totals| totals.bytes));
        exposition.counters("abridge_edit_tokens", sizes(|totals| totals.tokens));
        let errors = self.errors.iter().map(|(code, n)| (labels([("code", code)]), *n));
        exposition.counters("abridge_errors", errors);
        let sheds = self.sheds.iter().map(|(reason, n)| (labels([("reason", reason)]), *n));
        exposition.counters("abridge_shed", sheds);
        let upstreams = self.upstreams.iter().flat_map(|(name, [answered, failed])| {
            let outcomes = [("answered", *answered), ("failed", *failed)];
            outcomes.map(|(outcome, n)| (labels([("upstream", name), ("outcome", outcome)]), n))
        });
        exposition.counters("abridge_upstream_requests", upstreams);
        self.models.write(exposition);
    }
}

// === impl Tally ===

impl<K: VariantArray> Default for Tally<K> {
    fn default() -> Self {
        Self(K::VARIANTS.iter().map(|_| AtomicU64::new(0)).collect(), PhantomData)
    }
}

impl<K: VariantArray + Copy + Eq + Into<&'static str>> Tally<K> {
    /// Counts one. Returns how many there are with it.
    pub fn count(&self, kind: K) -> u64 {
        let place = K::VARIANTS.iter().position(|known| *known == kind);
        place.and_then(|place| self.0.get(place)).map_or(0, |count| count.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The name of each variant, and its count.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        K::VARIANTS.iter().zip(&self.0).map(|(kind, count)| ((*kind).into(), count.load(Ordering::Relaxed)))
    }
}
