//! The tool that abridge adds to a request, whose calls it answers itself.
#![expect(clippy::disallowed_types, reason = "what upstreams and clients say, made and read here")]
#![expect(clippy::string_slice, reason = "ASCII")]

use serde_json::{Value, json};

use crate::support::offloads::long_text;
use crate::support::rounds::{Act, Api, TOOL};
use crate::support::upstream::head;
use crate::support::{Exchange, Scene, post};

const SETTINGS: &str = "recall.via = \"tool\"\nclear_tool_results = { when = \"any\", trigger = { tokens = 500 }, keep = { results = 1 } }";
const DIALECTS: [Api; 3] = [Api::Chat, Api::Messages, Api::Responses];

// === scenes ===

/// Sends the request; what the upstream got.
async fn ask(scene: &mut Scene, api: Api, stream: bool) -> (Exchange, String) {
    let fields = ["content-type: application/json", "authorization: Bearer sk-ann", "accept-encoding: gzip"];
    let mut call = scene.ask(post(api.path(), &fields, api.request(stream))).await;
    let sent = sent(&mut call).await;
    (call, sent)
}

async fn sent(call: &mut Exchange) -> String {
    String::from_utf8(call.bytes().await.to_vec()).unwrap()
}

async fn next(scene: &mut Scene) -> (Exchange, String) {
    let mut call = scene.upstream.request().await;
    let sent = sent(&mut call).await;
    (call, sent)
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

/// What the model reads of the first result.
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
    for (api, stream) in DIALECTS.into_iter().flat_map(|api| [(api, true), (api, false)]) {
        let mut scene = Scene::with(SETTINGS).await;
        let (mut call, first) = ask(&mut scene, api, stream).await;
        assert!(call.head.get("accept-encoding").is_none(), "{api:?}");
        let handle = handle(&first);
        let acts = [Act::Think("hm"), Act::Say("One moment."), grep(&handle)];
        answer(&mut call, api, 1, &acts, stream).await;

        let (mut call, second) = next(&mut scene).await;
        assert_eq!(call.head.get("authorization"), Some("Bearer sk-ann"));
        let round = added(&first, &second);
        assert!(round.starts_with(',') || round.ends_with(','), "{api:?}: {round}");
        let read = serde_json::to_string(&line()).unwrap();
        for part in [read.trim_matches('"'), "One moment.", TOOL, "own1"] {
            assert!(round.contains(part), "{api:?} {stream}: {part} is not in {round}");
        }
        assert_eq!(round.contains("hm"), api != Api::Chat, "{api:?}: thinking goes back: {round}");
        answer(&mut call, api, 2, &[Act::Think("so"), Act::Say("It says so.")], stream).await;

        let reply = scene.client.reply().await;
        assert_eq!(reply.head.status(), 200);
        let expected = (vec!["One moment.".to_owned(), "It says so.".to_owned()], vec![], [300, 3]);
        assert_eq!(api.read(&reply.body, stream), expected, "{api:?} {stream}");
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn an_answer_without_a_call_of_the_tool_comes_back_byte_by_byte() {
    for (api, stream) in DIALECTS.into_iter().flat_map(|api| [(api, true), (api, false)]) {
        let acts = [Act::Think("hm"), Act::Say("One moment."), Act::Call("x", "query", json!({"a": 1}))];
        for acts in [&acts[..], &acts[..1], &acts[..2]] {
            let mut scene = Scene::with(SETTINGS).await;
            let (mut call, first) = ask(&mut scene, api, stream).await;
            assert!(first.contains(TOOL));
            answer(&mut call, api, 1, acts, stream).await;
            let reply = scene.client.reply().await;
            assert_eq!(String::from_utf8_lossy(&reply.body), api.answer(1, acts, stream), "{api:?} {stream}");
        }
    }
}
