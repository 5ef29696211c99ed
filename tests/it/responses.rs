//! What concerns paths of OpenAI Responses: sockets, requests that only count, and refusals in a stream.

use crate::support::upstream::head;
use crate::support::wire::Reply;
use crate::support::{Abridge, Scene, Setup, Upstream, post, request};

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
    assert!(message.contains("POST to the same path") && message.contains("websocket = \"tunnel\""), "{message}");
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
    for (line, field) in [
        ("responses.websocket = \"tunnel\"", ""),
        ("policy.edits = []", ""),
        ("dry_run = true", ""),
        ("", "x-abridge: off"),
        ("", "x-abridge: dry-run"),
    ] {
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
    abridge.reload_with("responses.websocket = \"tunnel\"");
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
