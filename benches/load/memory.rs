//! Loads that would fill the memory of a proxy without limits: what abridge takes of it at most, with its default settings.

use std::time::Duration;

use anyhow::{Context as _, Result};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::Bench;

use super::machine;
use super::target::Process;

/// `server.max_buffered` by default, and what abridge may take besides.
pub(crate) const BOUND: usize = (512 << 20) + 100_000_000;

/// The most files that this process opens.
pub(crate) const FILES: usize = 8400;

/// How long answers are waited for, and how long clients that wait for none stay.
const PATIENCE: Duration = Duration::from_mins(2);
const STAY: Duration = Duration::from_secs(15);

/// One load.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) load: &'static str,
    pub(crate) connections: usize,
    pub(crate) request_bytes: usize,
    pub(crate) served: usize,
    pub(crate) refused: usize,
    pub(crate) peak_bytes: usize,
}

/// A number of clients, the request that each sends, and whether they read the answer.
struct Load {
    name: &'static str,
    connections: usize,
    request: Bytes,
    reads: bool,
}

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let part = if bench.budget.is_zero() { 20 } else { 1 };
    loads(part)?.iter().map(|load| runtime.block_on(run(bench, load))).collect()
}

async fn run(bench: &Bench, load: &Load) -> Result<Row> {
    let (address, process) = Process::abridge(bench, "")?;
    let mut clients = JoinSet::new();
    for _ in 0..load.connections {
        let (request, reads) = (load.request.clone(), load.reads);
        clients.spawn(async move {
            let socket = TcpSocket::new_v4().ok()?;
            socket.set_recv_buffer_size(4 << 10).ok()?;
            let mut stream = socket.connect(address).await.ok()?;
            // A request that is refused may not be taken to its end.
            let _ = timeout(PATIENCE, stream.write_all(&request)).await;
            if !reads {
                sleep(STAY).await;
                return None;
            }
            let mut status = [0; 12];
            timeout(PATIENCE, stream.read_exact(&mut status)).await.ok()?.ok()?;
            Some(status.ends_with(b"200"))
        });
    }
    let (mut served, mut refused) = (0, 0);
    while let Some(answer) = clients.join_next().await {
        match answer? {
            Some(true) => served += 1,
            Some(false) => refused += 1,
            None => {}
        }
    }
    let peak_bytes = machine::memory(process.id()).context(load.name)?.peak;
    let (connections, request_bytes) = (load.connections, load.request.len());
    Ok(Row { load: load.name, connections, request_bytes, served, refused, peak_bytes })
}

fn loads(part: usize) -> Result<[Load; 5]> {
    // 60 MiB of spaces.
    let spaces = STANDARD.decode("z///fwAkQOKxQHLv//n//w+ABEAcFoDu/T////8BkACIwwLQvf/P//9fABIAcVgAuve/")?;
    let half = [b"GET /v1/models HTTP/1.1\r\nx-long: ".to_vec(), vec![b'a'; 60 << 10]].concat();
    Ok([
        Load::new("bodies that decode to 60 MiB", 32, post("", "content-encoding: br\r\n", &spaces), part),
        Load::new("calls without results", 50, post("", "", calls(130_000).as_bytes()), part),
        Load::new("results", 50, post("", "", results(10_000_000).as_bytes()), part),
        Load { reads: false, ..Load::new("clients that do not read", 1000, post(EVENTS, "", b"{}"), part) },
        Load { reads: false, ..Load::new("heads that do not end", 8000, half, part) },
    ])
}

/// More events than sockets hold.
const EVENTS: &str = "?events=200000&every=1";

impl Load {
    fn new(name: &'static str, connections: usize, request: Vec<u8>, part: usize) -> Self {
        Self { name, connections: connections.div_ceil(part), request: request.into(), reads: true }
    }
}

fn post(query: &str, field: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "POST /v1/chat/completions{query} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n{field}content-length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

fn calls(n: usize) -> String {
    let call = |n| format!(r#"{{"id":"c{n}","type":"function","function":{{"name":"f","arguments":"{{}}"}}}}"#);
    let calls: Vec<_> = (0..n).map(call).collect();
    let calls = calls.join(",");
    format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":"x"}},{{"role":"assistant","tool_calls":[{calls}]}}]}}"#
    )
}

fn results(n_bytes: usize) -> String {
    let text = "some words of a result ".repeat(400);
    let step = |n| {
        format!(
            r#",{{"role":"assistant","tool_calls":[{{"id":"c{n}","type":"function","function":{{"name":"f","arguments":"{{}}"}}}}]}},{{"role":"tool","tool_call_id":"c{n}","content":"{n} {text}"}}"#
        )
    };
    let steps: String = (0..n_bytes / text.len()).map(step).collect();
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"x"}}{steps}]}}"#)
}
