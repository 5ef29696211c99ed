//! Proxies that somebody else started: the load client of `benches/peers/run.py`.
//!
//! A file names the targets and what to measure; the rows go to stdout as JSON. Each turn ends with a look at what the
//! upstream saw. A target that answers wrongly, or itself, or not at all, gets a row that says so; the others go on.

use std::fs;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use memchr::memmem;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::client::Connection;
use super::conversation::{Calls, sample, stamp};
use super::machine::micros;
use super::stats::{added, added_ratio, float, median, quantile};
use super::upstream::Upstream;

/// A turn ends after this time, or after that many requests, or else after one.
const TURN: Duration = Duration::from_millis(60);
const TURN_REQUESTS: usize = 75;
/// How long a target's turn takes where requests a second are counted.
const RATE_TURN: Duration = Duration::from_millis(500);
/// A connection that was not used for this long may be closed by the other side: a new one is opened, untimed.
const IDLE: Duration = Duration::from_secs(2);

#[derive(Debug, Deserialize)]
struct Plan {
    /// Connections that ask at a time; with one, each request is timed.
    connections: usize,
    seconds: u64,
    /// The size of a request body.
    bytes: usize,
    upstream: SocketAddr,
    /// The direct connection is the one named `direct`, nginx the one named `nginx`.
    targets: Vec<Spec>,
}

/// One way to the upstream.
#[derive(Clone, Debug, Deserialize)]
struct Spec {
    name: String,
    address: SocketAddr,
    path: String,
    key: String,
    model: String,
    /// Whether every result is another one in each request; the last message always is.
    #[serde(default)]
    all_new: bool,
    /// The most of a body that may arrive, in hundredths of what was sent; where it is to arrive unchanged, none.
    #[serde(default)]
    arrives: Option<usize>,
}

#[derive(Debug, Default, Serialize)]
struct Row {
    name: String,
    requests: usize,
    /// Of one body, sent and received.
    bytes: [usize; 2],
    p50: f64,
    p99: f64,
    added_p50: f64,
    /// What it adds at the median, as a multiple of what nginx adds.
    to_nginx: Option<f64>,
    per_second: f64,
    error: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Counts {
    requests: usize,
    bytes: usize,
}

/// Is the upstream until somebody kills it.
pub(crate) fn serve(address: SocketAddr) -> Result<()> {
    let upstream = Upstream::start_at(address, Instant::now())?;
    writeln!(io::stdout(), "listening on {}", upstream.address)?;
    loop {
        std::thread::park();
    }
}

pub(crate) fn measure(plan: &Path) -> Result<()> {
    let plan: Plan = serde_json::from_slice(&fs::read(plan)?)?;
    let mut lanes = plan.targets.iter().map(|spec| Lane::new(&plan, spec.clone())).collect::<Result<Vec<_>>>()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // The first round warms up.
    let mut start = None;
    loop {
        for lane in lanes.iter_mut().filter(|lane| lane.row.error.is_none()) {
            let turn = if plan.connections == 1 { lane.take_turn() } else { runtime.block_on(lane.crowd()) };
            if let Err(error) = turn.and_then(|()| lane.count()) {
                lane.row.error = Some(format!("{error:#}"));
            }
        }
        let start = *start.get_or_insert_with(|| {
            lanes.iter_mut().for_each(Lane::forget);
            Instant::now()
        });
        if start.elapsed() >= Duration::from_secs(plan.seconds) {
            break;
        }
        lanes.rotate_left(1);
    }
    lanes.sort_by_key(|lane| plan.targets.iter().position(|spec| spec.name == lane.spec.name));
    let rows = rows(lanes);
    writeln!(io::stdout(), "{}", serde_json::to_string(&rows)?)?;
    Ok(())
}

/// A target, the connections to it, and what it has shown so far.
#[derive(Debug)]
struct Lane {
    spec: Spec,
    upstream: SocketAddr,
    request: Vec<u8>,
    body_bytes: usize,
    stamps: Vec<usize>,
    number: usize,
    connection: Option<(Connection, Instant)>,
    n_connections: usize,
    /// What the upstream had seen when the turn began, and what it was sent since.
    before: Counts,
    sent: usize,
    samples: Vec<f64>,
    /// The median of each turn; or its requests a second.
    turns: Vec<f64>,
    row: Row,
}

impl Lane {
    fn new(plan: &Plan, spec: Spec) -> Result<Self> {
        let sample = sample(plan.bytes, Calls::Answered)?;
        let model = format!("\"model\":\"{}\"", spec.model);
        let at = memmem::rfind(&sample.body, b"\"model\":\"gpt-5.2\"").context("a body without a model")?;
        let mut body = sample.body;
        body.splice(at..at + "\"model\":\"gpt-5.2\"".len(), model.bytes());
        let mut request = format!(
            "POST {} HTTP/1.1\r\nhost: {}\r\naccept: application/json\r\nuser-agent: OpenAI/Python 2.8.0\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            spec.path,
            spec.address,
            spec.key,
            body.len()
        )
        .into_bytes();
        let skipped = if spec.all_new { 0 } else { sample.stamps.len().saturating_sub(1) };
        let stamps = sample.stamps.iter().skip(skipped).map(|at| request.len() + at).collect();
        request.extend_from_slice(&body);
        Ok(Self {
            row: Row { name: spec.name.clone(), ..Row::default() },
            upstream: plan.upstream,
            request,
            body_bytes: body.len(),
            stamps,
            number: 0,
            connection: None,
            n_connections: plan.connections,
            before: counts(plan.upstream)?,
            sent: 0,
            samples: Vec::new(),
            turns: Vec::new(),
            spec,
        })
    }

    /// Forgets what the warm-up has shown.
    fn forget(&mut self) {
        self.samples.clear();
        self.turns.clear();
        self.row.requests = 0;
    }

    fn take_turn(&mut self) -> Result<()> {
        self.before = counts(self.upstream)?;
        self.sent = 0;
        if self.connection.as_ref().is_none_or(|(_, used)| used.elapsed() > IDLE) {
            self.connection = None;
            self.exchange()?;
        }
        let first = self.samples.len();
        let start = Instant::now();
        for _ in 0..TURN_REQUESTS {
            let took = self.exchange()?;
            self.samples.push(micros(took));
            if start.elapsed() > TURN {
                break;
            }
        }
        self.row.requests += self.samples.len() - first;
        self.turns.push(median(self.samples.get(first..).unwrap_or_default()));
        Ok(())
    }

    /// One request and its answer.
    fn exchange(&mut self) -> Result<Duration> {
        self.number += 1;
        self.sent += 1;
        stamp(&mut self.request, &self.stamps, self.number);
        let mut connection = match self.connection.take() {
            Some((connection, _)) => connection,
            None => Connection::open(self.spec.address)?,
        };
        let mut input = Vec::new();
        let start = Instant::now();
        connection.send(&self.request)?;
        let end = loop {
            input.extend_from_slice(connection.receive()?);
            if let Some(end) = answered(&input)? {
                break end;
            }
        };
        let took = start.elapsed();
        if end == End::KeptOpen {
            self.connection = Some((connection, Instant::now()));
        }
        Ok(took)
    }

    async fn crowd(&mut self) -> Result<()> {
        self.before = counts(self.upstream)?;
        let start = Instant::now();
        let mut workers = JoinSet::new();
        for number in 0..self.n_connections {
            // Each has numbers of its own: nobody asks what another one has asked.
            self.number += 1_000_000 / self.n_connections;
            let (mut request, stamps) = (self.request.clone(), self.stamps.clone());
            let (address, first) = (self.spec.address, self.number + number);
            workers.spawn(async move {
                let (mut kept, mut n_answered) = (None, 0);
                while start.elapsed() < RATE_TURN {
                    stamp(&mut request, &stamps, first + n_answered);
                    kept = ask(kept, address, &request).await?;
                    n_answered += 1;
                }
                Ok::<_, anyhow::Error>(n_answered)
            });
        }
        let mut n_answered = 0;
        while let Some(finished) = workers.join_next().await {
            n_answered += finished??;
        }
        self.row.requests += n_answered;
        self.sent = n_answered;
        self.turns.push(float(n_answered) / start.elapsed().as_secs_f64());
        Ok(())
    }

    /// Sees what arrived at the upstream in a turn.
    fn count(&mut self) -> Result<()> {
        let now = counts(self.upstream)?;
        let asked = now.requests - self.before.requests;
        let received = (now.bytes - self.before.bytes).checked_div(asked).unwrap_or_default();
        ensure!(asked == self.sent, "the upstream saw {asked} of {} requests", self.sent);
        self.row.bytes = [self.body_bytes, received];
        if let Some(most) = self.spec.arrives {
            ensure!(received * 100 <= self.body_bytes * most, "{received} of {} bytes arrived", self.body_bytes);
        }
        Ok(())
    }
}

fn rows(lanes: Vec<Lane>) -> Vec<Row> {
    let turns = |name: &str| lanes.iter().find(|lane| lane.spec.name == name).map(|lane| lane.turns.clone());
    let (direct, nginx) = (turns("direct").unwrap_or_default(), turns("nginx"));
    let crowded = lanes.iter().any(|lane| lane.n_connections > 1);
    let row = |lane: Lane| {
        let ratio = nginx.as_ref().map(|nginx| {
            if crowded { median(&lane.turns) / median(nginx) } else { added_ratio(&lane.turns, nginx, &direct).value }
        });
        Row {
            p50: median(&lane.samples),
            p99: quantile(&lane.samples, 990),
            added_p50: added(&lane.turns, &direct),
            to_nginx: ratio.filter(|ratio| ratio.is_finite()),
            per_second: if crowded { median(&lane.turns) } else { 0.0 },
            ..lane.row
        }
    };
    lanes.into_iter().map(row).collect()
}

/// One request and its answer; the connection, if it goes on.
async fn ask(kept: Option<TcpStream>, address: SocketAddr, request: &[u8]) -> Result<Option<TcpStream>> {
    let mut stream = if let Some(stream) = kept {
        stream
    } else {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        stream
    };
    stream.write_all(request).await?;
    let mut input = Vec::with_capacity(4 * 1024);
    loop {
        ensure!(stream.read_buf(&mut input).await? > 0, "the connection was closed before the answer's end");
        if let Some(end) = answered(&input)? {
            return Ok((end == End::KeptOpen).then_some(stream));
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum End {
    KeptOpen,
    Closed,
}

/// Whether `input` is an answer to its end, by its length or its last chunk.
fn answered(input: &[u8]) -> Result<Option<End>> {
    let Some(end) = memmem::find(input, b"\r\n\r\n") else {
        return Ok(None);
    };
    let (head, body) = input.split_at_checked(end + 4).unwrap_or_default();
    let head = std::str::from_utf8(head)?.to_ascii_lowercase();
    if !head.starts_with("http/1.1 200 ") {
        bail!("answered {}", String::from_utf8_lossy(input.get(..input.len().min(400)).unwrap_or_default()));
    }
    let field = |name| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let complete = match field("content-length:") {
        Some(length) => body.len() >= length.parse()?,
        None => body.ends_with(b"0\r\n\r\n"),
    };
    let closes = field("connection:") == Some("close");
    Ok(complete.then_some(if closes { End::Closed } else { End::KeptOpen }))
}

/// What the upstream has been asked so far.
fn counts(upstream: SocketAddr) -> Result<Counts> {
    let mut connection = Connection::open(upstream)?;
    connection.send(b"GET /counts HTTP/1.1\r\nhost: upstream\r\n\r\n")?;
    let mut input = Vec::new();
    while answered(&input)?.is_none() {
        input.extend_from_slice(connection.receive()?);
    }
    let body = memmem::find(&input, b"\r\n\r\n").and_then(|at| input.get(at + 4..)).context("no counts")?;
    Ok(serde_json::from_slice(body)?)
}
