//! An upstream that plays itself: it answers chats, and what it is told to answer when it is asked for a summary.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::task::JoinHandle;

use super::upstream::{Upstream, head, whole};
use super::wire::{Head, Wire};
use super::within;

/// The instruction that the settings of the tests ask for a summary with.
pub(crate) const INSTRUCTION: &str = "WRITE THE SUMMARY NOW";

/// The behaviour when it is asked for a summary.
#[derive(Clone, Debug)]
pub(crate) enum Play {
    /// Answers with a stream that says this.
    Stream(String),
    /// The same without a type, as the backend behind `ChatGPT` sends it.
    Untyped(String),
    /// Answers with one JSON object that says this.
    Json(String),
    /// Answers with these bytes as a stream, and closes.
    Raw(Vec<u8>),
    /// Answers with this status, these header lines and this body.
    Status(&'static str, &'static [&'static str], &'static str),
    /// Answers with a stream that says this, a piece after each pause.
    Slow(Vec<&'static str>, Duration),
    /// Never answers.
    Hang,
    /// Begins to answer, and then never says anything more.
    Stall,
    /// Resets the connection.
    Reset,
    /// Begins to answer, and resets the connection.
    ResetLater,
    /// Waits until it is told to go on.
    Held(Box<Play>),
}

/// A request that it has got.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) head: Head,
    pub(crate) body: Bytes,
    /// Whether it asks for a summary.
    pub(crate) is_summary: bool,
}

/// The upstream.
pub(crate) struct Summarizer {
    url: String,
    asked: watch::Receiver<Vec<Asked>>,
    stage: Arc<Stage>,
    playing: JoinHandle<()>,
}

struct Stage {
    script: Mutex<VecDeque<Play>>,
    gate: Semaphore,
    asked: watch::Sender<Vec<Asked>>,
}

// === impl Play ===

impl Play {
    /// A good summary.
    pub(crate) fn good() -> Self {
        Self::Stream("<analysis>Let me see.</analysis><summary>They talked.</summary>".to_owned())
    }

    /// The same, when it is told to.
    pub(crate) fn held(self) -> Self {
        Self::Held(Box::new(self))
    }

    /// A stream of chunks, each of them JSON.
    pub(crate) fn chunks(chunks: &[&str]) -> Self {
        Self::Raw(events(chunks).into_bytes())
    }
}

fn events(chunks: &[&str]) -> String {
    chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect::<Vec<_>>().concat()
}

// === impl Summarizer ===

impl Summarizer {
    /// Plays this, one for each request for a summary, and then answers with good ones.
    pub(crate) async fn playing(script: impl IntoIterator<Item = Play>) -> Self {
        let mut upstream = Upstream::start().await;
        let url = upstream.url();
        let (sender, asked) = watch::channel(Vec::new());
        let script = Mutex::new(script.into_iter().collect());
        let stage = Arc::new(Stage { script, gate: Semaphore::new(0), asked: sender });
        let on_stage = Arc::clone(&stage);
        let playing = tokio::spawn(async move {
            while let Some(wire) = upstream.accept().await {
                let stage = Arc::clone(&on_stage);
                tokio::spawn(async move { stage.serve(wire).await });
            }
        });
        Self { url, asked, stage, playing }
    }

    /// What `upstream.url` is.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// One that is held goes on.
    pub(crate) fn go_on(&self) {
        self.stage.gate.add_permits(1);
    }

    /// Plays this next.
    pub(crate) async fn then(&self, play: Play) {
        self.stage.script.lock().await.push_back(play);
    }

    /// The requests for summaries so far.
    pub(crate) fn summaries(&self) -> Vec<Asked> {
        self.asked.borrow().iter().filter(|asked| asked.is_summary).cloned().collect()
    }

    /// The other requests so far.
    pub(crate) fn chats(&self) -> Vec<Asked> {
        self.asked.borrow().iter().filter(|asked| !asked.is_summary).cloned().collect()
    }

    /// Waits until it was asked for so many summaries.
    pub(crate) async fn asked_for(&self, n: usize) {
        let mut asked = self.asked.clone();
        let enough = |all: &Vec<Asked>| all.iter().filter(|asked| asked.is_summary).count() >= n;
        within("requests for summaries", asked.wait_for(enough)).await.unwrap();
    }
}

impl Drop for Summarizer {
    fn drop(&mut self) {
        self.playing.abort();
    }
}

// === impl Stage ===

impl Stage {
    async fn serve(&self, mut wire: Wire) {
        while let Some(head) = wire.next_head().await {
            let body = wire.body(&head).await.bytes;
            let is_summary = memchr::memmem::find(&body, INSTRUCTION.as_bytes()).is_some();
            let play = if is_summary {
                self.script.lock().await.pop_front().unwrap_or_else(Play::good)
            } else {
                Play::Json("hello".to_owned())
            };
            self.asked.send_modify(|asked| asked.push(Asked { head, body, is_summary }));
            let Some(back) = self.play(wire, play).await else { return };
            wire = back;
        }
    }

    /// Plays; the connection, if it goes on.
    async fn play(&self, mut wire: Wire, mut play: Play) -> Option<Wire> {
        while let Play::Held(inner) = play {
            self.gate.acquire().await.unwrap().forget();
            play = *inner;
        }
        let fields = ["connection: close", "content-type: text/event-stream"];
        let streaming = head("200 OK", if matches!(play, Play::Untyped(_)) { &fields[..1] } else { &fields });
        match play {
            Play::Stream(text) | Play::Untyped(text) => {
                let text = serde_json::to_string(&text).unwrap();
                let chunks = [
                    r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
                    &format!(r#"{{"choices":[{{"index":0,"delta":{{"content":{text}}},"finish_reason":null}}]}}"#),
                    r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
                    r#"{"choices":[],"usage":{"prompt_tokens":900,"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":800}}}"#,
                    "[DONE]",
                ];
                wire.try_send([streaming, events(&chunks).into_bytes()].concat()).await.ok()?;
                None
            }
            Play::Raw(bytes) => {
                wire.try_send([streaming, bytes].concat()).await.ok()?;
                None
            }
            Play::Json(text) => {
                let text = serde_json::to_string(&text).unwrap();
                let body = format!(
                    r#"{{"choices":[{{"index":0,"message":{{"role":"assistant","content":{text}}},"finish_reason":"stop"}}]}}"#
                );
                answer(wire, "200 OK", &[], &body).await
            }
            Play::Status(status, fields, body) => answer(wire, status, fields, body).await,
            Play::Slow(pieces, pause) => {
                wire.try_send(streaming).await.ok()?;
                for piece in pieces {
                    let chunk = format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"{piece}"}}}}]}}"#);
                    tokio::time::sleep(pause).await;
                    wire.try_send(events(&[&chunk]).into_bytes()).await.ok()?;
                }
                let end = [r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#, "[DONE]"];
                wire.try_send(events(&end).into_bytes()).await.ok()?;
                None
            }
            Play::Hang => {
                wire.gone().await;
                None
            }
            Play::Stall => {
                let chunk = events(&[r#"{"choices":[{"index":0,"delta":{"content":"Once upon"}}]}"#]);
                wire.try_send([streaming, chunk.into_bytes()].concat()).await.ok()?;
                wire.gone().await;
                None
            }
            Play::Reset => {
                wire.reset();
                None
            }
            Play::ResetLater => {
                wire.try_send([streaming, b"data: {\"choi".to_vec()].concat()).await.ok()?;
                wire.reset();
                None
            }
            Play::Held(_) => unreachable!("it was let go"),
        }
    }
}

async fn answer(mut wire: Wire, status: &str, fields: &[&str], body: &str) -> Option<Wire> {
    let fields = [&["content-type: application/json"], fields].concat();
    wire.try_send(whole(status, &fields, body)).await.ok()?;
    Some(wire)
}

// === impl Asked ===

impl Asked {
    /// Its messages, as they are written.
    pub(crate) fn messages(&self) -> Vec<String> {
        messages(&self.body)
    }

    /// Its body.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// The messages of a body, as they are written.
pub(crate) fn messages(body: &[u8]) -> Vec<String> {
    #[derive(Deserialize)]
    struct Chat<'a> {
        #[serde(borrow)]
        messages: Vec<&'a RawValue>,
    }
    let chat: Chat<'_> = serde_json::from_slice(body).unwrap();
    chat.messages.iter().map(|message| message.get().to_owned()).collect()
}

/// A conversation of so many turns and a question at its end. `seed` sets it apart from others. The model's words are long,
/// and the user's are few.
pub(crate) fn talk(seed: &str, n_turns: usize) -> String {
    let turn = |n: usize| {
        let answer = format!("{seed} answer {n}. ").repeat(100);
        format!(r#"{{"role":"user","content":"{seed} question {n}"}}, {{"role":"assistant","content":"{answer}"}}, "#)
    };
    let turns = (0..n_turns).map(turn).collect::<Vec<_>>().concat();
    format!(
        r#"{{"model":"some-model","stream":false,"messages":[{{"role":"system","content":"be brief"}}, {turns}{{"role":"user","content":"{seed} question {n_turns}"}}],"temperature":0.5}}"#
    )
}
