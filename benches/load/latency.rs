//! How much longer one request takes through a proxy: one connection a target, one request after the other.

use std::time::Instant;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::Bench;

use super::client::{Connection, check, request};
use super::conversation::{Calls, Sample, stamp};
use super::machine::micros;
use super::stats::{Ratio, added, added_ratio, float, median, quantile};
use super::target::{Route, Target};

/// A body size, and how many requests of it make a target's turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) bytes: usize,
    turn: usize,
}

/// Odd turns have a median that is a sample; short ones of large bodies keep the targets close to each other in time.
pub(crate) const SIZES: [Size; 4] = [
    Size { bytes: 2 << 10, turn: 25 },
    Size { bytes: 64 << 10, turn: 15 },
    Size { bytes: 1 << 20, turn: 5 },
    Size { bytes: 8 << 20, turn: 3 },
];

/// The same for requests whose results are truncated and cleared.
pub(crate) const REDUCED: [Size; 3] =
    [Size { bytes: 400 << 10, turn: 5 }, Size { bytes: 1 << 20, turn: 5 }, Size { bytes: 8 << 20, turn: 5 }];

/// The same for texts of a recorded session.
pub(crate) const RECORDED: [Size; 2] = [Size { bytes: 1 << 20, turn: 5 }, Size { bytes: 8 << 20, turn: 3 }];

/// What requests are measured beside whose results are truncated and cleared.
pub(crate) const REDUCING: [Route; 4] = [Route::Direct, Route::Edit, Route::Warm, Route::Cold];

/// One target at one body size; times in microseconds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) route: Route,
    pub(crate) requests: usize,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) added_p50: f64,
    pub(crate) added_p99: f64,
    /// What it adds at the median, as a multiple of what nginx adds.
    pub(crate) to_nginx: Option<Ratio>,
    pub(crate) cpu: f64,
    pub(crate) peak_bytes: Option<usize>,
}

/// All targets at one body size.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Table {
    pub(crate) bytes: usize,
    pub(crate) rows: Vec<Row>,
}

/// A target with its connection and what it has shown so far.
#[derive(Debug)]
struct Lane {
    target: Target,
    connection: Connection,
    request: Vec<u8>,
    /// Where a request gets its number, if it is to be another one than the last.
    stamps: Vec<usize>,
    number: usize,
    /// How many bytes the upstream has to receive; of a request that is reduced, at most.
    expected: usize,
    samples: Vec<f64>,
    /// The median of each turn.
    turns: Vec<f64>,
}

/// Measures these routes with bodies of this size; `sample` makes them.
pub(crate) fn measure(
    bench: &Bench,
    size: Size,
    routes: &[Route],
    sample: impl Fn(usize, Calls) -> Result<Sample>,
) -> Result<Table> {
    let open = |&route: &Route| Lane::open(bench, route, &sample(size.bytes, route.calls())?);
    let mut lanes: Vec<Lane> = routes.iter().map(open).collect::<Result<_>>()?;
    for lane in &mut lanes {
        lane.take_turn(size.turn)?;
        lane.samples.clear();
        lane.turns.clear();
    }
    let cpu_before = lanes.iter().map(|lane| lane.target.cpu()).collect::<Result<Vec<_>>>()?;
    let start = Instant::now();
    loop {
        for lane in &mut lanes {
            lane.take_turn(size.turn)?;
        }
        if start.elapsed() >= bench.budget {
            break;
        }
        // Nobody always runs behind the same neighbour.
        lanes.rotate_left(1);
    }
    lanes.sort_by_key(|lane| routes.iter().position(|&route| route == lane.target.route));
    let rows = lanes.iter().zip(cpu_before).map(|(lane, before)| {
        let cpu = lane.target.cpu()?.saturating_sub(before);
        lane.row(&lanes, micros(cpu))
    });
    Ok(Table { bytes: size.bytes, rows: rows.collect::<Result<_>>()? })
}

impl Lane {
    fn open(bench: &Bench, route: Route, sample: &Sample) -> Result<Self> {
        let target = Target::start(bench, route)?;
        let mut connection = Connection::open(target.address)?;
        let request = request(&target, "", &sample.body);
        let expected = if route.reduces() {
            sample.body.len() * 9 / 10
        } else {
            check(&mut connection, &target, &sample.body, sample.gap)?
        };
        let head = request.len() - sample.body.len();
        let stamps: Vec<_> = sample.stamps.iter().map(|at| head + at).collect();
        let stamps = match route {
            Route::Cold => stamps,
            Route::Warm => stamps.last().copied().into_iter().collect(),
            _ => Vec::new(),
        };
        Ok(Self { target, connection, request, stamps, number: 0, expected, samples: Vec::new(), turns: Vec::new() })
    }

    fn take_turn(&mut self, requests: usize) -> Result<()> {
        let first = self.samples.len();
        // A cold one takes as long as a hundred others, which are to have their turns.
        let requests = if self.target.route == Route::Cold { 1 } else { requests };
        for _ in 0..requests {
            self.stamp();
            let start = Instant::now();
            let reply = self.connection.exchange(&self.request)?;
            self.samples.push(micros(start.elapsed()));
            let reduces = self.target.route.reduces();
            let right = if reduces { reply.received <= self.expected } else { reply.received == self.expected };
            ensure!(right, "{}: wrong length at the upstream", self.target.route.label());
        }
        self.turns.push(median(self.samples.get(first..).unwrap_or_default()));
        Ok(())
    }

    /// Makes the next request another one than all before it, as far as its route wants that.
    fn stamp(&mut self) {
        self.number += 1;
        stamp(&mut self.request, &self.stamps, self.number);
    }

    fn row(&self, lanes: &[Self], cpu: f64) -> Result<Row> {
        let of = |route| lanes.iter().find(|lane| lane.target.route == route);
        let direct = of(Route::Direct).unwrap_or(self);
        let p99 = quantile(&self.samples, 990);
        Ok(Row {
            route: self.target.route,
            requests: self.samples.len(),
            p50: median(&self.samples),
            p99,
            added_p50: added(&self.turns, &direct.turns),
            added_p99: p99 - quantile(&direct.samples, 990),
            to_nginx: of(Route::Nginx)
                .filter(|_| !matches!(self.target.route, Route::Direct | Route::Nginx))
                .map(|nginx| added_ratio(&self.turns, &nginx.turns, &direct.turns)),
            cpu: cpu / float(self.samples.len()),
            peak_bytes: self.target.memory()?.map(|memory| memory.peak),
        })
    }
}
