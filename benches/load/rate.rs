//! How many small requests a second go through, over 32 connections that each carry one at a time.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::{Bytes, BytesMut};
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::Bench;

use super::client::{Connection, check, parse_reply, request};
use super::conversation::sample;
use super::machine::micros;
use super::stats::{float, median};
use super::target::{Route, Target};

const CONNECTIONS: usize = 32;
const BODY_BYTES: usize = 2 << 10;
/// How long a target's turn takes.
const TURN: Duration = Duration::from_millis(300);

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) route: Route,
    pub(crate) per_second: f64,
    /// Its rate as a multiple of nginx's.
    pub(crate) to_nginx: Option<f64>,
    /// Processor time a request, in microseconds.
    pub(crate) cpu: f64,
    pub(crate) peak_bytes: Option<usize>,
}

#[derive(Debug)]
struct Lane {
    target: Target,
    request: Bytes,
    expected: usize,
    connections: Vec<TcpStream>,
    cpu_before: Duration,
    answered: usize,
    /// Requests a second, turn by turn.
    rates: Vec<f64>,
}

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(measure_all(bench))
}

async fn measure_all(bench: &Bench) -> Result<Vec<Row>> {
    let mut lanes = Vec::new();
    // A buffer for large bodies makes no difference to small ones.
    for &route in bench.routes.iter().filter(|&&route| route != Route::Tuned) {
        lanes.push(Lane::open(bench, route).await?);
    }
    let start = Instant::now();
    loop {
        for lane in &mut lanes {
            lane.take_turn().await?;
        }
        if start.elapsed() >= bench.budget {
            break;
        }
        lanes.rotate_left(1);
    }
    lanes.sort_by_key(|lane| bench.routes.iter().position(|&route| route == lane.target.route));
    let nginx = lanes.iter().find(|lane| lane.target.route == Route::Nginx).map(|lane| median(&lane.rates));
    lanes.iter().map(|lane| lane.row(nginx)).collect()
}

impl Lane {
    async fn open(bench: &Bench, route: Route) -> Result<Self> {
        let target = Target::start(bench, route)?;
        let sample = sample(BODY_BYTES, route.calls())?;
        let expected = check(&mut Connection::open(target.address)?, &target, &sample.body, sample.gap)?;
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            let stream = TcpStream::connect(target.address).await?;
            stream.set_nodelay(true)?;
            connections.push(stream);
        }
        let request = Bytes::from(request(&target, "", &sample.body));
        let cpu_before = target.cpu()?;
        Ok(Self { target, request, expected, connections, cpu_before, answered: 0, rates: Vec::new() })
    }

    async fn take_turn(&mut self) -> Result<()> {
        let start = Instant::now();
        let mut workers = JoinSet::new();
        for stream in self.connections.drain(..) {
            workers.spawn(keep_asking(stream, self.request.clone(), self.expected, start + TURN));
        }
        let mut answered = 0;
        while let Some(finished) = workers.join_next().await {
            let (stream, n_answered) = finished??;
            self.connections.push(stream);
            answered += n_answered;
        }
        self.answered += answered;
        self.rates.push(float(answered) / start.elapsed().as_secs_f64());
        Ok(())
    }

    fn row(&self, nginx: Option<f64>) -> Result<Row> {
        let cpu = self.target.cpu()?.saturating_sub(self.cpu_before);
        let per_second = median(&self.rates);
        Ok(Row {
            route: self.target.route,
            per_second,
            to_nginx: nginx.filter(|_| self.target.route.is_abridge()).map(|nginx| per_second / nginx),
            cpu: micros(cpu) / float(self.answered),
            peak_bytes: self.target.memory()?.map(|memory| memory.peak),
        })
    }
}

async fn keep_asking(
    mut stream: TcpStream,
    request: Bytes,
    expected: usize,
    deadline: Instant,
) -> Result<(TcpStream, usize)> {
    let mut input = BytesMut::with_capacity(4 * 1024);
    let mut answered = 0;
    while Instant::now() < deadline {
        stream.write_all(&request).await?;
        input.clear();
        let reply = loop {
            ensure!(stream.read_buf(&mut input).await? > 0, "the connection was closed before the answer's end");
            if let Some(reply) = parse_reply(&input)? {
                break reply;
            }
        };
        ensure!(reply.received == expected, "wrong length at the upstream");
        answered += 1;
    }
    Ok((stream, answered))
}
