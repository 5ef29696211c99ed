//! The leader of a flight: the task that makes a summary, and that must pass its result to the waiters.

use std::sync::Arc;
use std::time::Duration;

use super::Summaries;
use crate::engine::error::SummaryError;
use crate::engine::flight::Flight;
use crate::payload::ChainKey;

/// Held by the task that makes a summary. If it is dropped, the waiters get an error.
pub(in crate::engine) struct Leader {
    summaries: Arc<Summaries>,
    beginning: ChainKey,
    /// The flight that later requests join.
    pub(in crate::engine) flight: Arc<Flight>,
    ended: bool,
}

// === impl Leader ===

impl Leader {
    pub(in crate::engine) fn new(summaries: Arc<Summaries>, beginning: ChainKey, flight: Arc<Flight>) -> Self {
        Self { summaries, beginning, flight, ended: false }
    }

    /// Ends the flight: the summary is stored.
    pub(in crate::engine) fn succeed(self) {
        self.end(Ok(()));
    }

    /// Ends the flight with an error, and starts the cooldown.
    pub(in crate::engine) fn fail(self, error: SummaryError, cooldown: Duration) {
        self.summaries.cool_down(self.beginning, cooldown);
        self.end(Err(error));
    }

    /// Ends the flight without a cooldown: no request waits, or there is no capacity. The next claim may try again.
    pub(in crate::engine) fn abandon(self, error: SummaryError) {
        self.summaries.abandon(self.beginning, &self.flight);
        self.end(Err(error));
    }

    fn end(mut self, result: Result<(), SummaryError>) {
        self.ended = true;
        self.flight.end(result);
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if !self.ended {
            self.summaries.abandon(self.beginning, &self.flight);
            self.flight.end(Err(SummaryError::ShuttingDown));
        }
    }
}
