//! Answers as servers write them: calls that come in pieces, reasoning in entries, other types and encodings, and refusals
//! for a while.

use std::collections::BTreeSet;
use std::io::Write as _;

use serde_json::{Value, json};

use super::{DIALECTS, SETTINGS, added, answer, ask, ends_in_an_error, grep, handle, line, next, send};
use crate::support::bodies::DANGLING;
use crate::support::offloads::{long_text, with_results};
use crate::support::rounds::{Act, Api, TOOL};
use crate::support::{Scene, chat, post};

/// A stream of chunks with these choices.
fn chunks(choices: &[Value]) -> String {
    let chunk = |choice: &Value| json!({"id": "r1", "object": "chat.completion.chunk", "created": 1, "choices": [choice], "usage": null});
    let end = json!({"id": "r1", "created": 1, "choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101, "prompt_tokens_details": {"cached_tokens": 10}}});
    let events: Vec<_> = choices.iter().map(chunk).chain([end]).map(|event| format!("data: {event}\n\n")).collect();
    events.concat() + "data: [DONE]\n\n"
}

/// The chunks of one choice with these pieces of calls.
fn pieces(pieces: &[Value]) -> String {
    let delta = |calls: &Value| json!({"index": 0, "delta": {"tool_calls": [calls]}, "finish_reason": null});
    let begin = json!({"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": null});
    let end = json!({"index": 0, "delta": {}, "finish_reason": "tool_calls"});
    chunks(&[&[begin], &*pieces.iter().map(delta).collect::<Vec<_>>(), &[end]].concat())
}

#[tokio::test]
async fn calls_are_told_apart_however_a_server_cuts_and_numbers_them() {
    let mut scene = Scene::with(SETTINGS).await;
    let own = |handle: &str| json!({"handle": handle, "grep": "line 4711 "}).to_string();
    let piece = |index: u64, rest: Value| {
        let mut piece = json!({"index": index});
        piece.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        piece
    };
    let theirs = |index: u64, id: &str| {
        [
            piece(index, json!({"id": id, "type": "function", "function": {"name": "query", "arguments": ""}})),
            piece(index, json!({"function": {"arguments": "{\"a\":"}})),
            piece(index, json!({"function": {"arguments": "1}"}})),
        ]
    };
    for way in ["cut name", "late name", "one index", "no ids"] {
        let (mut call, first) = ask(&mut scene, Api::Chat, true).await;
        let arguments = own(&handle(&first));
        let id = if way == "no ids" { "" } else { "own1" };
        let mine = match way {
            "cut name" => vec![
                piece(0, json!({"id": id, "type": "function", "function": {"name": "abridge_"}})),
                piece(0, json!({"function": {"name": "recall", "arguments": ""}})),
                piece(0, json!({"function": {"arguments": arguments}})),
            ],
            "late name" => vec![
                piece(0, json!({"id": id, "type": "function", "function": {"arguments": ""}})),
                piece(0, json!({"function": {"arguments": arguments}})),
                piece(0, json!({"function": {"name": TOOL}})),
            ],
            _ => vec![
                piece(0, json!({"id": id, "type": "function", "function": {"name": TOOL, "arguments": ""}})),
                piece(0, json!({"function": {"arguments": arguments}})),
            ],
        };
        let fields = ["content-type: text/event-stream", "connection: close"];
        let alone = pieces(&mine);
        call.answer("200 OK", &fields, &alone).await;
        let (mut call, second) = next(&mut scene).await;
        let round = added(&first, &second);
        let read = serde_json::to_string(&line()).unwrap();
        assert!(round.contains(read.trim_matches('"')), "{way}: {round}");
        let sent: Value = serde_json::from_str(&second).unwrap();
        let (calls, results) = Api::Chat.calls_and_results(&sent);
        assert!(calls == results && calls.iter().all(|id| !id.is_empty()), "{way}: {calls:?} {results:?}");

        let theirs = theirs(u64::from(way != "one index"), if way == "no ids" { "" } else { "x" });
        call.answer("200 OK", &fields, pieces(&[mine, theirs.to_vec()].concat())).await;
        let reply = scene.client.reply().await;
        let body = String::from_utf8_lossy(&reply.body).into_owned();
        let (said, calls, _) = Api::Chat.read(body.as_bytes(), true);
        let expected = if way == "no ids" { ":{\"a\":1}" } else { "x:{\"a\":1}" };
        assert_eq!((said.len(), calls), (0, vec![expected.to_owned()]), "{way}: {body}");
        assert!(!body.contains(TOOL) && !body.contains("recall\""), "{way}: {body}");
        scene.upstream.no_more();
    }
    // A name that only begins like that of the tool is the client's, to the byte.
    for name in ["abridge", "abridge_recalls", ""] {
        let (mut call, _) = ask(&mut scene, Api::Chat, true).await;
        let (head, rest) = name.split_at(name.len().min(4));
        let stream = pieces(&[
            piece(0, json!({"id": "x", "type": "function", "function": {"name": head, "arguments": ""}})),
            piece(0, json!({"function": {"name": rest}})),
            piece(0, json!({"function": {"arguments": "{}"}})),
        ]);
        call.answer("200 OK", &["content-type: text/event-stream", "connection: close"], &stream).await;
        assert_eq!(String::from_utf8_lossy(&scene.client.reply().await.body), stream, "{name}");
    }
}

#[tokio::test]
async fn pieces_of_reasoning_go_back_as_one_and_go_on_behind_those_of_the_round_before() {
    let mut scene = Scene::with(SETTINGS).await;
    let (mut call, first) = ask(&mut scene, Api::Chat, true).await;
    let reasoning =
        |details: Value| json!({"index": 0, "delta": {"reasoning_details": [details]}, "finish_reason": null});
    let text = |text: &str| reasoning(json!({"type": "reasoning.text", "index": 0, "text": text, "format": "f"}));
    let signed = reasoning(json!({"type": "reasoning.text", "index": 0, "text": null, "signature": "sig"}));
    let sealed = reasoning(json!({"type": "reasoning.encrypted", "index": 1, "data": "seal"}));
    let thinks = |text: &str, signature: Value| json!({"index": 0, "delta": {"thinking_blocks": [{"type": "thinking", "thinking": text, "signature": signature}]}, "finish_reason": null});
    let arguments = json!({"handle": handle(&first), "grep": "line 4711 "}).to_string();
    let own = json!({"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "own1", "type": "function", "function": {"name": TOOL, "arguments": arguments}}]}, "finish_reason": "tool_calls"});
    let begin = json!({"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": null});
    let stream = chunks(&[
        begin.clone(),
        text("The "),
        text("line"),
        signed,
        sealed,
        thinks("The ", Value::Null),
        thinks("line", Value::Null),
        thinks("", "sig".into()),
        own,
    ]);
    let fields = ["content-type: text/event-stream", "connection: close"];
    call.answer("200 OK", &fields, stream).await;
    let (mut call, second) = next(&mut scene).await;
    let sent: Value = serde_json::from_str(&second).unwrap();
    let turn = sent["messages"].as_array().unwrap().iter().rfind(|message| message["role"] == "assistant").unwrap();
    let expected = json!([
        {"type": "reasoning.text", "index": 0, "text": "The line", "format": "f", "signature": "sig"},
        {"type": "reasoning.encrypted", "index": 1, "data": "seal"},
    ]);
    assert_eq!(turn["reasoning_details"], expected);
    assert_eq!(turn["thinking_blocks"], json!([{"type": "thinking", "thinking": "The line", "signature": "sig"}]));
    let end = json!({"index": 0, "delta": {"content": "Done."}, "finish_reason": "stop"});
    call.answer("200 OK", &fields, chunks(&[begin, text("So."), end])).await;
    let reply = scene.client.reply().await;
    let body = String::from_utf8_lossy(&reply.body);
    let so = body.lines().find(|line| line.contains("So.")).unwrap();
    assert!(so.contains("\"index\":2"), "the client has two entries already: {so}");
    let usage = body.lines().rfind(|line| line.contains("prompt_tokens")).unwrap();
    let usage: Value = serde_json::from_str(usage.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(usage["usage"]["prompt_tokens"], 100, "the prompt of the last round: {usage}");
    assert_eq!(usage["usage"]["abridge_all_rounds"]["prompt_tokens"], 200, "{usage}");
}

#[tokio::test]
async fn an_answer_without_a_type_or_with_an_encoding_that_nobody_asked_for_is_read() {
    let mut scene = Scene::with(SETTINGS).await;
    for (api, stream) in DIALECTS.into_iter().flat_map(|api| [(api, true), (api, false)]) {
        for encoding in ["gzip", "identity", ""] {
            let encoded = format!("content-encoding: {encoding}");
            let kind = if stream { "content-type: text/event-stream" } else { "content-type: application/json" };
            let fields = match encoding {
                "" => &["connection: close"][..],
                _ => &[kind, &encoded, "connection: close"],
            };
            let body = |n: u64, acts: &[Act]| {
                let plain = api.answer(n, acts, stream).into_bytes();
                if encoding == "gzip" { gzip(&plain) } else { plain }
            };
            let (mut call, first) = ask(&mut scene, api, stream).await;
            call.answer("200 OK", fields, body(1, &[Act::Say("One moment."), grep(&handle(&first))])).await;
            let (mut call, second) = next(&mut scene).await;
            assert!(added(&first, &second).contains("own1"), "{api:?} {stream} {encoding}");
            call.answer("200 OK", fields, body(2, &[Act::Say("It says so.")])).await;
            let reply = scene.client.reply().await;
            assert_eq!(reply.head.get("content-encoding"), None, "{api:?} {stream}");
            let said = api.read(&reply.body, stream).0;
            assert_eq!(said, ["One moment.", "It says so."], "{api:?} {stream} {encoding}");
        }
    }
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn an_upstream_that_is_busy_is_asked_again_when_it_says() {
    let mut scene = Scene::with(SETTINGS).await;
    let busy = r#"{"error":{"message":"slow down"}}"#;
    for (api, stream) in DIALECTS.into_iter().flat_map(|api| [(api, true), (api, false)]) {
        for (after, helps) in [("retry-after: 0", true), ("retry-after: 0", false), ("retry-after: 900", false)] {
            let fields = ["content-type: application/json", "connection: close", after];
            let (mut call, first) = ask(&mut scene, api, stream).await;
            answer(&mut call, api, 1, &[grep(&handle(&first))], stream).await;
            let (mut call, second) = next(&mut scene).await;
            call.answer("429 Too Many Requests", &fields, busy).await;
            if after.ends_with(" 0") {
                let (mut call, again) = next(&mut scene).await;
                assert_eq!(again, second, "the same round");
                if helps {
                    answer(&mut call, api, 2, &[Act::Say("It says so.")], stream).await;
                } else {
                    call.answer("429 Too Many Requests", &fields, busy).await;
                }
            }
            let reply = scene.client.reply().await;
            match (helps, stream) {
                (true, _) => assert_eq!(api.read(&reply.body, stream).0, ["It says so."], "{api:?}"),
                (false, true) => assert!(ends_in_an_error(&reply.body)),
                (false, false) => assert_eq!(
                    (reply.head.status(), reply.head.get("retry-after"), &*reply.body),
                    (429, after.strip_prefix("retry-after: "), busy.as_bytes())
                ),
            }
            scene.upstream.no_more();
        }
    }
}

#[tokio::test]
async fn beside_strict_tools_the_tool_is_strict() {
    for (api, parameters) in
        [(Api::Chat, "parameters"), (Api::Messages, "input_schema"), (Api::Responses, "parameters")]
    {
        let mut scene = Scene::with(SETTINGS).await;
        let mut strict: Value = serde_json::from_str(&api.request(false)).unwrap();
        let tool = &mut strict["tools"][0];
        let tool = if api == Api::Chat { &mut tool["function"] } else { tool };
        tool["strict"] = true.into();
        let strict = strict.to_string().replace("\"strict\":", "\"strict\" : ");
        let (_, sent) = send(&mut scene, post(api.path(), &["content-type: application/json"], strict)).await;
        let sent: Value = serde_json::from_str(&sent).unwrap();
        let tool = sent["tools"].as_array().unwrap().last().unwrap();
        let tool = tool.get("function").unwrap_or(tool);
        assert_eq!((&tool["name"], &tool["strict"]), (&json!(TOOL), &json!(true)), "{api:?}: {sent}");
        let schema = &tool[parameters];
        let all: Vec<_> = schema["properties"].as_object().unwrap().keys().cloned().map(Value::from).collect();
        let required: BTreeSet<_> = schema["required"].as_array().unwrap().iter().map(Value::to_string).collect();
        assert_eq!(required, all.iter().map(Value::to_string).collect(), "{schema}");
        assert_eq!(schema["additionalProperties"], false);
    }
}

#[tokio::test]
async fn an_upstream_that_does_not_take_abridge_s_own_tool_gets_the_original() {
    let refusal = r#"{"error":{"message":"Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length 129 instead.","type":"invalid_request_error","param":"tools","code":"array_above_max_length"}}"#;
    let mut scene = Scene::with("second_try.enabled = true").await;
    let body = with_results(&[long_text(1)]).replace("\"bash\"", "\"look\"");
    scene.client.send(chat(&body)).await;
    let mut call = scene.upstream.request().await;
    let sent = call.bytes().await;
    assert!(sent.ends_with(b"}}]}") && memchr::memmem::find(&sent, br#"{"name":"abridge_recall""#).is_some());
    call.answer("400 Bad Request", &["content-type: application/json", "connection: close"], refusal).await;
    let mut call = scene.upstream.request().await;
    assert_eq!(call.bytes().await, body);
    call.answer("200 OK", &["connection: close"], "{}").await;
    assert_eq!(scene.client.reply().await.head.get("x-abridge-rescue"), Some("original"));
    // The tools of this one are the client's.
    let mut scene = Scene::with("second_try.enabled = true").await;
    let mut call = scene.ask(chat(DANGLING)).await;
    call.answer("400 Bad Request", &["content-type: application/json", "connection: close"], refusal).await;
    assert_eq!(scene.client.reply().await.head.status(), 400);
    scene.upstream.no_more();
}
