//! `LiteLLM`: the guardrail that calls a compressor, alone and in the whole proxy, as `examples/litellm` configures both.
#![expect(clippy::disallowed_types, reason = "an upstream that shares no code with what it judges")]

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::it::support::{Setup, Upstream, Wire, validator};
use crate::{completion, json as answer, refuse};

/// The tool that `LiteLLM` adds.
const RETRIEVE: &str = "headroom_retrieve";

/// Runs both, if the folder has them; says whether all was well.
pub(crate) async fn all(folder: &Path) -> bool {
    let python = folder.join("litellm/bin/python");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    if !python.exists() {
        println!("  NOT RUN: LiteLLM is not installed");
        return true;
    }
    let example = |name: &str| std::fs::read_to_string(root.join("examples/litellm").join(name)).unwrap();
    // The tables follow what the setup writes.
    let abridge = Setup::to("http://127.0.0.1:9/v1").with(example("proxy.toml")).start().await;
    let address = format!("http://{}", abridge.address());
    let mut upstream = Upstream::start().await;
    let models = format!("openai/gpt-4o, api_base: {}/v1,", upstream.origin());
    let config = example("config.yaml").replace("http://127.0.0.1:8787", &address).replace("openai/gpt-4o,", &models);
    assert!(config.contains(&address) && config.contains(&models), "{config}");
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), config).unwrap();
    let answering = tokio::spawn(async move {
        while let Some(wire) = upstream.accept().await {
            tokio::spawn(converse(wire));
        }
    });
    let mut passed = true;
    for (script, argument) in [("litellm_guardrail.py", &*address), ("litellm_proxy.py", file.path().to_str().unwrap())]
    {
        println!("{script}");
        let mut client = Command::new(&python);
        client.arg(root.join("tests/clients").join(script)).arg(argument).env("ABRIDGE_TOKEN", "sk-gateway");
        passed &= crate::run(script, client, folder, "http://127.0.0.1:9/v1").await.is_some();
    }
    answering.abort();
    if !passed {
        eprintln!("abridge wrote:\n{}", abridge.stderr().join("\n"));
    }
    passed
}

/// A model that reads an original back where the user says `read HASH`, and says what it was sent.
async fn converse(mut wire: Wire) {
    while let Some(head) = wire.next_head().await {
        let body = wire.body(&head).await.bytes;
        if validator::check(&body).is_err() {
            refuse(&mut wire, "400 Bad Request", "").await;
            continue;
        }
        let request: Value = serde_json::from_slice(&body).unwrap();
        let rows = request["messages"].as_array().unwrap();
        let text = |row: &Value| row["content"].as_str().unwrap_or_default().to_owned();
        let last = rows.last().map(text).unwrap_or_default();
        let message = if let Some(hash) = last.strip_prefix("read ") {
            let function = json!({ "name": RETRIEVE, "arguments": json!({ "hash": hash }).to_string() });
            json!({ "content": null, "tool_calls": [{ "id": "read", "type": "function", "function": function }] })
        } else if rows.last().is_some_and(|row| row["tool_call_id"] == "read") {
            json!({ "content": last })
        } else {
            let results = rows.iter().filter(|row| row["role"] == "tool").map(text);
            json!({ "content": results.collect::<Vec<_>>().join("\x1e") })
        };
        answer(&mut wire, &completion(message.to_string().trim_matches(['{', '}']))).await;
    }
}
