//! The OpenAI clients of `PyPI` and npm, as people use them, through the real binary to an upstream that is as strict as theirs.
//!
//! Runs when `ABRIDGE_CLIENTS` names a folder that `tests/clients/install.sh` has filled. The checks are in
//! `tests/clients/client.py` and `tests/clients/client.mjs`; what the upstream answers to which model is here.
#![expect(clippy::disallowed_methods, reason = "tests spawn the other sides of a connection")]
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic is a test's answer"
)]
#![expect(clippy::print_stderr, clippy::print_stdout, reason = "what the clients say is shown")]
#![expect(dead_code, unused_imports, reason = "other tests use what this one does not of what they share")]

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use serde::Deserialize;
use tokio::sync::watch;

#[path = "it"]
mod it {
    pub(crate) mod support; // what the integration tests stand on
}

use it::support::wire::Head;
use it::support::{Setup, Upstream, Wire, upstream, validator};

/// What a client asks for, as far as the upstream looks at it.
#[derive(Debug, Deserialize)]
struct Ask {
    /// Which scene is to be played.
    model: String,
    /// Names the request, so that what became of it can be asked for.
    user: Option<String>,
    #[serde(default)]
    stream: bool,
}

/// What the clients can ask the upstream about.
#[derive(Default)]
struct Notices {
    /// Requests that wait for their client to go away.
    came: watch::Sender<HashSet<String>>,
    /// Requests whose client has gone away.
    gone: watch::Sender<HashSet<String>>,
    /// Streams that may go on.
    released: watch::Sender<HashSet<String>>,
}

const TEXT: &str = "caf\u{e9} \u{1f980}";

fn main() -> ExitCode {
    let Some(folder) = std::env::var_os("ABRIDGE_CLIENTS").and_then(|folder| std::path::absolute(folder).ok()) else {
        println!("clients: ABRIDGE_CLIENTS is not set, so no client ran; tests/clients/install.sh makes such a folder");
        return ExitCode::SUCCESS;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let passed = runtime.block_on(async {
        let mut upstream = Upstream::start().await;
        let abridge = Setup::before(&upstream).start().await;
        let base = format!("http://{}/v1", abridge.address());
        tokio::spawn(async move {
            let notices = Arc::new(Notices::default());
            while let Some(wire) = upstream.accept().await {
                tokio::spawn(converse(wire, Arc::clone(&notices)));
            }
        });
        let scripts = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
        let mut python = Command::new(folder.join("venv/bin/python"));
        python.arg(scripts.join("client.py"));
        let mut node = Command::new("node");
        node.arg(scripts.join("client.mjs"));
        let mut passed = true;
        for (name, mut client) in [("openai for Python", python), ("openai for Node.js", node)] {
            println!("{name}");
            client.env("ABRIDGE_CLIENTS", &folder).env("OPENAI_BASE_URL", &base).env("OPENAI_API_KEY", "sk-client");
            client.env("NO_PROXY", "*").env("no_proxy", "*");
            let status = tokio::task::spawn_blocking(move || client.status()).await.unwrap();
            let ran = status.as_ref().is_ok_and(std::process::ExitStatus::success);
            if !ran {
                eprintln!("{name}: {status:?}");
            }
            passed &= ran;
        }
        if !passed {
            eprintln!("abridge wrote:\n{}", abridge.stderr().join("\n"));
        }
        passed
    });
    runtime.shutdown_background();
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Answers the requests of one connection.
async fn converse(mut wire: Wire, notices: Arc<Notices>) {
    while let Some(head) = wire.next_head().await {
        let body = wire.body(&head).await.bytes;
        let (path, query) = head.target().split_once('?').unwrap_or((head.target(), ""));
        match path {
            _ if head.get("authorization") != Some("Bearer sk-client") => {
                refuse(&mut wire, "401 Unauthorized", "").await;
            }
            "/v1/chat/completions" => match validator::check(&body) {
                Ok(()) => match serde_json::from_slice(&body) {
                    Ok(ask) => chat(&mut wire, ask, &notices).await,
                    Err(_) => refuse(&mut wire, "422 Unprocessable Entity", "").await,
                },
                Err(_) => refuse(&mut wire, "400 Bad Request", "").await,
            },
            "/v1/came" => told(&mut wire, &notices.came, query).await,
            "/v1/gone" => told(&mut wire, &notices.gone, query).await,
            "/v1/release" => {
                notices.released.send_modify(|names| names.extend([query.to_owned()]));
                json(&mut wire, "true").await;
            }
            _ => elsewhere(&mut wire, &head, &body).await,
        }
    }
}

/// One chat request that is well formed.
async fn chat(wire: &mut Wire, ask: Ask, notices: &Notices) {
    let name = ask.user.unwrap_or_default();
    match &*ask.model {
        "text" if ask.stream => stream(wire, &text_events()).await,
        "text" => json(wire, &completion(&format!("\"content\":\"{TEXT}\""))).await,
        "tools" if ask.stream => stream(wire, &tool_events()).await,
        "tools" => {
            let calls = [call("a", "{\\\"x\\\": 1}"), call("b", "{}")].join(",");
            json(wire, &completion(&format!("\"content\":null,\"tool_calls\":[{calls}]"))).await;
        }
        "paced" => {
            begin(wire).await;
            wire.send_chunk(event("{\"content\":\"first\"}", "null")).await;
            noted(&notices.released, &name).await;
            wire.send_chunk(event("{\"content\":\"second\"}", "null")).await;
            end(wire).await;
        }
        "silent" => note_end(wire, name, notices).await,
        "endless" => {
            begin(wire).await;
            wire.send_chunk(event("{\"content\":\"first\"}", "null")).await;
            note_end(wire, name, notices).await;
        }
        "broken" => {
            begin(wire).await;
            wire.send_chunk(event("{\"content\":\"first\"}", "null")).await;
            wire.send_chunk("data: {\"id\":").await;
            wire.close().await;
        }
        status => refuse(wire, status, "retry-after: 7").await,
    }
}

/// What is not a conversation.
async fn elsewhere(wire: &mut Wire, head: &Head, body: &[u8]) {
    match head.target() {
        "/v1/models" => json(wire, "{\"object\":\"list\",\"data\":[{\"id\":\"text\",\"object\":\"model\"}]}").await,
        "/v1/files" => {
            let found = memchr::memmem::find(body, b"what the file holds").is_some();
            json(wire, &format!("{{\"id\":\"file-1\",\"object\":\"file\",\"status\":\"{found}\"}}")).await;
        }
        _ => refuse(wire, "404 Not Found", "").await,
    }
}

/// Waits for the client to go, and notes that it has.
async fn note_end(wire: &mut Wire, name: String, notices: &Notices) {
    notices.came.send_modify(|names| names.extend([name.clone()]));
    wire.gone().await;
    notices.gone.send_modify(|names| names.extend([name]));
}

async fn noted(names: &watch::Sender<HashSet<String>>, name: &str) {
    names.subscribe().wait_for(|names| names.contains(name)).await.unwrap();
}

// === answers ===

/// Answers once the name has been noted.
async fn told(wire: &mut Wire, names: &watch::Sender<HashSet<String>>, name: &str) {
    noted(names, name).await;
    json(wire, "true").await;
}

async fn json(wire: &mut Wire, body: &str) {
    let length = format!("content-length: {}", body.len());
    let fields = ["content-type: application/json", "x-request-id: req_1", &length];
    wire.send([&upstream::head("200 OK", &fields), body.as_bytes()].concat()).await;
}

/// An error with a body whose spelling is not what a serialiser would write.
async fn refuse(wire: &mut Wire, status: &str, field: &str) {
    let code = status.split(' ').next().unwrap();
    let body =
        format!("{{ \"error\": {{\"message\":\"no: {code}\", \"type\":\"t\",\"param\":null,\"code\":\"c{code}\"}}}}\n");
    let length = format!("content-length: {}", body.len());
    let mut fields = vec!["content-type: application/json", "x-request-id: req_1", &length];
    fields.extend(Some(field).filter(|field| !field.is_empty()));
    wire.send([&upstream::head(status, &fields), body.as_bytes()].concat()).await;
}

async fn begin(wire: &mut Wire) {
    let fields =
        ["content-type: text/event-stream; charset=utf-8", "x-request-id: req_1", "transfer-encoding: chunked"];
    wire.send(upstream::head("200 OK", &fields)).await;
}

async fn end(wire: &mut Wire) {
    wire.send_chunk("data: [DONE]\n\n").await;
    wire.send("0\r\n\r\n").await;
}

async fn stream(wire: &mut Wire, events: &[String]) {
    begin(wire).await;
    for event in events {
        wire.send_chunk(event).await;
    }
    end(wire).await;
}

fn completion(message: &str) -> String {
    format!(
        "{{\"id\":\"c\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\"choices\":[{{\"index\":0,\
         \"finish_reason\":\"stop\",\"message\":{{\"role\":\"assistant\",{message}}}}}],\
         \"usage\":{{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}}}"
    )
}

fn event(delta: &str, finish_reason: &str) -> String {
    format!(
        "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\
         \"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish_reason}}}]}}\n\n"
    )
}

fn text_events() -> Vec<String> {
    let mut events = vec![": a comment\n\n".to_owned(), event("{\"role\":\"assistant\",\"content\":\"\"}", "null")];
    events.extend(TEXT.chars().map(|letter| event(&format!("{{\"content\":\"{letter}\"}}"), "null")));
    events.push(event("{}", "\"stop\""));
    events.push(
        "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[],\
         \"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}\n\n"
            .to_owned(),
    );
    events
}

fn call(id: &str, arguments: &str) -> String {
    format!(
        "{{\"id\":\"call_{id}\",\"type\":\"function\",\"function\":{{\"name\":\"f\",\"arguments\":\"{arguments}\"}}}}"
    )
}

/// Two calls side by side, the arguments of the first in pieces.
fn tool_events() -> Vec<String> {
    let begin = |index: usize, call: String| {
        event(
            &format!(
                "{{\"role\":\"assistant\",\"tool_calls\":[{{\"index\":{index},{}]}}",
                call.trim_start_matches('{')
            ),
            "null",
        )
    };
    let piece = |text: &str| {
        event(&format!("{{\"tool_calls\":[{{\"index\":0,\"function\":{{\"arguments\":\"{text}\"}}}}]}}"), "null")
    };
    let pieces = ["{\\\"x", "\\\":", " 1}"].map(piece);
    let mut events = vec![begin(0, call("a", ""))];
    events.extend(pieces);
    events.extend([begin(1, call("b", "{}")), event("{}", "\"tool_calls\"")]);
    events
}
