//! What other requests notice of one whose tokens are counted: their times with and without it, in the same process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

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
/// How many small requests a turn has at least; with the large ones it goes on as long as one of them does.
const TURN: usize = 50;

/// The times of the small requests, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) beside: bool,
    pub(crate) requests: usize,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// Small requests by themselves, and beside large ones that were never seen before, turn by turn.
pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let target = Target::start(bench, Route::Cold)?;
    let mut small = Small::open(&target)?;
    let mut large = Large::open(&target)?;
    // The vocabulary is built, and connections are made.
    large.send()?;
    small.turn(|n| n >= TURN)?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let start = Instant::now();
    loop {
        alone.extend(small.turn(|n| n >= TURN)?);
        beside.extend(small.beside(&mut large)?);
        if start.elapsed() >= bench.budget {
            break;
        }
    }
    let row =
        |beside, times: &[f64]| Row { beside, requests: times.len(), p50: median(times), p99: quantile(times, 990) };
    Ok(vec![row(false, &alone), row(true, &beside)])
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

    /// The times of requests one after the other, till `enough` says so of their number.
    fn turn(&mut self, enough: impl Fn(usize) -> bool) -> Result<Vec<f64>> {
        let mut times = Vec::new();
        while !enough(times.len()) {
            let start = Instant::now();
            let reply = self.connection.exchange(&self.request)?;
            times.push(micros(start.elapsed()));
            ensure!(reply.received == self.expected, "a short request has another length at the upstream");
        }
        Ok(times)
    }

    /// The same, while a large request is on its way.
    fn beside(&mut self, large: &mut Large) -> Result<Vec<f64>> {
        let ended = &AtomicBool::new(false);
        thread::scope(|scope| {
            let counted = scope.spawn(|| {
                let sent = large.send();
                ended.store(true, Ordering::Release);
                sent
            });
            let times = self.turn(|_| ended.load(Ordering::Acquire));
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

    /// Sends a request with no text in its results that was there before.
    fn send(&mut self) -> Result<()> {
        self.sent += 1;
        stamp(&mut self.request, &self.stamps, self.sent);
        let reply = self.connection.exchange(&self.request)?;
        ensure!(reply.received < LARGE / 2, "a large request was not reduced");
        Ok(())
    }
}
