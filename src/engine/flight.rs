//! A summary that is being made, for all who wait for it. It is made by a task of its own, so that whoever asked first may go.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::summaries::Summaries;
use super::summarizer::Unmade;
use crate::payload::ChainKey;

/// A summary that is being made.
#[derive(Debug)]
pub(super) struct Flight {
    background: bool,
    waiting: watch::Sender<usize>,
    ended: watch::Sender<Option<Result<(), Unmade>>>,
}

/// Somebody who waits for a flight, from now until this is dropped.
#[derive(Debug)]
pub(super) struct Seat(Arc<Flight>);

/// The task that makes the summary. However it ends, those who wait hear of it.
#[derive(Debug)]
pub(super) struct Takeoff {
    summaries: Arc<Summaries>,
    beginning: ChainKey,
    flight: Arc<Flight>,
    landed: bool,
}

// === impl Flight ===

impl Flight {
    /// Nobody waits yet. One in the background is made all the same.
    pub(super) fn new(background: bool) -> Self {
        Self { background, waiting: watch::channel(0).0, ended: watch::channel(None).0 }
    }

    /// Whether a new call is to be made for it.
    pub(super) fn is_wanted(&self) -> bool {
        self.background || *self.waiting.borrow() > 0
    }

    /// Returns when it is not wanted any more.
    pub(super) async fn deserted(&self) {
        if self.background {
            return std::future::pending().await;
        }
        // The sender lives as long as this does.
        let mut waiting = self.waiting.subscribe();
        let _deserted = waiting.wait_for(|waiting| *waiting == 0).await;
    }

    /// Takes a seat.
    pub(super) fn board(self: Arc<Self>) -> Seat {
        self.waiting.send_modify(|waiting| *waiting += 1);
        Seat(self)
    }
}

// === impl Seat ===

impl Seat {
    /// Waits for the end.
    pub(super) async fn wait(self) -> Result<(), Unmade> {
        let mut ended = self.0.ended.subscribe();
        let ended = ended.wait_for(Option::is_some).await;
        ended.ok().and_then(|ended| ended.clone()).unwrap_or(Err(Unmade::Ending))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.waiting.send_modify(|waiting| *waiting -= 1);
    }
}

// === impl Takeoff ===

impl Takeoff {
    pub(super) fn new(summaries: Arc<Summaries>, beginning: ChainKey, flight: Arc<Flight>) -> Self {
        Self { summaries, beginning, flight, landed: false }
    }

    /// What those wait for who come from now on.
    pub(super) fn flight(&self) -> &Arc<Flight> {
        &self.flight
    }

    /// The summary is kept.
    pub(super) fn made(self) {
        self.land(Ok(()));
    }

    /// There is none, and there will be no other try for so long.
    pub(super) fn failed(self, why: Unmade, cooldown: Duration) {
        self.summaries.refuse(self.beginning, cooldown);
        self.land(Err(why));
    }

    /// There is none because nobody wanted it any more, or because there was no room; the next who asks may have one.
    pub(super) fn given_up(self, why: Unmade) {
        self.summaries.abandon(self.beginning, &self.flight);
        self.land(Err(why));
    }

    fn land(mut self, result: Result<(), Unmade>) {
        self.landed = true;
        self.flight.ended.send_replace(Some(result));
    }
}

impl Drop for Takeoff {
    fn drop(&mut self) {
        if !self.landed {
            self.summaries.abandon(self.beginning, &self.flight);
            self.flight.ended.send_replace(Some(Err(Unmade::Ending)));
        }
    }
}
