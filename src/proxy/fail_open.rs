//! Counters of requests that were forwarded with fewer edits because abridge could not do its part.

use std::fmt::Display;

use crate::metrics::Tally;

/// Why a request was forwarded without some or all edits.
#[derive(Clone, Copy, Debug, Eq, PartialEq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
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
pub(super) struct FailOpenCounters(pub(super) Tally<FailOpenReason>);

impl FailOpenCounters {
    /// Counts a request. The first one for a reason is logged as a warning, the others at debug.
    pub(super) fn count(&self, reason: FailOpenReason, detail: &dyn Display) {
        let count = self.0.count(reason);
        if count == 1 {
            tracing::warn!(?reason, %detail, "a request is forwarded without edits; more of this kind are logged at debug");
        } else {
            tracing::debug!(?reason, %detail, count, "a request is forwarded without edits");
        }
    }
}
