//! An edited exchange, on both sides.

use std::io::Write as _;

use crate::support::bodies::{DANGLING, PLAIN, assert_patched};
use crate::support::upstream::head;
use crate::support::{Scene, Setup, Upstream, chat, post, request};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_call_without_a_result_gets_one_and_nothing_else_changes() {
    let mut scene = Scene::new().await;
    scene.client.send(chat(DANGLING)).await;
    let mut call = scene.upstream.request().await;
    let body = call.bytes().await;
    assert_patched(&body);
    assert_eq!(call.head.get("content-length"), Some(&*body.len().to_string()));
    assert_eq!(call.head.get("transfer-encoding"), None);
}

#[tokio::test]
async fn a_chunked_request_is_edited_too() {
    let mut scene = Scene::new().await;
    scene.client.send(request("POST", CHAT, &["transfer-encoding: chunked"])).await;
    for piece in DANGLING.as_bytes().chunks(11) {
        scene.client.send_chunk(piece).await;
    }
    scene.client.send("0\r\n\r\n").await;
    assert_patched(&scene.upstream.request().await.bytes().await);
}

#[tokio::test]
async fn a_long_body_becomes_the_same_however_it_arrives() {
    let result = r#"a \"word\", a \\\" quote, \u00e9 and é; "#.repeat(2000);
    let round = |n: usize| {
        format!(
            r#",{{"role":"assistant","tool_calls":[{{"id":"{n}","type":"function","function":{{"name":"cat","arguments":"{{}}"}}}}]}},{{"role":"tool","tool_call_id":"{n}","content":"{n}: {result}"}}"#
        )
    };
    let rounds: String = (0..6).map(round).collect();
    let body = format!(r#"{{"model":"gpt-4o","messages":[{{"role":"user","content":"Go on."}}{rounds}]}}"#);
    let mut scene = Scene::with("truncate_tool_results.max_bytes = 9000").await;
    let mut received = Vec::new();
    for piece in [1_000_000, 70_000, 4_099, 997] {
        scene.client.send(request("POST", CHAT, &["transfer-encoding: chunked"])).await;
        for piece in body.as_bytes().chunks(piece) {
            scene.client.send_chunk(piece).await;
        }
        scene.client.send("0\r\n\r\n").await;
        let mut call = scene.upstream.request().await;
        received.push(call.bytes().await);
        call.json("{}").await;
        scene.client.reply().await;
    }
    for (encoding, encode) in ENCODINGS.into_iter().filter(|(encoding, _)| *encoding != "br") {
        let field = format!("content-encoding: {encoding}");
        scene.client.send(post(CHAT, &[&field], encode(body.as_bytes()))).await;
        let mut call = scene.upstream.request().await;
        received.push(call.bytes().await);
        call.json("{}").await;
        scene.client.reply().await;
    }
    assert!(received[0].len() < body.len() / 2, "{} of {} bytes", received[0].len(), body.len());
    assert!(received.iter().all(|other| *other == received[0]));
}

#[tokio::test]
async fn an_edited_exchange_is_marked_in_its_answer_and_an_unedited_one_is_not() {
    let mut scene = Scene::new().await;
    let mut ids = Vec::new();
    scene.client.send(chat(DANGLING)).await;
    let mut call = scene.upstream.request().await;
    for _ in 0..2 {
        call.bytes().await;
        call.json("{}").await;
        let reply = scene.client.reply().await;
        assert_eq!(reply.head.get("x-abridge-edits"), Some("patch=1"));
        assert_eq!(reply.head.get("x-abridge-dry-run"), None);
        ids.push(reply.head.get("x-abridge-request-id").unwrap().to_owned());
        scene.client.send(chat(DANGLING)).await;
        call = call.next().await;
    }
    assert_ne!(ids[0], ids[1]);
    call.bytes().await;
    call.json("{}").await;
    scene.client.reply().await;

    for request in [chat(PLAIN), request("GET", "/v1/models", &[])] {
        scene.client.send(request).await;
        call = call.next().await;
        call.bytes().await;
        call.json("{}").await;
        let reply = scene.client.reply().await;
        assert!(reply.head.names().iter().all(|name| !name.starts_with("x-abridge")), "{:?}", reply.head);
    }
}

#[tokio::test]
async fn a_refusal_by_the_upstream_of_an_edited_request_comes_back_as_it_was() {
    let mut scene = Scene::new().await;
    let mut call = scene.ask(chat(DANGLING)).await;
    call.answer("400 Bad Request", &["content-type: application/json"], "{\"error\" : {}}").await;
    let reply = scene.client.reply().await;
    assert_eq!((reply.head.status(), &*reply.body), (400, &b"{\"error\" : {}}"[..]));
    assert_eq!(reply.head.get("x-abridge-error"), None);
}

#[tokio::test]
async fn one_request_can_switch_the_edits_off() {
    let mut scene = Scene::new().await;
    scene.client.send(post(CHAT, &["X-Abridge: off"], DANGLING)).await;
    let mut call = scene.upstream.request().await;
    assert_eq!(call.head.get("x-abridge"), None);
    assert_eq!(call.bytes().await, DANGLING);
    call.json("{}").await;
    let reply = scene.client.reply().await;
    assert!(reply.head.names().iter().all(|name| !name.starts_with("x-abridge")), "{:?}", reply.head);
}

#[tokio::test]
async fn the_dry_run_header_reports_the_edits_of_one_request() {
    let mut scene = Scene::new().await;
    scene.client.send(post(CHAT, &["x-abridge: dry-run"], DANGLING)).await;
    let mut call = scene.upstream.request().await;
    assert_eq!(call.head.get("x-abridge"), None);
    assert_eq!(call.bytes().await, DANGLING);
    call.json("{}").await;
    let reply = scene.client.reply().await;
    assert_eq!(reply.head.get("x-abridge-edits"), Some("patch=1"));
    assert_eq!(reply.head.get("x-abridge-dry-run"), Some("true"));
}

#[tokio::test]
async fn the_dry_run_setting_reports_the_edits_of_all_requests() {
    let mut scene = Scene::with("dry_run = true").await;
    scene.client.send(chat(DANGLING)).await;
    let mut call = scene.upstream.request().await;
    assert_eq!(call.bytes().await, DANGLING);
    call.json("{}").await;
    assert_eq!(scene.client.reply().await.head.get("x-abridge-dry-run"), Some("true"));
}

#[tokio::test]
async fn the_control_header_is_not_forwarded_on_other_paths() {
    let mut scene = Scene::new().await;
    scene.client.send(request("GET", "/v1/models", &["x-abridge: off", "x-a: 1"])).await;
    let call = scene.upstream.request().await;
    assert_eq!((call.head.get("x-abridge"), call.head.get("x-a")), (None, Some("1")));
}

#[tokio::test]
async fn only_posts_to_paths_of_dialects_are_edited() {
    let mut scene = Scene::new().await;
    let untouched = [
        ("POST", "/v1/responses/compact"),
        ("POST", "/v1/chat/completions/x"),
        ("POST", "/v1/embeddings"),
        ("PUT", CHAT),
    ];
    for (method, target) in untouched {
        let length = format!("content-length: {}", DANGLING.len());
        scene.client.send(request(method, target, &[&length])).await;
        scene.client.send(DANGLING).await;
        let mut call = scene.upstream.request().await;
        assert_eq!(call.bytes().await, DANGLING, "{method} {target}");
        call.answer("200 OK", &["connection: close"], "").await;
        scene.client.reply().await;
    }
    for target in ["/chat/completions", "/api/v1/chat/completions?x=1", "/openai/deployments/d/chat/completions"] {
        scene.client.send(post(target, &[], DANGLING)).await;
        let mut call = scene.upstream.request().await;
        assert_patched(&call.bytes().await);
        call.answer("200 OK", &["connection: close"], "").await;
        scene.client.reply().await;
    }
}

#[tokio::test]
async fn an_encoded_body_with_nothing_to_edit_arrives_as_it_was_encoded() {
    let mut scene = Scene::new().await;
    for (encoding, encode) in ENCODINGS {
        let encoded = encode(PLAIN.as_bytes());
        let field = format!("content-encoding: {encoding}");
        scene.client.send(post(CHAT, &[&field], &encoded)).await;
        let mut call = scene.upstream.request().await;
        assert_eq!(call.head.get("content-encoding"), Some(encoding));
        assert_eq!(call.bytes().await, encoded, "{encoding}");
        call.answer("200 OK", &["connection: close"], "").await;
        scene.client.reply().await;
    }
}

#[tokio::test]
async fn an_encoded_body_that_is_edited_arrives_decoded() {
    let mut scene = Scene::new().await;
    for (encoding, encode) in ENCODINGS {
        let field = format!("content-encoding: {encoding}");
        scene.client.send(post(CHAT, &[&field], encode(DANGLING.as_bytes()))).await;
        let mut call = scene.upstream.request().await;
        assert_eq!(call.head.get("content-encoding"), None, "{encoding}");
        assert_patched(&call.bytes().await);
        call.answer("200 OK", &["connection: close"], "").await;
        assert_eq!(scene.client.reply().await.head.get("x-abridge-edits"), Some("patch=1"));
    }
}

#[tokio::test]
async fn a_body_that_is_not_what_its_encoding_says_arrives_as_it_was() {
    let mut scene = Scene::new().await;
    let cut = &gzip(DANGLING.as_bytes())[..40];
    let bodies = [("gzip", DANGLING.as_bytes()), ("zstd", DANGLING.as_bytes()), ("br", b"\xff\xff\xff"), ("gzip", cut)];
    for (encoding, body) in bodies.into_iter().chain([("x-own", DANGLING.as_bytes())]) {
        let field = format!("content-encoding: {encoding}");
        scene.client.send(post(CHAT, &[&field], body)).await;
        let mut call = scene.upstream.request().await;
        assert_eq!(call.head.get("content-encoding"), Some(encoding));
        assert_eq!(call.bytes().await, body, "{encoding}");
        call.answer("200 OK", &["connection: close"], "").await;
        assert_eq!(scene.client.reply().await.head.status(), 200);
    }
}

#[tokio::test]
async fn a_body_that_decodes_to_more_than_the_limit_is_refused() {
    let mut scene = Scene::with("server.max_body = \"64KiB\"").await;
    for (encoding, encode) in ENCODINGS {
        if encoding == "br" {
            continue; // our encoder for the test does not compress
        }
        let bomb = encode(&vec![b' '; 16 << 20]);
        assert!(bomb.len() < 64 << 10, "{encoding}: {}", bomb.len());
        let mut client = scene.abridge.connect().await;
        client.send(post(CHAT, &[&format!("content-encoding: {encoding}")], bomb)).await;
        let reply = client.reply().await;
        assert_eq!(reply.head.status(), 413, "{encoding}");
        assert_eq!(reply.head.get("x-abridge-error"), Some("body_too_large"));
    }
    scene.upstream.no_more();
}

#[tokio::test]
async fn the_language_of_what_is_written_can_be_chosen() {
    let mut scene = Scene::with("language = \"zh\"").await;
    scene.client.send(chat(DANGLING)).await;
    let body = scene.upstream.request().await.bytes().await;
    let body = String::from_utf8(body.to_vec()).unwrap();
    assert!(body.contains("call_b") && !body.contains("has no result"), "{body}");
}

#[tokio::test]
async fn abridges_own_key_replaces_the_clients() {
    let mut upstream = Upstream::start().await;
    let setup = Setup::before(&upstream).with("upstream.api_key_env = \"GATEWAY_KEY\"");
    let abridge = setup.environment("GATEWAY_KEY", "sk-ours").start().await;
    for fields in [&["authorization: Bearer sk-theirs"][..], &[]] {
        let mut client = abridge.connect().await;
        client.send(post(CHAT, fields, PLAIN)).await;
        assert_eq!(upstream.request().await.head.get("authorization"), Some("Bearer sk-ours"));
    }
}

#[tokio::test]
async fn headers_of_the_configuration_replace_the_clients() {
    let mut scene = Scene::with("upstream.headers = { X-Gateway = \"g\", x-two = \"ours\" }").await;
    scene.client.send(request("GET", "/v1/models", &["x-two: a", "x-two: b", "x-three: c"])).await;
    let call = scene.upstream.request().await;
    assert_eq!(call.head.get("x-gateway"), Some("g"));
    assert_eq!(call.head.get("x-two"), Some("ours"));
    assert_eq!(call.head.get("x-three"), Some("c"));
}

#[tokio::test]
async fn each_edited_request_is_logged_in_one_line_with_the_streamed_usage() {
    let mut scene = Scene::with("log.format = \"json\"").await;
    let from = scene.abridge.stderr().len();
    let mut call = scene.ask(chat(DANGLING)).await;
    call.begin_stream().await;
    call.send_chunk("data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n").await;
    call.send_chunk(
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1201,\"completion_tokens\":34,\
         \"prompt_tokens_details\":{\"cached_tokens\":1024}}}\n\ndata: [DONE]\n\n",
    )
    .await;
    call.end_stream().await;
    let reply = scene.client.reply().await;
    let id = reply.head.get("x-abridge-request-id").unwrap();

    let line = scene.abridge.says(id, from).await;
    for part in ["\"model\":\"m\"", "patch", "200", "tool_calls", "1201", "1024", "34"] {
        assert!(line.contains(part), "{part} is missing: {line}");
    }
}

#[tokio::test]
async fn the_answer_to_an_edited_request_is_not_touched() {
    let mut scene = Scene::new().await;
    let mut call = scene.ask(chat(DANGLING)).await;
    call.send(head("200 OK", &["content-type: text/event-stream", "transfer-encoding: chunked", "x-a: 1"])).await;
    call.send_chunk("data: 1\n\n").await;
    call.end_stream().await;
    let reply = scene.client.reply().await;
    assert_eq!(reply.body, "data: 1\n\n");
    let mut names: Vec<_> = reply.head.names().into_iter().filter(|name| !name.starts_with("x-abridge-")).collect();
    names.sort_unstable();
    assert_eq!(names, ["content-type", "transfer-encoding", "x-a"]);
}

// === encodings ===

pub(crate) type Encode = fn(&[u8]) -> Vec<u8>;

pub(crate) const ENCODINGS: [(&str, Encode); 4] =
    [("gzip", gzip), ("deflate", deflate), ("br", brotli), ("zstd", zstandard)];

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstandard(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

/// Brotli without compression: a window of 64 KiB, one stored block, and the empty last block.
fn brotli(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len() - 1).unwrap();
    assert!(length < 1 << 16);
    let header = (1_u32 << 20 | length << 4).to_le_bytes();
    [&header[..3], bytes, &[3]].concat()
}
