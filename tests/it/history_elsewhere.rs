//! Requests that have the newest messages only, as the server has the others; and that no edit leaves an empty array.
#![expect(clippy::disallowed_types, reason = "bodies are made and counted here")]

use abridge_proxy::{dialect, engine::edit_body, replay::planner_from_toml};
use bytes::Bytes;
use proptest::{prelude::*, sample::select};
use serde_json::{Value, json};

use crate::support::scripts::{self, Item, PATHS, any_path, with_gaps};

/// Policies that take out as much as they may.
const POLICIES: [&str; 6] = [
    "",
    "filter_tool_calls = { max_tool_calls = 0 }\npolicy.edits = ['patch_tool_calls', 'filter_tool_calls']",
    "filter_tool_calls = { max_tool_calls = 0 }\npolicy.edits = ['filter_tool_calls', 'patch_tool_calls']",
    "filter_tool_calls = { max_tool_calls = 0 }\npolicy.edits = ['filter_tool_calls']",
    "filter_tool_calls = { max_tool_calls = 1 }\nclear_tool_results = { when = 'any', trigger = { messages = 1 }, keep = { results = 0 }, clear_tool_inputs = true }\ntruncate_tool_results = { max_bytes = 200 }",
    "clear_tool_results = { when = 'any', frontier = 'sliding', trigger = { messages = 1 }, keep = { results = 0 } }",
];

/// Settings that clear, filter and truncate whatever they may.
const GREEDY: &str = "policy.edits = ['patch_tool_calls', 'filter_tool_calls', 'truncate_tool_results', 'clear_tool_results']\n\
    filter_tool_calls = { max_tool_calls = 0 }\ntruncate_tool_results = { max_bytes = 400 }\n\
    clear_tool_results = { when = 'any', trigger = { messages = 1 }, keep = { results = 0 } }";

/// What says for certain that the server has what was before, by path. Each has its source in `docs/dialects.md`.
const CONTINUES: [(&str, &str); 8] = [
    (PATHS[2], r#"{"thread":{"type":"continue","previous_message_id":"msg_1"}}"#),
    (PATHS[2], r#"{"thread":{"previous_message_id":"msg_1","type":"continue"}}"#),
    (PATHS[1], r#"{"previous_response_id":"resp_1"}"#),
    (PATHS[1], r#"{"conversation":"conv_1"}"#),
    (PATHS[1], r#"{"conversation":{"id":"conv_1"}}"#),
    (PATHS[0], r#"{"context_id":"ctx-1"}"#),
    (PATHS[3], r#"{"cachedContent":"cachedContents/1"}"#),
    (PATHS[3], r#"{"cached_content":"cachedContents/1"}"#),
];

/// What says so where the messages begin with a result.
const MAY_CONTINUE: [&str; 6] = [
    r#"{"session_id":"s"}"#,
    r#"{"conversation_id":"c"}"#,
    r#"{"thread_id":"t"}"#,
    r#"{"chat_id":"c"}"#,
    r#"{"container":"container_1"}"#,
    r#"{"resumption":{"type":"enabled","token":"t"}}"#,
];

fn output(policy: &str, path: &str, body: &Bytes) -> Bytes {
    let planner = planner_from_toml(policy).unwrap();
    edit_body(&planner, dialect::for_path(path).unwrap(), body.clone()).body.concat().into()
}

fn with_keys(body: &Bytes, keys: &str) -> Bytes {
    let mut body: Value = serde_json::from_slice(body).unwrap();
    let keys: Value = serde_json::from_str(keys).unwrap();
    for (key, value) in keys.as_object().unwrap() {
        body[key] = value.clone();
    }
    body.to_string().into()
}

fn n_empty_arrays(value: &Value) -> usize {
    match value {
        Value::Array(values) => usize::from(values.is_empty()) + values.iter().map(n_empty_arrays).sum::<usize>(),
        Value::Object(fields) => fields.values().map(n_empty_arrays).sum(),
        _ => 0,
    }
}

fn result(text: &str) -> Item {
    Item::Result { id: "call_1".to_owned(), text: text.to_owned() }
}

fn user(text: &str) -> Item {
    Item::User(text.to_owned())
}

proptest! {
    #[test]
    fn no_edit_leaves_an_empty_array(
        script in with_gaps(0..5),
        kept in proptest::collection::vec(any::<bool>(), 40),
        path in any_path(),
        model in select(vec!["gpt-5", "claude-opus-5-5"]),
        policy in select(POLICIES.to_vec()),
        reasoning in select(vec!["", "\nreasoning.models = ['*']"]),
    ) {
        let items: Vec<_> = script.items.into_iter().zip(kept.into_iter().chain(std::iter::repeat(true)))
            .filter_map(|(item, kept)| kept.then_some(item)).collect();
        let body = scripts::body(path, model, &items);
        let output = output(&format!("{policy}{reasoning}"), path, &body);
        let [before, after] = [&body, &output].map(|body| n_empty_arrays(&serde_json::from_slice(body).unwrap()));
        prop_assert!(after <= before, "{}\n{}", String::from_utf8_lossy(&body), String::from_utf8_lossy(&output));
    }

    #[test]
    fn a_request_that_continues_loses_nothing_wherever_the_calls_of_its_results_are(
        script in with_gaps(1..6),
        from in 0..30_usize,
        (path, keys) in select(CONTINUES.to_vec()),
    ) {
        let items = &script.items[from.min(script.items.len() - 1)..];
        let body = with_keys(&scripts::body(path, "m", items), keys);
        let sent = String::from_utf8(output(GREEDY, path, &body).to_vec()).unwrap();
        for item in items {
            let is_there = match item {
                Item::Result { id, text } if text.len() > 400 => sent.contains(&format!("<{id}>")),
                Item::Result { text, .. } => sent.contains(&text.replace('\n', "\\n")),
                Item::Call { id: text, .. } | Item::User(text) | Item::Said(text) | Item::Thought(text) => sent.contains(text),
            };
            prop_assert!(is_there, "{:?} is not in\n{}", item, sent);
        }
    }
}

#[test]
fn a_result_whose_call_the_server_has_goes_on_and_is_truncated() {
    let short = [result("found")];
    let long = [result(&"line of it\n".repeat(200)), user("And now?")];
    let may = PATHS.into_iter().flat_map(|path| MAY_CONTINUE.map(|keys| (path, keys)));
    for (path, keys) in CONTINUES.into_iter().chain(may) {
        let body = with_keys(&scripts::body(path, "m", &short), keys);
        assert_eq!(output(GREEDY, path, &body), body, "{path} {keys}");
        let body = with_keys(&scripts::body(path, "m", &long), keys);
        let cut = String::from_utf8(output(GREEDY, path, &body).to_vec()).unwrap();
        assert!(cut.len() < 1000 && cut.contains("line of it") && cut.contains("And now?"), "{path} {keys}: {cut}");
    }
}

#[test]
fn a_request_that_continues_is_patched_and_nothing_of_it_is_filtered_or_cleared() {
    let call = |id: &str| Item::Call { id: id.to_owned(), name: "bash" };
    let answer = |id: &str| Item::Result { id: id.to_owned(), text: "some words ".repeat(30) };
    let items =
        [call("call_1"), answer("call_1"), call("call_2"), user("Go on."), Item::Said("Yes.".to_owned()), user("?")];
    for (path, keys) in CONTINUES {
        let body = with_keys(&scripts::body(path, "m", &items), keys);
        let patched = String::from_utf8(output(GREEDY, path, &body).to_vec()).unwrap();
        assert!(patched.contains("bash (call_2) has no result"), "{path} {keys}: {patched}");
        assert!(patched.contains(&"some words ".repeat(30)), "{path} {keys}: {patched}");
        let whole = scripts::body(path, "m", &items);
        let filtered = String::from_utf8(output(GREEDY, path, &whole).to_vec()).unwrap();
        assert!(!filtered.contains("some words"), "without the key it is an old result: {filtered}");
        let lines: Vec<_> = (0..30).map(|n| format!("line {n} of what was read, in so many words\n")).collect();
        let lines = lines.concat();
        let read = |id: &str| Item::Result { id: id.to_owned(), text: lines.clone() };
        let twice = [user("Read."), call("call_1"), read("call_1"), call("call_2"), read("call_2")];
        let body = with_keys(&scripts::body(path, "m", &twice), keys);
        assert_eq!(output("recall.via = 'none'", path, &body), body, "{path} {keys}");
    }
}

#[test]
fn a_label_of_a_whole_conversation_switches_nothing_off() {
    let call = Item::Call { id: "call_1".to_owned(), name: "bash" };
    let items = [user("Do it."), call, result(&"some words ".repeat(30)), Item::Said("Yes.".to_owned()), user("?")];
    let created = r#"{"thread":{"type":"create"}}"#;
    for (path, keys) in
        PATHS.into_iter().flat_map(|path| MAY_CONTINUE.map(|keys| (path, keys))).chain([(PATHS[2], created)])
    {
        let body = with_keys(&scripts::body(path, "m", &items), keys);
        assert!(!String::from_utf8_lossy(&output(GREEDY, path, &body)).contains("some words"), "{path} {keys}");
    }
    // A conversation that was cut by its client: a result without a call is refused.
    let cut = [user("Go on."), result("found"), user("?")];
    for (path, keys) in PATHS.into_iter().flat_map(|path| MAY_CONTINUE.map(|keys| (path, keys))) {
        let body = with_keys(&scripts::body(path, "m", &cut), keys);
        assert!(
            path == PATHS[2] || !String::from_utf8_lossy(&output("", path, &body)).contains("found"),
            "{path} {keys}"
        );
    }
}

#[test]
fn the_calls_of_an_answer_that_is_to_be_resumed_are_not_dangling() {
    let call = |id: &str| Item::Call { id: id.to_owned(), name: "bash" };
    let items = [user("Do it."), call("call_1"), user("Go on."), call("call_2")];
    let body = scripts::body(PATHS[2], "m", &items);
    let resumed = with_keys(&body, r#"{"resumption":{"type":"enabled","token":"t"}}"#);
    let patched = String::from_utf8(output("", PATHS[2], &resumed).to_vec()).unwrap();
    assert!(patched.contains("bash (call_1) has no result") && !patched.contains("bash (call_2) has"), "{patched}");
    let other = with_keys(&body, r#"{"resumption":{"type":"enabled"}}"#);
    let patched = String::from_utf8(output("", PATHS[2], &other).to_vec()).unwrap();
    assert!(patched.contains("bash (call_2) has no result"), "{patched}");
}

#[test]
fn both_readers_know_the_keys() {
    let body = |path: &str, keys: &str| {
        // An escaped key is for the thorough reader.
        let body = String::from_utf8(with_keys(&scripts::body(path, "m", &[result("x")]), keys).to_vec()).unwrap();
        body.replacen("\"model\"", "\"mod\\u0065l\"", 1)
    };
    let in_body = CONTINUES.into_iter().filter(|(path, _)| *path != PATHS[3]);
    for (path, keys) in in_body.chain(MAY_CONTINUE.map(|keys| (PATHS[0], keys))) {
        let body = body(path, keys);
        let conversation = dialect::for_path(path).unwrap().parse(body.as_bytes()).unwrap();
        assert!(conversation.traits.history_elsewhere && conversation.model.is_some(), "{path} {keys}");
    }
    for keys in [r#"{"session_id":null}"#, r#"{"thread":{"type":"create"}}"#, "{}"] {
        let body = json!({"model": "m", "messages": [{"role": "tool", "tool_call_id": "1", "content": "x"}]});
        let body = with_keys(&body.to_string().into(), keys);
        assert!(!dialect::for_path(PATHS[0]).unwrap().parse(&body).unwrap().traits.history_elsewhere, "{keys}");
    }
}
