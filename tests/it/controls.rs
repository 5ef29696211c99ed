//! The tool by which the model controls clearing: in band and by the MCP server, in each wire format.
#![expect(clippy::disallowed_types, reason = "what upstreams and clients say, made and read here")]

use abridge_proxy::payload::handles_in;
use serde_json::{Value, json};

use crate::support::rounds::{Act, Api, TOOL};
use crate::support::{Abridge, Exchange, Scene, Setup, Upstream, Wire, post};

mod generated;

const ANN: &str = "authorization: Bearer sk-ann";
const DIALECTS: [Api; 3] = [Api::Chat, Api::Messages, Api::Responses];

/// The tool that abridge adds, and the one of its MCP server as clients name it.
const ADDED: &str = "abridge_control_context";
const OFFERED: &str = "mcp__abridge__control_context";

/// Pinned results may have 1,000 tokens together.
const TRIGGER: usize = 4_000;
/// A trigger that does not hold in these tests.
const NEVER: usize = 1_000_000;

fn settings(trigger: usize) -> String {
    format!(
        "recall.via = \"tool\"\nrecall.controls = true\nclear_tool_results = {{ when = \"any\", trigger = {{ tokens = {trigger} }}, keep = {{ results = 1 }}, keep_reads = 0 }}"
    )
}

// === conversations ===

/// A text of about so many tokens.
fn words(name: &str, n: usize) -> String {
    format!("{name}:{}", " word".repeat(n))
}

/// A conversation that grows as its client sends it.
#[derive(Clone)]
struct Talk {
    api: Api,
    tools: Vec<&'static str>,
    elements: Vec<Value>,
    n_calls: usize,
}

impl Talk {
    fn new(api: Api) -> Self {
        Self { api, tools: vec!["read"], elements: vec![json!({"role": "user", "content": "go"})], n_calls: 0 }
    }

    /// The client has the tool of the MCP server.
    fn offering(api: Api) -> Self {
        Self { tools: vec!["read", "mcp__abridge__recall", OFFERED], ..Self::new(api) }
    }

    /// The model calls a tool of the client, and gets this result.
    fn call(&mut self, name: &'static str, arguments: Value, result: &str) {
        let id: &str = format!("c{}", self.n_calls).leak();
        self.n_calls += 1;
        self.elements.extend(self.api.turn(&[Act::Call(id, name, arguments)], result));
    }

    fn read(&mut self, path: &str, n_tokens: usize) {
        self.call("read", json!({"path": path}), &words(path, n_tokens));
    }

    fn control(&mut self, arguments: Value) {
        self.call(OFFERED, arguments, "noted");
    }

    /// The model says something without a call, and the user something else.
    fn says(&mut self, acts: &[Act], user: &str) {
        let mut turn = self.api.turn(acts, "");
        turn.retain(|element| element["content"] != json!([]));
        self.elements.extend(turn);
        self.elements.push(json!({"role": "user", "content": user}));
    }

    fn body(&self, stream: bool) -> String {
        let schema = json!({"type": "object", "properties": {}});
        let tool = |name: &&str| match self.api {
            Api::Chat => json!({"type": "function", "function": {"name": name, "parameters": schema}}),
            Api::Messages => json!({"name": name, "input_schema": schema}),
            Api::Responses => json!({"type": "function", "name": name, "parameters": schema}),
        };
        let tools: Vec<_> = self.tools.iter().map(tool).collect();
        let mut body = json!({"model": "gpt-4o", "max_tokens": 100, "tools": tools, "stream": stream});
        body[self.api.elements()] = self.elements.clone().into();
        body.to_string()
    }

    /// Returns the body that the upstream gets of it, which answers that it is done.
    async fn sent(&self, at: &Abridge, upstream: &mut Upstream) -> String {
        let mut client = Wire::connect(at.address()).await;
        client.send(post(self.api.path(), &["content-type: application/json", ANN], self.body(false))).await;
        let mut call = upstream.request().await;
        let sent = String::from_utf8(call.bytes().await.to_vec()).unwrap();
        answer(&mut call, self.api, 1, &[Act::Say("ok")], false).await;
        client.reply().await;
        sent
    }
}

async fn answer(call: &mut Exchange, api: Api, n: u64, acts: &[Act], stream: bool) {
    let kind = if stream { "content-type: text/event-stream" } else { "content-type: application/json" };
    call.answer("200 OK", &[kind, "connection: close"], api.answer(n, acts, stream)).await;
}

async fn next(scene: &mut Scene) -> (Exchange, String) {
    let mut call = scene.upstream.request().await;
    let sent = call.bytes().await;
    (call, String::from_utf8(sent.to_vec()).unwrap())
}

async fn ask(scene: &mut Scene, talk: &Talk, stream: bool) -> (Exchange, String) {
    scene.client.send(post(talk.api.path(), &["content-type: application/json", ANN], talk.body(stream))).await;
    next(scene).await
}

async fn start(settings: &str) -> (Upstream, Abridge) {
    let upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with(settings).start().await;
    (upstream, abridge)
}

/// The elements of a body, each as text.
fn elements(api: Api, body: &str) -> Vec<String> {
    let body: Value = serde_json::from_str(body).unwrap();
    body[api.elements()].as_array().unwrap().iter().map(Value::to_string).collect()
}

fn without_handles(elements: Vec<String>) -> Vec<String> {
    let shown = elements.concat();
    let handles = handles_in(&shown).map(|handle| handle.to_string()).collect::<Vec<_>>();
    elements
        .into_iter()
        .map(|element| handles.iter().fold(element, |element, handle| element.replace(handle, "H")))
        .collect()
}

/// Whether a body has the text of a result.
fn has(body: &str, path: &str) -> bool {
    body.contains(&format!("{path}: word word"))
}

fn assert_valid(api: Api, body: &str) {
    let (mut calls, mut results) = api.calls_and_results(&serde_json::from_str(body).unwrap());
    calls.sort();
    results.sort();
    assert_eq!(calls, results, "{api:?}: {body}");
}

// === in band ===

#[tokio::test]
async fn a_model_that_calls_the_added_tool_alone_has_results_cleared_from_the_next_request_on() {
    let mut scene = Scene::with(&settings(NEVER)).await;
    for (api, stream) in DIALECTS.into_iter().flat_map(|api| [(api, true), (api, false)]) {
        let mut talk = Talk::new(api);
        talk.elements[0]["content"] = format!("go {api:?} {stream}").into();
        talk.read("a.rs", 900);
        talk.read("b.rs", 900);
        let (mut call, first) = ask(&mut scene, &talk, stream).await;
        assert!(first.contains(ADDED) && !first.contains(TOOL) && has(&first, "a.rs"), "{api:?}: {first}");
        let compact = Act::Call("own1", ADDED, json!({"action": "compact"}));
        answer(&mut call, api, 1, &[Act::Think("hm"), Act::Say("One moment."), compact], stream).await;
        let (mut call, second) = next(&mut scene).await;
        assert!(second.contains("Old results are cleared with your next turn") && has(&second, "a.rs"), "{second}");
        answer(&mut call, api, 2, &[Act::Say("Done.")], stream).await;
        let reply = scene.client.reply().await;
        assert!(!String::from_utf8_lossy(&reply.body).contains(ADDED));
        let said = vec!["One moment.".to_owned(), "Done.".to_owned()];
        assert_eq!(api.read(&reply.body, stream), (said, vec![], [200, 2]), "{api:?} {stream}");

        talk.says(&[Act::Think("hm"), Act::Say("One moment."), Act::Say("Done.")], "on");
        if api == Api::Chat && stream {
            let at = talk.elements.len() - 2;
            talk.elements[at]["tool_calls"] = Value::Null; // as some clients write it
        }
        let (mut call, third) = ask(&mut scene, &talk, stream).await;
        assert!(third.contains("own1") && !has(&third, "a.rs") && has(&third, "b.rs"), "{api:?} {stream}: {third}");
        let tools = third.get(third.find("\"tools\"").unwrap()..).unwrap();
        assert!(third.contains("[Cleared: ") && tools.find(ADDED) < tools.find(TOOL), "the tools only grow: {third}");
        assert_valid(api, &third);
        answer(&mut call, api, 3, &[Act::Say("ok")], stream).await;
        scene.client.reply().await;

        talk.says(&[Act::Say("ok")], "more");
        let (mut call, fourth) = ask(&mut scene, &talk, stream).await;
        assert!(elements(api, &fourth).starts_with(&elements(api, &third)), "{api:?} {stream}: {fourth}");
        answer(&mut call, api, 4, &[Act::Say("ok")], stream).await;
        scene.client.reply().await;
    }
}

#[tokio::test]
async fn a_result_that_the_model_pins_beside_its_other_calls_or_in_an_earlier_round_is_not_cleared() {
    let mut scene = Scene::with(&settings(TRIGGER)).await;
    for (api, stream) in DIALECTS.into_iter().flat_map(|api| [(api, true), (api, false)]) {
        for is_beside in [true, false] {
            let mut talk = Talk::new(api);
            talk.elements[0]["content"] = format!("go {api:?} {stream} {is_beside}").into();
            talk.read("a.rs", 900);
            talk.read("b.rs", 900);
            let (mut call, first) = ask(&mut scene, &talk, stream).await;
            assert!(has(&first, "a.rs") && has(&first, "b.rs"));
            let pin = Act::Call("own1", ADDED, json!({"action": "pin", "result": "a.rs"}));
            let read = Act::Call("c2", "read", json!({"path": "c.rs"}));
            if is_beside {
                answer(&mut call, api, 1, &[Act::Say("So."), pin, read], stream).await;
            } else {
                answer(&mut call, api, 1, &[pin], stream).await;
                (call, _) = next(&mut scene).await;
                answer(&mut call, api, 2, &[Act::Say("So."), read], stream).await;
            }
            let reply = scene.client.reply().await;
            let (_, calls, _) = api.read(&reply.body, stream);
            assert_eq!(calls, ["c2:{\"path\":\"c.rs\"}"], "{api:?} {stream}");
            talk.elements.extend(
                api.turn(&[Act::Say("So."), Act::Call("c2", "read", json!({"path": "c.rs"}))], &words("c.rs", 900)),
            );
            talk.n_calls += 1;
            talk.read("d.rs", 2_000);
            let (mut call, sent) = ask(&mut scene, &talk, stream).await;
            let found = ["a.rs", "b.rs", "c.rs", "d.rs"].map(|path| has(&sent, path));
            assert_eq!(found, [true, false, false, true], "{api:?} {stream} {is_beside}: {sent}");
            assert!(sent.contains("own1"));
            assert_valid(api, &sent);
            answer(&mut call, api, 3, &[Act::Say("ok")], stream).await;
            scene.client.reply().await;
        }
    }
}

#[tokio::test]
async fn a_model_that_pins_in_each_round_is_told_to_go_on_and_all_its_pins_hold() {
    let mut scene = Scene::with(&(settings(TRIGGER) + "\nrecall.tool.rounds = 1")).await;
    for (api, stream) in DIALECTS.into_iter().flat_map(|api| [(api, true), (api, false)]) {
        let mut talk = Talk::new(api);
        talk.elements[0]["content"] = format!("go {api:?} {stream}").into();
        talk.read("a.rs", 450);
        talk.read("b.rs", 450);
        let (mut call, _) = ask(&mut scene, &talk, stream).await;
        for (n, (id, path)) in [("own1", "a.rs"), ("own2", "b.rs")].into_iter().enumerate() {
            let pin = Act::Call(id, ADDED, json!({"action": "pin", "result": path}));
            answer(&mut call, api, 1 + n as u64, &[pin], stream).await;
            let told;
            (call, told) = next(&mut scene).await;
            assert_eq!(told.contains("go on without"), n == 1, "{api:?} {stream}: {told}");
        }
        answer(&mut call, api, 3, &[Act::Say("Done.")], stream).await;
        let reply = scene.client.reply().await;
        assert_eq!(api.read(&reply.body, stream).0, ["Done."], "{api:?} {stream}");
        talk.says(&[Act::Say("Done.")], "on");
        talk.read("c.rs", 900);
        talk.read("d.rs", 2_500);
        let (mut call, sent) = ask(&mut scene, &talk, stream).await;
        let found = ["a.rs", "b.rs", "c.rs", "d.rs"].map(|path| has(&sent, path));
        assert_eq!(found, [true, true, false, true], "{api:?} {stream}: {sent}");
        assert_valid(api, &sent);
        answer(&mut call, api, 4, &[Act::Say("ok")], stream).await;
        scene.client.reply().await;
    }
}

/// The name of such a turn is that of the mark by which a caller with kept calls is known.
#[tokio::test]
async fn a_conversation_that_begins_with_a_blank_answer_gets_no_call_of_another() {
    let mut scene = Scene::with(&settings(NEVER)).await;
    for api in DIALECTS {
        let talk = Talk::new(api);
        let (mut call, _) = ask(&mut scene, &talk, false).await;
        answer(&mut call, api, 1, &[Act::Call("own1", ADDED, json!({"action": "compact"}))], false).await;
        let (mut call, _) = next(&mut scene).await;
        answer(&mut call, api, 2, &[Act::Say("Done.")], false).await;
        scene.client.reply().await;

        let mut blank = Talk::new(api);
        let mut turn = api.turn(&[Act::Say(" ")], "");
        turn.retain(|element| element["content"] != json!([]));
        blank.elements.splice(..0, turn);
        let (mut call, sent) = ask(&mut scene, &blank, false).await;
        assert_eq!(elements(api, &sent), elements(api, &blank.body(false)), "{api:?}: {sent}");
        answer(&mut call, api, 3, &[Act::Say("ok")], false).await;
        scene.client.reply().await;
    }
}

#[tokio::test]
async fn without_the_setting_there_is_no_tool_and_calls_of_it_do_nothing() {
    for line in ["", "recall = { via = \"offered\", controls = true }"] {
        let lines = settings(TRIGGER).replace("recall.via = \"tool\"\nrecall.controls = true", line);
        let (mut upstream, abridge) = start(&lines).await;
        for api in DIALECTS {
            let mut talk = Talk::new(api);
            talk.read("a.rs", 900);
            assert_eq!(talk.sent(&abridge, &mut upstream).await, talk.body(false), "{api:?} {line}");
        }
    }
    let (mut upstream, abridge) = start(&settings(NEVER).replace("controls = true", "controls = false")).await;
    for api in DIALECTS {
        let mut talk = Talk::offering(api);
        talk.read("a.rs", 900);
        talk.read("b.rs", 900);
        talk.control(json!({"action": "compact"}));
        assert_eq!(talk.sent(&abridge, &mut upstream).await, talk.body(false), "{api:?}");
    }
}

// === calls of the MCP server, which the client makes ===

#[tokio::test]
async fn calls_of_the_mcp_server_in_the_messages_pin_and_compact() {
    let (mut upstream, abridge) = start(&settings(NEVER)).await;
    for api in DIALECTS {
        let mut talk = Talk::offering(api);
        for path in ["a.rs", "b.rs", "c.rs"] {
            talk.read(path, 900);
        }
        let sent = talk.sent(&abridge, &mut upstream).await;
        assert_eq!(sent, talk.body(false), "{api:?}: the tool that is offered is the only one");
        talk.control(json!({"action": "pin", "result": "b.rs"}));
        talk.control(json!({"action": "compact"}));
        let sent = talk.sent(&abridge, &mut upstream).await;
        assert_eq!(["a.rs", "b.rs", "c.rs"].map(|path| has(&sent, path)), [false, true, true], "{api:?}: {sent}");
        // The last result is pinned without words, and nothing is cleared without a call.
        talk.control(json!({"action": "pin"}));
        talk.read("d.rs", 900);
        let more = talk.sent(&abridge, &mut upstream).await;
        assert!(elements(api, &more).starts_with(&elements(api, &sent)) && has(&more, "d.rs"), "{api:?}: {more}");
        talk.read("e.rs", 900);
        talk.control(json!({"action": "compact"}));
        let last = talk.sent(&abridge, &mut upstream).await;
        let found = ["a.rs", "b.rs", "c.rs", "d.rs", "e.rs"].map(|path| has(&last, path));
        assert_eq!(found, [false, true, true, false, true], "{api:?}: {last}");
    }
}

#[tokio::test]
async fn a_process_that_has_seen_nothing_sends_the_same_bytes_for_the_same_messages() {
    for frontier in ["sticky", "sliding"] {
        let lines =
            settings(TRIGGER).replace("{ when = \"any\"", &format!("{{ frontier = \"{frontier}\", when = \"any\""));
        let (mut upstream, abridge) = start(&lines).await;
        for api in DIALECTS {
            let mut talk = Talk::offering(api);
            let mut before: Vec<String> = Vec::new();
            let mut n_passes = 0;
            for n in 0..9 {
                talk.read(&format!("{n}.rs"), 400);
                match n {
                    1 => talk.control(json!({"action": "pin", "result": "1.rs"})),
                    3 => talk.control(json!({"action": "compact"})),
                    5 => talk.control(json!({"action": "pin", "result": "5.rs"})),
                    _ => {}
                }
                let sent = elements(api, &talk.sent(&abridge, &mut upstream).await);
                n_passes += usize::from(!sent.starts_with(&before));
                before = sent;
            }
            let all = before.concat();
            assert_eq!(
                ["0.rs", "1.rs", "5.rs", "8.rs"].map(|path| has(&all, path)),
                [false, true, true, true],
                "{all}"
            );
            assert!(frontier == "sliding" || n_passes == 1, "{api:?} {frontier}: {n_passes} passes");
            let (mut other, fresh) = start(&lines).await;
            // Each process has its own handles.
            let [fresh, before] = [elements(api, &talk.sent(&fresh, &mut other).await), before].map(without_handles);
            assert_eq!(fresh, before, "{api:?} {frontier}");
        }
    }
}

#[tokio::test]
async fn a_model_that_pins_all_it_reads_has_the_older_of_it_cleared() {
    let (mut upstream, abridge) = start(&settings(TRIGGER)).await;
    for api in DIALECTS {
        let mut talk = Talk::offering(api);
        for n in 0..20 {
            talk.read(&format!("{n}.rs"), 450);
            talk.control(json!({"action": "pin", "result": format!("{n}.rs")}));
            let sent = talk.sent(&abridge, &mut upstream).await;
            let n_words = sent.matches(" word").count();
            assert!(n_words <= TRIGGER, "{api:?}, {n}: {n_words} of {}", 450 * (n + 1));
        }
        // One result that has more than the quarter is not pinned, and ends no other pin.
        talk.read("long.rs", 1_100);
        talk.control(json!({"action": "pin", "result": "long.rs"}));
        talk.read("next.rs", 3_000);
        let sent = talk.sent(&abridge, &mut upstream).await;
        let found = ["17.rs", "18.rs", "19.rs", "long.rs", "next.rs"].map(|path| has(&sent, path));
        assert_eq!(found, [false, true, true, false, true], "{api:?}: {sent}");
    }
}

#[tokio::test]
async fn a_result_that_waits_for_a_clearing_that_pays_can_still_be_pinned() {
    let lines = settings(TRIGGER).replace("keep_reads = 0", "keep_reads = 0, clear_at_least = 1500");
    let (mut upstream, abridge) = start(&lines).await;
    for api in DIALECTS {
        let mut talk = Talk::offering(api);
        talk.elements[0]["content"] = words("user", TRIGGER).into();
        talk.read("a.rs", 900);
        talk.read("b.rs", 900);
        assert_eq!(talk.sent(&abridge, &mut upstream).await, talk.body(false), "{api:?}: too little");
        talk.control(json!({"action": "pin", "result": "a.rs"}));
        talk.read("c.rs", 900);
        talk.read("d.rs", 900);
        let sent = talk.sent(&abridge, &mut upstream).await;
        let found = ["a.rs", "b.rs", "c.rs", "d.rs"].map(|path| has(&sent, path));
        assert_eq!(found, [true, false, false, true], "{api:?}: {sent}");
    }
}

#[tokio::test]
async fn pins_end_where_a_request_would_not_fit_the_context_window() {
    let lines = settings(TRIGGER) + "\nmodels = [{ match = \"gpt-4o\", context_window = 5000 }]";
    let (mut upstream, abridge) = start(&lines).await;
    let mut talk = Talk::offering(Api::Chat);
    talk.read("a.rs", 900);
    talk.control(json!({"action": "pin", "result": "a.rs"}));
    talk.says(&[Act::Say("ok")], "so far");
    assert!(has(&talk.sent(&abridge, &mut upstream).await, "a.rs"));
    talk.says(&[Act::Say("ok")], &words("user", 4_000));
    let sent = talk.sent(&abridge, &mut upstream).await;
    assert_eq!(["a.rs", "user"].map(|path| has(&sent, path)), [false, true], "{sent}");
}

#[tokio::test]
async fn pins_hold_under_the_presets_that_clear() {
    for preset in ["eino", "langchain"] {
        let lines = format!(
            "preset = \"{preset}\"\nrecall.controls = true\nclear_tool_results.trigger = {{ tokens = {TRIGGER} }}\nclear_tool_results.keep = {{ results = 1 }}"
        );
        let (mut upstream, abridge) = start(&lines).await;
        for api in DIALECTS {
            let mut talk = Talk::offering(api);
            talk.read("a.rs", 700);
            talk.control(json!({"action": "pin", "result": "a.rs"}));
            for path in ["b.rs", "c.rs", "d.rs", "e.rs"] {
                talk.read(path, 2_500);
                let sent = talk.sent(&abridge, &mut upstream).await;
                assert!(has(&sent, "a.rs") && has(&sent, path), "{api:?} {preset}: {sent}");
            }
            let sent = talk.sent(&abridge, &mut upstream).await;
            assert!(!has(&sent, "c.rs"), "{api:?} {preset}: {sent}");
        }
    }
}
