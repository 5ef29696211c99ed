//! Counters of requests that were forwarded with fewer edits because abridge could not do its part.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a request was forwarded without some or all edits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum FailOpenReason {
    /// The body is not a conversation that the dialect can read.
    NotUnderstood,
    /// The content coding of the body is unsupported.
    UnknownEncoding,
    /// The body is not valid for its `content-encoding`.
    BrokenEncoding,
    /// Removed payloads cannot be stored. The request is forwarded with the edits that need no store.
    NotStored,
    /// `server.max_buffered` has no room to plan the edits.
    NoMemory,
    /// A panic in abridge.
    Bug,
}

/// The number of requests for each reason.
#[derive(Debug, Default)]
pub(super) struct FailOpenCounters {
    not_understood: AtomicU64,
    unknown_encoding: AtomicU64,
    broken_encoding: AtomicU64,
    not_stored: AtomicU64,
    no_memory: AtomicU64,
    bug: AtomicU64,
}

impl FailOpenCounters {
    /// Counts a request. The first one for a reason is logged as a warning, the others at debug.
    pub(super) fn count(&self, reason: FailOpenReason, detail: &dyn Display) {
        let before = self.counter(reason).fetch_add(1, Ordering::Relaxed);
        if before == 0 {
            tracing::warn!(?reason, %detail, "a request is forwarded without edits; more of this kind are logged at debug");
        } else {
            tracing::debug!(?reason, %detail, count = before + 1, "a request is forwarded without edits");
        }
    }

    /// Each reason as a label, and its count.
    pub(super) fn counts(&self) -> [(&'static str, u64); 6] {
        [
            ("not_understood", FailOpenReason::NotUnderstood),
            ("unknown_encoding", FailOpenReason::UnknownEncoding),
            ("broken_encoding", FailOpenReason::BrokenEncoding),
            ("not_stored", FailOpenReason::NotStored),
            ("no_memory", FailOpenReason::NoMemory),
            ("bug", FailOpenReason::Bug),
        ]
        .map(|(label, reason)| (label, self.counter(reason).load(Ordering::Relaxed)))
    }

    fn counter(&self, reason: FailOpenReason) -> &AtomicU64 {
        match reason {
            FailOpenReason::NotUnderstood => &self.not_understood,
            FailOpenReason::UnknownEncoding => &self.unknown_encoding,
            FailOpenReason::BrokenEncoding => &self.broken_encoding,
            FailOpenReason::NotStored => &self.not_stored,
            FailOpenReason::NoMemory => &self.no_memory,
            FailOpenReason::Bug => &self.bug,
        }
    }
}
