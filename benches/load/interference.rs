//! The latency of small requests while large ones are counted, compared with their latency alone, in the same process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use serde::Serialize;

use crate::Bench;

use super::client::{Connection, request};
use super::conversation::{sample, stamp};
use super::machine::micros;
use super::stats::{median, quantile};
use super::target::{Route, Target};

const SMALL: usize = 2 << 10;
const LARGE: usize = 1 << 20;
/// The minimum number of small requests in a round; under load, a round lasts as long as one large request.
const MIN_REQUESTS: usize = 200;
const PAUSE: Duration = Duration::from_millis(20);

/// Times of the small requests, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) route: Route,
    pub(crate) alone: Times,
    pub(crate) beside: Times,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Times {
    pub(crate) requests: usize,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// Measures small requests alone and during large ones with new texts, round by round; and the same where a large one is
/// merely passed on, as often: client, upstream and whatever passes 1 MB on have no time for small requests meanwhile.
pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let (cold, time) = beside(bench, Route::Cold, Duration::ZERO)?;
    let (floor, _) = beside(bench, Route::Collected, time)?;
    Ok(vec![cold, floor])
}

/// The times through one proxy, whose large requests take no less than `least`, and how long they take.
fn beside(bench: &Bench, route: Route, least: Duration) -> Result<(Row, Duration)> {
    let target = Target::start(bench, route)?;
    let mut small = Small::open(&target)?;
    let mut large = Large::open(&target, least)?;
    // Warm-up: builds the vocabulary and opens the connections.
    large.renew();
    large.send()?;
    small.measure_while(|n| n >= MIN_REQUESTS)?;
    let (mut alone, mut loaded, mut took) = (Vec::new(), Vec::new(), Vec::new());
    let start = Instant::now();
    loop {
        // What the large request has left to be done has ended by then.
        thread::sleep(PAUSE);
        large.renew();
        alone.extend(small.measure_while(|n| n >= MIN_REQUESTS)?);
        let began = Instant::now();
        loaded.extend(small.measure_during(&mut large)?);
        took.push(began.elapsed().as_secs_f64());
        if start.elapsed() >= bench.budget {
            break;
        }
    }
    let times = |times: &[f64]| Times { requests: times.len(), p50: median(times), p99: quantile(times, 990) };
    Ok((Row { route, alone: times(&alone), beside: times(&loaded) }, Duration::from_secs_f64(median(&took))))
}

#[derive(Debug)]
struct Small {
    connection: Connection,
    request: Vec<u8>,
    expected: usize,
}

impl Small {
    fn open(target: &Target) -> Result<Self> {
        let sample = sample(SMALL, Route::Cold.calls())?;
        let connection = Connection::open(target.address)?;
        Ok(Self { connection, request: request(target, "", &sample.body), expected: sample.body.len() })
    }

    /// Sends requests one after the other until `is_enough` accepts their number. Returns their times.
    fn measure_while(&mut self, is_enough: impl Fn(usize) -> bool) -> Result<Vec<f64>> {
        let mut times = Vec::new();
        while !is_enough(times.len()) {
            let start = Instant::now();
            let reply = self.connection.exchange(&self.request)?;
            times.push(micros(start.elapsed()));
            ensure!(reply.received == self.expected, "a short request has another length at the upstream");
        }
        Ok(times)
    }

    /// The same, for as long as a large request takes.
    fn measure_during(&mut self, large: &mut Large) -> Result<Vec<f64>> {
        let ended = &AtomicBool::new(false);
        thread::scope(|scope| {
            let counted = scope.spawn(|| {
                let sent = large.send();
                ended.store(true, Ordering::Release);
                sent
            });
            let times = self.measure_while(|_| ended.load(Ordering::Acquire));
            counted.join().map_err(|_| anyhow!("the sender of large requests panicked"))??;
            times
        })
    }
}

#[derive(Debug)]
struct Large {
    connection: Connection,
    request: Vec<u8>,
    stamps: Vec<usize>,
    number: usize,
    /// Whether the upstream gets all of it.
    is_whole: bool,
    least: Duration,
}

impl Large {
    fn open(target: &Target, least: Duration) -> Result<Self> {
        let sample = sample(LARGE, Route::Cold.calls())?;
        let request = request(target, "", &sample.body);
        let head = request.len() - sample.body.len();
        let stamps = sample.stamps.iter().map(|at| head + at).collect();
        let (connection, is_whole) = (Connection::open(target.address)?, target.route != Route::Cold);
        Ok(Self { connection, request, stamps, number: 0, is_whole, least })
    }

    /// Changes the texts of the request, so that none of them was sent before. This is work of the client, so it is done while
    /// no small requests are measured.
    fn renew(&mut self) {
        self.number += 1;
        stamp(&mut self.request, &self.stamps, self.number);
    }

    /// Sends the request.
    fn send(&mut self) -> Result<()> {
        let began = Instant::now();
        let reply = self.connection.exchange(&self.request)?;
        ensure!((reply.received >= LARGE / 2) == self.is_whole, "a large request has another length at the upstream");
        thread::sleep(self.least.saturating_sub(began.elapsed()));
        Ok(())
    }
}
