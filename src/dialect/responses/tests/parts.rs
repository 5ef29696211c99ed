//! Texts, arguments and the names of tools.

use super::*;

fn whole(text: &str) -> Span {
    Span { start: 0, end: text.len() }
}

fn check_texts(content: &str, expected: &[&str]) {
    let found = Responses.texts(content.as_bytes(), whole(content));
    let found: Vec<_> = found.iter().map(|span| str::from_utf8(span.of(content.as_bytes())).unwrap()).collect();
    assert_eq!(found, expected, "{content}");
}

#[test]
fn texts_of_a_content() {
    check_texts(r#""a\"b""#, &[r#""a\"b""#]);
    check_texts("[]", &[]);
    check_texts(
        r#"[ {"type":"input_text", "text" : "a"} , {"type":"input_image","image_url":"data:"},{"text":"b","type":"output_text","annotations":[]},{"type":"text","text":"c"},{"type":"refusal","refusal":"d"}]"#,
        &[r#""a""#, r#""b""#, r#""c""#, r#""d""#],
    );
    check_texts(
        r#"[{"stderr":"b","stdout":"a","outcome":{"type":"exit","exit_code":0}},{"stdout":"c","outcome":{"type":"timeout"}}]"#,
        &[r#""b""#, r#""a""#, r#""c""#],
    );
    check_texts(
        r#"[{"type":"input_text","text":1},{"type":"input_file","text":"a"},{"text":"a"},{"type":7,"text":"a"},"a",7]"#,
        &[],
    );
    check_texts(r#"[{"type":"text","text":"a"},{"type":"text","text":"b","text":"c"}]"#, &[]);
    check_texts(r#"{"type":"computer_screenshot","image_url":"data:"}"#, &[]);
    check_texts("7", &[]);
}

#[test]
fn the_arguments_of_a_call() {
    let check = |call: &str, expected: Option<(&str, &str)>, may_empty: bool| {
        let found = Responses.input(call.as_bytes(), whole(call));
        let found = found.map(|input| (str::from_utf8(input.span.of(call.as_bytes())).unwrap(), input.emptied));
        assert_eq!(found, expected, "{call}");
        assert_eq!(Responses.may_empty_input(call.as_bytes(), whole(call)), may_empty, "{call}");
    };
    let arguments = Some((r#""{\"a\":1}""#, "\"{}\""));
    check(r#"{"type":"function_call","name":"f","arguments":"{\"a\":1}"}"#, arguments, true);
    check(r#"{"type":"function_call","id":null,"arguments":"{\"a\":1}"}"#, arguments, true);
    check(r#"{"type":"function_call","id":"fc_1","arguments":"{\"a\":1}"}"#, arguments, false);
    check(r#"{"input":"x","type":"custom_tool_call"}"#, Some((r#""x""#, r#""""#)), true);
    check(r#"{"input":"x","id":"ctc_1","type":"custom_tool_call"}"#, Some((r#""x""#, r#""""#)), false);
    check(r#"{"type":"local_shell_call","action":{"command":["ls"]}}"#, Some((r#"{"command":["ls"]}"#, "{}")), false);
    check(r#"{"type":"apply_patch_call","operation":{"diff":""}}"#, Some((r#"{"diff":""}"#, "{}")), false);
    check(r#"{"type":"function_call","arguments":null}"#, None, false);
    check(r#"{"type":"computer_call","action":{}}"#, None, false);
    check(r#"{"arguments":"{}"}"#, None, false);
}

#[test]
fn the_names_of_tools() {
    let tools = r#"[{"type":"function","name":"b\u0061sh","parameters":{}},{"type":"custom","name":"sql"},{"type":"web_search"},7,
        {"type":"namespace","name":"crm","tools":[{"type":"function","name":"list"},{"type":"namespace","name":"x","tools":[{"name":"deep"}]}]}]"#;
    assert_eq!(Responses.tool_names(tools.as_bytes(), whole(tools)), ["bash", "sql", "list", "crm.list"]);
    assert!(Responses.tool_names(b"{}", Span { start: 0, end: 2 }).is_empty());
}
