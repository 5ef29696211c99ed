//! An asynchronous connection of an agent: sends a request in one write, and reads an answer with a `content-length`.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytes::{Bytes, BytesMut};
use memchr::memmem;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// An answer that takes longer hangs.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);
const HEAD_END: &[u8] = b"\r\n\r\n";

#[derive(Debug)]
pub(super) struct AsyncConnection {
    stream: TcpStream,
    input: BytesMut,
}

impl AsyncConnection {
    pub(super) async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, input: BytesMut::with_capacity(16 * 1024) })
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        timeout(ANSWER_TIMEOUT, self.stream.write_all(bytes)).await.context("a write timed out")??;
        Ok(())
    }

    /// Reads the next part of an answer.
    pub(super) async fn receive(&mut self) -> Result<Bytes> {
        if self.input.is_empty() {
            self.fill().await?;
        }
        Ok(self.input.split().freeze())
    }

    /// Sends a request and reads the body of the answer, which must be a 200.
    pub(super) async fn exchange(&mut self, request: &[u8]) -> Result<Bytes> {
        self.send(request).await?;
        let end = loop {
            if let Some(at) = memmem::find(&self.input, HEAD_END) {
                break at + HEAD_END.len();
            }
            self.fill().await?;
        };
        let head = self.input.split_to(end);
        let head = std::str::from_utf8(&head)?;
        let fields = head.lines().filter_map(|line| line.split_once(':'));
        let mut lengths = fields.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        let length: usize = lengths.next().context("an answer without a length")?.1.trim().parse()?;
        while self.input.len() < length {
            self.fill().await?;
        }
        let body = self.input.split_to(length).freeze();
        ensure!(head.starts_with("HTTP/1.1 200 "), "{head}{}", String::from_utf8_lossy(&body));
        Ok(body)
    }

    async fn fill(&mut self) -> Result<()> {
        let n_read = timeout(ANSWER_TIMEOUT, self.stream.read_buf(&mut self.input)).await.context("no answer")??;
        ensure!(n_read > 0, "the connection was closed before the answer's end");
        Ok(())
    }
}

/// A request as OpenAI's clients send it.
pub(super) fn post(query: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /v1/chat/completions{query} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer sk-bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

pub(super) fn get(target: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes()
}
