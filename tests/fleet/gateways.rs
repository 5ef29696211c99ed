//! Two processes on one engine behind a gateway that knows no affinity.
#![expect(clippy::disallowed_types, reason = "what a gateway says, made and read here")]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::engine::{Engine, on_each_engine};
use crate::it::support::wire::Reply;
use crate::it::support::{Abridge, Setup, post, request};
use crate::replicas::text;

const KEY: &str = "authorization: Bearer gateway";

fn replica(engine: &Engine) -> Setup {
    let short = "truncate_tool_results.max_bytes = 2000";
    engine.replica_to("http://127.0.0.1:9/v1".to_owned()).with("compress.enabled = true").with(short)
}

async fn ask(abridge: &Abridge, message: Vec<u8>) -> Reply {
    let mut client = abridge.connect().await;
    client.send(message).await;
    client.reply().await
}

async fn what_one_process_has_shortened_another_gives_back_and_shortens_alike(engine: Engine) {
    engine.init("").await;
    let (one, other) = tokio::join!(replica(&engine).start(), replica(&engine).start());
    for n in 0..6 {
        let (first, second) = if n % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let texts: Vec<_> = (0..=n).map(text).collect();
        let rows: Vec<_> =
            texts.iter().map(|text| json!({"role": "tool", "tool_call_id": "c", "content": text})).collect();
        let body = json!({"messages": rows, "config": {"mode": "ccr"}}).to_string();
        let told: Value = serde_json::from_slice(&ask(first, post("/v1/compress", &[KEY], &body)).await.body).unwrap();
        let again: Value =
            serde_json::from_slice(&ask(second, post("/v1/compress", &[KEY], &body)).await.body).unwrap();
        assert_eq!((&told["messages"], &told["ccr_hashes"]), (&again["messages"], &again["ccr_hashes"]));
        let hashes = told["ccr_hashes"].as_array().unwrap();
        assert_eq!(hashes.len(), texts.len());
        for hash in hashes {
            let target = format!("/v1/retrieve/{}", hash.as_str().unwrap());
            let found: Value =
                serde_json::from_slice(&ask(second, request("GET", &target, &[KEY])).await.body).unwrap();
            assert!(texts.contains(&found["original_content"].as_str().unwrap().to_owned()), "{found}");
        }
    }
}

async fn litellm_takes_either_of_two_processes(engine: Engine) {
    let python = std::env::var_os("ABRIDGE_CLIENTS").map(|folder| PathBuf::from(folder).join("litellm/bin/python"));
    let Some(python) = python.filter(|python| python.exists()) else {
        eprintln!("NOT RUN: ABRIDGE_CLIENTS names no folder with LiteLLM");
        return;
    };
    engine.init("").await;
    let (one, other) = tokio::join!(replica(&engine).start(), replica(&engine).start());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/litellm_guardrail.py");
    let mut client = Command::new(python);
    client.arg(script).args([&one, &other].map(|abridge| format!("http://{}", abridge.address())));
    client.env("ABRIDGE_TOKEN", "sk-gateway").env("NO_PROXY", "*");
    let ended = tokio::task::spawn_blocking(move || client.output()).await.unwrap().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
}

on_each_engine!(
    what_one_process_has_shortened_another_gives_back_and_shortens_alike,
    litellm_takes_either_of_two_processes,
);
