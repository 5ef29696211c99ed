//! Texts, arguments and the names of tools.

use super::*;
use crate::dialect::tests::{check_input, check_texts, check_tool_names, whole};

#[test]
fn texts_of_a_content() {
    check_texts(&Responses, r#""a\"b""#, &[r#""a\"b""#]);
    check_texts(&Responses, "[]", &[]);
    check_texts(
        &Responses,
        r#"[ {"type":"input_text", "text" : "a"} , {"type":"input_image","image_url":"data:"},{"text":"b","type":"output_text","annotations":[]},{"type":"text","text":"c"},{"type":"refusal","refusal":"d"}]"#,
        &[r#""a""#, r#""b""#, r#""c""#, r#""d""#],
    );
    check_texts(
        &Responses,
        r#"[{"stderr":"b","stdout":"a","outcome":{"type":"exit","exit_code":0}},{"stdout":"c","outcome":{"type":"timeout"}}]"#,
        &[r#""b""#, r#""a""#, r#""c""#],
    );
    check_texts(
        &Responses,
        r#"[{"type":"input_text","text":1},{"type":"input_file","text":"a"},{"text":"a"},{"type":7,"text":"a"},"a",7]"#,
        &[],
    );
    check_texts(&Responses, r#"[{"type":"text","text":"a"},{"type":"text","text":"b","text":"c"}]"#, &[]);
    check_texts(&Responses, r#"{"type":"computer_screenshot","image_url":"data:"}"#, &[]);
    check_texts(&Responses, "7", &[]);
}

#[test]
fn the_arguments_of_a_call() {
    let check = |call: &str, expected: Option<(&str, &str)>, may_empty: bool| {
        check_input(&Responses, call, expected);
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
    check_tool_names(&Responses, tools, &["bash", "sql", "list", "crm.list"]);
}
