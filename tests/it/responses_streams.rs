//! Refusals of OpenAI Responses that come with status 200: in the first events of a stream, or in an answer that has failed.

use std::time::{Duration, Instant};

use crate::edits::ENCODINGS;
use crate::hosts::billed;
use crate::responses::{assert_cleared, with_results};
use crate::support::wire::framed;
use crate::support::{Exchange, Scene, post};

const ON: &str = "second_try.enabled = true";
const PATH: &str = "/v1/responses";

const CREATED: &str = "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"status\":\"in_progress\"}}\n\n";
const IN_PROGRESS: &str =
    "event: response.in_progress\r\ndata: {\"type\":\"response.in_progress\",\"sequence_number\":1}\r\n\r\n";
const UNNAMED: &str = "data: {\"type\":\"response.created\"}\n\n: OPENROUTER PROCESSING\n\n";
const ADDED: &str = "event: response.output_item.added\ndata: {\"type\":\"response.output_item.added\",\"item\":{\"type\":\"message\"}}\n\n";
const COMPLETED: &str =
    "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\"}}\n\n";
const ERROR: &str = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"code\":\"context_length_exceeded\",\"message\":\"Your input exceeds the context window of this model.\"}}\n\n";
const UNNAMED_ERROR: &str = "data: {\"type\":\"error\",\"code\":\"context_length_exceeded\",\"message\":\"Your input exceeds the context window of this model.\"}\n\n";
const FAILED: &str = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"status\":\"failed\",\"error\":{\"code\":\"context_length_exceeded\",\"message\":\"Your input exceeds the context window of this model.\"}}}\n\n";
const OVERLOADED: &str = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"server_is_overloaded\",\"message\":\"Try later.\"}}}\n\n";

fn long(n: usize) -> String {
    with_results(n, "\"stream\":true,")
}

/// Answers with a whole stream, and closes the connection.
async fn stream(call: &mut Exchange, events: &[&str]) {
    call.answer("200 OK", &["content-type: text/event-stream", "connection: close"], events.concat()).await;
}

#[tokio::test]
async fn an_overflow_in_a_stream_is_rescued_as_a_400_is() {
    for events in [&[CREATED, IN_PROGRESS, ERROR, FAILED][..], &[CREATED, FAILED], &[UNNAMED, UNNAMED_ERROR], &[ERROR]]
    {
        let mut scene = Scene::with(ON).await;
        let mut call = scene.ask(post(PATH, &[], long(3))).await;
        stream(&mut call, events).await;
        let mut call = scene.upstream.request().await;
        assert_cleared(&call.bytes().await, 3);
        stream(&mut call, &[CREATED, ADDED, COMPLETED]).await;
        let reply = scene.client.reply().await;
        assert_eq!((reply.head.status(), &*reply.body), (200, [CREATED, ADDED, COMPLETED].concat().as_bytes()));
        assert_eq!(reply.head.get("x-abridge-rescue"), Some("overflow"));
        assert_eq!(reply.head.get("x-abridge-edits"), Some("clear=2"));
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn a_stream_without_a_type_is_read() {
    // The backend behind ChatGPT sends none (openclaw/openclaw#91662).
    let mut scene = Scene::with(ON).await;
    let mut call = scene.ask(post(PATH, &[], long(3))).await;
    call.answer("200 OK", &["connection: close"], [CREATED, FAILED].concat()).await;
    let mut call = scene.upstream.request().await;
    assert_cleared(&call.bytes().await, 3);
    let good = format!("{CREATED}{ADDED}{COMPLETED}")
        .replace("\"completed\"}", "\"completed\",\"usage\":{\"input_tokens\":70,\"output_tokens\":7}}");
    call.answer("200 OK", &["connection: close"], &good).await;
    let reply = scene.client.reply().await;
    assert_eq!((reply.head.get("x-abridge-rescue"), reply.head.get("content-type")), (Some("overflow"), None));
    assert_eq!(reply.body, good);
    assert_eq!(billed(&scene.abridge, 1, "gpt-4o").await, [70, 7]);
}

/// An answer that is not streamed and has failed for this reason. It repeats the instructions.
fn failed(code: &str, message: &str) -> String {
    let instructions = "be brief. ".repeat(20_000);
    format!(
        r#"{{"id":"resp_1","object":"response","status":"failed","error":{{"code":"{code}","message":"{message}"}},"instructions":"{instructions}","output":[],"usage":null}}"#
    )
}

#[tokio::test]
async fn an_overflow_in_an_answer_that_has_failed_is_rescued_as_a_400_is() {
    let body = failed("context_length_exceeded", "Your input exceeds the context window of this model.");
    let plain = "content-type: application/json; charset=utf-8";
    let coded = ENCODINGS[0].1(body.as_bytes());
    for (fields, body) in [(&[plain][..], body.as_bytes()), (&[plain, "content-encoding: gzip"], &coded)] {
        let mut scene = Scene::with(ON).await;
        let mut call = scene.ask(post(PATH, &[], with_results(3, ""))).await;
        call.answer("200 OK", &[fields, &["connection: close"]].concat(), body).await;
        let mut call = scene.upstream.request().await;
        assert_cleared(&call.bytes().await, 3);
        let good = r#"{"object":"response","status":"completed","output":[]}"#;
        call.json(good).await;
        let reply = scene.client.reply().await;
        assert_eq!((reply.head.status(), &*reply.body), (200, good.as_bytes()));
        assert_eq!(reply.head.get("x-abridge-rescue"), Some("overflow"));
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn other_answers_that_are_not_streamed_come_back_byte_by_byte() {
    let overflow = "Your input exceeds the context window of this model.";
    let long = failed("context_length_exceeded", overflow).replace("be brief", &"x".repeat(100));
    for body in [
        failed("server_is_overloaded", "Try later."),
        failed("context_length_exceeded", overflow).replace("\"failed\"", "\"incomplete\""),
        failed("context_length_exceeded", overflow).replace("\"failed\"", "\"completed\",\"x\":\"failed\""),
        long,
    ] {
        let mut scene = Scene::with(ON).await;
        let mut call = scene.ask(post(PATH, &[], with_results(3, ""))).await;
        call.json(&body).await;
        let reply = scene.client.reply().await;
        assert!(reply.head.status() == 200 && reply.body == body, "{}", body.len());
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn a_second_stream_that_fails_brings_the_first_one_back_and_no_third() {
    for second in [&[CREATED, ERROR][..], &[CREATED, OVERLOADED]] {
        let mut scene = Scene::with(ON).await;
        let mut call = scene.ask(post(PATH, &[], long(3))).await;
        stream(&mut call, &[CREATED, FAILED]).await;
        let mut call = scene.upstream.request().await;
        call.bytes().await;
        stream(&mut call, second).await;
        let reply = scene.client.reply().await;
        assert_eq!((reply.head.status(), &*reply.body), (200, [CREATED, FAILED].concat().as_bytes()));
        assert_eq!(reply.head.get("x-abridge-rescue"), None);
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn other_failures_and_other_streams_come_back_byte_by_byte() {
    let [plain, gzip] = ["content-type: text/event-stream", "content-encoding: gzip"];
    for (fields, events) in [
        (&[plain][..], &[CREATED, OVERLOADED][..]),
        (&[plain], &[CREATED, ADDED, FAILED]),
        (&[plain], &[CREATED]),
        (&[plain], &["no events at all"]),
        (&[plain], &["data: [DONE]\n\n"]),
        (&[plain, gzip], &[ERROR]),
        (&["content-type: application/json"], &[ERROR]),
    ] {
        let mut scene = Scene::with(ON).await;
        let mut call = scene.ask(post(PATH, &[], long(3))).await;
        call.answer("200 OK", fields, events.concat()).await;
        let reply = scene.client.reply().await;
        assert_eq!((reply.head.status(), &*reply.body), (200, events.concat().as_bytes()));
        assert!(reply.head.names().iter().all(|name| !name.starts_with("x-abridge")), "{:?}", reply.head);
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn where_the_second_try_is_off_the_first_event_is_not_held() {
    for (lines, target) in [
        ("second_try.enabled = false", PATH),
        ("second_try.enabled = true\ndry_run = true", PATH),
        (ON, "/v1/responses/compact"),
    ] {
        let mut scene = Scene::with(lines).await;
        let mut call = scene.ask(post(target, &[], long(3))).await;
        call.begin_stream().await;
        assert_eq!(scene.client.head().await.status(), 200);
        for event in [CREATED, ERROR] {
            call.send_chunk(event).await;
            assert_eq!(scene.client.chunk().await.unwrap(), event, "{lines} {target}");
        }
        call.end_stream().await;
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn a_good_stream_is_held_until_its_first_event_begins_and_no_longer() {
    let mut scene = Scene::with(ON).await;
    let mut call = scene.ask(post(PATH, &[], long(1))).await;
    call.begin_stream().await;
    call.send_chunk(CREATED).await;
    let (name, rest) = ADDED.split_at(ADDED.find("data").unwrap());
    call.send_chunk(name).await;
    assert_eq!(scene.client.head().await.status(), 200);
    assert_eq!(scene.client.chunk().await.unwrap(), CREATED);
    assert_eq!(scene.client.chunk().await.unwrap(), name);
    // From here on each chunk goes on before the next one exists.
    for chunk in [rest, FAILED] {
        call.send_chunk(chunk).await;
        assert_eq!(scene.client.chunk().await.unwrap(), chunk);
    }
    call.end_stream().await;
    assert_eq!(scene.client.chunk().await, None);
    scene.upstream.no_more();
}

#[tokio::test]
async fn what_is_held_is_limited_in_time() {
    let mut scene = Scene::with(ON).await;
    let mut call = scene.ask(post(PATH, &[], long(3))).await;
    call.begin_stream().await;
    call.send_chunk(CREATED).await;
    let began = Instant::now();
    assert_eq!(scene.client.head().await.status(), 200);
    assert!((4..30).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert_eq!(scene.client.chunk().await.unwrap(), CREATED);
    // It is too late for a rescue.
    call.send_chunk(ERROR).await;
    assert_eq!(scene.client.chunk().await.unwrap(), ERROR);
    scene.upstream.no_more();
}

#[tokio::test]
async fn what_is_held_is_limited_in_size() {
    let padded = |n: usize| CREATED.replacen("in_progress", &"x".repeat(n), 1);
    for events in [
        // One long event, many events, a line that does not end, and tiny chunks.
        vec![padded(600 << 10)],
        vec![padded(100 << 10); 6],
        vec!["data: ".to_owned(), "x".repeat(600 << 10)],
        vec![":\n".to_owned(); 6_000],
    ] {
        let mut scene = Scene::with(ON).await;
        let mut call = scene.ask(post(PATH, &[], long(3))).await;
        call.begin_stream().await;
        let began = Instant::now();
        call.send(events.iter().flat_map(framed).collect::<Vec<_>>()).await;
        assert_eq!(scene.client.head().await.status(), 200);
        assert!(began.elapsed() < Duration::from_secs(5), "not by time");
        call.send_chunk(ERROR).await;
        call.end_stream().await;
        let mut body = Vec::new();
        while let Some(chunk) = scene.client.chunk().await {
            body.extend_from_slice(&chunk);
        }
        assert_eq!(body, [&events.concat(), ERROR].concat().as_bytes());
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn a_client_that_goes_while_a_stream_is_held_cancels_it() {
    let mut scene = Scene::with(ON).await;
    let mut call = scene.ask(post(PATH, &[], long(3))).await;
    call.begin_stream().await;
    call.send_chunk(CREATED).await;
    drop(scene.client);
    call.gone().await;
}
