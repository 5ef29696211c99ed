//! Texts, arguments, entries and the names of tools.

use super::*;

fn whole(text: &str) -> Span {
    Span { start: 0, end: text.len() }
}

fn check_texts(content: &str, expected: &[&str]) {
    let found = Messages.texts(content.as_bytes(), whole(content));
    let found: Vec<_> = found.iter().map(|span| str::from_utf8(span.of(content.as_bytes())).unwrap()).collect();
    assert_eq!(found, expected, "{content}");
}

#[test]
fn texts_of_a_content() {
    check_texts(r#""a\"b""#, &[r#""a\"b""#]);
    check_texts("[]", &[]);
    check_texts(
        r#"[ {"type":"text", "text" : "a"} , {"type":"image","source":{"text":"x"}},{"text":"b","type":"t\u0065xt","cache_control":{}} ]"#,
        &["\"a\"", "\"b\""],
    );
    check_texts(
        r#"[{"type":"text","text":1},{"type":"text"},{"text":"a"},{"type":"tool_reference","text":"a"},{"type":7,"text":"a"},7,"a",["a"]]"#,
        &[],
    );
    check_texts(r#"[{"type":"text","text":"a"},{"type":"text","text":"b","text":"c"}]"#, &[]);
    check_texts("7", &[]);
}

#[test]
fn the_arguments_of_a_call() {
    let check = |call: &str, expected: Option<(&str, &str)>| {
        let found = Messages.input(call.as_bytes(), whole(call));
        let found = found.map(|input| (str::from_utf8(input.span.of(call.as_bytes())).unwrap(), input.emptied));
        assert_eq!(found, expected, "{call}");
    };
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
    assert_eq!((entries, found.emptied), (vec![r#"{"type":"text"}"#, "7", "[8]"], Emptied::Leaves));
    for message in [r#"{"content":"x"}"#, "{}", r#"{"content":[],"content":[]}"#] {
        assert_eq!(Messages.entries(message.as_bytes(), whole(message)), None, "{message}");
    }
}

#[test]
fn the_names_of_tools() {
    let tools = r#"[{"name":"b\u0061sh","input_schema":{}},{"type":"web_search_20250305","name":"web_search"},{"type":"mcp_toolset"},7]"#;
    assert_eq!(Messages.tool_names(tools.as_bytes(), whole(tools)), ["bash", "web_search"]);
    assert!(Messages.tool_names(b"{}", Span { start: 0, end: 2 }).is_empty());
}
