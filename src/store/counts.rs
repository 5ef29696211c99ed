//! Counts of a store's operations in this process.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use smart_default::SmartDefault;

use super::codec::{Name, Unreadable};
use super::error::Fault;
use super::{Op, Stats, StoreError, StoreErrorKind, StoreResult};
use crate::metrics::histogram::{Histogram, OWN_TIMES};
use crate::payload::Payload;

/// Counts of what this process has done with its store since it started.
#[derive(Debug, SmartDefault)]
pub struct Counts {
    /// Durable transactions.
    pub commits: AtomicU64,
    /// Payloads that were written.
    pub written: AtomicU64,
    /// Their length in bytes.
    pub written_bytes: AtomicU64,
    /// Payloads that were known to be stored when they were put.
    pub known: AtomicU64,
    /// Payloads that were recalled.
    pub recalled: AtomicU64,
    /// Failed operations.
    pub failures: AtomicU64,
    /// Reads of something that is damaged.
    pub damaged: AtomicU64,
    /// Whether the last write failed.
    pub is_failing: AtomicBool,
    /// How long requests have waited until their payloads were durable.
    #[default(Histogram::of_times(OWN_TIMES))]
    pub waits: Histogram,
}

impl Counts {
    /// The counts, with totals of what is stored.
    pub(super) fn stats(&self, totals: Stats) -> Stats {
        let Self { commits, written, known, recalled, failures, damaged, .. } = self;
        let [commits, written, known, recalled, failures, damaged] =
            [commits, written, known, recalled, failures, damaged].map(|count| count.load(Ordering::Relaxed));
        Stats { commits, written, known, recalled, failures, damaged, ..totals }
    }

    /// A decoded payload; `None` if a later version has stored it.
    pub(super) fn payload(&self, name: Name, stored: Result<Payload, Unreadable>) -> StoreResult<Option<Payload>> {
        match stored {
            Ok(payload) => Ok(Some(payload)),
            Err(Unreadable::Later) => Ok(None),
            Err(Unreadable::Foreign) => Err(StoreError::new(Op::Get, StoreErrorKind::Corrupt, Fault::Foreign)),
            Err(Unreadable::Damaged) => {
                self.damaged.fetch_add(1, Ordering::Relaxed);
                tracing::error!(
                    what = %name,
                    "what is stored is damaged: it is written anew when a request sends it again; `abridge store verify` checks the rest"
                );
                Err(StoreError::new(Op::Get, StoreErrorKind::Damaged, Fault::Damaged(name)))
            }
        }
    }

    /// A decoded value that is not a payload.
    pub(super) fn value(&self, name: Name, stored: Result<Payload, Unreadable>) -> StoreResult<Bytes> {
        let later = || StoreError::new(Op::Get, StoreErrorKind::Corrupt, Fault::Later);
        Ok(self.payload(name, stored)?.ok_or_else(later)?.bytes())
    }
}

impl Stats {
    /// The totals of an engine.
    pub(super) fn of_totals(totals: [u64; 8]) -> Self {
        let mut stats = Self::default();
        [stats.payloads, stats.inspected, stats.tombstones, stats.bytes, stats.stored_bytes, ..] = totals;
        [.., stats.summaries, stats.summary_bytes, stats.inspected_bytes] = totals;
        stats.file_bytes = stats.stored_bytes + stats.summary_bytes + stats.inspected_bytes;
        stats
    }
}
