//! Many slow streams at a time: whether each gets every event in time, and what memory an open stream takes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::{Bytes, BytesMut};
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::Bench;

use super::client::{Connection, EventReader, check, request};
use super::conversation::sample;
use super::machine::micros;
use super::stats::{float, quantile};
use super::target::{Route, Target};

const BODY_BYTES: usize = 2 << 10;

/// How many streams there are and how their events come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    streams: usize,
    events: usize,
    every: Duration,
}

impl Shape {
    pub(crate) fn of(streams: usize) -> Self {
        Self { streams, events: 12, every: Duration::from_millis(500) }
    }

    pub(crate) fn brief() -> Self {
        Self { streams: 100, events: 4, every: Duration::from_millis(250) }
    }

    /// The files that this process opens: each stream's two ends, and some more.
    pub(crate) fn files(&self) -> usize {
        self.streams * 2 + 256
    }

    /// From the opening of one stream to the next: they spread over the time of a few events of one of them, for a
    /// burst of all at once would measure how fast the machine is and not whether one stream waits for another.
    fn stagger(&self) -> Duration {
        (self.every * 3).div_f64(float(self.streams))
    }
}

/// One target; times in microseconds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) route: Route,
    pub(crate) streams: usize,
    pub(crate) events: usize,
    pub(crate) delay_p50: f64,
    pub(crate) delay_p99: f64,
    pub(crate) delay_max: f64,
    /// Memory at most, less what it held before the first stream, by stream.
    pub(crate) bytes_a_stream: Option<usize>,
    pub(crate) cpu: f64,
}

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let routes = bench.routes.iter().filter(|route| matches!(route, Route::Direct | Route::Nginx | Route::Edit));
    routes.map(|&route| runtime.block_on(measure_one(bench, route))).collect()
}

async fn measure_one(bench: &Bench, route: Route) -> Result<Row> {
    let shape = bench.streams;
    let target = Target::start(bench, route)?;
    let sample = sample(BODY_BYTES, route.calls())?;
    // The first request takes what is only taken once; a stream's share is what comes on top.
    check(&mut Connection::open(target.address)?, &target, &sample.body, sample.gap)?;
    let query = format!("?events={}&every={}", shape.events, shape.every.as_micros());
    let request = Bytes::from(request(&target, &query, &sample.body));
    let before = target.memory()?;
    let cpu_before = target.cpu()?;

    let start = Instant::now();
    let mut readers = JoinSet::new();
    let mut opening = start;
    for _ in 0..shape.streams {
        tokio::time::sleep_until(opening.into()).await;
        opening += shape.stagger();
        let stream = TcpStream::connect(target.address).await?;
        stream.set_nodelay(true)?;
        readers.spawn(read_stream(stream, request.clone(), bench.upstream.epoch));
    }
    let opened = start.elapsed();
    ensure!(opened < shape.every * 6, "the streams opened too slowly ({opened:?}) to be open at a time");
    let mut delays = Vec::new();
    while let Some(finished) = readers.join_next().await {
        let arrived = finished?.with_context(|| route.label())?;
        ensure!(arrived.len() == shape.events, "{}: a stream lost events", route.label());
        delays.extend(arrived);
    }
    let after = target.memory()?;
    let grown = before.zip(after).map(|(before, after)| after.peak.saturating_sub(before.now));
    Ok(Row {
        route,
        streams: shape.streams,
        events: delays.len(),
        delay_p50: quantile(&delays, 500),
        delay_p99: quantile(&delays, 990),
        delay_max: quantile(&delays, 1000),
        bytes_a_stream: grown.map(|bytes| bytes / shape.streams),
        cpu: micros(target.cpu()?.saturating_sub(cpu_before)) / float(delays.len()),
    })
}

/// Reads one stream to its end; the delay of each event.
async fn read_stream(mut stream: TcpStream, request: Bytes, epoch: Instant) -> Result<Vec<f64>> {
    stream.write_all(&request).await?;
    let mut reader = EventReader::default();
    let mut delays = Vec::new();
    let mut input = BytesMut::with_capacity(2 * 1024);
    loop {
        input.clear();
        ensure!(stream.read_buf(&mut input).await? > 0, "the connection was closed before the answer's end");
        let now = epoch.elapsed();
        let over = reader.feed(&input, |sent| delays.push(micros(now.saturating_sub(Duration::from_nanos(sent)))))?;
        if over {
            return Ok(delays);
        }
    }
}
