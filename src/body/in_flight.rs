//! The requests of one connection to a client: which are in flight, and for how long none has been.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

/// The requests of one connection.
#[derive(Debug, Default)]
pub struct Requests {
    in_flight: AtomicUsize,
    started: AtomicUsize,
    kept_open: AtomicUsize,
    closing: Notify,
}

/// A part of a request, its body or its answer. The request is in flight until all of them are dropped.
#[derive(Debug)]
pub struct InFlight(Arc<Requests>);

/// Until this is dropped, the connection is not idle.
#[derive(Debug)]
pub struct KeptOpen(Arc<Requests>);

// === impl Requests ===

impl Requests {
    /// Counts a request.
    pub fn start(self: &Arc<Self>) -> InFlight {
        self.started.fetch_add(1, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(self))
    }

    /// Keeps the connection open without a request.
    pub fn keep_open(self: &Arc<Self>) -> KeptOpen {
        self.kept_open.fetch_add(1, Ordering::Relaxed);
        KeptOpen(Arc::clone(self))
    }

    /// Whether a request is in flight.
    pub fn are_in_flight(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) > 0
    }

    /// How many requests there were.
    pub fn n_started(&self) -> usize {
        self.started.load(Ordering::Relaxed)
    }

    /// Returns once an answer has asked for the end of the connection.
    pub async fn closing(&self) {
        self.closing.notified().await;
    }

    /// Returns once there has been no request for `within`, and at most for twice as long. A connection that never had one is
    /// waited for once.
    pub async fn idle(&self, within: Duration) {
        let mut started = 0;
        loop {
            sleep(within).await;
            let (so_far, is_kept) = (self.n_started(), self.kept_open.load(Ordering::Relaxed) > 0);
            let is_used = is_kept || self.are_in_flight();
            if so_far == started && !is_used {
                return;
            }
            // The time of a request that has ended meanwhile counts from now on.
            started = if is_used { usize::MAX } else { so_far };
        }
    }
}

// === impl InFlight ===

impl InFlight {
    /// Ends the connection after the requests that are in flight.
    pub fn close_connection(&self) {
        self.0.closing.notify_one();
    }
}

impl Clone for InFlight {
    fn clone(&self) -> Self {
        self.0.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for KeptOpen {
    fn drop(&mut self) {
        self.0.kept_open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_in_flight_until_its_last_part_is_dropped() {
        let requests = Arc::new(Requests::default());
        let answer = requests.start();
        let body = answer.clone();
        drop(answer);
        assert_eq!((requests.n_started(), requests.are_in_flight()), (1, true));
        drop(body);
        assert!(!requests.are_in_flight());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_after_a_while_without_a_request() {
        let requests = Arc::new(Requests::default());
        let began = tokio::time::Instant::now();
        requests.idle(Duration::from_secs(30)).await;
        assert_eq!(began.elapsed().as_secs(), 30);
        let request = requests.start();
        let ending = async {
            sleep(Duration::from_secs(100)).await;
            drop(request);
        };
        tokio::join!(requests.idle(Duration::from_secs(30)), ending);
        assert!((160..=190).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    }
}
