//! Claude Code, whose tool takes longer than the prompt cache lives, in front of an abridge that keeps the cache meanwhile.
#![expect(clippy::disallowed_types, reason = "an upstream that shares no code with what it judges")]

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::it::support::{Setup, Upstream, Wire, upstream};
use crate::run_command::end;

/// A connection may be idle for less time than the tool takes.
const SETTINGS: &str = "server.header_timeout = \"3s\"\nkeep_alive = { enabled = true, after = \"4s\" }";

/// How long after the request before a call comes: about `keep_alive.after`, and later on a busy machine.
const EARLIEST: Duration = Duration::from_millis(3500);
const LATEST: Duration = Duration::from_secs(6);

/// The requests between the call of the tool and its result, both included: when each came.
type Times = Arc<Mutex<Vec<Instant>>>;

const TOOL: &str = "python3 -c 'import time; time.sleep(14)'";

/// What the model says at the end.
const DONE: &str = "The tool has ended.";

/// Runs Claude Code, if the folder has it; says whether all was well.
pub(crate) async fn all(folder: &Path) -> bool {
    println!("keep_alive");
    let program = folder.join("node_modules/.bin/claude");
    if !program.exists() {
        println!("  NOT RUN: Claude Code is not installed");
        return true;
    }
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with(SETTINGS).start().await;
    let times = Times::default();
    let of_upstream = Arc::clone(&times);
    tokio::spawn(async move {
        while let Some(wire) = upstream.accept().await {
            tokio::spawn(converse(wire, Arc::clone(&of_upstream)));
        }
    });
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join(".claude")).unwrap();
    let mut client = Command::new(program);
    client.env_clear().env("PATH", std::env::var("PATH").unwrap_or_default()).env("HOME", home.path());
    client.env("ANTHROPIC_BASE_URL", format!("http://{}", abridge.address())).env("ANTHROPIC_API_KEY", "sk-ant-client");
    client.env("IS_SANDBOX", "1").env("DISABLE_TELEMETRY", "1").env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
    client.args(["-p", "Run the tool.", "--allowedTools", "Bash"]).current_dir(home.path());
    client.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    std::os::unix::process::CommandExt::process_group(&mut client, 0);
    let said = end(client).await;
    let times = times.lock().unwrap();
    let pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // The result comes when the tool has ended, however long the client has taken to start it.
    let is_kept = pauses.split_last().is_some_and(|(last, calls)| {
        calls.len() >= 3 && calls.iter().all(|pause| (EARLIEST..LATEST).contains(pause)) && *last < LATEST
    });
    let passed = String::from_utf8_lossy(&said.stdout).contains(DONE) && is_kept;
    println!("  {}  Claude Code, calls while its tool runs", if passed { "ok    " } else { "FAILED" });
    if !passed {
        eprintln!("pauses: {pauses:?}\nit said: {said:?}\nabridge wrote:\n{}", abridge.stderr().join("\n"));
    }
    passed
}

/// Answers the requests of one connection, and notes when those came that abridge makes itself, and those around them.
async fn converse(mut wire: Wire, times: Times) {
    while let Some(head) = wire.next_head().await {
        let body = wire.body(&head).await.bytes;
        let request: Value = serde_json::from_slice(&body).unwrap_or_default();
        let has_run = String::from_utf8_lossy(&body).contains("\"tool_result\"");
        let usage = json!({ "input_tokens": 3, "cache_read_input_tokens": 30_000, "output_tokens": 1 });
        let (stop, block) = if request["max_tokens"] == 1 {
            times.lock().unwrap().push(Instant::now());
            ("max_tokens", json!({ "type": "text", "text": "The" }))
        } else if has_run || request["tools"].as_array().is_none_or(Vec::is_empty) {
            times.lock().unwrap().extend(has_run.then(Instant::now));
            ("end_turn", json!({ "type": "text", "text": DONE }))
        } else {
            times.lock().unwrap().push(Instant::now());
            let input = json!({ "command": TOOL, "description": "wait", "timeout": 60_000 });
            ("tool_use", json!({ "type": "tool_use", "id": "toolu_1", "name": "Bash", "input": input }))
        };
        let mut message = json!({ "id": "msg_1", "type": "message", "role": "assistant", "model": request["model"] });
        message["usage"] = usage;
        message["content"] = json!([block]);
        message["stop_reason"] = stop.into();
        let (kind, answer) = if request["stream"] == true {
            ("content-type: text/event-stream", streamed(message))
        } else {
            ("content-type: application/json", message.to_string())
        };
        if head.get("accept-encoding").is_some_and(|accepted| accepted.contains("gzip")) {
            wire.send(upstream::whole("200 OK", &[kind, "content-encoding: gzip"], gzip(&answer))).await;
        } else {
            wire.send(upstream::whole("200 OK", &[kind], answer)).await;
        }
    }
}

/// As Anthropic's servers send answers to clients that take them so.
fn gzip(answer: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(answer.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// The events of a message with one block.
fn streamed(mut message: Value) -> String {
    let stop = message["stop_reason"].take();
    let mut block = message["content"][0].take();
    message["content"] = json!([]);
    let delta = match block["input"].take() {
        Value::Null => json!({ "type": "text_delta", "text": std::mem::replace(&mut block["text"], json!("")) }),
        input => json!({ "type": "input_json_delta", "partial_json": input.to_string() }),
    };
    if block["type"] == "tool_use" {
        block["input"] = json!({});
    }
    let mut text = String::new();
    for event in [
        json!({ "type": "message_start", "message": message }),
        json!({ "type": "content_block_start", "index": 0, "content_block": block }),
        json!({ "type": "content_block_delta", "index": 0, "delta": delta }),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": stop }, "usage": { "output_tokens": 9 } }),
        json!({ "type": "message_stop" }),
    ] {
        write!(text, "event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap()).unwrap();
    }
    text
}
