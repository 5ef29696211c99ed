//! A handler, played by the test: it notes what it is asked, and answers what the test says.
#![expect(clippy::disallowed_types, reason = "what handlers are asked and answer is made and read here")]

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::upstream::{Upstream, head, whole};
use super::wire::Wire;

/// The behaviour of a handler when it is asked.
#[derive(Clone, Debug)]
pub(crate) enum Play {
    /// This text replaces the other.
    Replace(String),
    /// This action, without a text.
    Action(&'static str),
    /// This JSON, with the id of the question where it has none.
    Json(Value),
    /// These bytes as the body of an answer with this status.
    Body(&'static str, Vec<u8>),
    /// So many bytes of a text.
    Endless(usize),
    /// No answer.
    Hang,
    /// The connection is reset.
    Reset,
}

/// The handler.
pub(crate) struct Handler {
    url: String,
    asked: watch::Receiver<Vec<Value>>,
    playing: JoinHandle<()>,
}

type Script = Arc<dyn Fn(&Value) -> Play + Send + Sync>;

impl Handler {
    /// Answers what `play` says of each question, at a URL.
    pub(crate) async fn playing(play: impl Fn(&Value) -> Play + Send + Sync + 'static) -> Self {
        let mut upstream = Upstream::start().await;
        let url = format!("{}/ask", upstream.origin());
        let (sender, asked) = watch::channel(Vec::new());
        let (play, sender): (Script, _) = (Arc::new(play), Arc::new(sender));
        let playing = tokio::spawn(async move {
            while let Some(wire) = upstream.accept().await {
                tokio::spawn(serve(wire, Arc::clone(&play), Arc::clone(&sender)));
            }
        });
        Self { url, asked, playing }
    }

    /// The same at a Unix socket.
    pub(crate) fn at_socket(path: &Path, play: impl Fn(&Value) -> Play + Send + Sync + 'static) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let (sender, asked) = watch::channel(Vec::new());
        let (play, sender): (Script, _) = (Arc::new(play), Arc::new(sender));
        let playing = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(Wire::new(socket), Arc::clone(&play), Arc::clone(&sender)));
            }
        });
        Self { url: format!("unix:{}", path.display()), asked, playing }
    }

    /// What `handlers.NAME.url` is.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The questions so far.
    pub(crate) fn asked(&self) -> Vec<Value> {
        self.asked.borrow().clone()
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        self.playing.abort();
    }
}

async fn serve(mut wire: Wire, play: Script, sender: Arc<watch::Sender<Vec<Value>>>) {
    while let Some((asked, body)) = wire.next_whole().await {
        let mut question: Value = serde_json::from_slice(&body).unwrap();
        let id = question["id"].clone();
        question["authorization"] = asked.get("authorization").into();
        let play = play(&question);
        sender.send_modify(|all| all.push(question));
        let answer = match play {
            Play::Replace(text) => json!({ "id": id, "action": "replace", "text": text }).to_string().into_bytes(),
            Play::Action(action) => json!({ "id": id, "action": action }).to_string().into_bytes(),
            Play::Json(mut answer) => {
                if answer.get("id").is_none() {
                    answer["id"] = id;
                }
                answer.to_string().into_bytes()
            }
            Play::Body(status, body) => {
                wire.send(whole(status, &[], &body)).await;
                continue;
            }
            Play::Endless(bytes) => {
                let length = format!("content-length: {bytes}");
                wire.send(head("200 OK", &[&length])).await;
                wire.send(format!("{{\"id\":{id},\"action\":\"replace\",\"text\":\"")).await;
                while wire.try_send(vec![b'x'; 1 << 16]).await.is_ok() {}
                return;
            }
            Play::Hang => {
                wire.gone().await;
                return;
            }
            Play::Reset => return wire.reset(),
        };
        wire.send(whole("200 OK", &["content-type: application/json"], &answer)).await;
    }
}
