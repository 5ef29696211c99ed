//! Requests for a compaction of OpenAI Responses: `POST …/responses/compact`.
#![expect(clippy::disallowed_types, reason = "answers of abridge itself are looked at")]

use serde_json::{Value, json};

use crate::failures::refused;
use crate::responses::with_results;
use crate::support::offloads::recalls;
use crate::support::upstream::Exchange;
use crate::support::wire::Reply;
use crate::support::{Scene, post, request};

const COMPACT: &str = "/v1/responses/compact";
const TURN: &str = "/v1/responses";
const KEY: &str = "authorization: Bearer k";
/// How the message begins that holds a summary.
const LEAD_IN: &str = "This session goes on from an earlier one";

const ANSWERS: &str = "responses.compact = \"answer\"\ndeduplicate_tool_results.min_lines = 999";

/// What an upstream that can do it itself answers.
const THEIRS: &str =
    r#"{"object":"response.compaction","output":[{"type":"compaction","id":"cmp_1","encrypted_content":"gAAA"}]}"#;

/// A session with a word of the user, and results of which the model has not read the last one.
fn session() -> String {
    with_results(3, "").replace(r#""content":"go""#, r#""content":"count the lines""#)
}

/// Answers a request for a summary.
async fn summarise(call: &mut Exchange) -> Value {
    assert_eq!(call.head.start, "POST /v1/responses HTTP/1.1");
    assert_eq!(call.head.get("authorization"), Some("Bearer k"));
    let asked: Value = serde_json::from_slice(&call.bytes().await).unwrap();
    let completed = json!({"type": "response.completed", "response": {
        "status": "completed", "error": null, "incomplete_details": null,
        "output": [{"type": "message", "role": "assistant",
            "content": [{"type": "output_text", "text": "<summary>They counted.</summary>"}]}],
        "usage": {"input_tokens": 900, "output_tokens": 20, "total_tokens": 920},
    }});
    let events = format!("event: response.completed\ndata: {completed}\n\n");
    call.answer("200 OK", &["content-type: text/event-stream", "connection: close"], events).await;
    asked
}

/// Has a conversation compacted by a summary.
async fn compacted(scene: &mut Scene, body: &str) -> (Value, Reply) {
    let mut client = scene.abridge.connect().await;
    client.send(post(COMPACT, &[KEY], body)).await;
    let asked = summarise(&mut scene.upstream.request().await).await;
    (asked, client.reply().await)
}

fn output(reply: &Reply) -> Vec<Value> {
    assert_eq!((reply.head.status(), reply.head.get("content-type")), (200, Some("application/json")));
    let answer: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(answer["object"], "response.compaction");
    assert!(answer["id"].is_string() && answer["created_at"].as_u64() > Some(1_700_000_000), "{answer}");
    let usage = &answer["usage"];
    assert!(usage["input_tokens"].as_u64() >= usage["output_tokens"].as_u64(), "{usage}");
    answer["output"].as_array().unwrap().clone()
}

/// The text of an item that is a message of the user in parts, as clients read the items of a compaction.
fn user_text(item: &Value) -> &str {
    assert_eq!((&item["type"], &item["role"]), (&json!("message"), &json!("user")), "{item}");
    assert_eq!(item["content"][0]["type"], "input_text");
    item["content"][0]["text"].as_str().unwrap()
}

#[tokio::test]
async fn a_compaction_passes_by_default_and_the_upstreams_answer_goes_back() {
    for lines in ["", "responses.compact = \"auto\""] {
        let mut scene = Scene::with(lines).await;
        for (code, status, body) in
            [(200, "200 OK", THEIRS), (400, "400 Bad Request", "{}"), (404, "404 Not Found", "none")]
        {
            if !lines.is_empty() && code == 404 {
                continue;
            }
            let session = session();
            scene.client.send(post(COMPACT, &[KEY], &session)).await;
            let mut call = scene.upstream.request().await;
            assert_eq!(call.head.start, "POST /v1/responses/compact HTTP/1.1");
            assert_eq!(call.bytes().await, session.as_bytes());
            call.answer(status, &["content-type: application/json", "x-theirs: 1"], body).await;
            let reply = scene.client.reply().await;
            assert_eq!((reply.head.status(), &*reply.body), (code, body.as_bytes()));
            assert_eq!(reply.head.get("x-theirs"), Some("1"));
        }
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn an_answer_of_abridge_is_one_message_that_stands_for_the_whole_conversation() {
    let mut scene = Scene::with(ANSWERS).await;
    let session = session();
    let (asked, reply) = compacted(&mut scene, &session).await;
    // The model reads everything, the newest result too, and is asked under the rules of the summary call.
    let items: Value = serde_json::from_str(&session).unwrap();
    let (input, sent) = (items["input"].as_array().unwrap(), asked["input"].as_array().unwrap());
    assert_eq!((&sent[..input.len()], sent.len()), (&input[..], input.len() + 1));
    assert_eq!((&asked["store"], &asked["stream"]), (&json!(false), &json!(true)));

    let items = output(&reply);
    assert_eq!(items.len(), 1, "{items:?}");
    let text = user_text(&items[0]);
    assert!(text.starts_with(LEAD_IN) && text.contains("They counted."), "{text}");
    assert!(text.contains("<message>\ncount the lines\n</message>"), "{text}");
    assert_eq!(reply.head.get("x-abridge-summary"), Some("made"));
    // The transcript that it names is there, with all results.
    let [target] = &recalls(text.as_bytes())[..] else { panic!("{text}") };
    scene.client.send(request("GET", target, &[])).await;
    let transcript = scene.client.reply().await;
    assert_eq!(transcript.head.status(), 200, "{target}");
    assert_eq!(String::from_utf8_lossy(&transcript.body).matches("function_call_output").count(), 3);
    // The same request again needs no call.
    scene.client.send(post(COMPACT, &[KEY], &session)).await;
    assert_eq!(output(&scene.client.reply().await), items);
    // A client that goes on with its own items sends what the model has not read.
    scene.client.send(post(TURN, &[KEY], &session)).await;
    let mut call = scene.upstream.request().await;
    assert_eq!(call.bytes().await, session.as_bytes());
    call.json("{}").await;
    scene.client.reply().await;
    scene.upstream.no_more();
}

#[tokio::test]
async fn instructions_at_the_beginning_stay_in_front_of_the_summary() {
    let mut scene = Scene::with(ANSWERS).await;
    let developer = r#"{"type":"message","role":"developer","content":[{"type":"input_text","text":"be brief"}]}"#;
    let body = session().replacen(r#""input":["#, &format!(r#""input":[{developer},"#), 1);
    let (_, reply) = compacted(&mut scene, &body).await;
    let items = output(&reply);
    assert_eq!((items.len(), &items[0]), (2, &serde_json::from_str::<Value>(developer).unwrap()));
    assert!(user_text(&items[1]).contains("They counted."));
}

#[tokio::test]
async fn a_session_goes_on_with_the_compacted_items_and_its_summary_is_no_wish_of_the_user() {
    let mut scene = Scene::with(ANSWERS).await;
    let (_, reply) = compacted(&mut scene, &session()).await;
    let summary = output(&reply).remove(0);
    // The next turn: it is edited as any, and the summary goes on to the byte.
    let mut next: Value = serde_json::from_str(&session()).unwrap();
    let input = next["input"].as_array_mut().unwrap();
    input[0]["content"] = "now sort them".into();
    input.insert(0, summary.clone());
    let last = input.pop();
    let dangling = next.to_string();
    scene.client.send(post(TURN, &[KEY], &dangling)).await;
    let mut call = scene.upstream.request().await;
    let sent = call.bytes().await;
    call.answer("200 OK", &["content-type: application/json", "connection: close"], "{}").await;
    assert_eq!(scene.client.reply().await.head.get("x-abridge-edits"), Some("patch=1"));
    let common = dangling.rfind(']').unwrap();
    assert_eq!(&sent[..common], &dangling.as_bytes()[..common]);
    // A second compaction: both words of the user are there once, and the first summary is none of them.
    next["input"].as_array_mut().unwrap().extend(last);
    let (_, reply) = compacted(&mut scene, &next.to_string()).await;
    let items = output(&reply);
    assert_eq!(items.len(), 1);
    let text = user_text(&items[0]);
    assert_eq!(text.matches(LEAD_IN).count(), 1, "{text}");
    assert!(text.contains("<message>\ncount the lines\n</message>\n<message>\nnow sort them\n</message>"), "{text}");
    // Nothing but the summary is not summarised once more.
    let alone = json!({"model": "gpt-4o", "input": [items[0]]});
    scene.client.send(post(COMPACT, &[KEY], alone.to_string())).await;
    let reply = scene.client.reply().await;
    assert_eq!((output(&reply), reply.head.get("x-abridge-summary")), (items, Some("none")));
    scene.upstream.no_more();
}

#[tokio::test]
async fn a_conversation_that_is_shorter_than_its_summary_is_compacted_too() {
    let mut scene = Scene::with(ANSWERS).await;
    let said = [("user", "go"), ("assistant", "done"), ("user", "again"), ("assistant", "done")];
    let input = said.map(|(role, content)| json!({"role": role, "content": content}));
    let short = json!({"model": "gpt-4o", "input": input}).to_string();
    let (_, reply) = compacted(&mut scene, &short).await;
    assert_eq!(reply.head.status(), 200);
    let answer: Value = serde_json::from_slice(&reply.body).unwrap();
    let text = user_text(&answer["output"][0]);
    assert!(text.starts_with(LEAD_IN) && text.contains("They counted."), "{text}");
    scene.upstream.no_more();
}

#[tokio::test]
async fn a_conversation_of_one_message_stays_as_it_is() {
    let mut scene = Scene::with(ANSWERS).await;
    let (developer, user) =
        (json!({"role": "developer", "content": "be brief"}), json!({"role": "user", "content": "go"}));
    for input in [json!([user]), json!([developer, user])] {
        let n_items = input.as_array().unwrap().len();
        scene.client.send(post(COMPACT, &[KEY], json!({"model": "gpt-4o", "input": input}).to_string())).await;
        let reply = scene.client.reply().await;
        let items = output(&reply);
        assert_eq!((items.len(), user_text(items.last().unwrap())), (n_items, "go"));
        assert_eq!(reply.head.get("x-abridge-summary"), Some("none"));
        let trigger = [input.as_array().unwrap().clone(), vec![json!({"type": "compaction_trigger"})]].concat();
        scene.client.send(post(TURN, &[KEY], json!({"model": "gpt-4o", "input": trigger}).to_string())).await;
        let made: Value = serde_json::from_slice(&scene.client.reply().await.body).unwrap();
        let next = json!({"model": "gpt-4o", "input": [made["output"][0]]}).to_string();
        scene.client.send(post(TURN, &[KEY], next)).await;
        let mut call = scene.upstream.request().await;
        let sent: Value = serde_json::from_slice(&call.bytes().await).unwrap();
        assert_eq!((sent["input"].as_array().unwrap().len(), user_text(&sent["input"][0])), (1, "go"));
        call.answer("200 OK", &["content-type: application/json"], "{}").await;
        scene.client.reply().await;
    }
    scene.upstream.no_more();
}

#[tokio::test]
async fn an_upstream_without_compaction_is_asked_once() {
    for status in ["404 Not Found", "405 Method Not Allowed", "501 Not Implemented"] {
        let mut scene = Scene::with(&ANSWERS.replace("\"answer\"", "\"auto\"")).await;
        let mut client = scene.abridge.connect().await;
        client.send(post(COMPACT, &[KEY], session())).await;
        let mut call = scene.upstream.request().await;
        assert_eq!(call.head.start, "POST /v1/responses/compact HTTP/1.1");
        call.bytes().await;
        call.answer(status, &["connection: close"], "no such path").await;
        summarise(&mut scene.upstream.request().await).await;
        assert!(user_text(&output(&client.reply().await)[0]).contains("They counted."));
        scene.abridge.says("the upstream compacts no conversations", 0).await;
        // From now on it is not asked.
        let other = session().replace("count the lines", "count the words");
        let (_, reply) = compacted(&mut scene, &other).await;
        assert!(user_text(&output(&reply)[0]).contains("count the words"));
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn without_a_summary_the_upstreams_own_answer_goes_back_and_it_is_asked_again() {
    let mut scene =
        Scene::with(&format!("{}\nsummarize.cooldown = \"0ms\"", ANSWERS.replace("\"answer\"", "\"auto\""))).await;
    for _ in 0..2 {
        let mut client = scene.abridge.connect().await;
        client.send(post(COMPACT, &[KEY], session())).await;
        for path in [COMPACT, TURN] {
            let mut call = scene.upstream.request().await;
            assert_eq!(call.head.target(), path);
            call.bytes().await;
            let body = r#"{"error":{"code":"model_not_found","message":"no such model"}}"#;
            call.answer("404 Not Found", &["connection: close", "x-theirs: 1"], body).await;
        }
        let reply = client.reply().await;
        assert_eq!((reply.head.status(), reply.head.get("x-theirs")), (404, Some("1")));
        assert!(reply.body.starts_with(br#"{"error":{"code":"model_not_found""#));
    }
    scene.upstream.no_more();
}

#[tokio::test]
async fn without_a_summary_the_client_is_told_why_and_what_to_do() {
    let mut scene = Scene::with(ANSWERS).await;
    let mut client = scene.abridge.connect().await;
    client.send(post(COMPACT, &[KEY], session())).await;
    let mut call = scene.upstream.request().await;
    call.bytes().await;
    call.answer("401 Unauthorized", &["connection: close"], "{}").await;
    let message = refused(&client.reply().await, 502, "not_compacted");
    assert!(message.contains("401") && message.contains("compact = \"pass\""), "{message}");
    for (field, why) in [
        (r#""previous_response_id":"resp_1","#, "history is on the server"),
        (r#""conversation":"conv_1","#, "history is on the server"),
    ] {
        scene.client.send(post(COMPACT, &[KEY], with_results(3, field))).await;
        let message = refused(&scene.client.reply().await, 400, "not_compacted");
        assert!(message.contains(why), "{message}");
    }
    scene.client.send(post(COMPACT, &[KEY], "[]")).await;
    refused(&scene.client.reply().await, 400, "not_understood");
    scene.upstream.no_more();
    let mut scene = Scene::with(&format!("{ANSWERS}\npolicy.edits = [\"patch_tool_calls\"]")).await;
    scene.client.send(post(COMPACT, &[KEY], session())).await;
    let message = refused(&scene.client.reply().await, 400, "not_compacted");
    assert!(message.contains("policy.edits"), "{message}");
}

#[tokio::test]
async fn a_compaction_passes_where_nothing_is_edited() {
    for (lines, field) in [("dry_run = true", "x-a: 1"), ("", "x-abridge: off"), ("", "x-abridge: dry-run")] {
        let mut scene = Scene::with(&format!("{ANSWERS}\n{lines}")).await;
        scene.client.send(post(COMPACT, &[KEY, field], session())).await;
        let mut call = scene.upstream.request().await;
        assert_eq!(call.bytes().await, session().as_bytes());
        assert_eq!(call.head.target(), COMPACT);
        call.json(THEIRS).await;
        assert_eq!(scene.client.reply().await.body, THEIRS);
    }
}

/// The session with the item by which Codex asks for a compaction in a turn.
fn triggered(beside: &str) -> String {
    let session = session();
    let end = session.rfind(']').unwrap();
    let (items, rest) = session.split_at(end);
    let rest = rest.replacen(']', &format!("]{beside}"), 1);
    format!(r#"{items},{{"type":"compaction_trigger"}}{rest}"#)
}

/// The one item of a streamed answer to such a turn, and the answer.
fn streamed_item(reply: &Reply) -> (Value, Value) {
    assert_eq!((reply.head.status(), reply.head.get("content-type")), (200, Some("text/event-stream")));
    let text = String::from_utf8(reply.body.to_vec()).unwrap();
    let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = events.map(|data| serde_json::from_str(data).unwrap()).collect();
    let done: Vec<_> = events.iter().filter(|event| event["type"] == "response.output_item.done").collect();
    let [done] = &done[..] else { panic!("{text}") };
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["response"]["output"]), (&json!("response.completed"), &json!([done["item"]])));
    (done["item"].clone(), last["response"].clone())
}

#[tokio::test]
async fn a_turn_that_asks_for_a_compaction_gets_one_item_which_is_read_when_it_comes_back() {
    for beside in [r#","stream":true"#, ""] {
        let mut scene = Scene::with(ANSWERS).await;
        scene.client.send(post(TURN, &[KEY], triggered(beside))).await;
        let asked = summarise(&mut scene.upstream.request().await).await;
        assert!(!asked.to_string().contains("compaction_trigger"), "{asked}");
        let reply = scene.client.reply().await;
        let (item, response) = if beside.is_empty() {
            let response: Value = serde_json::from_slice(&reply.body).unwrap();
            (response["output"][0].clone(), response)
        } else {
            streamed_item(&reply)
        };
        assert_eq!((&response["object"], &response["status"]), (&json!("response"), &json!("completed")));
        assert_eq!(response["output"].as_array().unwrap().len(), 1);
        assert!(response["usage"]["input_tokens"].as_u64() > response["usage"]["output_tokens"].as_u64());
        assert_eq!(item["type"], "compaction");

        // The client goes on with it, and the model reads the summary.
        let next = json!({"model": "gpt-5", "input": [item, {"role": "user", "content": "go on"}]});
        scene.client.send(post(TURN, &[KEY], next.to_string())).await;
        let mut call = scene.upstream.request().await;
        let sent: Value = serde_json::from_slice(&call.bytes().await).unwrap();
        let text = user_text(&sent["input"][0]);
        assert!(text.starts_with(LEAD_IN) && text.contains("They counted."), "{text}");
        assert_eq!(sent["input"][1], json!({"role": "user", "content": "go on"}));
        call.answer("200 OK", &["content-type: application/json"], "{}").await;
        scene.client.reply().await;
    }
}

#[tokio::test]
async fn an_upstream_that_ignores_or_refuses_the_trigger_is_replaced() {
    let ignored = "data: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"type\":\"message\"}]}}\n\n";
    for (status, body) in [("200 OK", ignored), ("400 Bad Request", "{}"), ("404 Not Found", "none")] {
        let mut scene = Scene::with(&ANSWERS.replace("answer", "auto")).await;
        let turn = triggered(r#","stream":true"#);
        let mut client = scene.abridge.connect().await;
        client.send(post(TURN, &[KEY], &turn)).await;
        let mut call = scene.upstream.request().await;
        assert_eq!(call.bytes().await, turn.as_bytes());
        call.answer(status, &["content-type: text/event-stream", "connection: close"], body).await;
        summarise(&mut scene.upstream.request().await).await;
        streamed_item(&client.reply().await);
        // From then on the upstream is asked for summaries alone.
        client.send(post(TURN, &[KEY], turn.replace("count the lines", "count them"))).await;
        summarise(&mut scene.upstream.request().await).await;
        streamed_item(&client.reply().await);
    }
}

#[tokio::test]
async fn a_compaction_of_the_upstream_goes_back_as_it_is() {
    let made = format!(
        "data: {{\"type\":\"response.output_item.done\",\"item\":{}}}\n\n",
        r#"{"type": "compaction","encrypted_content":"gAAA"}"#
    );
    for lines in ["responses.compact = \"auto\"\n", ""] {
        let mut scene = Scene::with(&format!("{lines}deduplicate_tool_results.min_lines = 999")).await;
        let turn = triggered(r#","stream":true"#);
        scene.client.send(post(TURN, &[KEY], &turn)).await;
        let mut call = scene.upstream.request().await;
        assert_eq!(call.bytes().await, turn.as_bytes());
        call.answer("200 OK", &["content-type: text/event-stream"], &made).await;
        assert_eq!(scene.client.reply().await.body, made.as_bytes());
        scene.upstream.no_more();
    }
}
