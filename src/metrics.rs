//! Numbers about all requests, as OpenMetrics text at `/abridge/metrics`.
//!
//! What is counted while a request is on its way is a relaxed addition; all else is counted when its answer has ended, by a task
//! of its own. Numbers that others keep are asked for when somebody scrapes. No label says what a message says, or whose it is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::plan::Report;

pub mod histogram;
mod models;
mod sheet;

use histogram::{Histogram, SHORT, SHORTEST};
pub use models::Answer;
use models::Models;
pub use sheet::{CONTENT_TYPE, Labels, Sheet};

/// The numbers. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Counts>);

#[derive(Debug)]
#[expect(
    clippy::disallowed_types,
    reason = "held for a few instructions, never across an await, and not on a request's way"
)]
struct Counts {
    edit: Histogram,
    pass: Histogram,
    chunks: Histogram,
    streams: AtomicU64,
    ended: std::sync::Mutex<Ended>,
}

/// What is counted when answers have ended.
#[derive(Debug, Default)]
struct Ended {
    changes: BTreeMap<(&'static str, &'static str), u64>,
    left_out: BTreeMap<(&'static str, &'static str), u64>,
    edits: BTreeMap<&'static str, Saved>,
    errors: BTreeMap<&'static str, u64>,
    sheds: BTreeMap<&'static str, u64>,
    models: Models,
}

/// What an edit took out and put in: bytes and tokens, before and after.
#[derive(Clone, Copy, Debug, Default)]
struct Saved {
    bytes: [u64; 2],
    tokens: [u64; 2],
}

/// Which way a request goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Way {
    /// Through the edits.
    Edit,
    /// Straight through.
    Pass,
}

/// An answer that is on its way, as long as this lives.
#[derive(Debug)]
pub struct Streaming(Metrics);

// === impl Metrics ===

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Nothing happened yet.
    #[expect(clippy::disallowed_types, reason = "see `Counts`")]
    pub fn new() -> Self {
        Self(Arc::new(Counts {
            edit: Histogram::of_times(SHORT),
            pass: Histogram::of_times(SHORT),
            chunks: Histogram::of_times(SHORTEST),
            streams: AtomicU64::new(0),
            ended: std::sync::Mutex::default(),
        }))
    }

    /// Our share of the time of a request.
    pub fn added(&self, way: Way, time: Duration) {
        let histogram = if way == Way::Edit { &self.0.edit } else { &self.0.pass };
        histogram.time(time);
    }

    /// How long one chunk was looked at before it was handed on.
    pub fn chunk(&self, time: Duration) {
        self.0.chunks.time(time);
    }

    /// An answer begins.
    #[must_use]
    pub fn streaming(&self) -> Streaming {
        self.0.streams.fetch_add(1, Ordering::Relaxed);
        Streaming(self.clone())
    }

    /// How many answers are on their way.
    pub fn streams(&self) -> u64 {
        self.0.streams.load(Ordering::Relaxed)
    }

    /// A request was edited like this.
    pub fn edited(&self, report: &Report) {
        self.ended(|ended| {
            for change in &report.changes {
                *ended.changes.entry((change.edit, change.action.label())).or_default() += 1;
                let saved = ended.edits.entry(change.edit).or_default();
                for (sums, sizes) in [(&mut saved.bytes, Some(change.bytes)), (&mut saved.tokens, change.tokens)] {
                    let [before, after] = sums;
                    *before += sizes.map_or(0, |sizes| sizes.before as u64);
                    *after += sizes.map_or(0, |sizes| sizes.after as u64);
                }
            }
            for left_out in &report.left_out {
                *ended.left_out.entry((left_out.edit, left_out.why.label())).or_default() += 1;
            }
        });
    }

    /// An answer that the model has given has ended as it should.
    pub fn answered(&self, answer: &Answer<'_>) {
        self.ended(|ended| ended.models.add(answer));
    }

    /// A request got an answer of ours, with this code.
    pub fn error(&self, code: &'static str) {
        self.ended(|ended| *ended.errors.entry(code).or_default() += 1);
    }

    /// There was no room for a request, for this reason.
    pub fn shed(&self, reason: &'static str) {
        self.ended(|ended| *ended.sheds.entry(reason).or_default() += 1);
    }

    /// Writes down the numbers that are kept here.
    pub fn write(&self, sheet: &mut Sheet) {
        let Counts { edit, pass, chunks, streams, .. } = &*self.0;
        let way = |name: &str| vec![("way", name.to_owned())];
        sheet.times(
            "abridge_added",
            "Our share of the time before a request is handed to the upstream's pool: from its head on, without the time in which its body is read and without the wait for a summary; the wait for the store is in it",
            [(way("edit"), edit.snapshot()), (way("pass"), pass.snapshot())],
        );
        sheet.times(
            "abridge_chunk",
            "How long a chunk of an answer is looked at between its coming from the upstream's connection and its being handed to the client's; of each answer the first chunk and every 16th behind it",
            [(Labels::new(), chunks.snapshot())],
        );
        sheet.gauge("abridge_streams", "Answers that are on their way", streams.load(Ordering::Relaxed));
        self.ended(|ended| ended.write(sheet));
    }

    fn ended<T>(&self, f: impl FnOnce(&mut Ended) -> T) -> T {
        // What a panic has left behind is at worst a sum that lacks one.
        f(&mut self.0.ended.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

// === impl Ended ===

impl Ended {
    fn write(&self, sheet: &mut Sheet) {
        let pairs = |counts: &BTreeMap<(&'static str, &'static str), u64>, name: &'static str| {
            let labels = |edit: &str, other: &str| vec![("edit", edit.to_owned()), (name, other.to_owned())];
            counts.iter().map(|((edit, other), n)| (labels(edit, other), *n)).collect::<Vec<_>>()
        };
        sheet.counters(
            "abridge_changes",
            "Changes that were made: results inserted, moved and dropped, calls dropped, results truncated and cleared, arguments cleared, messages summarised",
            pairs(&self.changes, "action"),
        );
        sheet.counters("abridge_left_out", "Changes that were not made, by the reason", pairs(&self.left_out, "why"));
        let sizes = |of: fn(&Saved) -> [u64; 2]| {
            let each = self.edits.iter().flat_map(move |(edit, saved)| {
                let labels = |side: &str| vec![("edit", (*edit).to_owned()), ("side", side.to_owned())];
                let [before, after] = of(saved);
                [(labels("before"), before), (labels("after"), after)]
            });
            each.collect::<Vec<_>>()
        };
        sheet.counters(
            "abridge_edit_bytes",
            "Bytes of what the changes of each edit took out, and of what they put there",
            sizes(|saved| saved.bytes),
        );
        sheet.counters(
            "abridge_edit_tokens",
            "The same in tokens, of changes whose tokens were counted",
            sizes(|saved| saved.tokens),
        );
        let errors = self.errors.iter().map(|(code, n)| (vec![("code", (*code).to_owned())], *n));
        sheet.counters("abridge_errors", "Answers of our own, by the code that x-abridge-error has", errors);
        let sheds = self.sheds.iter().map(|(reason, n)| (vec![("reason", (*reason).to_owned())], *n));
        sheet.counters(
            "abridge_shed",
            "Requests that there was no room for: too many in flight, or too many bytes of bodies in memory",
            sheds,
        );
        self.models.write(sheet);
    }
}

// === impl Streaming ===

impl Drop for Streaming {
    fn drop(&mut self) {
        self.0.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}
