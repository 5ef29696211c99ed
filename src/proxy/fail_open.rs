//! Requests that went on unedited because something of ours could not be done: counted, and logged the first time.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a request went on as it came.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Reason {
    /// The body is not a conversation that the dialect can read.
    NotUnderstood,
    /// The body is coded in a way that we do not know.
    UnknownEncoding,
    /// The body is not what its `content-encoding` says.
    BrokenEncoding,
    /// What the edits would take out cannot be stored. The request goes on with the edits that need no store.
    NotStored,
    /// A fault of abridge itself.
    Bug,
}

/// How often each reason held.
#[derive(Debug, Default)]
pub(super) struct FailOpen {
    not_understood: AtomicU64,
    unknown_encoding: AtomicU64,
    broken_encoding: AtomicU64,
    not_stored: AtomicU64,
    bug: AtomicU64,
}

impl FailOpen {
    /// Counts a request. The first of a reason is a warning, so that it is seen; the others are not, so that it can be read.
    pub(super) fn count(&self, reason: Reason, detail: &dyn Display) {
        let before = self.counter(reason).fetch_add(1, Ordering::Relaxed);
        if before == 0 {
            tracing::warn!(?reason, %detail, "a request goes on without edits; more of this kind are logged at debug");
        } else {
            tracing::debug!(?reason, %detail, count = before + 1, "a request goes on without edits");
        }
    }

    /// Each reason, and how often it held.
    pub(super) fn counted(&self) -> [(&'static str, u64); 5] {
        [
            ("not_understood", Reason::NotUnderstood),
            ("unknown_encoding", Reason::UnknownEncoding),
            ("broken_encoding", Reason::BrokenEncoding),
            ("not_stored", Reason::NotStored),
            ("bug", Reason::Bug),
        ]
        .map(|(label, reason)| (label, self.counter(reason).load(Ordering::Relaxed)))
    }

    fn counter(&self, reason: Reason) -> &AtomicU64 {
        match reason {
            Reason::NotUnderstood => &self.not_understood,
            Reason::UnknownEncoding => &self.unknown_encoding,
            Reason::BrokenEncoding => &self.broken_encoding,
            Reason::NotStored => &self.not_stored,
            Reason::Bug => &self.bug,
        }
    }
}
