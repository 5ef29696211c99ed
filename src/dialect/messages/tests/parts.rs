//! Texts, arguments, entries and the names of tools.

use super::*;
use crate::dialect::tests::{check_input, check_texts, check_tool_names, whole};

#[test]
fn texts_of_a_content() {
    check_texts(&Messages, r#""a\"b""#, &[r#""a\"b""#]);
    check_texts(&Messages, "[]", &[]);
    check_texts(
        &Messages,
        r#"[ {"type":"text", "text" : "a"} , {"type":"image","source":{"text":"x"}},{"text":"b","type":"t\u0065xt","cache_control":{}} ]"#,
        &["\"a\"", "\"b\""],
    );
    check_texts(
        &Messages,
        r#"[{"type":"text","text":1},{"type":"text"},{"text":"a"},{"type":"tool_reference","text":"a"},{"type":7,"text":"a"},7,"a",["a"]]"#,
        &[],
    );
    check_texts(&Messages, r#"[{"type":"text","text":"a"},{"type":"text","text":"b","text":"c"}]"#, &[]);
    check_texts(&Messages, "7", &[]);
}

#[test]
fn the_arguments_of_a_call() {
    let check = |call: &str, expected: Option<(&str, &str)>| check_input(&Messages, call, expected);
    check(r#"{"type":"tool_use","id":"1","name":"f","input":{"a":1}}"#, Some((r#"{"a":1}"#, "{}")));
    check(r#"{"input":{},"type":"tool_use"}"#, Some(("{}", "{}")));
    check(r#"{"input":"{"}"#, Some((r#""{""#, "{}")));
    check(r#"{"input":null}"#, None);
    check(r#"{"type":"tool_use"}"#, None);
    check(r#"{"input":{},"input":{}}"#, None);
}

#[test]
fn the_entries_of_a_content() {
    let message = r#"{"role":"user","content":[ {"type":"text"} , 7,[8] ]}"#;
    let found = Messages.entries(message.as_bytes(), whole(message)).unwrap();
    let entries: Vec<_> = found.spans.iter().map(|span| str::from_utf8(span.of(message.as_bytes())).unwrap()).collect();
    assert_eq!((entries, found.key), (vec![r#"{"type":"text"}"#, "7", "[8]"], None));
    for message in [r#"{"content":"x"}"#, "{}", r#"{"content":[],"content":[]}"#] {
        assert_eq!(Messages.entries(message.as_bytes(), whole(message)), None, "{message}");
    }
}

#[test]
fn the_names_of_tools() {
    let tools = r#"[{"name":"b\u0061sh","input_schema":{}},{"type":"web_search_20250305","name":"web_search"},{"type":"mcp_toolset"},7]"#;
    check_tool_names(&Messages, tools, &["bash", "web_search"]);
}
