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
    #[serde(rename = "beside")]
    pub(crate) is_loaded: bool,
    pub(crate) requests: usize,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// Measures small requests alone and during large ones with new texts, round by round.
pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let target = Target::start(bench, Route::Cold)?;
    let mut small = Small::open(&target)?;
    let mut large = Large::open(&target)?;
    // Warm-up: builds the vocabulary and opens the connections.
    large.send()?;
    small.measure_while(|n| n >= MIN_REQUESTS)?;
    let (mut alone, mut loaded) = (Vec::new(), Vec::new());
    let start = Instant::now();
    loop {
        // What the large request has left to be done has ended by then.
        thread::sleep(PAUSE);
        alone.extend(small.measure_while(|n| n >= MIN_REQUESTS)?);
        loaded.extend(small.measure_during(&mut large)?);
        if start.elapsed() >= bench.budget {
            break;
        }
    }
    let row = |is_loaded, times: &[f64]| Row {
        is_loaded,
        requests: times.len(),
        p50: median(times),
        p99: quantile(times, 990),
    };
    Ok(vec![row(false, &alone), row(true, &loaded)])
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
    sent: usize,
}

impl Large {
    fn open(target: &Target) -> Result<Self> {
        let sample = sample(LARGE, Route::Cold.calls())?;
        let request = request(target, "", &sample.body);
        let head = request.len() - sample.body.len();
        let stamps = sample.stamps.iter().map(|at| head + at).collect();
        Ok(Self { connection: Connection::open(target.address)?, request, stamps, sent: 0 })
    }

    /// Sends a request whose results contain no text that was sent before.
    fn send(&mut self) -> Result<()> {
        self.sent += 1;
        stamp(&mut self.request, &self.stamps, self.sent);
        let reply = self.connection.exchange(&self.request)?;
        ensure!(reply.received < LARGE / 2, "a large request was not reduced");
        Ok(())
    }
}
