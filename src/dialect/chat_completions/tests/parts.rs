//! Texts, arguments, and keys with their commas.

use super::*;
use crate::dialect::tests::{check_input, check_texts, check_tool_names, whole};

#[test]
fn texts_of_a_content() {
    check_texts(&ChatCompletions, r#""a\"b""#, &[r#""a\"b""#]);
    check_texts(&ChatCompletions, "[]", &[]);
    check_texts(
        &ChatCompletions,
        r#"[ {"type":"text", "text" : "a"} , {"type":"image_url","image_url":{"url":"x"}},{"text":"b","type":"text","z":[]} ]"#,
        &["\"a\"", "\"b\""],
    );
    check_texts(
        &ChatCompletions,
        r#"["a",{"text":"b"},{"type":"input_text","text":"c"},{"type":"output_text","text":"d","annotations":[]},{"text":"e","type":null},{"type":"te\u0078t","text":"f"}]"#,
        &[r#""a""#, r#""b""#, r#""c""#, r#""d""#, r#""e""#, r#""f""#],
    );
    check_texts(
        &ChatCompletions,
        r#"[{"type":"text","text":1},{"type":"text"},{"text":null},{"type":"refusal","text":"a"},{"type":7,"text":"a"},{"type":"texts","text":"a"},7,["a"]]"#,
        &[],
    );
    check_texts(&ChatCompletions, r#"[{"type":"text","text":"a"},{"type":"text","text":"b","text":"c"}]"#, &[]);
    check_texts(&ChatCompletions, "7", &[]);
}

#[test]
fn the_arguments_of_a_call() {
    let check = |call: &str, expected: Option<(&str, &str)>| check_input(&ChatCompletions, call, expected);
    check(r#"{"id":"1","function":{"name":"f","arguments":"{\"a\":1}"}}"#, Some((r#""{\"a\":1}""#, "\"{}\"")));
    check(r#"{"function":{"arguments":{"a":1},"name":"f"}}"#, Some((r#"{"a":1}"#, "{}")));
    check(r#"{"function":{"arguments":null}}"#, None);
    check(r#"{"function":{}}"#, None);
    check(r#"{"custom":{"input":"x"}}"#, None);
    check(r#"{"function":7}"#, None);
}

#[test]
fn the_key_with_calls_takes_one_comma_along() {
    let check = |message: &str, expected: Option<&str>| {
        let calls = field(message.as_bytes(), whole(message), b"tool_calls");
        let cut = calls.and_then(|calls| member(message.as_bytes(), whole(message), b"\"tool_calls\"", calls));
        let rest = cut.map(|cut| message.get(..cut.start).unwrap().to_owned() + message.get(cut.end..).unwrap());
        assert_eq!(rest.as_deref(), expected, "{message}");
    };
    check(
        r#"{ "role":"assistant" , "tool_calls" : [{}] , "content":"" }"#,
        Some(r#"{ "role":"assistant" , "content":"" }"#),
    );
    check(r#"{"role":"assistant","tool_calls":[{}]}"#, Some(r#"{"role":"assistant"}"#));
    check(r#"{ "tool_calls":[{}] , "role":"assistant","x":1}"#, Some(r#"{ "role":"assistant","x":1}"#));
    check(r#"{"tool_calls":[]}"#, Some("{}"));
    check(r#"{"role":"assistant"}"#, None);
    check(r#"{"role":"assistant","tool\u005fcalls":[]}"#, None);
}

#[test]
fn the_names_of_tools() {
    let tools = r#"[{"type":"function","function":{"name":"b\u0061sh","parameters":{}}},{"type":"custom","custom":{"name":"sql"}},{"type":"web_search"},7]"#;
    check_tool_names(&ChatCompletions, tools, &["bash", "sql"]);
}
