//! An upstream that answers at once, writes summaries piece by piece, and keeps every body that it has got whole.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

use super::talk;
use crate::support::summarizer::INSTRUCTION;
use crate::support::upstream::{Upstream, head};
use crate::support::wire::{Wire, framed};
use crate::support::within;

/// The beginning of each summary.
pub(super) const OPEN: &str = "[gist ";

pub(super) struct Model {
    url: String,
    desk: Arc<Desk>,
    serving: JoinHandle<()>,
}

/// The requests that came, and the answers that were given.
#[derive(Default)]
struct Desk {
    got: Mutex<Vec<Got>>,
    n_got: watch::Sender<u64>,
    given: Mutex<BTreeSet<String>>,
    open: watch::Sender<usize>,
    summaries: watch::Sender<Summaries>,
}

/// A body that has come whole.
#[derive(Clone, Debug)]
pub(super) struct Got {
    pub(super) body: Bytes,
    pub(super) is_summary: bool,
}

/// How many summaries it was asked for, and how many of them could not be handed over to the end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Summaries {
    pub(super) asked: usize,
    pub(super) cut_off: usize,
}

/// A summary is handed over in so many pieces, with a pause after each: a kill is to fall into it.
const PIECES: usize = 4;
const PAUSE: Duration = Duration::from_millis(2);

// === impl Model ===

impl Model {
    pub(super) async fn start() -> Self {
        let mut upstream = Upstream::start().await;
        let url = upstream.url();
        let desk = Arc::new(Desk::default());
        let at_desk = Arc::clone(&desk);
        let serving = tokio::spawn(async move {
            while let Some(wire) = upstream.accept().await {
                let desk = Arc::clone(&at_desk);
                desk.open.send_modify(|open| *open += 1);
                tokio::spawn(async move {
                    desk.serve(wire).await;
                    desk.open.send_modify(|open| *open -= 1);
                });
            }
        });
        Self { url, desk, serving }
    }

    /// What `upstream.url` is.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Waits until so many more bodies have come.
    pub(super) async fn has_got(&self, more: u64) {
        let mut n_got = self.desk.n_got.subscribe();
        let enough = *n_got.borrow() + more;
        within("bodies to come", n_got.wait_for(|n| *n >= enough)).await.unwrap();
    }

    /// Returns what has come since it was asked last, of a process that is no more.
    pub(super) async fn got(&self) -> Vec<Got> {
        // A connection that no one has accepted yet is read to its end too, and found here the next time.
        let mut open = self.desk.open.subscribe();
        within("the connections of a killed process to end", open.wait_for(|open| *open == 0)).await.unwrap();
        std::mem::take(&mut *self.desk.got.lock().await)
    }

    /// Whether this is a summary that was handed over to its last byte.
    pub(super) async fn has_given(&self, gist: &str) -> bool {
        self.desk.given.lock().await.contains(gist)
    }

    pub(super) fn summaries(&self) -> Summaries {
        *self.desk.summaries.borrow()
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

// === impl Desk ===

impl Desk {
    async fn serve(&self, mut wire: Wire) {
        while let Some((_, body)) = wire.next_whole().await {
            let is_summary = memchr::memmem::find(&body, INSTRUCTION.as_bytes()).is_some();
            self.got.lock().await.push(Got { body: body.clone(), is_summary });
            self.n_got.send_modify(|n| *n += 1);
            let answered = if is_summary { self.summarise(&mut wire, &body).await } else { answer(&mut wire).await };
            if answered.is_err() {
                return;
            }
        }
    }

    async fn summarise(&self, wire: &mut Wire, body: &[u8]) -> std::io::Result<()> {
        let mut n = 0;
        self.summaries.send_modify(|summaries| {
            summaries.asked += 1;
            n = summaries.asked;
        });
        let session = talk::named(body).session;
        let gist = gist(session, n);
        // It counts as given before its last byte has gone: whoever uses it has all of it.
        let given = self.hand_over(wire, &gist).await;
        if given.is_err() {
            self.summaries.send_modify(|summaries| summaries.cut_off += 1);
        }
        given
    }

    async fn hand_over(&self, wire: &mut Wire, gist: &str) -> std::io::Result<()> {
        let fields = ["content-type: text/event-stream", "transfer-encoding: chunked"];
        wire.try_send(head("200 OK", &fields)).await?;
        let text = format!("<analysis>Let me see.</analysis><summary>{gist}</summary>");
        for piece in text.as_bytes().chunks(text.len().div_ceil(PIECES)) {
            let text = serde_json::to_string(std::str::from_utf8(piece).unwrap()).unwrap();
            event(wire, &format!(r#"{{"choices":[{{"index":0,"delta":{{"content":{text}}},"finish_reason":null}}]}}"#))
                .await?;
            tokio::time::sleep(PAUSE).await;
        }
        self.given.lock().await.insert(gist.to_owned());
        event(wire, r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#).await?;
        event(wire, "[DONE]").await?;
        wire.try_send("0\r\n\r\n").await
    }
}

async fn answer(wire: &mut Wire) -> std::io::Result<()> {
    let body = r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}]}"#;
    let length = format!("content-length: {}", body.len());
    let head = head("200 OK", &["content-type: application/json", &length]);
    wire.try_send([&head, body.as_bytes()].concat()).await
}

async fn event(wire: &mut Wire, data: &str) -> std::io::Result<()> {
    wire.try_send(framed(format!("data: {data}\n\n"))).await
}

/// A summary that no other is like, and that is none without its end.
fn gist(session: usize, n: usize) -> String {
    let words = format!("what was done in {session} is told in {n}. ").repeat(40);
    format!("{OPEN}{session} {n}: {words}{}", close(session, n))
}

fn close(session: usize, n: usize) -> String {
    format!("{session} {n} end]")
}

/// The one summary in a message, and the session that it is of; none if it has no end.
pub(super) fn gist_in(text: &str) -> Option<(usize, &str)> {
    let from = text.find(OPEN)?;
    let behind = text.get(from + OPEN.len()..)?;
    let (session, n) = behind.split_once(':')?.0.split_once(' ')?;
    let (session, n) = (session.parse().ok()?, n.parse().ok()?);
    let close = close(session, n);
    let to = from + OPEN.len() + behind.find(&close)? + close.len();
    Some((session, text.get(from..to)?))
}
