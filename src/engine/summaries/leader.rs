//! The task that makes a summary, and its duty to those who wait: however it ends, they are told.

use std::sync::Arc;
use std::time::Duration;

use super::Summaries;
use crate::engine::error::SummaryError;
use crate::engine::flight::Flight;
use crate::payload::ChainKey;

/// Held by the task that makes a summary. Dropped, it ends the flight for those who wait.
#[derive(Debug)]
pub(in crate::engine) struct Leader {
    summaries: Arc<Summaries>,
    beginning: ChainKey,
    flight: Arc<Flight>,
    ended: bool,
}

// === impl Leader ===

impl Leader {
    pub(in crate::engine) fn new(summaries: Arc<Summaries>, beginning: ChainKey, flight: Arc<Flight>) -> Self {
        Self { summaries, beginning, flight, ended: false }
    }

    /// What requests that come from now on wait for.
    pub(in crate::engine) fn flight(&self) -> &Arc<Flight> {
        &self.flight
    }

    /// The summary is kept.
    pub(in crate::engine) fn made(self) {
        self.end(Ok(()));
    }

    /// There is none, and there will be no other try for so long.
    pub(in crate::engine) fn failed(self, why: SummaryError, cooldown: Duration) {
        self.summaries.refuse(self.beginning, cooldown);
        self.end(Err(why));
    }

    /// There is none because nobody wanted it any more, or because there was no room; the next who asks may have one.
    pub(in crate::engine) fn given_up(self, why: SummaryError) {
        self.summaries.abandon(self.beginning, &self.flight);
        self.end(Err(why));
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
            self.flight.end(Err(SummaryError::Ending));
        }
    }
}
