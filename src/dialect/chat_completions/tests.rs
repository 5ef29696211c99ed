//! Tests of the reader, and its comparison with `serde_json`.

use proptest::prelude::*;

use super::*;
use crate::conversation::Conversation;
use crate::dialect::{ParseError, ParseErrorKind};
use crate::string_index::StringIndex;
use crate::{
    conversation::{BlockKind, MAX_ELEMENTS},
    dialect::tests::agrees,
};

mod by_serde;
mod parts;

/// Reads a body with and without an index of its strings.
fn read_body(body: &[u8]) -> Result<Conversation<'_>, ParseError> {
    let read = reader::read(body, StringIndex::EMPTY);
    assert_eq!(reader::read(body, &StringIndex::of_all(body, 7)), read);
    read
}

/// One line for each message and block, with the bytes they cover.
fn describe(body: &str, conversation: &Conversation<'_>) -> Vec<String> {
    let text = |span: Span| std::str::from_utf8(span.of(body.as_bytes())).unwrap();
    let mut lines = vec![format!("model {:?}", conversation.model.as_deref())];
    for message in &conversation.units {
        lines.push(format!("{:?} {} {}", message.role, text(message.span), message.content.map_or("-", text)));
        for block in conversation.blocks_of(message) {
            lines.push(match &block.kind {
                BlockKind::ToolCall { id, name, .. } => {
                    format!("  call {} {:?} {:?} {}", id.raw.map_or("-", text), id.text, name, text(block.span))
                }
                BlockKind::ToolResult { call_id, .. } => {
                    format!("  result {} {:?}", call_id.raw.map_or("-", text), call_id.text)
                }
            });
        }
    }
    lines
}

fn check(body: &str, expected: &[&str]) {
    let read = read_body(body.as_bytes()).expect("nothing odd");
    assert_eq!(describe(body, &read), expected);
    assert_eq!(by_serde::parse(body.as_bytes()), Ok(read));
}

fn error(offset: usize, kind: ParseErrorKind) -> ParseError {
    ParseError { dialect: NAME, offset, kind }
}

fn check_refused(body: &str, offset: usize, kind: ParseErrorKind) {
    assert_eq!(ChatCompletions.parse(body.as_bytes()), Err(error(offset, kind)), "{body}");
}

#[test]
fn reads_roles_and_contents() {
    check(
        r#" { "stream":true, "messages" : [ {"role":"system","content":"s"},{"content":[{"type":"text"}],"role":"user"},
            {"role":"developer"} , {"role":"critic","content":null},{}, {"role":7} ] , "model":"gpt\u002d4" } "#,
        &[
            r#"model Some("gpt-4")"#,
            r#"System {"role":"system","content":"s"} "s""#,
            r#"User {"content":[{"type":"text"}],"role":"user"} [{"type":"text"}]"#,
            r#"Developer {"role":"developer"} -"#,
            r#"Other {"role":"critic","content":null} -"#,
            "Other {} -",
            r#"Other {"role":7} -"#,
        ],
    );
}

#[test]
fn reads_calls_and_results() {
    check(
        r#"{"messages":[{"tool_calls":[{"id":"a\n","function":{"arguments":"{\"name\":1}","name":"f"}} , {"id":null,"custom":{"name":"c"}},{"id":"","function":null}],"role":"assistant"},{"role":"tool","tool_call_id":"a\u000a","content":""},{"role":"t\u006fol"}]}"#,
        &[
            "model None",
            r#"Assistant {"tool_calls":[{"id":"a\n","function":{"arguments":"{\"name\":1}","name":"f"}} , {"id":null,"custom":{"name":"c"}},{"id":"","function":null}],"role":"assistant"} -"#,
            r#"  call "a\n" "a\n" Some("f") {"id":"a\n","function":{"arguments":"{\"name\":1}","name":"f"}}"#,
            r#"  call - "" Some("c") {"id":null,"custom":{"name":"c"}}"#,
            r#"  call "" "" None {"id":"","function":null}"#,
            r#"Tool {"role":"tool","tool_call_id":"a\u000a","content":""} """#,
            r#"  result "a\u000a" "a\n""#,
            r#"Tool {"role":"t\u006fol"} -"#,
            r#"  result - """#,
        ],
    );
}

#[test]
fn calls_of_anyone_but_the_assistant_are_none() {
    let calls = r#"{"role":"user","tool_calls":[{"id":"a"}],"tool_call_id":"b"}"#;
    check(&format!(r#"{{"messages":[{calls}]}}"#), &["model None", &format!("User {calls} -")]);
    check(
        r#"{"messages":[{"role":"user","tool_calls":7}]}"#,
        &["model None", r#"User {"role":"user","tool_calls":7} -"#],
    );
    let null = r#"{"role":"assistant","tool_calls":null,"function_call":{"name":"f"}}"#;
    check(&format!(r#"{{"messages":[{null}]}}"#), &["model None", &format!("Assistant {null} -")]);
}

#[test]
fn escaped_keys_are_read() {
    check(
        r#"{"mess\u0061ges":[{"r\u006fle":"tool","tool_call_id":"x"}]}"#,
        &["model None", r#"Tool {"r\u006fle":"tool","tool_call_id":"x"} -"#, r#"  result "x" "x""#],
    );
}

#[test]
fn great_depth_needs_no_stack() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for body in [
        format!(r#"{{"x":{deep},"messages":[]}}"#),
        format!(r#"{{"messages":[{{"role":"user","content":{deep}}}]}}"#),
        format!(
            r#"{{"messages":[{{"role":"assistant","tool_calls":[{{"id":"a","x":{deep},"function":{{"x":{deep}}}}}]}}]}}"#
        ),
    ] {
        assert!(ChatCompletions.parse(body.as_bytes()).is_ok());
    }
    let objects = format!(r#"{{"messages":[{}1{}]}}"#, r#"{"role":"#.repeat(100_000), "}".repeat(100_000));
    assert!(ChatCompletions.parse(objects.as_bytes()).is_ok());
    check_refused(&format!(r#"{{"messages":{deep}}}"#), 13, ParseErrorKind::NotAnObject);
    assert!(ChatCompletions.parse("[".repeat(1_000_000).as_bytes()).is_err());
    assert!(ChatCompletions.parse(format!("{{\"x\":{}", "[".repeat(1_000_000)).as_bytes()).is_err());
}

#[test]
fn says_why_it_refuses() {
    use ParseErrorKind::{DuplicateKey, IdNotAString, NoMessages, NotAnArray, NotAnObject, NotJson};
    check_refused("", 0, NotJson);
    check_refused("[1]", 0, NotAnObject);
    check_refused("7", 0, NotAnObject);
    check_refused(r"[null,[]]", 0, NotAnObject);
    check_refused("{}", 0, NoMessages);
    check_refused(r#"{"messages":null}"#, 0, NoMessages);
    check_refused(r#"{"messages":{}}"#, 12, NotAnArray);
    check_refused(r#"{"messages":"[]"}"#, 12, NotAnArray);
    check_refused(r#"{"messages":[{},7]}"#, 16, NotAnObject);
    check_refused(r#"{"messages":[{},["user"]]}"#, 16, NotAnObject);
    check_refused(r#"{"messages":[],"messages":[]}"#, 0, DuplicateKey);
    check_refused(r#"{"messages":[],"messag\u0065s":null}"#, 0, DuplicateKey);
    check_refused(r#"{"messages":[{"role":"user","role":"tool"}]}"#, 13, DuplicateKey);
    check_refused(r#"{"messages":[{"content":null,"content":null}]}"#, 13, DuplicateKey);
    check_refused(r#"{"messages":[{"role":"assistant","tool_calls":{}}]}"#, 46, NotAnArray);
    check_refused(r#"{"messages":[{"role":"assistant","tool_calls":[null]}]}"#, 47, NotAnObject);
    check_refused(r#"{"messages":[{"role":"assistant","tool_calls":[{"id":true}]}]}"#, 53, IdNotAString);
    check_refused(r#"{"messages":[{"role":"tool","tool_call_id":[]}]}"#, 43, IdNotAString);
    check_refused(r#"{"messages":[]} {}"#, 16, NotJson);
    check_refused("{\"messages\":\n[{},]}", 17, NotJson);
    check_refused("\u{feff}{\"messages\":[]}", 0, NotJson);
    let invalid = b"{\"messages\":[],\"x\":01,\"y\":\"\xff\"}";
    assert_eq!(ChatCompletions.parse(invalid), Err(error(20, NotJson)));
}

#[test]
fn too_many_are_refused() {
    let many = |n: usize| format!(r#"{{"messages":[{}{{}}]}}"#, "{},".repeat(n - 1));
    assert!(read_body(many(MAX_ELEMENTS).as_bytes()).is_ok());
    assert!(by_serde::parse(many(MAX_ELEMENTS).as_bytes()).is_ok());
    let body = many(MAX_ELEMENTS + 1);
    assert_eq!(ChatCompletions.parse(body.as_bytes()).unwrap_err().kind, ParseErrorKind::TooMany);
    let calls = format!(r#"{{"messages":[{{"role":"assistant","tool_calls":[{}{{}}]}}]}}"#, "{},".repeat(MAX_ELEMENTS));
    assert_eq!(ChatCompletions.parse(calls.as_bytes()).unwrap_err().kind, ParseErrorKind::TooMany);
}

#[test]
fn calls_leave_with_their_key_and_one_comma() {
    let calls = r#""tool_calls" : [ {"id":"a"} ]"#;
    for (message, rest) in [
        (format!("{{{calls}}}"), "{}"),
        (format!(r#"{{ {calls} , "role":"assistant","content":"x"}}"#), r#"{ "role":"assistant","content":"x"}"#),
        (format!(r#"{{"role":"assistant" , {calls} , "content":"x"}}"#), r#"{"role":"assistant" , "content":"x"}"#),
        (format!(r#"{{"role":"assistant","content":"x" , {calls} }}"#), r#"{"role":"assistant","content":"x"  }"#),
    ] {
        let entries = ChatCompletions.entries(message.as_bytes(), Span { start: 0, end: message.len() }).unwrap();
        let span = entries.key.expect("the message stays");
        let entry = entries.spans.iter().map(|span| span.of(message.as_bytes())).collect::<Vec<_>>();
        assert_eq!(entry, [br#"{"id":"a"}"#]);
        let message = message.as_bytes();
        let left = [&message[..span.start], &message[span.end..]].concat();
        assert_eq!(String::from_utf8_lossy(&left), rest);
    }
}

#[test]
fn a_rendered_result_copies_the_id_and_escapes_the_text() {
    let body = br#"{"messages":[{"role":"tool","tool_call_id":"\u0061\/b"}]}"#;
    let conversation = ChatCompletions.parse(body).unwrap();
    let BlockKind::ToolResult { call_id, .. } = &conversation.blocks[0].kind else { panic!("a result") };
    let rendered = ChatCompletions.render_tool_result(body, call_id, None, "a \"b\"\n\\");
    assert_eq!(rendered, br#"{"role":"tool","tool_call_id":"\u0061\/b","content":"a \"b\"\n\\"}"#.as_slice());
    let rendered = ChatCompletions.render_tool_result(body, &CallId::default(), None, "");
    assert_eq!(rendered, br#"{"role":"tool","tool_call_id":"","content":""}"#.as_slice());
}

/// Compares the reader with `serde_json`.
fn agree(body: &[u8]) -> Result<(), TestCaseError> {
    agrees(read_body(body), by_serde::parse(body), body)
}

/// JSON text in which the keys that matter are frequent, and now and then wrong, repeated or escaped.
fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        4 => r#""(tool|user|assistant|system|x|a\\n|\\u0061|\\ud800|é|\\\\)?""#,
        1 => Just("null".to_owned()),
        1 => r"-?(0|[1-9]\d{0,2})(\.\d)?(e[+-]?\d)?|true|false",
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        let key = prop_oneof![
            9 => prop::sample::select(&["messages", "role", "content", "tool_calls", "tool_call_id", "id", "function", "custom", "name", "model", "tools", "response_format"][..]),
            2 => Just("other"),
            1 => Just(r"\u0069d"),
        ];
        let space = prop::sample::select(&["", "", "", " ", "\n"][..]);
        let pair = (key, space.clone(), inner.clone()).prop_map(|(key, space, value)| format!("{space}\"{key}\"{space}:{space}{value}"));
        prop_oneof![
            2 => prop::collection::vec(pair, 0..5).prop_map(|pairs| format!("{{{}}}", pairs.join(","))),
            1 => (prop::collection::vec(inner, 0..4), space).prop_map(|(items, space)| format!("[{space}{}]", items.join(","))),
        ]
    })
}

/// A key more in an object, now and then; it may be there already.
fn more(keys: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop_oneof![3 => Just(String::new()), 1 => (prop::sample::select(keys), value()).prop_map(|(key, value)| format!(r#","{key}":{value}"#))]
}

/// A body that is nearly always a request: messages with calls and results, and some of the above in between.
fn body() -> impl Strategy<Value = String> {
    let id = prop::sample::select(&[r#""a""#, r#""b""#, r#""\u0061""#, r#""""#, "null"][..]);
    let name = prop::sample::select(
        &[r#"{"name":"f","arguments":"{\"a\":1}"}"#, r#"{"arguments":"","name":"g"}"#, "null", "{}"][..],
    );
    let call = (id.clone(), name, any::<bool>(), more(&["id", "function", "custom", "x"])).prop_map(
        |(id, name, custom, more)| {
            format!(r#"{{"id": {id},"type":"function","{}":{name}{more}}}"#, if custom { "custom" } else { "function" })
        },
    );
    let of_message = || more(&["role", "content", "tool_calls", "tool_call_id"]);
    let message = prop_oneof![
        3 => (prop::collection::vec(call, 0..3), of_message())
            .prop_map(|(calls, more)| format!(r#"{{"role":"assistant","content":null,"tool_calls":[{}]{more}}}"#, calls.join(" , "))),
        3 => (id, value(), of_message())
            .prop_map(|(id, content, more)| format!(r#"{{"tool_call_id":{id},"role":"tool","content":{content}{more}}}"#)),
        1 => value(),
    ];
    let of_request = || more(&["messages", "model", "tools", "response_format", "x"]);
    (prop::collection::vec(message, 0..6), of_request(), of_request()).prop_map(|(messages, more, even_more)| {
        format!("{{\"x\":0,\n\"messages\":[{}]{more}{even_more}}}", messages.join(", "))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn readers_agree_on_valid_json(body in prop_oneof![body(), value()]) {
        agree(body.as_bytes())?;
    }

    #[test]
    fn readers_agree_on_damaged_json(
        body in body(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), 0..3, prop::sample::select(&b"{}[],:\"\\u0n \n\x01\xff"[..])), 1..3),
    ) {
        let mut body = body.into_bytes();
        for (index, kind, byte) in damage {
            let at = index.index(body.len());
            match kind {
                0 => body.insert(at, byte),
                1 => body[at] = byte,
                _ => body.push(byte),
            }
        }
        agree(&body)?;
    }
}
