//! Counts of a store's operations in this process.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Stats, StoreCounters};
use crate::metrics::histogram::{Histogram, OWN_TIMES};

#[derive(Debug)]
pub(super) struct Counts {
    pub(super) commits: AtomicU64,
    pub(super) written: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) known: AtomicU64,
    pub(super) recalled: AtomicU64,
    pub(super) failures: AtomicU64,
    /// Whether an operation has failed and no write has succeeded since.
    pub(super) is_failing: AtomicBool,
    pub(super) waits: Histogram,
}

impl Counts {
    /// The counts for metrics.
    pub(super) fn counters(&self) -> StoreCounters {
        let Self { commits, written, written_bytes, known, failures, waits, .. } = self;
        let [commits, written, written_bytes, known, failures] =
            [commits, written, written_bytes, known, failures].map(|count| count.load(Ordering::Relaxed));
        StoreCounters { commits, written, written_bytes, known, failures, waits: waits.snapshot() }
    }

    /// The counts, with totals of what is stored.
    pub(super) fn stats(&self, totals: Stats) -> Stats {
        let Self { commits, written, known, recalled, failures, .. } = self;
        let [commits, written, known, recalled, failures] =
            [commits, written, known, recalled, failures].map(|count| count.load(Ordering::Relaxed));
        Stats { commits, written, known, recalled, failures, ..totals }
    }
}

impl Default for Counts {
    fn default() -> Self {
        let [commits, written, written_bytes, known, recalled, failures] = [const { AtomicU64::new(0) }; 6];
        let (is_failing, waits) = (AtomicBool::new(false), Histogram::of_times(OWN_TIMES));
        Self { commits, written, written_bytes, known, recalled, failures, is_failing, waits }
    }
}
