//! Agents without a shell, through the real binary with `recall.via = "tool"`, in front of a model that needs a line of a
//! result that was cleared.
#![expect(clippy::disallowed_types, reason = "an upstream that shares no code with what it judges")]

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::it::support::offloads::long_text;
use crate::it::support::rounds::{Act, Api, TOOL};
use crate::it::support::{Setup, Upstream, Wire, upstream};

const SETTINGS: &str = "recall.via = \"tool\"\nclear_tool_results = { when = \"any\", trigger = { tokens = 500 }, keep = { results = 1 } }";

/// How often the agent is to call its tool, before the model asks for what the first call has returned.
const QUERIES: usize = 3;

/// Runs the agents that the folder has; says whether all was well.
pub(crate) async fn all(folder: &Path) -> bool {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with(SETTINGS).start().await;
    let base = format!("http://{}/v1", abridge.address());
    tokio::spawn(async move {
        while let Some(wire) = upstream.accept().await {
            tokio::spawn(converse(wire));
        }
    });
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    let log = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(log.path(), long_text(1)).unwrap();
    let mut passed = true;
    for (environment, script) in [("venv", "in_band.py"), ("langchain", "in_band_langchain.py")] {
        println!("{script}");
        let python = folder.join(environment).join("bin/python");
        if !python.exists() {
            println!("  NOT RUN: its client is not installed");
            continue;
        }
        let mut client = Command::new(python);
        client.arg(scripts.join(script)).arg(log.path());
        passed &= crate::run(script, client, folder, &base).await.is_some();
    }
    if !passed {
        eprintln!("abridge wrote:\n{}", abridge.stderr().join("\n"));
    }
    passed
}

/// Answers the requests of one connection.
async fn converse(mut wire: Wire) {
    while let Some(head) = wire.next_head().await {
        let body = wire.body(&head).await.bytes;
        let request: Value = serde_json::from_slice(&body).unwrap();
        let apis = [Api::Chat, Api::Messages, Api::Responses];
        let api = apis.into_iter().find(|api| head.target().split('?').next() == Some(api.path())).unwrap();
        let stream = request["stream"] == true;
        let kind = if stream { "content-type: text/event-stream" } else { "content-type: application/json" };
        let text = std::str::from_utf8(&body).unwrap();
        let (calls, results) = api.calls_and_results(&request);
        assert!(calls.iter().all(|call| results.contains(call)), "each call has its result: {text}");
        let n_recalls = calls.iter().filter(|call| call.starts_with("recall")).count() as u64;
        let answer = api.answer(n_recalls + 1, &act(text, calls.len()), stream);
        wire.send(upstream::whole("200 OK", &[kind], answer)).await;
    }
}

/// Returns what the model does with a request that has so many calls.
fn act(request: &str, n_calls: usize) -> Vec<Act> {
    let id = |kind: &str| -> &'static str { format!("{kind}_{n_calls}").leak() };
    if n_calls < QUERIES {
        return vec![Act::Call(id("query"), "query", serde_json::json!({ "n": n_calls }))];
    }
    if request.contains("4712:1: line 4711") {
        return vec![Act::Say("It is line 4712.")];
    }
    let begin = format!("Read it with {TOOL} (handle=");
    let handle = request.split(&begin).nth(1).and_then(|behind| behind.get(..26));
    let handle = handle.unwrap_or_else(|| panic!("no notice names the tool: {request}"));
    let arguments = serde_json::json!({ "handle": handle, "grep": "line 4711 " });
    vec![Act::Say("One moment."), Act::Call(id("recall"), TOOL, arguments)]
}
