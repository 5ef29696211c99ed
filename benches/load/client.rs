//! The client's end: a request goes out in one write, and what comes back is read by two small parsers without
//! sockets, so that the blocking and the asynchronous measurements share them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::{Buf as _, BytesMut};
use memchr::memmem;

use super::target::Target;
use super::upstream::checksum;

/// No answer takes this long, unless something hangs.
const PATIENCE: Duration = Duration::from_secs(30);
const HEAD_END: &[u8] = b"\r\n\r\n";
const SUM_MARK: &[u8] = b"\"fp_";

/// What the upstream says it received.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Reply {
    pub(crate) received: usize,
    pub(crate) head_sum: u64,
    pub(crate) tail_sum: u64,
}

/// A keep-alive connection that carries one request at a time.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, input: vec![0; 64 * 1024] })
    }

    /// Sends a request and reads its answer to the end.
    pub(crate) fn exchange(&mut self, request: &[u8]) -> Result<Reply> {
        self.send(request)?;
        let mut filled = 0;
        loop {
            let n_read = self.stream.read(self.input.get_mut(filled..).unwrap_or_default())?;
            ensure!(n_read > 0, "the connection was closed before the answer's end");
            filled += n_read;
            if let Some(reply) = parse_reply(self.input.get(..filled).unwrap_or_default())? {
                return Ok(reply);
            }
        }
    }

    pub(crate) fn send(&mut self, request: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(request)?)
    }

    /// Whatever has arrived, at least a byte of it.
    pub(crate) fn receive(&mut self) -> Result<&[u8]> {
        let n_read = self.stream.read(&mut self.input)?;
        ensure!(n_read > 0, "the connection was closed before the answer's end");
        Ok(self.input.get(..n_read).unwrap_or_default())
    }
}

/// A request as OpenAI's clients send it, head and body in one piece.
pub(crate) fn request(target: &Target, query: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {}{query} HTTP/1.1\r\nhost: {}\r\naccept: application/json\r\nuser-agent: OpenAI/Python 2.8.0\r\nauthorization: Bearer sk-bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        target.route.path(),
        target.address,
        body.len()
    );
    let mut request = Vec::with_capacity(head.len() + body.len());
    request.extend_from_slice(head.as_bytes());
    request.extend_from_slice(body);
    request
}

/// Sends `body` once, sees that the upstream received the right bytes, and returns how many.
pub(crate) fn check(connection: &mut Connection, target: &Target, body: &[u8], gap: Option<usize>) -> Result<usize> {
    let split = gap.unwrap_or(body.len());
    let reply = connection.exchange(&request(target, &format!("?check={split}"), body))?;
    let (head, tail) = body.split_at_checked(split).context("a gap behind the body's end")?;
    ensure!(reply.head_sum == checksum(head), "{}: the upstream received other bytes", target.route.label());
    if target.route.repairs() {
        let added = reply.received.saturating_sub(body.len());
        ensure!(added > 0, "{}: nothing was repaired", target.route.label());
        // What stands behind the repair has to be as it was: ask again, split behind the inserted bytes.
        let again = connection.exchange(&request(target, &format!("?check={}", split + added), body))?;
        ensure!(again.tail_sum == checksum(tail), "{}: more was changed than the repair", target.route.label());
    } else {
        ensure!(reply.received == body.len(), "{}: {} bytes arrived", target.route.label(), reply.received);
        ensure!(reply.tail_sum == checksum(tail), "{}: the upstream received other bytes", target.route.label());
    }
    Ok(reply.received)
}

/// The reply at the start of `input`, if all of it has arrived.
pub(crate) fn parse_reply(input: &[u8]) -> Result<Option<Reply>> {
    let Some(end) = memmem::find(input, HEAD_END) else {
        return Ok(None);
    };
    let (head, body) = input.split_at_checked(end + HEAD_END.len()).unwrap_or_default();
    ensure!(head.starts_with(b"HTTP/1.1 200 "), "not the answer of the upstream: {}", String::from_utf8_lossy(input));
    let length: usize = header(head, b"content-length").context("an answer without a length")?.trim().parse()?;
    if body.len() < length {
        return Ok(None);
    }
    ensure!(body.len() == length, "bytes behind the end of the answer");
    let sums = memmem::find(body, SUM_MARK).and_then(|at| body.get(at + SUM_MARK.len()..)).context("no fingerprint")?;
    let field = |range| sums.get(range).and_then(|digits| std::str::from_utf8(digits).ok()).unwrap_or_default();
    Ok(Some(Reply {
        received: field(0..12).parse()?,
        head_sum: u64::from_str_radix(field(13..29), 16)?,
        tail_sum: u64::from_str_radix(field(30..46), 16)?,
    }))
}

fn header<'a>(head: &'a [u8], name: &[u8]) -> Option<&'a str> {
    head.split(|&byte| byte == b'\n').find_map(|line| {
        let (key, value) = line.split_at_checked(name.len())?;
        let value = value.strip_prefix(b":")?;
        key.eq_ignore_ascii_case(name).then(|| std::str::from_utf8(value).ok())?
    })
}

/// Reads a chunked answer of events, piece by piece as it arrives.
#[derive(Debug, Default)]
pub(crate) struct EventReader {
    stage: Stage,
    raw: BytesMut,
    text: BytesMut,
    done: bool,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Stage {
    #[default]
    Head,
    ChunkSize,
    /// That many bytes of the chunk are still to come, and its line end.
    Chunk(usize),
    ChunkEnd,
    LastLine,
    Over,
}

impl EventReader {
    /// Takes what has arrived and hands the sending time of each whole event to `on_event`; true at the answer's end.
    pub(crate) fn feed(&mut self, input: &[u8], mut on_event: impl FnMut(u64)) -> Result<bool> {
        self.raw.extend_from_slice(input);
        while self.advance()? {}
        while let Some(end) = memmem::find(&self.text, b"\n\n") {
            let event = self.text.split_to(end + 2);
            if event.starts_with(b"data: [DONE]") {
                self.done = true;
                continue;
            }
            let sent = memmem::find(&event, b"\"sent\":\"").and_then(|at| event.get(at + 8..at + 28));
            on_event(std::str::from_utf8(sent.context("an event without a time")?)?.parse()?);
        }
        let over = self.stage == Stage::Over;
        ensure!(!over || (self.done && self.text.is_empty()), "the stream ended without [DONE]");
        Ok(over)
    }

    /// One step through the framing; false if it needs more input.
    fn advance(&mut self) -> Result<bool> {
        let mark: &[u8] = if self.stage == Stage::Head { HEAD_END } else { b"\r\n" };
        if let Stage::Chunk(left) = self.stage {
            let n_here = left.min(self.raw.len());
            self.text.extend_from_slice(&self.raw.split_to(n_here));
            self.stage = if n_here == left { Stage::ChunkEnd } else { Stage::Chunk(left - n_here) };
            return Ok(n_here == left);
        }
        let Some(end) = memmem::find(&self.raw, mark).filter(|_| self.stage != Stage::Over) else {
            return Ok(false);
        };
        let line = self.raw.split_to(end);
        self.raw.advance(mark.len());
        self.stage = match self.stage {
            Stage::Head => {
                let chunked = header(&line, b"transfer-encoding").is_some_and(|value| value.trim() == "chunked");
                ensure!(line.starts_with(b"HTTP/1.1 200 ") && chunked, "no stream: {}", String::from_utf8_lossy(&line));
                Stage::ChunkSize
            }
            Stage::ChunkSize => match usize::from_str_radix(std::str::from_utf8(&line)?, 16)? {
                0 => Stage::LastLine,
                size => Stage::Chunk(size),
            },
            Stage::ChunkEnd if line.is_empty() => Stage::ChunkSize,
            Stage::LastLine if line.is_empty() => Stage::Over,
            _ => bail!("broken chunks"),
        };
        Ok(true)
    }
}
