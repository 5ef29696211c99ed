//! The upstream of the bench: it reads a request to its end and answers with what it knows beforehand, on a thread of
//! its own, and does as little as can be done.
//!
//! The query string says how to answer: `?check=N` also fingerprints the first N bytes of the body and what follows
//! them; `?handle=N` asks for one of the handles that the body names; `?events=N&every=MICROS` streams N events, each with the time at which it was sent. `GET /counts` says how much
//! was asked so far; there is nothing else to get.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bytes::{Buf as _, BytesMut};
use memchr::memmem;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// How much of a body is read at a time.
const READ_BYTES: usize = 256 * 1024;
const HEAD_END: &[u8] = b"\r\n\r\n";
/// What a path to a payload begins with, and how long its last part is.
const RECALL: &[u8] = b"/abridge/recall/";
const HANDLE_LENGTH: usize = 26;

/// The running upstream; it ends with the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    /// What the times in events count from.
    pub(crate) epoch: Instant,
}

impl Upstream {
    pub(crate) fn start(epoch: Instant) -> Result<Self> {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into(), epoch)
    }

    pub(crate) fn start_at(address: SocketAddr, epoch: Instant) -> Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new()
            .name("upstream".to_owned())
            .spawn(move || runtime.block_on(serve(listener, epoch)))
            .context("cannot start the upstream's thread")?;
        Ok(Self { address, epoch })
    }
}

/// The sum by which two ends of a connection see that they hold the same bytes.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

async fn serve(listener: std::net::TcpListener, epoch: Instant) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    let counts = Arc::new(Counts::default());
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        // A connection that breaks is the client's to notice.
        let counts = Arc::clone(&counts);
        connections.spawn(async move { answer_all(stream, epoch, &counts).await });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer_all(mut stream: TcpStream, epoch: Instant, counts: &Counts) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(16 * 1024);
    while let Some(request) = read_head(&mut stream, &mut buffer).await? {
        if let Some(question) = request.question {
            stream.write_all(question.answer(counts).as_bytes()).await?;
            continue;
        }
        counts.requests.fetch_add(1, Ordering::Relaxed);
        counts.bytes.fetch_add(request.length, Ordering::Relaxed);
        let received = read_body(&mut stream, &mut buffer, &request).await?;
        match request.flow {
            Some(flow) => stream_events(&mut stream, flow, epoch).await?,
            None => stream.write_all(reply(request.length, &received).as_bytes()).await?,
        }
    }
    Ok(())
}

/// What the upstream has to know of a request.
#[derive(Clone, Copy, Debug)]
struct Request {
    length: usize,
    check: Option<usize>,
    handle: Option<usize>,
    flow: Option<Flow>,
    question: Option<Question>,
}

/// What was asked of the upstream since its start, in requests with a body and the bytes of these.
#[derive(Debug, Default)]
struct Counts {
    requests: AtomicUsize,
    bytes: AtomicUsize,
}

/// A request without a body.
#[derive(Clone, Copy, Debug)]
enum Question {
    Counts,
    Unknown,
}

impl Question {
    fn answer(self, counts: &Counts) -> String {
        let of = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let (status, body) = match self {
            Self::Counts => {
                ("200 OK", format!(r#"{{"requests":{},"bytes":{}}}"#, of(&counts.requests), of(&counts.bytes)))
            }
            Self::Unknown => ("404 Not Found", r#"{"error":{"message":"not here"}}"#.to_owned()),
        };
        format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    events: usize,
    every: Duration,
}

/// The sums of the two parts of a body, and a handle out of it; 0 and empty where nobody asked.
#[derive(Clone, Debug, Default)]
struct Received {
    head: u64,
    tail: u64,
    handle: String,
}

async fn read_head(stream: &mut TcpStream, buffer: &mut BytesMut) -> io::Result<Option<Request>> {
    loop {
        if let Some(end) = memmem::find(buffer, HEAD_END) {
            let head = buffer.split_to(end + HEAD_END.len());
            return parse_head(&head).map(Some);
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

fn parse_head(head: &[u8]) -> io::Result<Request> {
    let head = std::str::from_utf8(head).map_err(io::Error::other)?;
    let (line, headers) = head.split_once("\r\n").unwrap_or((head, ""));
    if !line.starts_with("POST ") {
        let counts = line.starts_with("GET /counts ");
        let question = Some(if counts { Question::Counts } else { Question::Unknown });
        return Ok(Request { length: 0, check: None, handle: None, flow: None, question });
    }
    let query = line.split_once('?').map_or("", |(_, rest)| rest.split(' ').next().unwrap_or_default());
    let parameter = |name: &str| {
        query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name)?.1.parse::<usize>().ok()
    };
    let length = headers
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok())
        .ok_or_else(|| io::Error::other("a request without a length"))?;
    let every = parameter("every").and_then(|micros| u64::try_from(micros).ok()).unwrap_or_default();
    let flow = parameter("events").map(|events| Flow { events, every: Duration::from_micros(every) });
    Ok(Request { length, check: parameter("check"), handle: parameter("handle"), flow, question: None })
}

async fn read_body(stream: &mut TcpStream, buffer: &mut BytesMut, request: &Request) -> io::Result<Received> {
    let mut missing = request.length;
    let mut kept = request.check.or(request.handle).map(|_| Vec::with_capacity(request.length));
    let mut large = BytesMut::new();
    loop {
        let chunk = if large.is_empty() { &mut *buffer } else { &mut large };
        let n_here = chunk.len().min(missing);
        if let Some(kept) = &mut kept {
            kept.extend_from_slice(chunk.get(..n_here).unwrap_or_default());
        }
        chunk.advance(n_here);
        missing -= n_here;
        if missing == 0 {
            break;
        }
        // A buffer that is empty again starts over at its front, so `reserve` does not allocate a second time.
        large.reserve(READ_BYTES.min(missing));
        if stream.read_buf(&mut large).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let Some(kept) = kept else {
        return Ok(Received::default());
    };
    let handle = request.handle.and_then(|n| handle(&kept, n)).unwrap_or_default();
    let Some(check) = request.check else {
        return Ok(Received { handle, ..Received::default() });
    };
    let (head, tail) = kept.split_at_checked(check).unwrap_or((&kept, &[]));
    Ok(Received { head: checksum(head), tail: checksum(tail), handle })
}

/// The path to one of the payloads that a body names, which one being as good as random; none if it names none.
fn handle(body: &[u8], n: usize) -> Option<String> {
    let handles: Vec<usize> = memmem::find_iter(body, RECALL).collect();
    let at = handles.get(n.checked_rem(handles.len())?)?;
    let path = body.get(*at..at + RECALL.len() + HANDLE_LENGTH)?;
    Some(String::from_utf8_lossy(path).into_owned())
}

/// A small answer of the usual shape, with what was received in the place where nobody looks.
fn reply(length: usize, received: &Received) -> String {
    let Received { head, tail, handle } = received;
    let body = format!(
        r#"{{"id":"chatcmpl-b3","object":"chat.completion","created":1760000000,"model":"gpt-5.2","choices":[{{"index":0,"message":{{"role":"assistant","content":"Done: all tests pass.{handle}"}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":512,"completion_tokens":7,"total_tokens":519}},"system_fingerprint":"fp_{length:012}_{head:016x}_{tail:016x}"}}"#
    );
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: req_b3\r\nopenai-processing-ms: 1\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

async fn stream_events(stream: &mut TcpStream, flow: Flow, epoch: Instant) -> io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    let mut ticks = (!flow.every.is_zero()).then(|| tokio::time::interval(flow.every));
    if let Some(ticks) = &mut ticks {
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    }
    for _ in 0..flow.events {
        if let Some(ticks) = &mut ticks {
            ticks.tick().await;
        }
        stream.write_all(event(epoch).as_bytes()).await?;
    }
    stream.write_all(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n").await
}

/// One event in a chunk of its own, stamped with the nanoseconds since `epoch`.
fn event(epoch: Instant) -> String {
    let text = format!(
        "data: {{\"id\":\"chatcmpl-b3\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\"model\":\"gpt-5.2\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" tokens\"}},\"finish_reason\":null}}],\"sent\":\"{:020}\"}}\n\n",
        epoch.elapsed().as_nanos()
    );
    format!("{:x}\r\n{text}\r\n", text.len())
}
