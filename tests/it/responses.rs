//! What concerns paths of OpenAI Responses: sockets, and requests that only count.
#![expect(clippy::disallowed_types, reason = "answers of abridge itself are looked at")]

use std::fmt::Write as _;

use crate::support::offloads::{long_text, recalls};
use crate::support::upstream::head;
use crate::support::wire::Reply;
use crate::support::{Abridge, OPERATOR, Scene, Setup, Upstream, post, request};

const SOCKET: [&str; 5] = [
    "connection: Upgrade",
    "upgrade: websocket",
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-version: 13",
    "openai-beta: responses_websockets=2026-02-06",
];

/// Where clients open sockets.
const PATHS: [&str; 4] =
    ["/v1/responses", "/responses", "/backend-api/codex/responses", "/openai/responses?api-version=2026-01-01"];

fn socket(target: &str, field: &str) -> Vec<u8> {
    let mut fields = SOCKET.to_vec();
    fields.extend((!field.is_empty()).then_some(field));
    request("GET", target, &fields)
}

fn assert_refused(reply: &Reply) {
    assert_eq!(reply.head.status(), 426);
    assert_eq!(reply.head.get("x-abridge-error"), Some("websocket_refused"));
    assert_eq!((reply.head.get("connection"), reply.head.get("upgrade")), (Some("upgrade"), Some("HTTP/1.1")));
    assert_eq!(reply.head.get("content-type"), Some("application/json"));
    let body: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(body["error"]["code"], "websocket_refused");
    assert_eq!(body["error"]["type"], "invalid_request_error");
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains("POST to the same path") && message.contains("x-abridge: off"), "{message}");
}

/// Opens a socket through the proxy, and speaks both ways.
async fn assert_tunnelled(scene: &mut Scene, target: &str, field: &str) {
    scene.client.send(socket(target, field)).await;
    let mut call = scene.upstream.request().await;
    assert_eq!(call.head.target(), target);
    assert_eq!(call.head.get("upgrade"), Some("websocket"));
    call.send(head("101 Switching Protocols", &["connection: Upgrade", "upgrade: websocket"])).await;
    assert_eq!(scene.client.head().await.status(), 101);
    scene.client.send(b"\x81\x85\0\0\0\0hello").await;
    assert_eq!(call.exactly(11).await, &b"\x81\x85\0\0\0\0hello"[..]);
    call.send(b"\x81\x05world").await;
    assert_eq!(scene.client.exactly(7).await, &b"\x81\x05world"[..]);
}

/// The lines of the log about sockets, of which there is at least one if `some`.
async fn lines_about_sockets(abridge: &Abridge, some: bool) -> Vec<String> {
    if some {
        abridge.says("websocket", 0).await;
    }
    abridge.stderr().into_iter().filter(|line| line.contains("websocket")).collect()
}

#[tokio::test]
async fn a_socket_is_refused_and_the_client_goes_on_over_the_same_connection() {
    let mut scene = Scene::new().await;
    for target in PATHS {
        scene.client.send(socket(target, "")).await;
        assert_refused(&scene.client.reply().await);
    }
    // The next request on this connection goes upstream, and it is the first one that does.
    let mut call = scene.ask(post("/v1/responses", &["content-type: application/json"], r#"{"input":"Hi."}"#)).await;
    assert_eq!(call.head.start, "POST /v1/responses HTTP/1.1");
    call.json("{}").await;
    assert_eq!(scene.client.reply().await.body, "{}");
    let lines = lines_about_sockets(&scene.abridge, true).await;
    assert_eq!(lines.len(), 1, "once for all of them: {lines:?}");
    assert!(lines[0].contains("426") && lines[0].contains("INFO"), "{lines:?}");
}

#[tokio::test]
async fn a_socket_is_tunnelled_where_the_settings_or_the_client_say_so() {
    for (line, field) in
        [("policy.edits = []", ""), ("dry_run = true", ""), ("", "x-abridge: off"), ("", "x-abridge: dry-run")]
    {
        let mut scene = Scene::with(line).await;
        assert_tunnelled(&mut scene, "/v1/responses", field).await;
        let has_edits = !line.starts_with("policy");
        let lines = lines_about_sockets(&scene.abridge, has_edits).await;
        assert_eq!(lines.len(), usize::from(has_edits), "{line} {field}: {lines:?}");
    }
}

#[tokio::test]
async fn a_reload_changes_what_becomes_of_sockets() {
    let upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).start().await;
    let mut client = abridge.connect().await;
    client.send(socket("/v1/responses", "")).await;
    assert_refused(&client.reply().await);
    let from = abridge.stderr().len();
    abridge.reload_with("dry_run = true");
    abridge.says("settings reloaded", from).await;
    let client = abridge.connect().await;
    assert_tunnelled(&mut Scene { upstream, abridge, client }, "/v1/responses", "").await;
}

#[tokio::test]
async fn what_is_no_socket_of_a_turn_is_forwarded() {
    let mut scene = Scene::new().await;
    let upgrade_to_other = ["connection: Upgrade", "upgrade: other"];
    for (method, target, fields) in [
        ("GET", "/v1/responses/resp_1", &[][..]),
        ("GET", "/v1/responses", &[]),
        ("GET", "/v1/responses", &["upgrade: websocket"]),
        ("GET", "/v1/responses", &upgrade_to_other),
        ("GET", "/v1/realtime", &SOCKET),
        ("DELETE", "/v1/responses/resp_1", &[]),
    ] {
        scene.client.send(request(method, target, fields)).await;
        let mut call = scene.upstream.request().await;
        assert_eq!(call.head.start, format!("{method} {target} HTTP/1.1"));
        call.json("{}").await;
        assert_eq!(scene.client.reply().await.body, "{}");
    }
}

// === conversations ===

/// A text that no edit touches at the default settings, and that is worth clearing.
fn text(n: usize) -> String {
    let lines: Vec<_> = (0..150).map(|line| format!("{n}: what line {line} of the output says")).collect();
    lines.join("\n")
}

/// A request with so many results, the last of which the model has not read, and these fields in front.
pub(crate) fn with_results(n: usize, fields: &str) -> String {
    conversation(&(0..n).map(text).collect::<Vec<_>>(), fields)
}

fn conversation(results: &[String], fields: &str) -> String {
    let mut input = r#"{"type":"message","role":"user","content":"go"}"#.to_owned();
    for (n, text) in results.iter().enumerate() {
        let output = serde_json::to_string(text).unwrap();
        write!(
            input,
            r#",{{"type":"function_call","call_id":"call_{n}","name":"shell","arguments":"{{}}"}},{{"type":"function_call_output","call_id":"call_{n}","output":{output}}}"#
        )
        .unwrap();
    }
    format!(r#"{{{fields}"model":"gpt-4o","input":[{input}]}}"#)
}

/// Sees to it that all results of `with_results(n)` are cleared but the last one.
pub(crate) fn assert_cleared(body: &[u8], n: usize) {
    let body = std::str::from_utf8(body).unwrap();
    assert_eq!(body.matches("[Cleared: ").count(), n - 1, "{body}");
    for seed in 0..n {
        let text = serde_json::to_string(&text(seed)).unwrap();
        assert_eq!(body.contains(&text), seed == n - 1, "{seed}: {body}");
    }
}

// === requests that only count ===

const COUNTED: &str = r#"{"object":"response.input_tokens","input_tokens":12}"#;

/// Sends a request; what the upstream got of it, and the answer to it.
async fn sent(scene: &mut Scene, target: &str, fields: &[&str], body: &str) -> (Vec<u8>, Reply) {
    scene.client.send(post(target, fields, body)).await;
    let mut call = scene.upstream.request().await;
    let body = call.bytes().await.to_vec();
    assert_eq!(call.head.get("content-length"), Some(&*body.len().to_string()));
    call.answer("200 OK", &["content-type: application/json", "connection: close"], COUNTED).await;
    (body, scene.client.reply().await)
}

const COUNT: &str = "/v1/responses/input_tokens";
const TURN: &str = "/v1/responses";

const DANGLING: &str = r#"{"model":"m","input":[{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"role":"user","content":"go on"}]}"#;

#[tokio::test]
async fn what_is_counted_is_what_would_be_sent() {
    let long = conversation(&[long_text(1), long_text(2)], "");
    for (body, edits) in [(&*long, "truncate=2"), (DANGLING, "patch=1")] {
        let mut scene = Scene::new().await;
        let (counted, reply) = sent(&mut scene, COUNT, &[], body).await;
        assert_ne!(counted, body.as_bytes());
        assert_eq!(reply.body, COUNTED);
        assert_eq!(reply.head.get("x-abridge-edits"), Some(edits));
        // Nothing is stored before the turn itself.
        for target in recalls(&counted) {
            scene.client.send(request("GET", &target, &[])).await;
            assert_eq!(scene.client.reply().await.head.status(), 404);
        }
        let (turn, _) = sent(&mut scene, TURN, &[], body).await;
        assert_eq!(turn, counted);
        for target in recalls(&turn) {
            scene.client.send(request("GET", &target, &[])).await;
            assert_eq!(scene.client.reply().await.head.status(), 200);
        }
    }
}

#[tokio::test]
async fn what_only_counts_is_not_in_the_history() {
    let mut scene = Scene::new().await;
    sent(&mut scene, COUNT, &[], DANGLING).await;
    sent(&mut scene, TURN, &[], DANGLING).await;
    scene.abridge.says("patched 1", 0).await;
    scene.client.send(request("GET", "/abridge/requests", &[OPERATOR])).await;
    let listed = scene.client.reply().await.body;
    let listed = std::str::from_utf8(&listed).unwrap();
    assert_eq!((listed.matches(COUNT).count(), listed.matches(TURN).count()), (0, 1), "{listed}");
    assert!(scene.abridge.stderr().iter().filter(|line| line.contains("patched 1")).count() == 1);
}

#[tokio::test]
async fn counts_and_other_paths_stay_as_they_are_where_nothing_is_edited() {
    for (lines, target, field) in [
        ("dry_run = true", COUNT, "x-a: 1"),
        ("policy.edits = []", COUNT, "x-a: 1"),
        ("", COUNT, "x-abridge: off"),
        ("", COUNT, "x-abridge: dry-run"),
        ("", "/v1/responses/compact", "x-a: 1"),
        ("", "/v1/responses/resp_1/cancel", "x-a: 1"),
        ("", "/v1/responses/input_tokens/x", "x-a: 1"),
    ] {
        let mut scene = Scene::with(lines).await;
        let (got, reply) = sent(&mut scene, target, &[field], DANGLING).await;
        assert_eq!(got, DANGLING.as_bytes(), "{lines} {target}");
        assert_eq!(reply.body, COUNTED);
    }
    let mut scene = Scene::new().await;
    let (got, _) = sent(&mut scene, COUNT, &[], "{\"input\": 3}").await;
    assert_eq!(got, b"{\"input\": 3}");
}

/// A request whose tools are in an item, and which offers no way to read back; and one with an item of an unknown type.
#[tokio::test]
async fn what_stands_in_the_way_is_said_once() {
    let mut scene = Scene::with(
        "recall.via = \"offered\"\nsummarize = { trigger = { messages = 4 }, keep = { results = 0 } }\n\
         [[models]]\nmatch = \"gpt-5.6\"\ncontext_window = 32768",
    )
    .await;
    let tools = r#"{"type":"additional_tools","role":"developer","tools":[{"type":"namespace","name":"functions","tools":[{"type":"custom","name":"wait"}]}]}"#;
    let text = serde_json::to_string(&long_text(1)).unwrap();
    let body = format!(
        r#"{{"model":"gpt-5.6","input":[{tools},{{"role":"user","content":"go"}},{{"type":"future_state","of":1}},{{"type":"custom_tool_call","call_id":"1","name":"wait","input":"x"}},{{"type":"custom_tool_call_output","call_id":"1","output":{text}}},{{"role":"assistant","content":"so"}},{{"role":"user","content":"on"}}]}}"#
    );
    for _ in 0..2 {
        let (got, _) = sent(&mut scene, TURN, &[], &body).await;
        assert!(String::from_utf8_lossy(&got).contains("left out here"));
    }
    scene.abridge.says("connect the client to /abridge/mcp", 0).await;
    let said = scene.abridge.says("a conversation is not summarised", 0).await;
    assert!(said.contains("future_state"), "{said}");
    // A later line shows that both requests have been accounted for.
    sent(&mut scene, TURN, &[], DANGLING).await;
    scene.abridge.says("patched 1", 0).await;
    let lines = scene.abridge.stderr();
    for once in ["connect the client to /abridge/mcp", "a conversation is not summarised"] {
        assert_eq!(lines.iter().filter(|line| line.contains(once)).count(), 1, "{lines:#?}");
    }
}
