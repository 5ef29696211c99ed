//! What a proxy adds to a streamed event: its delay when events come one by one, its cost when they come at once.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::Bench;

use super::client::{Connection, EventReader, check, request};
use super::conversation::sample;
use super::machine::micros;
use super::stats::{Ratio, added, added_ratio, float, median, quantile};
use super::target::{Route, Target};

const BODY_BYTES: usize = 2 << 10;

/// How the events of one stream come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    events: usize,
    every: Duration,
}

impl Flow {
    /// Like a quick model: each event finds the proxy idle.
    pub(crate) fn spaced(once: bool) -> Self {
        Self { events: if once { 20 } else { 150 }, every: Duration::from_millis(1) }
    }

    /// As quick as they can be sent.
    pub(crate) fn packed(once: bool) -> Self {
        Self { events: if once { 200 } else { 4000 }, every: Duration::ZERO }
    }
}

/// One target; times in microseconds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) route: Route,
    pub(crate) events: usize,
    /// From the sending of an event to its arrival. Of events back to back, that is how long the queue was.
    pub(crate) delay_p50: f64,
    pub(crate) delay_p99: f64,
    pub(crate) added_delay: f64,
    pub(crate) delay_to_nginx: Option<Ratio>,
    /// From the first event to the last, by event.
    pub(crate) pace: f64,
    pub(crate) cpu: f64,
    /// Its processor time an event, as a multiple of nginx's.
    pub(crate) cpu_to_nginx: Option<f64>,
}

#[derive(Debug)]
struct Lane {
    target: Target,
    connection: Connection,
    request: Vec<u8>,
    cpu_before: Duration,
    /// The delay of each event.
    delays: Vec<f64>,
    /// The median delay of each turn.
    turns: Vec<f64>,
    /// The time between two events of each turn.
    paces: Vec<f64>,
}

pub(crate) fn measure(bench: &Bench, flow: &Flow) -> Result<Vec<Row>> {
    let routes = bench.routes.iter().filter(|route| !matches!(route, Route::Tuned | Route::Patch));
    let mut lanes: Vec<Lane> = routes.map(|&route| Lane::open(bench, route, flow)).collect::<Result<_>>()?;
    // Two measurements share the time of one.
    let budget = bench.budget * 3 / 4;
    let start = Instant::now();
    loop {
        for lane in &mut lanes {
            lane.take_turn(bench.upstream.epoch, flow)?;
        }
        if start.elapsed() >= budget {
            break;
        }
        lanes.rotate_left(1);
    }
    lanes.sort_by_key(|lane| bench.routes.iter().position(|&route| route == lane.target.route));
    let mut rows: Vec<Row> = lanes.iter().map(|lane| lane.row(&lanes)).collect::<Result<_>>()?;
    let nginx = rows.iter().find(|row| row.route == Route::Nginx).map(|row| row.cpu).filter(|&cpu| cpu > 0.0);
    for row in rows.iter_mut().filter(|row| row.route.is_abridge()) {
        row.cpu_to_nginx = nginx.map(|nginx| row.cpu / nginx);
    }
    Ok(rows)
}

impl Lane {
    fn open(bench: &Bench, route: Route, flow: &Flow) -> Result<Self> {
        let target = Target::start(bench, route)?;
        let mut connection = Connection::open(target.address)?;
        let sample = sample(BODY_BYTES, route.calls())?;
        check(&mut connection, &target, &sample.body, sample.gap)?;
        let query = format!("?events={}&every={}", flow.events, flow.every.as_micros());
        let request = request(&target, &query, &sample.body);
        let cpu_before = target.cpu()?;
        let [delays, turns, paces] = [const { Vec::new() }; 3];
        Ok(Self { target, connection, request, cpu_before, delays, turns, paces })
    }

    /// Reads one stream to its end.
    fn take_turn(&mut self, epoch: Instant, flow: &Flow) -> Result<()> {
        let first = self.delays.len();
        let mut reader = EventReader::default();
        let mut arrivals: Option<(Instant, Instant)> = None;
        self.connection.send(&self.request)?;
        loop {
            let input = self.connection.receive()?;
            let now = Instant::now();
            let since_epoch = now.duration_since(epoch);
            let over = reader.feed(input, |sent| {
                self.delays.push(micros(since_epoch.saturating_sub(Duration::from_nanos(sent))));
                arrivals = Some((arrivals.map_or(now, |(first, _)| first), now));
            })?;
            if over {
                break;
            }
        }
        let delays = self.delays.get(first..).unwrap_or_default();
        ensure!(delays.len() == flow.events, "{}: {} events arrived", self.target.route.label(), delays.len());
        self.turns.push(median(delays));
        if let Some((first, last)) = arrivals {
            self.paces.push(micros(last.duration_since(first)) / float(flow.events));
        }
        Ok(())
    }

    fn row(&self, lanes: &[Self]) -> Result<Row> {
        let of = |route| lanes.iter().find(|lane| lane.target.route == route);
        let direct = of(Route::Direct).unwrap_or(self);
        let cpu = self.target.cpu()?.saturating_sub(self.cpu_before);
        Ok(Row {
            route: self.target.route,
            events: self.delays.len(),
            delay_p50: median(&self.delays),
            delay_p99: quantile(&self.delays, 990),
            added_delay: added(&self.turns, &direct.turns),
            delay_to_nginx: of(Route::Nginx)
                .filter(|_| self.target.route.is_abridge())
                .map(|nginx| added_ratio(&self.turns, &nginx.turns, &direct.turns)),
            pace: median(&self.paces),
            cpu: micros(cpu) / float(self.delays.len()),
            cpu_to_nginx: None,
        })
    }
}
