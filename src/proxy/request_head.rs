//! A request without its body, and its id.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use http::Uri;
use http::request::Parts;

use super::Destination;
use crate::dialect::Dialect;
use crate::payload::Caller;

/// A request without its body, with its destination.
#[derive(Clone, Debug)]
pub(super) struct RequestHead<'l> {
    pub(super) dialect: &'static dyn Dialect,
    pub(super) id: RequestId,
    pub(super) parts: Parts,
    pub(super) caller: Caller,
    pub(super) destination: &'l Destination,
    /// Its URI at the upstream.
    pub(super) target: Uri,
}

/// The id of one request of this process. It cannot be guessed from another one.
#[derive(Clone, Copy, Debug, derive_more::Display, Eq, PartialEq)]
#[display("req_{_0:016x}")]
pub(super) struct RequestId(pub(super) u64);

/// Generates request ids.
#[derive(Debug, Default)]
pub(super) struct RequestIds {
    key: RandomState,
    next: AtomicU64,
}

// === impl RequestIds ===

impl RequestIds {
    /// An id that this process has not used before.
    pub(super) fn next(&self) -> RequestId {
        RequestId(self.key.hash_one(self.next.fetch_add(1, Ordering::Relaxed)))
    }
}
