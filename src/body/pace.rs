//! Requests as they come from a client: how slowly a body may come, in pauses and in bytes a second; which requests of a connection
//! are in flight, and for how long none has been.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// How slowly a body may come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// The longest pause between two chunks.
    pub pause: Duration,
    /// Bytes a second, on average; 0 for no minimum.
    pub min_rate: u64,
    /// How long a body is waited for before that minimum counts.
    pub grace: Duration,
}

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The client paused too long.
    #[error("the client paused for {} s in the middle of the request body", .0.as_secs())]
    Paused(Duration),
    /// The client sent too few bytes a second.
    #[error("the client sent less than {min_rate} bytes a second of the request body (server.min_body_rate)")]
    TooSlow {
        /// The minimum.
        min_rate: u64,
    },
    /// The client disconnected or broke the protocol.
    #[error("the request body broke off")]
    Broken(#[source] hyper::Error),
}

impl BodyError {
    /// Whether the client was too slow.
    pub fn is_slow(&self) -> bool {
        matches!(self, Self::Paused(_) | Self::TooSlow { .. })
    }
}

/// A body that fails when it arrives too slowly. Only the time in which its reader waits counts, so a slow reader does not
/// make it fail. A body that has arrived when it is read costs no timer and no clock read.
#[derive(Debug)]
pub struct PacedBody<B> {
    body: B,
    pace: Pace,
    // Of a client's request, which is in flight as long as its body may come.
    _in_flight: Option<InFlight>,
    n_bytes: u64,
    // How long it was waited for before the present wait, and since when that goes on.
    waited: Duration,
    waiting_since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// The body of a client's request.
pub type ClientBody = PacedBody<Incoming>;

impl<B> PacedBody<B> {
    /// Reads `body` at this pace; `request`, if it is one of a client, is in flight as long as its body may come.
    pub fn new(body: B, pace: Pace, request: Option<InFlight>) -> Self {
        let (n_bytes, waited) = (0, Duration::ZERO);
        Self { body, pace, _in_flight: request, n_bytes, waited, waiting_since: None, timer: None }
    }

    /// Whether some of it has come.
    pub fn has_begun(&self) -> bool {
        self.n_bytes > 0
    }

    /// How long may be waited in all until there must be more bytes.
    fn allowed(&self) -> Duration {
        match self.n_bytes.checked_div(self.pace.min_rate) {
            Some(seconds) => self.pace.grace.saturating_add(Duration::from_secs(seconds)),
            None => Duration::MAX,
        }
    }
}

impl<B: Body<Data = Bytes, Error = hyper::Error> + Unpin> Body for PacedBody<B> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if let Poll::Ready(next) = Pin::new(&mut this.body).poll_frame(cx) {
            if let Some(since) = this.waiting_since.take() {
                this.waited += since.elapsed();
            }
            if let Some(Ok(frame)) = &next {
                this.n_bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
            }
            return Poll::Ready(next.map(|frame| frame.map_err(BodyError::Broken)));
        }
        let since = *this.waiting_since.get_or_insert_with(Instant::now);
        let left = this.allowed().saturating_sub(this.waited);
        // A time that far off never comes.
        let Some(due) = since.checked_add(left.min(this.pace.pause)) else { return Poll::Pending };
        let timer = this.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if timer.deadline() != due {
            timer.as_mut().reset(due);
        }
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Some(Err(if left < this.pace.pause {
            BodyError::TooSlow { min_rate: this.pace.min_rate }
        } else {
            BodyError::Paused(this.pace.pause)
        })))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The requests of one connection.
#[derive(Debug, Default)]
pub struct Requests {
    // Their clones are what is in flight, and what keeps the connection open.
    in_flight: Arc<()>,
    kept_open: KeptOpen,
    started: AtomicUsize,
    closing: Notify,
}

/// A part of a request, its body or its answer. The request is in flight until all of them are dropped.
#[derive(Clone, Debug)]
pub struct InFlight {
    of: Arc<Requests>,
    _part: Arc<()>,
}

/// Until this is dropped, the connection is not idle.
#[derive(Clone, Debug, Default)]
pub struct KeptOpen(Arc<()>);

// === impl Requests ===

impl Requests {
    /// Counts a request.
    pub fn start(self: &Arc<Self>) -> InFlight {
        self.started.fetch_add(1, Ordering::Relaxed);
        InFlight { of: Arc::clone(self), _part: Arc::clone(&self.in_flight) }
    }

    /// Keeps the connection open without a request.
    pub fn keep_open(&self) -> KeptOpen {
        self.kept_open.clone()
    }

    /// Whether a request is in flight.
    pub fn are_in_flight(&self) -> bool {
        Arc::strong_count(&self.in_flight) > 1
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
            let (so_far, is_kept) = (self.n_started(), Arc::strong_count(&self.kept_open.0) > 1);
            let is_used = is_kept || self.are_in_flight();
            if so_far == started && !is_used {
                return;
            }
            // The time of a request that has ended meanwhile counts from now on.
            started = if is_used { usize::MAX } else { so_far };
        }
    }
}

impl InFlight {
    /// Ends the connection after the requests that are in flight.
    pub fn close_connection(&self) {
        self.of.closing.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::time::sleep;

    use super::*;

    /// A body of chunks, each after a pause.
    struct Slow(Vec<(u64, usize)>, Pin<Box<Sleep>>);

    impl Slow {
        fn new(mut chunks: Vec<(u64, usize)>) -> Self {
            chunks.reverse();
            let first = chunks.last().map_or(0, |(pause, _)| *pause);
            Self(chunks, Box::pin(sleep(Duration::from_secs(first))))
        }
    }

    impl Body for Slow {
        type Data = Bytes;
        type Error = hyper::Error;

        fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
            let this = self.get_mut();
            ready!(this.1.as_mut().poll(cx));
            let Some((_, n_bytes)) = this.0.pop() else { return Poll::Ready(None) };
            let next = this.0.last().map_or(0, |(pause, _)| *pause);
            this.1 = Box::pin(sleep(Duration::from_secs(next)));
            Poll::Ready(Some(Ok(Frame::data(vec![b'x'; n_bytes].into()))))
        }
    }

    async fn read(chunks: Vec<(u64, usize)>, min_rate: u64) -> Result<usize, BodyError> {
        let pace = Pace { pause: Duration::from_mins(1), min_rate, grace: Duration::from_secs(30) };
        let mut body = PacedBody::new(Slow::new(chunks), pace, None);
        let mut n_bytes = 0;
        while let Some(frame) = body.frame().await {
            n_bytes += frame?.into_data().map_or(0, |data| data.len());
        }
        Ok(n_bytes)
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_up_to_the_limit_passes_and_a_longer_one_does_not() {
        assert_eq!(read(vec![(0, 9000), (59, 9000), (59, 9000)], 100).await.unwrap(), 27_000);
        assert!(matches!(read(vec![(0, 9000), (61, 9000)], 100).await, Err(BodyError::Paused(_))));
        assert!(matches!(read(vec![(61, 9000)], 0).await, Err(BodyError::Paused(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn after_the_grace_so_many_bytes_a_second_pass_and_fewer_do_not() {
        let chunks = |n: usize| vec![(10, n); 40];
        // 30 seconds, and a second for each 100 bytes.
        assert_eq!(read(chunks(1000), 100).await.unwrap(), 40_000);
        assert!(matches!(read(chunks(900), 100).await, Err(BodyError::TooSlow { min_rate: 100 })));
        assert_eq!(read(chunks(1), 0).await.unwrap(), 40);
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_in_which_nobody_waits_does_not_count() {
        let pace = Pace { pause: Duration::from_mins(1), min_rate: 100, grace: Duration::from_secs(30) };
        let mut body = PacedBody::new(Slow::new(vec![(20, 10), (20, 10)]), pace, None);
        for _ in 0..2 {
            assert!(body.frame().await.unwrap().is_ok());
            sleep(Duration::from_secs(1000)).await;
        }
        assert!(body.frame().await.is_none());
    }

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
        let began = Instant::now();
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
