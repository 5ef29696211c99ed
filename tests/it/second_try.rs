//! A second try of what the upstream has refused: shorter, or as the client wrote it; and what comes back if that helps
//! nobody.

use std::fmt::Write as _;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;

use crate::edits::ENCODINGS;
use crate::support::bodies::{DANGLING, PLAIN, assert_patched};
use crate::support::offloads::with_results;
use crate::support::upstream::head;
use crate::support::wire::Reply;
use crate::support::{Exchange, Scene, chat, post, request};

const CHAT: &str = "/v1/chat/completions";
const ON: &str = "second_try.enabled = true";
const BAD: &str = "400 Bad Request";

const LLAMA: &str = r#"{"error":{"code":400,"message":"request (12024 tokens) exceeds the available context size (8192 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":12024,"n_ctx":8192}}"#;
const ROLES: &str = r#"{"error":{"message":"Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.","type":"invalid_request_error","param":"messages.[3].role","code":null}}"#;

/// How servers say that a conversation is too long. Where each was seen, its unit test says.
const OVERFLOWS: [(&str, &str, &str); 12] = [
    (
        "OpenAI",
        BAD,
        r#"{"error":{"message":"This model's maximum context length is 8192 tokens. However, your messages resulted in 8227 tokens. Please reduce the length of the messages.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
    ),
    (
        "Azure",
        BAD,
        r#"{"error":{"message":"Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 509178 tokens. Please reduce the length of the messages.","code":"context_length_exceeded"}}"#,
    ),
    (
        "vLLM",
        BAD,
        r#"{"object":"error","message":"This model's maximum context length is 6048 tokens. However, you requested 7616 tokens (6568 in the messages, 1048 in the completion). Please reduce the length of the messages or completion.","type":"BadRequestError","param":null,"code":400}"#,
    ),
    ("llama.cpp", BAD, LLAMA),
    (
        "OpenRouter",
        BAD,
        r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"object\":\"error\",\"message\":\"This model's maximum context length is 16000 tokens. However, you requested 17165 tokens (13069 in the messages, 4096 in the completion).\",\"code\":400}","provider_name":"DeepInfra"}}}"#,
    ),
    (
        "Anthropic",
        BAD,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 213462 tokens > 200000 maximum"}}"#,
    ),
    (
        "Ollama",
        BAD,
        r#"{"error":{"message":"prompt too long; exceeded max context length by 1200 tokens","type":"api_error","param":null,"code":null}}"#,
    ),
    (
        "Gemini",
        BAD,
        r#"[{"error":{"code":400,"message":"The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}]"#,
    ),
    ("nginx", "413 Request Entity Too Large", "<html><h1>413 Request Entity Too Large</h1></html>"),
    (
        "Anthropic, of the body",
        "413 Payload Too Large",
        r#"{"error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}"#,
    ),
    (
        "Anthropic, of images",
        BAD,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.88.content.1.image.source.base64.data: At least one of the image dimensions exceed max allowed size for many-image requests: 2000 pixels"}}"#,
    ),
    (
        "GitHub Models",
        "413 Payload Too Large",
        r#"{"error":{"code":"tokens_limit_reached","message":"Request body too large for gpt-4o model. Max size: 8000 tokens.","details":"Request body too large for gpt-4o model. Max size: 8000 tokens."}}"#,
    ),
];

/// A text that no edit touches at the default settings, and that is worth clearing.
fn text(n: usize) -> String {
    let mut text = String::new();
    for line in 0..150 {
        writeln!(text, "{n}: what line {line} of the output says").unwrap();
    }
    text
}

/// A conversation with so many results, the last of which the model has not read.
fn long(n: usize) -> String {
    with_results(&(0..n).map(text).collect::<Vec<_>>())
}

fn streamed(body: &str) -> String {
    body.replacen('{', "{\"stream\":true,", 1)
}

/// Answers, and closes the connection, so that a second try comes on one of its own.
async fn refuse(call: &mut Exchange, status: &str, body: impl AsRef<[u8]>) {
    call.answer(status, &["content-type: application/json", "connection: close"], body).await;
}

async fn second(scene: &mut Scene) -> (Exchange, Bytes) {
    let mut call = scene.upstream.request().await;
    let body = call.bytes().await;
    (call, body)
}

/// Sees to it that all results of `long(n)` are cleared but the last one.
fn assert_cleared(body: &[u8], n: usize) {
    let body = std::str::from_utf8(body).unwrap();
    assert_eq!(body.matches("[Cleared: ").count(), n - 1, "{body}");
    for seed in 0..n {
        let text = serde_json::to_string(&text(seed)).unwrap();
        assert_eq!(body.contains(&text), seed == n - 1, "{seed}: {body}");
    }
}

fn assert_nothing_of_ours(reply: &Reply) {
    assert!(reply.head.names().iter().all(|name| !name.starts_with("x-abridge")), "{:?}", reply.head);
}

// === too long ===

#[tokio::test]
async fn too_many_images_of_the_user_are_sent_once_more_as_texts_but_for_the_newest() {
    let image = |n: u8| STANDARD.encode([&b"\x89PNG\r\n\x1a\n"[..], &[n; 3000]].concat());
    let asks = |n: u8| {
        format!(
            r#"{{"role":"user","content":[{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{}"}}}},{{"type":"text","text":"And here?"}}]}}"#,
            image(n)
        )
    };
    let answer = r#"{"role":"assistant","content":"A cat."}"#;
    let rounds: Vec<_> = (0..21).flat_map(|n| [asks(n), answer.to_owned()]).chain([asks(21)]).collect();
    let body = format!(r#"{{"model":"claude-sonnet-4-5","max_tokens":99,"messages":[{}]}}"#, rounds.join(","));
    let mut scene = Scene::with("second_try.enabled = true\nrecall.via = \"http\"").await;
    let (_, status, refusal) = OVERFLOWS[10];
    let mut call = scene.ask(post("/v1/messages", &["content-type: application/json"], &body)).await;
    refuse(&mut call, status, refusal).await;
    let (mut call, shorter) = second(&mut scene).await;
    let sent = std::str::from_utf8(&shorter).unwrap();
    assert_eq!(sent.matches("[Cleared: image/png of 3008 bytes. Read it with GET ").count(), 21, "{sent}");
    assert!(sent.contains(&image(21)) && !sent.contains(&image(20)), "the newest stays");
    call.json("{\"ok\":1}").await;
    assert_eq!(scene.client.reply().await.head.get("x-abridge-rescue"), Some("overflow"));
    let (_, behind) = sent.split_once("/abridge/recall/").unwrap();
    let (handle, _) = behind.split_at(26);
    scene.client.send(request("GET", &format!("/abridge/recall/{handle}"), &[])).await;
    let read = scene.client.reply().await;
    assert_eq!((read.head.status(), read.body.len()), (200, 3008));
}

#[tokio::test]
async fn an_upstream_that_takes_few_images_gets_no_more_from_then_on() {
    let round = |n: usize| {
        let data = STANDARD.encode(format!("\u{89}PNG {n:05}").repeat(30));
        format!(
            r#"{{"role":"assistant","content":[{{"type":"tool_use","id":"t{n}","name":"shoot","input":{{}}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"t{n}","content":[{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{data}"}}}}]}}]}}"#
        )
    };
    let body = |task: &str, n: usize| {
        let rounds: Vec<_> = (0..n).map(round).collect();
        let rounds = rounds.join(",");
        format!(
            r#"{{"model":"claude-sonnet-4-5","max_tokens":99,"messages":[{{"role":"user","content":"{task}"}},{rounds}]}}"#
        )
    };
    let n_images = |body: &[u8]| memchr::memmem::find_iter(body, b"\"type\":\"image\"").count();
    let refusal = r#"{"type":"error","error":{"type":"invalid_request_error","message":"Too much media: 0 document pages + 101 images > 100"}}"#;
    let mut scene = Scene::with("recall.via = \"http\"").await;
    scene.client.send(post("/v1/messages", &[], body("Go.", 101))).await;
    let (mut call, first) = second(&mut scene).await;
    assert_eq!(n_images(&first), 101);
    refuse(&mut call, BAD, refusal).await;
    let (mut call, shorter) = second(&mut scene).await;
    assert!(n_images(&shorter) < 100);
    call.answer("200 OK", &["connection: close"], "{}").await;
    assert_eq!(scene.client.reply().await.head.get("x-abridge-rescue"), Some("overflow"));

    // The cleared images stay cleared; another conversation keeps as many as the form allows.
    for (task, n, left) in [("Go.", 101, 1), ("Look.", 101, 50), ("Look.", 102, 51)] {
        let mut client = scene.abridge.connect().await;
        client.send(post("/v1/messages", &[], body(task, n))).await;
        let (mut call, first) = second(&mut scene).await;
        assert_eq!(n_images(&first), left, "{task} {n}");
        call.answer("200 OK", &["connection: close"], "{}").await;
        let reply = client.reply().await;
        assert_eq!((reply.head.status(), reply.head.get("x-abridge-rescue")), (200, None));
    }
    scene.upstream.no_more();
}

#[tokio::test]
async fn a_request_that_is_too_long_is_cleared_and_sent_once_more() {
    for (server, status, refusal) in OVERFLOWS {
        let mut scene = Scene::with(ON).await;
        let body = long(3);
        let mut call = scene.ask(chat(&body)).await;
        refuse(&mut call, status, refusal).await;
        let (mut call, shorter) = second(&mut scene).await;
        assert_cleared(&shorter, 3);
        assert_eq!(call.head.get("content-length"), Some(&*shorter.len().to_string()), "{server}");
        call.json("{\"ok\":1}").await;
        let reply = scene.client.reply().await;
        assert_eq!((reply.head.status(), &*reply.body), (200, &b"{\"ok\":1}"[..]), "{server}");
        assert_eq!(reply.head.get("x-abridge-edits"), Some("clear=2"), "{server}");
        assert_eq!(reply.head.get("x-abridge-rescue"), Some("overflow"), "{server}");
        scene.upstream.no_more();
        scene.abridge.says("rescue=overflow", 0).await;
    }
}

#[tokio::test]
async fn a_streamed_answer_to_the_second_try_is_streamed() {
    let mut scene = Scene::with(ON).await;
    let mut call = scene.ask(chat(streamed(&long(3)))).await;
    refuse(&mut call, BAD, LLAMA).await;
    let (mut call, shorter) = second(&mut scene).await;
    assert_cleared(&shorter, 3);
    call.begin_stream().await;
    call.send_chunk("data: 1\n\n").await;
    let head = scene.client.head().await;
    assert_eq!((head.status(), head.get("x-abridge-rescue")), (200, Some("overflow")));
    assert_eq!(scene.client.chunk().await.unwrap(), "data: 1\n\n");
    call.send_chunk("data: [DONE]\n\n").await;
    assert_eq!(scene.client.chunk().await.unwrap(), "data: [DONE]\n\n");
    call.end_stream().await;
}

#[tokio::test]
async fn a_refusal_may_be_encoded() {
    for (encoding, encode) in ENCODINGS {
        let mut scene = Scene::with(ON).await;
        let mut call = scene.ask(chat(long(3))).await;
        let field = format!("content-encoding: {encoding}");
        call.answer(BAD, &[&field, "connection: close"], encode(LLAMA.as_bytes())).await;
        let (mut call, shorter) = second(&mut scene).await;
        assert_cleared(&shorter, 3);
        call.json("{}").await;
        assert_eq!(scene.client.reply().await.head.status(), 200, "{encoding}");
    }
}

#[tokio::test]
async fn the_window_that_a_refusal_names_is_remembered() {
    let mut scene = Scene::with("second_try.enabled = true\ntokens.ask_upstream = false").await;
    let body = long(6).replace("gpt-4o", "nobody-knows");
    let mut call = scene.ask(chat(&body)).await;
    refuse(&mut call, BAD, LLAMA).await;
    let (mut call, shorter) = second(&mut scene).await;
    assert_cleared(&shorter, 6);
    call.answer("200 OK", &["connection: close"], "{}").await;
    scene.client.reply().await;

    // Half of that window is what clearing begins at, for another caller; in this conversation, all five that were cleared stay so.
    let other = "authorization: Bearer other";
    for (request, edits) in [(post(CHAT, &[other], &body), "clear=3"), (chat(&body), "clear=5")] {
        let mut call = scene.ask(request).await;
        call.json("{}").await;
        let reply = scene.client.reply().await;
        assert_eq!(reply.head.get("x-abridge-edits"), Some(edits));
        assert_eq!(reply.head.get("x-abridge-rescue"), None);
    }
}

#[tokio::test]
async fn a_request_that_is_still_too_long_is_summarised() {
    let mut scene = Scene::with(ON).await;
    let mut call = scene.ask(chat(long(6))).await;
    let tiny = r#"{"error":{"code":400,"message":"request (12024 tokens) exceeds the available context size (1300 tokens)","type":"exceed_context_size_error"}}"#;
    refuse(&mut call, BAD, tiny).await;

    let (mut call, asked) = second(&mut scene).await;
    let asked = String::from_utf8(asked.to_vec()).unwrap();
    assert!(asked.contains("\"tool_choice\":\"none\""), "{asked}");
    let summary = r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"<summary>They read files.</summary>"},"finish_reason":"stop"}]}"#;
    call.answer("200 OK", &["content-type: application/json", "connection: close"], summary).await;

    let (mut call, shorter) = second(&mut scene).await;
    let shorter = String::from_utf8(shorter.to_vec()).unwrap();
    assert!(shorter.contains("They read files."), "{shorter}");
    // What was not read is cut to a part of the window that was named.
    assert!(
        shorter.contains("5: what line 0 of the output says") && shorter.contains("bytes left out here"),
        "{shorter}"
    );
    call.json("{}").await;
    let reply = scene.client.reply().await;
    assert_eq!((reply.head.status(), reply.head.get("x-abridge-rescue")), (200, Some("overflow")));
    assert!(reply.head.get("x-abridge-edits").unwrap().contains("summary=1"), "{:?}", reply.head);
}

// === what does not help ===

#[tokio::test]
async fn where_the_second_try_is_off_a_refusal_comes_back() {
    for (lines, body, refusal) in [
        ("second_try.enabled = false", long(3), LLAMA),
        ("second_try.enabled = false", DANGLING.to_owned(), ROLES),
        ("second_try.enabled = true\ndry_run = true", long(3), LLAMA),
    ] {
        let mut scene = Scene::with(lines).await;
        let mut call = scene.ask(chat(&body)).await;
        refuse(&mut call, BAD, refusal).await;
        let reply = scene.client.reply().await;
        assert_eq!((reply.head.status(), &*reply.body), (400, refusal.as_bytes()), "{lines}");
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn refusals_for_another_reason_come_back_byte_by_byte() {
    let huge = format!("{{\"error\":{{\"code\":\"context_length_exceeded\",\"message\":\"{}\"}}}}", "x".repeat(70_000));
    let gzipped = ENCODINGS[0].1(b"{\"error\":{\"message\":\"no such model\"}}");
    let refusals: [(&str, &[&str], &[u8]); 5] = [
        (
            BAD,
            &["content-type: application/json"],
            b"{\"error\" : {\"message\":\"temperature\", \"param\":\"temperature\"}}",
        ),
        (BAD, &["Content-Encoding: gzip", "X-Odd:  1"], &gzipped),
        (BAD, &["content-encoding: gzip"], b"not that"),
        (BAD, &["content-encoding: x-own"], LLAMA.as_bytes()),
        (BAD, &[], huge.as_bytes()),
    ];
    for (status, fields, body) in refusals {
        let mut scene = Scene::with(ON).await;
        let mut call = scene.ask(chat(long(3))).await;
        call.answer(status, fields, body).await;
        let reply = scene.client.reply().await;
        assert!(status.starts_with(&reply.head.status().to_string()), "{status}");
        assert_eq!(&*reply.body, body);
        let field =
            |field: &&str| field.split_once(':').map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()));
        for (name, value) in fields.iter().filter_map(field) {
            assert!(reply.head.fields.contains(&(name.clone(), value)), "{name}: {:?}", reply.head);
        }
        assert_nothing_of_ours(&reply);
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn a_chunked_refusal_that_cannot_be_rescued_comes_back_with_its_trailers() {
    let mut scene = Scene::with(ON).await;
    let mut call = scene.ask(post(CHAT, &["te: trailers"], PLAIN)).await;
    call.send(head(BAD, &["transfer-encoding: chunked", "trailer: x-sum"])).await;
    let (one, two) = LLAMA.split_at(40);
    call.send_chunk(one).await;
    call.send_chunk(two).await;
    call.send("0\r\nx-sum: 7\r\n\r\n").await;
    let reply = scene.client.reply().await;
    assert_eq!((reply.head.status(), &*reply.body), (400, LLAMA.as_bytes()));
    assert_eq!(reply.trailers, [("x-sum".to_owned(), "7".to_owned())]);
    assert_nothing_of_ours(&reply);
    scene.upstream.no_more();
}

#[tokio::test]
async fn a_refusal_that_breaks_off_breaks_off_at_the_client() {
    let mut scene = Scene::with(ON).await;
    let (beginning, _) = LLAMA.split_at(50);
    let mut call = scene.ask(chat(long(3))).await;
    call.send(head(BAD, &["content-length: 1000"])).await;
    call.send(beginning).await;
    drop(call);
    let reply = scene.client.head().await;
    assert_eq!(reply.status(), 400);
    let (rest, _) = scene.client.rest().await;
    assert_eq!(rest, beginning);
    scene.upstream.no_more();
}

#[tokio::test]
async fn a_second_try_that_fails_brings_the_first_answer_back_and_no_third() {
    for status in [BAD, "500 Internal Server Error", "429 Too Many Requests", ""] {
        let mut scene = Scene::with(ON).await;
        let mut call = scene.ask(chat(long(3))).await;
        refuse(&mut call, BAD, LLAMA).await;
        let (mut call, shorter) = second(&mut scene).await;
        assert_cleared(&shorter, 3);
        if !status.is_empty() {
            refuse(&mut call, status, LLAMA.replace("12024", "9000")).await;
        }
        drop(call);
        let reply = scene.client.reply().await;
        assert_eq!((reply.head.status(), &*reply.body), (400, LLAMA.as_bytes()), "{status}");
        assert_nothing_of_ours(&reply);
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn a_client_that_goes_between_cancels_the_second_try() {
    let mut scene = Scene::with(ON).await;
    let mut call = scene.ask(chat(long(3))).await;
    refuse(&mut call, BAD, LLAMA).await;
    let (mut call, _) = second(&mut scene).await;
    drop(scene.client);
    call.gone().await;
}

#[tokio::test]
async fn where_memory_is_scarce_no_body_is_held_for_a_second_try() {
    let mut scene = Scene::with("server.max_body = \"32KiB\"\nserver.max_buffered = \"32KiB\"").await;
    let body = long(4);
    assert!((16 << 10..32 << 10).contains(&body.len()), "{}", body.len());
    let mut first = scene.ask(chat(&body)).await;
    let mut other = scene.abridge.connect().await;
    other.send(chat(&body)).await;
    let mut call = scene.upstream.request().await;
    call.bytes().await;
    refuse(&mut call, BAD, LLAMA).await;
    assert_eq!(other.reply().await.head.status(), 400);
    first.json("{}").await;
    assert_eq!(scene.client.reply().await.head.status(), 200);
}

// === the original ===

/// [`DANGLING`], and what was said next.
fn longer(body: &str) -> String {
    body.replace(
        "], \"temperature\"",
        ",{\"role\":\"assistant\",\"content\":\"so\"},{\"role\":\"user\",\"content\":\"next\"}], \"temperature\"",
    )
}

#[tokio::test]
async fn after_a_refused_edit_the_original_is_sent_and_later_requests_are_not_edited() {
    let mut scene = Scene::with(ON).await;
    let mut call = scene.ask(chat(DANGLING)).await;
    refuse(&mut call, BAD, ROLES).await;
    let (mut call, body) = second(&mut scene).await;
    assert_eq!(body, DANGLING);
    call.answer("200 OK", &["connection: close"], "{\"ok\":1}").await;
    let reply = scene.client.reply().await;
    assert_eq!((reply.head.status(), &*reply.body), (200, &b"{\"ok\":1}"[..]));
    assert_eq!(reply.head.get("x-abridge-rescue"), Some("original"));
    assert_eq!(reply.head.get("x-abridge-edits"), None);
    scene.abridge.says("rescue=original", 0).await;

    let next = longer(DANGLING);
    for (body, edited) in [(&*next, false), (DANGLING, false), (&*next.replace("\"go\"", "\"run\""), true)] {
        let mut client = scene.abridge.connect().await;
        client.send(chat(body)).await;
        let (mut call, sent) = second(&mut scene).await;
        assert_eq!(sent != body, edited, "{body}");
        call.answer("200 OK", &["connection: close"], "{}").await;
        assert_eq!(client.reply().await.head.get("x-abridge-edits").is_some(), edited);
    }
    // Another caller's conversation is not this one.
    let mut client = scene.abridge.connect().await;
    client.send(post(CHAT, &["authorization: Bearer other"], DANGLING)).await;
    assert_patched(&second(&mut scene).await.1);
}

#[tokio::test]
async fn an_encoded_original_is_sent_as_it_was_encoded() {
    let mut scene = Scene::with(ON).await;
    let (encoding, encode) = ENCODINGS[0];
    let encoded = encode(DANGLING.as_bytes());
    let field = format!("content-encoding: {encoding}");
    let mut call = scene.ask(post(CHAT, &[&field, "x-mine: 1"], &encoded)).await;
    assert_eq!(call.head.get("content-encoding"), None);
    refuse(&mut call, BAD, ROLES).await;
    let (mut call, body) = second(&mut scene).await;
    assert_eq!(body, encoded);
    assert_eq!((call.head.get("content-encoding"), call.head.get("x-mine")), (Some(encoding), Some("1")));
    call.json("{}").await;
    assert_eq!(scene.client.reply().await.head.status(), 200);
}

#[tokio::test]
async fn an_original_that_fails_brings_its_own_answer_back_and_is_not_remembered() {
    let mut scene = Scene::with(ON).await;
    let mut call = scene.ask(chat(DANGLING)).await;
    refuse(&mut call, BAD, ROLES).await;
    let (mut call, _) = second(&mut scene).await;
    refuse(&mut call, BAD, LLAMA).await;
    let reply = scene.client.reply().await;
    assert_eq!((reply.head.status(), &*reply.body), (400, LLAMA.as_bytes()));
    assert_eq!(reply.head.get("x-abridge-rescue"), Some("original"));
    scene.upstream.no_more();
    let mut client = scene.abridge.connect().await;
    client.send(chat(longer(DANGLING))).await;
    let body = second(&mut scene).await.1;
    assert_ne!(body, longer(DANGLING));
}

#[tokio::test]
async fn a_refusal_for_the_sequence_comes_back_where_the_original_would_not_help() {
    let mut scene = Scene::with(ON).await;
    let mut call = scene.ask(chat(PLAIN)).await;
    refuse(&mut call, BAD, ROLES).await;
    let reply = scene.client.reply().await;
    assert_eq!((reply.head.status(), &*reply.body), (400, ROLES.as_bytes()));
    assert_eq!(reply.head.get("x-abridge-rescue"), None);
    scene.upstream.no_more();
}
