//! The request to the model that summarises.
#![expect(clippy::disallowed_types, reason = "messages are made here, and looked at by eyes of our own")]

use proptest::prelude::*;
use serde_json::{from_slice, json};

use super::*;
use crate::dialect::Dialect;
use crate::summary::{InputElement, SummaryInput};

/// In the shape of the client's request.
fn cached(source: &SummaryInput, instruction: &str, max_tokens: usize, model: Option<&str>) -> Option<Bytes> {
    ChatCompletions
        .summary_request(source, &Prompt { input: PromptMode::Cached, system: "", instruction, max_tokens, model })
}

/// In the plain shape.
fn fresh(
    source: &SummaryInput,
    system: &str,
    instruction: &str,
    max_tokens: usize,
    model: Option<&str>,
) -> Option<Bytes> {
    ChatCompletions
        .summary_request(source, &Prompt { input: PromptMode::Fresh, system, instruction, max_tokens, model })
}

type Json = serde_json::Value;

fn piece(json: &str, tokens: usize, opens: bool) -> InputElement {
    InputElement { json: Bytes::copy_from_slice(json.as_bytes()), tokens, opens, must_alternate: false }
}

const SYSTEM: &str = r#"{"role": "system", "content": "be good"}"#;
const USER: &str = r#"{ "content":"h\u0069", "role":"user", "x":1e2 }"#;
const ANSWER: &str = r#"{"role":"assistant","content":"yes"}"#;

fn source(body: &str) -> SummaryInput {
    let messages = vec![piece(SYSTEM, 5, true), piece(USER, 5, true), piece(ANSWER, 5, true)];
    SummaryInput { body: Bytes::copy_from_slice(body.as_bytes()), messages, n_leading: 1, base_tokens: 3 }
}

fn text(request: Option<Bytes>) -> String {
    String::from_utf8(request.unwrap().to_vec()).unwrap()
}

const END: &str = r#""max_tokens":900,"stream":true,"stream_options":{"include_usage":true}}"#;

#[test]
fn cached_is_the_clients_request_and_the_instruction() {
    let body = r#"{"model":"m\u0061","temperature":1.0e0,"messages":[{},{}], "tools":[ {"x":1} ],"unknown":{"a" : 1}}"#;
    let expected = format!(
        r#"{{"model":"m\u0061","temperature":1.0e0,"messages":[{SYSTEM},{USER},{ANSWER},{{"role":"user","content":"Sum \"it\"\n总结"}}],"tools":[ {{"x":1}} ],"unknown":{{"a" : 1}},"tool_choice":"none",{END}"#
    );
    assert_eq!(text(cached(&source(body), "Sum \"it\"\n总结", 900, None)), expected);
}

#[test]
fn what_shapes_the_answer_does_not_stay() {
    let shaping: Vec<_> = ChatCompletions::SHAPING.lines().map(|key| format!(r#""{key}":1"#)).collect();
    let body = format!(r#"{{"messages":[],{}}}"#, shaping.join(","));
    let request = text(cached(&source(&body), "I", 900, None));
    let request: Json = serde_json::from_str(&request).unwrap();
    let keys: Vec<_> = request.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["max_completion_tokens", "messages", "stream", "stream_options"]);
    assert_eq!((&request["max_completion_tokens"], &request["stream"]), (&json!(900), &json!(true)));
}

#[test]
fn calls_are_forbidden_where_something_can_be_called() {
    let choices = |body: &str| {
        let request: Json = from_slice(&cached(&source(body), "I", 900, None).unwrap()).unwrap();
        [request["tool_choice"].clone(), request["function_call"].clone()]
    };
    assert_eq!(choices(r#"{"messages":[],"tools":[{}],"tool_choice":"auto"}"#), [json!("none"), Json::Null]);
    assert_eq!(choices(r#"{"messages":[],"functions":[{}]}"#), [Json::Null, json!("none")]);
    for body in
        [r#"{"messages":[],"tools":[],"tool_choice":"auto"}"#, r#"{"messages":[],"tools":null}"#, r#"{"messages":[]}"#]
    {
        assert_eq!(choices(body), [Json::Null, Json::Null], "{body}");
    }
}

#[test]
fn another_model_may_be_asked() {
    let model = |request: Option<Bytes>| from_slice::<Json>(&request.unwrap()).unwrap()["model"].clone();
    for body in [r#"{"model":"m","messages":[]}"#, r#"{"messages":[]}"#] {
        assert_eq!(model(cached(&source(body), "I", 900, Some("x/\"y\""))), "x/\"y\"");
        assert_eq!(model(fresh(&source(body), "S", "I", 900, Some("x/\"y\""))), "x/\"y\"");
    }
    assert_eq!(model(cached(&source(r#"{"messages":[]}"#), "I", 900, None)), Json::Null);
    assert_eq!(model(fresh(&source(r#"{"messages":[]}"#), "S", "I", 900, None)), Json::Null);
}

#[test]
fn fresh_has_a_line_of_its_own_and_no_tools() {
    let body = r#"{"tools":[{}],"user":"u","temperature":0,"messages":[],"model":"m","thinking":{},"stop":"x","provider":{"order":[1]}}"#;
    let messages = format!(
        r#""messages":[{{"role":"system","content":"你总结"}},{USER},{ANSWER},{{"role":"user","content":"I"}}]"#
    );
    let expected = format!(r#"{{"model":"m",{messages},"user":"u","provider":{{"order":[1]}},{END}"#);
    assert_eq!(text(fresh(&source(body), "你总结", "I", 900, None)), expected);
    // Another provider learns nothing of what the client says beside its messages.
    let expected = format!(r#"{{"model":"other",{messages},{END}"#);
    assert_eq!(text(fresh(&source(body), "你总结", "I", 900, Some("other"))), expected);
}

#[test]
fn the_limit_has_the_key_that_is_understood() {
    let key = |body: &str, model| {
        let source = source(body);
        let keys = [cached(&source, "I", 900, model), fresh(&source, "S", "I", 900, model)].map(|request| {
            let request: Json = from_slice(&request.unwrap()).unwrap();
            let keys =
                ["max_tokens", "max_completion_tokens"].into_iter().filter(|key| request.get(key) == Some(&json!(900)));
            keys.collect::<Vec<_>>().concat()
        });
        keys.join(" ")
    };
    for (body, expected) in [
        (r#"{"messages":[]}"#, "max_tokens max_tokens"),
        (r#"{"messages":[],"max_tokens":5}"#, "max_tokens max_tokens"),
        (r#"{"messages":[],"max_tokens":5,"model":"o3"}"#, "max_tokens max_tokens"),
        (r#"{"messages":[],"max_completion_tokens":5}"#, "max_completion_tokens max_completion_tokens"),
        (r#"{"messages":[],"max_tokens":5,"max_completion_tokens":5}"#, "max_completion_tokens max_completion_tokens"),
        (r#"{"messages":[],"max_completion_tokens":null,"model":"gpt-4o"}"#, "max_tokens max_tokens"),
        (r#"{"messages":[],"model":"openai/gpt-5.1"}"#, "max_completion_tokens max_completion_tokens"),
    ] {
        assert_eq!(key(body, None), expected, "{body}");
    }
    assert_eq!(key(r#"{"messages":[],"max_completion_tokens":5}"#, Some("qwen3")), "max_completion_tokens max_tokens");
    assert_eq!(key(r#"{"messages":[]}"#, Some("o4-mini")), "max_completion_tokens max_completion_tokens");
}

#[test]
fn plain_has_one_message_and_keys_that_the_client_sends() {
    let plain = |body: &str, model| {
        let prompt = Prompt { input: PromptMode::Plain, system: "S", instruction: "I", max_tokens: 9000, model };
        text(ChatCompletions.summary_request(&source(body), &prompt))
    };
    let message = r#""messages":[{"role":"user","content":"I"}]"#;
    let own =
        r#"{"model":"m","messages":[],"tools":[{}],"stream_options":{},"reasoning_effort":"high","temperature":0}"#;
    assert_eq!(plain(own, None), format!(r#"{{"model":"m",{message}}}"#));
    for (limit, expected) in [("500", 9000), ("4096", 4096), ("32000", 9000)] {
        for key in ["max_tokens", "max_completion_tokens"] {
            let body = format!(r#"{{"model":"m","{key}":{limit},"stream":true,"user":"u","messages":[]}}"#);
            let request = format!(r#"{{"model":"m",{message},"user":"u","{key}":{expected},"stream":true}}"#);
            assert_eq!(plain(&body, None), request);
            assert_eq!(plain(&body, Some("x")), format!(r#"{{"model":"x",{message},"stream":true}}"#));
        }
    }
}

#[test]
fn of_what_is_odd_nothing_is_made() {
    for body in
        ["", "[]", "null", "{", r#"{"a":1,"messages":[],"a":2}"#, r#"{"messages":[],"mess\u0061ges":[]}"#, "{}\u{0}"]
    {
        assert_eq!(cached(&source(body), "I", 900, None), None, "{body}");
        assert_eq!(fresh(&source(body), "S", "I", 900, None), None, "{body}");
    }
    assert_eq!(cached(&source("{}"), "I", 900, None), None);
    let no_text = SummaryInput { body: Bytes::from_static(b"{\"messages\":[],\"x\":\"\xff\"}"), ..source("") };
    assert_eq!(cached(&no_text, "I", 900, None), None);
    for n_leading in [3, 4] {
        let nothing = SummaryInput { n_leading, ..source(r#"{"messages":[]}"#) };
        assert_eq!(cached(&nothing, "I", 900, None), None);
        assert_eq!(fresh(&nothing, "S", "I", 900, None), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn requests_are_json_with_the_messages_as_they_were(key in "[a-z\"\\\\é]{1,5}", instruction in any::<String>(), model in prop::option::of(any::<String>())) {
        let body = json!({ "model": "m", key: 1, "messages": [] }).to_string();
        let source = source(&body);
        for request in [cached(&source, &instruction, 900, model.as_deref()), fresh(&source, "S", &instruction, 900, model.as_deref())] {
            let request = text(request);
            let as_they_were = format!("{USER},{ANSWER},");
            prop_assert!(request.contains(&as_they_were));
            let read: Json = serde_json::from_str(&request).unwrap();
            prop_assert_eq!(&read["messages"].as_array().unwrap().last().unwrap()["content"], &instruction);
            prop_assert_eq!(&read["model"], model.as_deref().unwrap_or("m"));
        }
    }
}
