//! Numbers about all requests, as OpenMetrics text. Counted without a lock on the request path, or after the end.

use std::sync::Arc;

/// The numbers. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {}

impl Metrics {
    /// Nothing happened yet.
    pub fn new() -> Self {
        Self::default()
    }
}
