//! Why an operation of a store failed, and counts of operations in this process.

use std::error::Error;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use smart_default::SmartDefault;

use super::Stats;
use super::codec::{Name, Unreadable};
use crate::metrics::{Histogram, OWN_TIMES};
use crate::payload::Payload;

/// Why a store operation failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", self.describe())]
pub struct StoreError {
    /// The operation.
    pub op: Op,
    /// The kind of failure.
    pub kind: StoreErrorKind,
    /// The underlying error.
    #[source]
    pub source: Arc<dyn Error + Send + Sync>,
}

/// The outcome of a store operation.
pub type StoreResult<T> = Result<T, StoreError>;

/// An operation of a store.
#[derive(Clone, Copy, Debug, Eq, PartialEq, strum::Display)]
pub enum Op {
    /// It changes what is stored.
    #[strum(to_string = "written")]
    Write,
    /// It does not.
    #[strum(to_string = "read")]
    Read,
}

/// The kind of a store failure.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum StoreErrorKind {
    /// The file cannot be accessed, or the store is closed; it may work again later.
    Unavailable,
    /// The content of the file is invalid.
    Corrupt,
    /// The disk is full.
    Full,
    /// One row is damaged; everything else works.
    Damaged,
}

/// A fault of the store itself.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The row of this name is damaged.
    #[error("the {0} is damaged; it is written anew when a request sends it again")]
    Damaged(Name),
    /// A later version has stored something in a way that this one does not know.
    #[error("a later version of abridge has stored it in a way that this one does not know")]
    Later,
    /// It was stored under another secret.
    #[error("it was stored under another secret than store.secret_env has; name that one in store.old_secrets_env")]
    Foreign,
    /// The store is not a file.
    #[error("it is a database: back it up by its own means, with the secret of `store.secret_env`")]
    NotAFile,
    /// The store was closed, or its writer thread has ended.
    #[error("it is closed")]
    Closed,
}

// === impl StoreError ===

impl StoreError {
    /// Creates an error with this cause.
    pub(crate) fn new(op: Op, kind: StoreErrorKind, source: impl Error + Send + Sync + 'static) -> Self {
        Self { op, kind, source: Arc::new(source) }
    }

    /// Whether one row is damaged.
    pub(super) fn is_damage(&self) -> bool {
        self.kind == StoreErrorKind::Damaged
    }

    fn describe(&self) -> String {
        match self.kind {
            StoreErrorKind::Damaged => self.source.to_string(),
            kind => format!("the store is {kind} and cannot be {}", self.op),
        }
    }
}

// === counts ===

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
    #[default(Histogram::new(OWN_TIMES))]
    pub waits: Histogram,
}

impl Counts {
    /// Counts and logs a failure: as an error once, until a write succeeds again.
    pub(super) fn fails(&self, error: &StoreError) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let (kind, cause) = (<&str>::from(error.kind), &error.source);
        if self.is_failing.swap(true, Ordering::Relaxed) {
            tracing::debug!(kind, %error, %cause, "the store failed again");
        } else {
            tracing::error!(
                kind,
                %error,
                %cause,
                "the store failed: requests go on without the edits that need it, until it works again"
            );
        }
    }

    /// Notes that something was written: the first write that succeeds ends a failure.
    pub(super) fn works(&self) {
        if self.is_failing.load(Ordering::Relaxed) && self.is_failing.swap(false, Ordering::Relaxed) {
            tracing::warn!("the store works again");
        }
    }

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
            Err(Unreadable::Foreign) => Err(StoreError::new(Op::Read, StoreErrorKind::Corrupt, Fault::Foreign)),
            Err(Unreadable::Damaged) => {
                self.damage(&name);
                Err(StoreError::new(Op::Read, StoreErrorKind::Damaged, Fault::Damaged(name)))
            }
        }
    }

    /// Counts and logs a damaged row.
    pub(super) fn damage(&self, what: &dyn Display) {
        self.damaged.fetch_add(1, Ordering::Relaxed);
        tracing::error!(
            %what,
            "what is stored is damaged: it is written anew when a request sends it again; `abridge store verify` checks the rest"
        );
    }

    /// A decoded value that is not a payload.
    pub(super) fn value(&self, name: Name, stored: Result<Payload, Unreadable>) -> StoreResult<Bytes> {
        let later = || StoreError::new(Op::Read, StoreErrorKind::Corrupt, Fault::Later);
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
