//! The tool that abridge adds to a request, whose calls it answers itself.
#![expect(clippy::disallowed_types, reason = "what upstreams and clients say, made and read here")]
#![expect(clippy::string_slice, reason = "ASCII")]

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::metrics::scraped;
use crate::support::offloads::long_text;
use crate::support::rounds::{Act, Api, TOOL};
use crate::support::{Exchange, Scene, post};

const SETTINGS: &str = "recall.via = \"tool\"\nclear_tool_results = { when = \"any\", trigger = { tokens = 500 }, keep = { results = 1 } }";
const ANN: &str = "authorization: Bearer sk-ann";
const DIALECTS: [Api; 3] = [Api::Chat, Api::Messages, Api::Responses];

mod servers;

// === scenes ===

/// Sends the request, and returns what the upstream got.
async fn ask(scene: &mut Scene, api: Api, stream: bool) -> (Exchange, String) {
    let fields = ["content-type: application/json", ANN, "accept-encoding: gzip"];
    send(scene, post(api.path(), &fields, api.request(stream))).await
}

async fn send(scene: &mut Scene, request: Vec<u8>) -> (Exchange, String) {
    scene.client.send(request).await;
    next(scene).await
}

async fn next(scene: &mut Scene) -> (Exchange, String) {
    let mut call = scene.upstream.request().await;
    let sent = call.bytes().await;
    (call, String::from_utf8(sent.to_vec()).unwrap())
}

async fn answer(call: &mut Exchange, api: Api, n: u64, acts: &[Act], stream: bool) {
    let kind = if stream { "content-type: text/event-stream" } else { "content-type: application/json" };
    call.answer("200 OK", &[kind, "connection: close"], api.answer(n, acts, stream)).await;
}

/// The handle that the notice names with the tool.
fn handle(sent: &str) -> String {
    let begin = format!("Read it with {TOOL} (handle=");
    let at = sent.find(&begin).unwrap_or_else(|| panic!("no notice names the tool: {sent}")) + begin.len();
    sent[at..at + 26].to_owned()
}

fn grep(handle: &str) -> Act {
    Act::Call("own1", TOOL, json!({"handle": handle, "grep": "line 4711 "}))
}

/// A thought that no handle contains.
const THOUGHT: &str = "The line is in the first result.";

/// Returns what the model reads of the first result.
fn line() -> String {
    format!("4712:{}", long_text(1).lines().nth(4711).unwrap())
}

/// The elements that `later` has more than `earlier`, which it begins and ends with.
fn added<'a>(earlier: &str, later: &'a str) -> &'a str {
    let n_begin = earlier.bytes().zip(later.bytes()).take_while(|(a, b)| a == b).count();
    let behind = &earlier[n_begin..];
    later[n_begin..].strip_suffix(behind).unwrap_or_else(|| panic!("{later} is not {earlier} with more in it"))
}

#[tokio::test]
async fn a_call_of_the_tool_alone_is_answered_and_the_client_gets_one_answer() {
    let mut scene = Scene::with(SETTINGS).await;
    for (api, stream) in DIALECTS.into_iter().flat_map(|api| [(api, true), (api, false)]) {
        let (mut call, first) = ask(&mut scene, api, stream).await;
        assert!(call.head.get("accept-encoding").is_none(), "{api:?}");
        let handle = handle(&first);
        let acts = [Act::Think(THOUGHT), Act::Say("One moment."), grep(&handle)];
        answer(&mut call, api, 1, &acts, stream).await;

        let (mut call, second) = next(&mut scene).await;
        assert_eq!(call.head.get("authorization"), Some("Bearer sk-ann"));
        let round = added(&first, &second);
        assert!(round.starts_with(',') || round.ends_with(','), "{api:?}: {round}");
        let read = serde_json::to_string(&line()).unwrap();
        for part in [read.trim_matches('"'), "One moment.", TOOL, "own1"] {
            assert!(round.contains(part), "{api:?} {stream}: {part} is not in {round}");
        }
        assert_eq!(round.contains(THOUGHT), api != Api::Chat, "{api:?}: thinking goes back: {round}");
        answer(&mut call, api, 2, &[Act::Think("so"), Act::Say("It says so.")], stream).await;

        let reply = scene.client.reply().await;
        assert_eq!(reply.head.status(), 200);
        let expected = (vec!["One moment.".to_owned(), "It says so.".to_owned()], vec![], [200, 2]);
        assert_eq!(api.read(&reply.body, stream), expected, "{api:?} {stream}");
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn an_answer_without_a_call_of_the_tool_comes_back_byte_by_byte() {
    let mut scene = Scene::with(SETTINGS).await;
    for (api, stream) in DIALECTS.into_iter().flat_map(|api| [(api, true), (api, false)]) {
        let acts = [Act::Think("hm"), Act::Say("One moment."), Act::Call("x", "query", json!({"a": 1}))];
        for acts in [&acts[..], &acts[..1], &acts[..2]] {
            let (mut call, first) = ask(&mut scene, api, stream).await;
            assert!(first.contains(TOOL));
            answer(&mut call, api, 1, acts, stream).await;
            let reply = scene.client.reply().await;
            assert_eq!(String::from_utf8_lossy(&reply.body), api.answer(1, acts, stream), "{api:?} {stream}");
        }
    }
}

#[tokio::test]
async fn beside_calls_of_the_client_the_call_of_the_tool_is_left_out() {
    let mut scene = Scene::with(SETTINGS).await;
    for (api, stream) in DIALECTS.into_iter().flat_map(|api| [(api, true), (api, false)]) {
        for own_first in [true, false] {
            let (mut call, first) = ask(&mut scene, api, stream).await;
            let mut calls = vec![
                grep(&handle(&first)),
                Act::Call("x", "query", json!({"a": 1})),
                Act::Call("y", "query", json!({"a": 2})),
            ];
            if !own_first {
                calls.swap(0, 1);
            }
            let acts = [&[Act::Think("hm"), Act::Say("Both.")][..], &calls].concat();
            answer(&mut call, api, 1, &acts, stream).await;
            let reply = scene.client.reply().await;
            let expected = ["x:{\"a\":1}", "y:{\"a\":2}"].map(str::to_owned).to_vec();
            let read = api.read(&reply.body, stream);
            assert_eq!(read, (vec!["Both.".to_owned()], expected, [100, 1]), "{api:?} {stream} {own_first}");
            scene.upstream.no_more();
        }
    }
}

#[tokio::test]
async fn a_call_beside_the_clients_is_put_back_with_what_it_reads() {
    let mut scene = Scene::with(SETTINGS).await;
    for (n, (api, stream)) in DIALECTS.into_iter().flat_map(|api| [(api, true), (api, false)]).enumerate() {
        let (mut call, first) = ask(&mut scene, api, stream).await;
        let ids = [format!("x{n}"), format!("y{n}")];
        let [x, y] = ids.each_ref().map(|id| Act::Call(id.clone().leak(), "query", json!({})));
        let acts = [Act::Think("hm"), Act::Say("Both."), x, grep(&handle(&first)), y];
        answer(&mut call, api, 1, &acts, stream).await;
        scene.client.reply().await;

        let mut body: Value = serde_json::from_str(&api.request(stream)).unwrap();
        let elements = body[api.elements()].as_array_mut().unwrap();
        elements.extend(api.turn(&[&acts[..3], &acts[4..]].concat(), "done"));
        let (mut call, second) = send(&mut scene, post(api.path(), &[ANN], body.to_string())).await;
        let sent: Value = serde_json::from_str(&second).unwrap();
        let (calls, results) = api.calls_and_results(&sent);
        let expected = [&["c0", "c1", "c2"][..], &[&ids[0], "own1", &ids[1]]].concat();
        assert_eq!(calls, expected, "{api:?} {stream}: {second}");
        assert_eq!(results.iter().collect::<BTreeSet<_>>(), calls.iter().collect(), "{api:?}: {second}");
        let read = serde_json::to_string(&line()).unwrap();
        assert!(second.contains(read.trim_matches('"')), "{api:?}: {second}");
        answer(&mut call, api, 2, &[Act::Say("Done.")], stream).await;
        scene.client.reply().await;

        // It stays where it is, whoever else sends the same gets nothing, and without the store the turn stays valid.
        let more = json!({"role": "user", "content": "on"});
        body[api.elements()].as_array_mut().unwrap().push(more.clone());
        let (mut call, third) = send(&mut scene, post(api.path(), &[ANN], body.to_string())).await;
        assert_eq!(added(&second, &third).trim_matches(','), more.to_string(), "{api:?}");
        answer(&mut call, api, 3, &[Act::Say("Done.")], stream).await;
        scene.client.reply().await;
        let (mut call, other) =
            send(&mut scene, post(api.path(), &["authorization: Bearer sk-bob"], body.to_string())).await;
        assert!(!other.contains("own1"), "{api:?}: {other}");
        answer(&mut call, api, 3, &[Act::Say("Done.")], stream).await;
        scene.client.reply().await;
    }
}

#[tokio::test]
async fn what_is_put_back_keeps_the_order_of_the_calls_where_nothing_is_repaired() {
    let mut scene = Scene::with(&format!("policy.edits = [\"clear_tool_results\"]\n{SETTINGS}")).await;
    for (n, api) in [Api::Chat, Api::Responses].into_iter().enumerate() {
        let (mut call, first) = ask(&mut scene, api, false).await;
        let ids = [format!("x{n}"), format!("y{n}")];
        let [x, y] = ids.each_ref().map(|id| Act::Call(id.clone().leak(), "query", json!({})));
        let acts = [x, grep(&handle(&first)), y];
        answer(&mut call, api, 1, &acts, false).await;
        scene.client.reply().await;

        let mut body: Value = serde_json::from_str(&api.request(false)).unwrap();
        body[api.elements()].as_array_mut().unwrap().extend(api.turn(&[&acts[..1], &acts[2..]].concat(), "done"));
        let (mut call, second) = send(&mut scene, post(api.path(), &[ANN], body.to_string())).await;
        let (calls, results) = api.calls_and_results(&serde_json::from_str(&second).unwrap());
        assert_eq!(calls[calls.len() - 3..], [&ids[0], "own1", &ids[1]], "{api:?}: {second}");
        assert_eq!(results, calls, "{api:?}: {second}");
        answer(&mut call, api, 2, &[Act::Say("Done.")], false).await;
        scene.client.reply().await;
    }
}

#[tokio::test]
async fn reasoning_that_leads_to_a_call_of_the_tool_is_put_back_with_it() {
    let (mut scene, api) = (Scene::with(SETTINGS).await, Api::Responses);
    for (stream, id) in [(true, "x"), (false, "y")] {
        let (mut call, first) = ask(&mut scene, api, stream).await;
        let again = Act::Call("own2", TOOL, json!({"handle": handle(&first), "lines": "1"}));
        let client = Act::Call(id, "query", json!({}));
        let acts = [Act::Think("a"), grep(&handle(&first)), Act::Think("b"), client, Act::Think("c"), again];
        answer(&mut call, api, 1, &acts, stream).await;
        let reply = String::from_utf8(scene.client.reply().await.body.to_vec()).unwrap();
        let last = reply.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap_or(&reply);
        let last: Value = serde_json::from_str(last).unwrap();
        let output = last.get("response").unwrap_or(&last)["output"].as_array().unwrap().clone();

        let mut body: Value = serde_json::from_str(&api.request(stream)).unwrap();
        let items = body["input"].as_array_mut().unwrap();
        let n = items.len();
        items.extend(output);
        items.push(json!({"type": "function_call_output", "call_id": id, "output": "done"}));
        let (mut call, second) = send(&mut scene, post(api.path(), &[ANN], body.to_string())).await;
        let sent: Value = serde_json::from_str(&second).unwrap();
        let said = |item: &Value| item["encrypted_content"].as_str().or(item["call_id"].as_str()).unwrap().to_owned();
        let sent: Vec<_> = sent["input"].as_array().unwrap()[n..].iter().map(said).collect();
        assert_eq!(sent, ["a", "own1", "b", id, "c", "own2", "own1", id, "own2"], "{second}");
        answer(&mut call, api, 2, &[Act::Say("Done.")], false).await;
        scene.client.reply().await;
    }
}

#[tokio::test]
async fn a_later_round_may_call_the_clients_tools() {
    let mut scene = Scene::with(SETTINGS).await;
    for (api, stream) in DIALECTS.into_iter().flat_map(|api| [(api, true), (api, false)]) {
        let (mut call, first) = ask(&mut scene, api, stream).await;
        let handle = handle(&first);
        let both = [grep(&handle), Act::Call("own2", TOOL, json!({"handle": handle, "lines": "1"}))];
        answer(&mut call, api, 1, &both, stream).await;
        let (mut call, second) = next(&mut scene).await;
        assert!(added(&first, &second).contains("1: line 0"), "two calls are answered at once: {second}");
        answer(&mut call, api, 2, &[Act::Think("so"), grep(&handle)], stream).await;
        let (mut call, third) = next(&mut scene).await;
        assert!(third.len() > second.len(), "each round has those before it");
        answer(&mut call, api, 3, &[Act::Say("Now this."), Act::Call("x", "query", json!({}))], stream).await;
        let reply = scene.client.reply().await;
        let expected = (vec!["Now this.".to_owned()], vec!["x:{}".to_owned()], [300, 3]);
        assert_eq!(api.read(&reply.body, stream), expected, "{api:?} {stream}");
    }
}

#[tokio::test]
async fn the_tool_is_there_from_the_first_cleared_request_on_with_the_same_bytes() {
    let mut scene = Scene::with(SETTINGS).await;
    for api in DIALECTS {
        let (mut call, first) = ask(&mut scene, api, false).await;
        answer(&mut call, api, 1, &[Act::Say("ok")], false).await;
        scene.client.reply().await;
        let more = json!({"role": "user", "content": "on"});
        let mut body: Value = serde_json::from_str(&api.request(false)).unwrap();
        body[api.elements()].as_array_mut().unwrap().push(more.clone());
        let (_, second) = send(&mut scene, post(api.path(), &[ANN], body.to_string())).await;
        assert_eq!(added(&first, &second).trim_matches(','), more.to_string(), "{api:?}");
        assert_eq!(second.matches(&format!("\"name\":\"{TOOL}\"")).count(), 1);
    }
}

#[tokio::test]
async fn without_need_no_tool_is_added() {
    let cleared = Api::Chat.request(false);
    let short =
        r#"{"messages":[{"role":"user","content":"go"}],"tools":[{"type":"function","function":{"name":"query"}}]}"#
            .to_owned();
    let without_tools = {
        let mut body: Value = serde_json::from_str(&cleared).unwrap();
        body.as_object_mut().unwrap().remove("tools");
        body.to_string()
    };
    let offered = cleared.replace("\"name\":\"query\",\"parameters\"", &format!("\"name\":\"{TOOL}\",\"parameters\""));
    for (body, fields, added) in [
        (&cleared, &[][..], 1),
        (&short, &[], 0),
        (&cleared, &["x-abridge: off"], 0),
        (&cleared, &["x-abridge: dry-run"], 0),
        (&without_tools, &[], 0),
        (&offered, &[], 1),
    ] {
        let mut scene = Scene::with(SETTINGS).await;
        let fields = [&["content-type: application/json"], fields].concat();
        let (_, sent) = send(&mut scene, post(Api::Chat.path(), &fields, body)).await;
        assert_eq!(sent.matches(&format!("\"name\":\"{TOOL}\"")).count(), added, "{fields:?}: {sent}");
    }
    for (via, is_added) in [("auto", true), ("offered", false)] {
        let mut scene = Scene::with(&SETTINGS.replace("\"tool\"", &format!("\"{via}\""))).await;
        assert_eq!(ask(&mut scene, Api::Chat, false).await.1.contains(TOOL), is_added, "{via}");
        let mut scene = Scene::with(&SETTINGS.replace("\"tool\"", &format!("\"{via}\""))).await;
        let with_shell = cleared.replace("\"name\":\"query\",\"parameters\"", "\"name\":\"bash\",\"parameters\"");
        let (_, sent) = send(&mut scene, post(Api::Chat.path(), &["content-type: application/json"], with_shell)).await;
        assert!(!sent.contains(TOOL) && sent.contains("Read it with GET http://"), "{via}: {sent}");
    }
    let mut scene = Scene::with(SETTINGS).await;
    let count = post("/v1/messages/count_tokens", &[], Api::Messages.request(false));
    assert!(send(&mut scene, count).await.1.contains(TOOL), "what is counted is what is sent");
}

#[tokio::test]
async fn a_model_that_does_not_stop_reading_is_told_to_and_then_its_answer_ends() {
    for (api, stream) in DIALECTS.into_iter().flat_map(|api| [(api, true), (api, false)]) {
        for text in [None, Some("Still reading.")] {
            let mut scene = Scene::with(&format!("{SETTINGS}\nrecall.tool.rounds = 2")).await;
            let (mut call, first) = ask(&mut scene, api, stream).await;
            let acts: Vec<_> = text.map(Act::Say).into_iter().chain([grep(&handle(&first))]).collect();
            for round in 1..=3 {
                answer(&mut call, api, round, &acts, stream).await;
                let (again, sent) = next(&mut scene).await;
                assert_eq!(sent.contains("There is no more to read"), round == 3, "{round}");
                call = again;
            }
            answer(&mut call, api, 4, &acts, stream).await;
            let reply = scene.client.reply().await;
            match text {
                Some(text) => {
                    assert_eq!(api.read(&reply.body, stream), (vec![text.to_owned(); 4], vec![], [400, 4]), "{api:?}");
                }
                None if stream => assert!(ends_in_an_error(&reply.body), "{:?}", reply.body),
                None => assert_eq!(reply.head.status(), 502),
            }
            scene.upstream.no_more();
        }
    }
}

#[tokio::test]
async fn an_error_behind_a_call_of_the_tool_reaches_the_client_once() {
    let mut scene = Scene::with(SETTINGS).await;
    for (api, error) in [
        (
            Api::Chat,
            r#"{"error":{"message":"overloaded"},"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}"#,
        ),
        (Api::Chat, r#"{"error":{"message":"overloaded"}}"#),
        (Api::Messages, r#"{"type":"error","error":{"type":"overloaded_error","message":"overloaded"}}"#),
        (Api::Responses, r#"{"type":"error","message":"overloaded","sequence_number":90}"#),
    ] {
        let (mut call, first) = ask(&mut scene, api, true).await;
        let whole = api.answer(1, &[Act::Say("One moment."), grep(&handle(&first))], true);
        let ends = ["\"finish_reason\":\"tool_calls\"", "event: message_delta", "\"response.completed\""];
        let end = ends.iter().filter_map(|end| whole.find(end)).min().unwrap();
        let begun = whole[..end].rfind("\n\n").unwrap() + 2;
        let stream = format!("{}data: {error}\n\n", &whole[..begun]);
        let fields = ["content-type: text/event-stream", "connection: close"];
        call.answer("200 OK", &fields, stream).await;
        let reply = scene.client.reply().await;
        let body = String::from_utf8_lossy(&reply.body);
        assert_eq!(body.matches("\"message\":\"overloaded\"").count(), 1, "{api:?}: {body}");
        assert!(body.contains("moment") && !body.contains(TOOL), "{api:?}: {body}");
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn half_a_surrogate_ends_no_recall() {
    let mut scene = Scene::with(SETTINGS).await;
    for (api, stream) in DIALECTS.into_iter().flat_map(|api| [(api, true), (api, false)]) {
        let (mut call, first) = ask(&mut scene, api, stream).await;
        let kind = if stream { "content-type: text/event-stream" } else { "content-type: application/json" };
        let halved = |n: u64, acts: &[Act]| api.answer(n, acts, stream).replace("HALF", r"\ud83d");
        let acts = [Act::Say("One HALF."), grep(&handle(&first))];
        call.answer("200 OK", &[kind, "connection: close"], halved(1, &acts)).await;
        let (mut call, second) = next(&mut scene).await;
        assert!(added(&first, &second).contains("own1"), "{api:?} {stream}");
        call.answer("200 OK", &[kind, "connection: close"], halved(2, &[Act::Say("Two HALF.")])).await;
        let reply = scene.client.reply().await;
        // The client reads half a surrogate as U+FFFD.
        let body = String::from_utf8_lossy(&reply.body).replace(r"\ud83d", "\u{fffd}");
        let (said, calls, _) = api.read(body.as_bytes(), stream);
        assert_eq!((said, calls.len()), (vec!["One \u{fffd}.".to_owned(), "Two \u{fffd}.".to_owned()], 0), "{api:?}");
    }
}

fn ends_in_an_error(body: &[u8]) -> bool {
    let body = std::str::from_utf8(body).unwrap();
    let end = body.rsplit("event: error\ndata: ").next().unwrap();
    !body.contains(TOOL) && serde_json::from_str::<Value>(end).is_ok_and(|error| error.get("error").is_some())
}

#[tokio::test]
async fn a_round_that_is_refused_is_sent_once_more_without_the_text() {
    let mut scene = Scene::with(SETTINGS).await;
    for (api, stream) in DIALECTS.into_iter().flat_map(|api| [(api, true), (api, false)]) {
        for helps in [true, false] {
            let (mut call, first) = ask(&mut scene, api, stream).await;
            answer(&mut call, api, 1, &[grep(&handle(&first))], stream).await;
            let refusal = "{\"error\":{\"message\":\"too long\"}}";
            let fields = ["content-type: application/json", "connection: close"];
            let (mut call, _) = next(&mut scene).await;
            call.answer("400 Bad Request", &fields, refusal).await;
            let (mut call, sent) = next(&mut scene).await;
            assert!(sent.contains("The text could not be read"), "{sent}");
            if helps {
                answer(&mut call, api, 2, &[Act::Say("Then not.")], stream).await;
            } else {
                call.answer("429 Too Many Requests", &fields, refusal).await;
            }
            let reply = scene.client.reply().await;
            match (helps, stream) {
                (true, _) => assert_eq!(api.read(&reply.body, stream).0, ["Then not."], "{api:?}"),
                (false, true) => assert!(ends_in_an_error(&reply.body)),
                (false, false) => assert_eq!((reply.head.status(), &*reply.body), (429, refusal.as_bytes())),
            }
            scene.upstream.no_more();
        }
    }
}

#[tokio::test]
async fn an_answer_that_is_too_long_to_read_is_relayed_as_it_comes() {
    let text: &'static str = Box::leak("far too long ".repeat(10_000).into_boxed_str());
    for api in DIALECTS {
        let mut scene = Scene::with(&format!("{SETTINGS}\nrecall.tool.max_bytes = \"64KiB\"")).await;
        let (mut call, first) = ask(&mut scene, api, true).await;
        let acts = [Act::Think("hm"), Act::Say(text), grep(&handle(&first))];
        answer(&mut call, api, 1, &acts, true).await;
        let reply = scene.client.reply().await;
        assert!(reply.body == api.answer(1, &acts, true).as_bytes(), "{api:?}");
    }
}

#[tokio::test]
async fn two_hundred_cancels_leave_no_round_open() {
    let mut scene = Scene::with(SETTINGS).await;
    for n in 0..200 {
        // A multiplicative generator; every place in every dialect is cut some times.
        let dice = |of: usize| (n * 7919 + 104_729) / 13 % of;
        let (api, stream) = (DIALECTS[n % 3], n % 2 == 0);
        scene.client = scene.abridge.connect().await;
        let (mut call, first) = ask(&mut scene, api, stream).await;
        let mut open = match dice(4) {
            0 => call,
            1 => {
                call.begin_stream().await;
                let events = api.answer(1, &[Act::Say("One moment."), grep(&handle(&first))], true);
                call.send_chunk(&events[..=dice(events.len() - 1)]).await;
                scene.client.head().await;
                call
            }
            rounds => {
                let mut call = call;
                for round in 1..rounds {
                    answer(&mut call, api, round as u64, &[grep(&handle(&first))], stream).await;
                    call = next(&mut scene).await.0;
                }
                call
            }
        };
        let gone = std::mem::replace(&mut scene.client, scene.abridge.connect().await);
        if dice(5) == 0 {
            gone.reset();
        } else {
            drop(gone);
        }
        open.gone().await;
    }
    scene.upstream.no_more();
    scraped(&scene.abridge, |scrape| scrape.get("abridge_in_flight") == 0).await;
}

/// A client of Responses that has got an answer by several rounds sends what is new alone.
#[tokio::test]
async fn a_response_with_recalls_is_continued_from_its_last_round_with_their_results() {
    let (mut scene, api) = (Scene::with(SETTINGS).await, Api::Responses);
    let kept = |answer: String| answer.replace("\"store\":false", "\"store\":true");
    for (n, (stream, beside)) in [(true, true), (true, false), (false, true), (false, false)].into_iter().enumerate() {
        let (mut call, first) = ask(&mut scene, api, stream).await;
        let kind = if stream { "content-type: text/event-stream" } else { "content-type: application/json" };
        let id = 10 * n as u64;
        call.answer("200 OK", &[kind, "connection: close"], kept(api.answer(id, &[grep(&handle(&first))], stream)))
            .await;
        let (mut call, _) = next(&mut scene).await;
        let mut acts = vec![Act::Call("x", "query", json!({}))];
        acts.extend(beside.then(|| Act::Call("own2", TOOL, json!({"handle": handle(&first), "grep": "line 4711 "}))));
        call.answer("200 OK", &[kind, "connection: close"], kept(api.answer(id + 1, &acts, stream))).await;
        let reply = String::from_utf8(scene.client.reply().await.body.to_vec()).unwrap();
        let last = reply.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap_or(&reply);
        let last: Value = serde_json::from_str(last).unwrap();
        let last = last.get("response").unwrap_or(&last);
        let items = [json!({"type": "function_call_output", "call_id": "x", "output": "done"})];
        let body = json!({"input": items, "previous_response_id": last["id"], "model": "gpt-4o", "stream": stream});
        let (mut call, sent) = send(&mut scene, post(api.path(), &[ANN], format!(" {body}"))).await;
        let sent: Value = serde_json::from_str(&sent).unwrap();
        assert_eq!(sent["previous_response_id"], format!("resp{}", id + 1), "{stream} {beside}");
        let items: Vec<_> = sent["input"].as_array().unwrap().iter().map(|item| &item["call_id"]).collect();
        assert_eq!(items, if beside { vec!["own2", "x"] } else { vec!["x"] }, "{sent:#}");
        let read = sent["input"][0]["output"].as_str().unwrap();
        assert_eq!(read.starts_with(&line()), beside, "{sent:#}");
        answer(&mut call, api, id + 2, &[Act::Say("Done.")], stream).await;
        scene.client.reply().await;
    }
}
