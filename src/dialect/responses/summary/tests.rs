//! The request to the model that summarises.
#![expect(clippy::disallowed_types, reason = "items are looked at here by eyes of our own")]

use bytes::Bytes;

use super::*;
use crate::dialect::Dialect;
use crate::summary::{InputElement, SummaryInput};

type Json = serde_json::Value;

const USER: &str = r#"{ "content":"h\u0069", "role":"user", "x":1e2 }"#;
const REASONING: &str = r#"{"type":"reasoning","id":"rs_1","encrypted_content":"gAAA"}"#;
const CALL: &str = r#"{"type":"function_call","id":"fc_1","call_id":"1","name":"f","arguments":"{}"}"#;
const OUTPUT: &str = r#"{"type":"function_call_output","call_id":"1","output":"x"}"#;
const SEARCH: &str = r#"{"type":"web_search_call","id":"ws_1"}"#;

fn source(body: &str) -> SummaryInput {
    let piece = |json: &&str| InputElement {
        json: Bytes::copy_from_slice(json.as_bytes()),
        tokens: 5,
        opens: true,
        must_alternate: false,
    };
    let items = [r#"{"role":"developer","content":"be good"}"#, USER, REASONING, CALL, OUTPUT, SEARCH];
    SummaryInput {
        body: Bytes::copy_from_slice(body.as_bytes()),
        messages: items.iter().map(piece).collect(),
        n_leading: 1,
        base_tokens: 3,
    }
}

fn ask(body: &str, input: PromptMode, model: Option<&str>) -> Option<String> {
    let prompt = Prompt { input, system: "S", instruction: "Sum \"it\"\n总结", max_tokens: 900, model };
    Responses.summary_request(&source(body), &prompt).map(|request| String::from_utf8(request.to_vec()).unwrap())
}

const INSTRUCTION: &str = r#"{"type":"message","role":"user","content":"Sum \"it\"\n总结"}"#;

#[test]
fn cached_is_the_clients_request_and_the_instruction() {
    let body = r#"{"model":"m\u0061","instructions":"be","input":[{},{}], "tools":[ {"x":1} ],"tool_choice":"auto","unknown":{"a" : 1},"store":true,"stream":false,"background":true,"text":{"format":{}}}"#;
    let expected = format!(
        r#"{{"model":"m\u0061","instructions":"be","input":[{{"role":"developer","content":"be good"}},{USER},{REASONING},{CALL},{OUTPUT},{SEARCH},{INSTRUCTION}],"tools":[ {{"x":1}} ],"unknown":{{"a" : 1}},"tool_choice":"none","store":false,"stream":true}}"#
    );
    assert_eq!(ask(body, PromptMode::Cached, None).unwrap(), expected);
}

#[test]
fn what_shapes_the_answer_does_not_stay() {
    let shaping: Vec<_> = Responses::SHAPING.lines().map(|key| format!(r#""{key}":1"#)).collect();
    let body = format!(r#"{{"input":[],{}}}"#, shaping.join(","));
    for input in [PromptMode::Cached, PromptMode::Fresh] {
        let request: Json = serde_json::from_str(&ask(&body, input, None).unwrap()).unwrap();
        let mut keys: Vec<_> = request.as_object().unwrap().keys().map(String::as_str).collect();
        keys.retain(|key| *key != "instructions");
        assert_eq!(keys, ["input", "max_output_tokens", "store", "stream"]);
        assert_eq!(request["max_output_tokens"], 900);
        assert_eq!((&request["store"], &request["stream"]), (&Json::Bool(false), &Json::Bool(true)));
    }
}

#[test]
fn another_model_reads_no_reasoning_and_no_ids() {
    let call = r#"{"type":"function_call","call_id":"1","name":"f","arguments":"{}"}"#;
    let items = format!("{USER},{call},{OUTPUT},{SEARCH},{INSTRUCTION}");
    assert_eq!(
        ask(r#"{"model":"m","input":[],"user":"u","tools":[{}]}"#, PromptMode::Fresh, None).unwrap(),
        format!(r#"{{"model":"m","instructions":"S","input":[{items}],"user":"u","store":false,"stream":true}}"#)
    );
    assert_eq!(
        ask(r#"{"model":"m","input":[],"user":"u"}"#, PromptMode::Fresh, Some("x")).unwrap(),
        format!(r#"{{"model":"x","instructions":"S","input":[{items}],"store":false,"stream":true}}"#)
    );
    let cached = ask(r#"{"input":[],"tools":[]}"#, PromptMode::Cached, Some("x")).unwrap();
    assert!(cached.contains(call) && !cached.contains("gAAA") && cached.contains(r#""model":"x""#));
    assert!(!cached.contains("tool_choice"));
}

#[test]
fn there_is_no_request_behind_a_trigger_or_without_items() {
    for body in [
        r#"{"input":[{"role":"user"},{"type":"compaction_trigger"}]}"#,
        r#"{"input":"text"}"#,
        r#"{"previous_response_id":"x"}"#,
        r#"{"input":[],"input":[]}"#,
        "[]",
    ] {
        assert_eq!(ask(body, PromptMode::Cached, None), None, "{body}");
        assert_eq!(ask(body, PromptMode::Fresh, None), None, "{body}");
    }
    let nothing = SummaryInput { n_leading: 6, ..source(r#"{"input":[]}"#) };
    let prompt = Prompt { input: PromptMode::Cached, system: "S", instruction: "I", max_tokens: 900, model: None };
    assert_eq!(Responses.summary_request(&nothing, &prompt), None);
}

#[test]
fn plain_has_one_message_and_keys_that_the_client_sends() {
    assert_eq!(
        ask(r#"{"model":"m","input":[],"tools":[{}],"reasoning":{"effort":"high"}}"#, PromptMode::Plain, None).unwrap(),
        format!(r#"{{"model":"m","input":[{INSTRUCTION}]}}"#)
    );
    let all = r#"{"model":"m","instructions":"be","input":[],"stream":true,"store":true,"max_output_tokens":5000,"include":[],"user":"u"}"#;
    assert_eq!(
        ask(all, PromptMode::Plain, None).unwrap(),
        format!(
            r#"{{"model":"m","instructions":"S","input":[{INSTRUCTION}],"user":"u","max_output_tokens":900,"store":false,"stream":true}}"#
        )
    );
    assert_eq!(
        ask(all, PromptMode::Plain, Some("x")).unwrap(),
        format!(r#"{{"model":"x","input":[{INSTRUCTION}],"stream":true}}"#)
    );
}
