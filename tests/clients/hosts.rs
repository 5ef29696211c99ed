//! The clients of Anthropic for Vertex AI, Bedrock and Foundry, and of OpenAI for Azure, to an upstream that answers as the hosts document.

use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use memchr::memmem;

use crate::it::support::wire::Head;
use crate::it::support::{Setup, Upstream, Wire, upstream};
use crate::model::Api;
use crate::{TEXT, completion, installed, json, refuse, run, stream, text_events, turn};

/// The field of answers in frames.
pub(crate) const FRAMES: &str = "content-type: application/vnd.amazon.eventstream";

/// Runs the clients.
pub(crate) async fn all(folder: &Path) -> bool {
    let Some(mut python) = installed(&folder.join("hosts/bin/python")) else {
        println!("  NOT RUN hosts: their clients are not installed");
        return true;
    };
    let mut upstream = Upstream::start().await;
    let abridge = Setup::to(upstream.origin()).start().await;
    let answering = tokio::spawn(async move {
        while let Some(wire) = upstream.accept().await {
            tokio::spawn(converse(wire));
        }
    });
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/clients/hosts.py");
    python.arg(script).env("ABRIDGE_URL", format!("http://{}", abridge.address()));
    println!("anthropic for Vertex AI, Bedrock and Foundry, openai for Azure");
    let passed = run("hosts", python, folder, "http://unused/v1").await.is_some();
    answering.abort();
    passed
}

async fn converse(mut wire: Wire) {
    while let Some(head) = wire.next_head().await {
        let body = wire.body(&head).await.bytes;
        answer(&mut wire, &head, &body).await;
    }
}

async fn answer(wire: &mut Wire, head: &Head, body: &[u8]) {
    let has = |part: &str| memmem::find(body, part.as_bytes()).is_some();
    if has("\"toolu_a\"")
        && !["tool_use_id", "tool_call_id", "call_id"].iter().any(|key| has(&format!("\"{key}\":\"toolu_a\"")))
    {
        return refuse(wire, "400 Bad Request", "").await;
    }
    let (path, query) = head.target().split_once('?').unwrap_or((head.target(), ""));
    let is_azure = head.get("api-key") == Some("k");
    let whole = format!(
        r#"{{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{{"type":"text","text":"{TEXT}"}}],"stop_reason":"end_turn","stop_sequence":null,"usage":{{"input_tokens":3,"output_tokens":2}}}}"#
    );
    if path.ends_with(":streamRawPredict") {
        let events: String = events().map(|(kind, data)| format!("event: {kind}\ndata: {data}\n\n")).concat();
        let fields = ["content-type: text/event-stream", "connection: close"];
        wire.send(upstream::whole("200 OK", &fields, events)).await;
    } else if path.ends_with("/invoke-with-response-stream") {
        let frames = events().map(|(_, data)| frame(&data)).concat();
        wire.send(upstream::whole("200 OK", &[FRAMES, "connection: close"], frames)).await;
    } else if path.ends_with("count-tokens:rawPredict") {
        json(wire, r#"{"input_tokens":30}"#).await;
    } else if path.ends_with(":rawPredict") || path.ends_with("/invoke") {
        json(wire, &whole).await;
    } else if path == "/openai/deployments/text/chat/completions" && is_azure && query == "api-version=2024-10-21" {
        if has("\"stream\":true") {
            stream(wire, &text_events()).await;
        } else {
            json(wire, &completion(&format!("\"content\":\"{TEXT}\""))).await;
        }
    } else if path == "/openai/responses" && is_azure && query == "api-version=2025-03-01-preview"
        || path == "/openai/v1/responses" && is_azure && ["", "api-version=preview"].contains(&query)
    {
        turn(wire, Api::Responses, body).await;
    } else if path == "/anthropic/v1/messages" && is_azure && head.get("x-api-key") == Some("k") {
        turn(wire, Api::Messages, body).await;
    } else {
        refuse(wire, "404 Not Found", "").await;
    }
}

/// The events of an answer.
fn events() -> [(&'static str, String); 6] {
    let message = r#"{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":3,"output_tokens":1}}"#;
    [
        ("message_start", format!(r#"{{"type":"message_start","message":{message}}}"#)),
        (
            "content_block_start",
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#.to_owned(),
        ),
        (
            "content_block_delta",
            format!(r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"{TEXT}"}}}}"#),
        ),
        ("content_block_stop", r#"{"type":"content_block_stop","index":0}"#.to_owned()),
        (
            "message_delta",
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":2}}"#.to_owned(),
        ),
        ("message_stop", r#"{"type":"message_stop"}"#.to_owned()),
    ]
}

/// A frame of AWS's event stream: its length and that of its headers, a checksum of both, the headers, the payload, and a
/// checksum of all.
pub(crate) fn frame(event: &str) -> Vec<u8> {
    let payload = format!(r#"{{"bytes":"{}","p":"abcd"}}"#, BASE64_STANDARD.encode(event));
    let header = |name: &str, value: &str| {
        let length = u16::try_from(value.len()).unwrap().to_be_bytes();
        [&[u8::try_from(name.len()).unwrap()], name.as_bytes(), &[7], &length, value.as_bytes()].concat()
    };
    let headers =
        [header(":event-type", "chunk"), header(":content-type", "application/json"), header(":message-type", "event")]
            .concat();
    let number = |n: usize| u32::try_from(n).unwrap().to_be_bytes();
    let mut frame = [number(16 + headers.len() + payload.len()), number(headers.len())].concat();
    frame.extend(crc32(&frame).to_be_bytes());
    frame.extend([&headers, payload.as_bytes()].concat());
    frame.extend(crc32(&frame).to_be_bytes());
    frame
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 })
    })
}
