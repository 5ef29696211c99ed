//! Tests of the reader, and its comparison with `serde_json`.

use proptest::prelude::*;

use super::*;
use crate::conversation::Conversation;
use crate::dialect::{ParseError, ParseErrorKind};
use crate::string_index::StringIndex;
use crate::{
    conversation::{BlockKind, MAX_ELEMENTS, Unit},
    dialect::tests::agrees,
};

mod by_serde;
mod loading;
mod parts;
mod thinking;

/// Reads a body with and without an index of its strings.
fn read_body(body: &[u8]) -> Result<Conversation<'_>, ParseError> {
    let read = view::read(body, StringIndex::EMPTY);
    assert_eq!(view::read(body, &StringIndex::of_all(body, 7)), read);
    read
}

/// One line for each unit and block, with the bytes they cover.
fn describe(body: &str, conversation: &Conversation<'_>) -> Vec<String> {
    let text = |span: Span| str::from_utf8(span.of(body.as_bytes())).unwrap();
    let unit_line = |unit: &Unit| {
        let flags = [(unit.flags.bound, " bound"), (unit.flags.stays, " stays"), (unit.flags.barrier, " parts")];
        let mute = if unit.flags.speaks || unit.flags.stays { "" } else { " mute" };
        let flags: String = flags.iter().filter(|(set, _)| *set).map(|(_, name)| *name).collect();
        let content = unit.content.map_or("-", text);
        format!("{} {} {:?}{mute}{flags} {content}", unit.element.get(), unit.turn, unit.role)
    };
    let mut lines = Vec::new();
    for unit in &conversation.units {
        lines.push(unit_line(unit));
        for block in conversation.blocks_of(unit) {
            lines.push(match &block.kind {
                BlockKind::ToolCall { id, name, answerable } => {
                    format!("  call {} {name:?}{}", id.text, if *answerable { "" } else { " not answerable" })
                }
                BlockKind::ToolResult { call_id, may_leave } => {
                    format!("  result {}{}", call_id.text, if *may_leave { "" } else { " stays" })
                }
            });
        }
    }
    lines
}

fn of(messages: &str) -> String {
    format!(r#"{{"model":"m","messages":[{messages}]}}"#)
}

fn check(messages: &str, expected: &[&str]) {
    let body = of(messages);
    let read = read_body(body.as_bytes()).expect("nothing odd");
    assert_eq!(describe(&body, &read), expected, "{messages}");
    assert_eq!(by_serde::parse(body.as_bytes()), Ok(read));
}

fn error(offset: usize, kind: ParseErrorKind) -> ParseError {
    ParseError { dialect: NAME, offset, kind }
}

fn check_refused(body: &str, offset: usize, kind: ParseErrorKind) {
    assert_eq!(Messages.parse(body.as_bytes()), Err(error(offset, kind)), "{body}");
}

const CALL: &str = r#"{"type":"tool_use","id":"a","name":"f","input":{}}"#;
const RESULT: &str = r#"{"type":"tool_result","tool_use_id":"a","content":"x"}"#;
const TEXT: &str = r#"{"type":"text","text":"t"}"#;

fn assistant(entries: &str) -> String {
    format!(r#"{{"role":"assistant","content":[{entries}]}}"#)
}

#[test]
fn a_call_without_an_id_can_be_answered() {
    for call in [r#"{"type":"tool_use","id":"","name":"f","input":{}}"#, r#"{"type":"tool_use","name":"f","input":{}}"#]
    {
        let message = assistant(call);
        let unit = format!("0 0 Assistant mute [{call}]");
        check(&message, &[&unit, "  call  Some(\"f\")"]);
    }
}

fn user(entries: &str) -> String {
    format!(r#"{{"content":[{entries}],"role":"user"}}"#)
}

#[test]
fn reads_messages_of_one_unit() {
    check(
        r#"{"role":"user","content":"u"},{"role":"user","content":[]},{"role":"user"},{"role":"assistant","content":"a"},{"role":"assistant","content":""},{"role":"system","content":"s"},{"role":"ctx","content":"c"},{}"#,
        &[
            r#"0 0 User "u""#,
            "1 0 User []",
            "2 0 User -",
            r#"3 1 Assistant "a""#,
            r#"4 1 Assistant mute """#,
            r#"5 2 System stays parts "s""#,
            r#"6 3 Other stays parts "c""#,
            "7 3 Other stays parts -",
        ],
    );
}

#[test]
fn each_entry_of_a_user_message_is_a_unit() {
    let image = r#"{"type":"image","source":{}}"#;
    let bare = r#"{"tool_use_id":"b","type":"tool_result"}"#;
    check(
        &format!("{},{}", assistant(CALL), user(&format!("{RESULT} , {bare},{image},{TEXT},7"))),
        &[
            &format!("0 0 Assistant mute [{CALL}]"),
            "  call a Some(\"f\")",
            "1 1 Tool \"x\"",
            "  result a",
            "1 1 Tool -",
            "  result b",
            "1 2 User -",
            "1 2 User \"t\"",
            "1 2 User -",
        ],
    );
}

#[test]
fn thinking_and_halves_of_the_server_are_bound() {
    let thinking = r#"{"type":"thinking","thinking":"","signature":"s"}"#;
    for (entries, flags) in [
        (CALL.to_owned(), " mute"),
        (format!("{TEXT},{CALL}"), ""),
        (format!(r#"{{"type":"text","text":""}},{CALL}"#), " mute"),
        (format!("{thinking},{CALL}"), " mute bound"),
        (format!("{thinking},{TEXT},{CALL}"), " bound"),
        (format!(r#"{{"type":"redacted_thinking","data":""}},{CALL}"#), " mute bound"),
        (format!(r#"{{"type":"server_tool_use","id":"s"}},{CALL}"#), " bound"),
        (format!(r#"{{"type":"mcp_tool_use","id":"s"}},{CALL}"#), " bound"),
        (format!(r#"{{"type":"mcp_tool_result"}},{CALL}"#), " bound"),
        (format!(r#"{{"type":"fallback"}},{CALL}"#), ""),
    ] {
        check(&assistant(&entries), &[&format!("0 0 Assistant{flags} [{entries}]"), "  call a Some(\"f\")"]);
    }
}

#[test]
fn what_stands_before_a_compaction_is_compacted() {
    let n_compacted = |entry: &str| {
        let body =
            of(&format!(r#"{},{},{{"role":"user","content":"u"}}"#, user(&format!("{TEXT},{TEXT}")), assistant(entry)));
        Messages.parse(body.as_bytes()).unwrap().traits.n_compacted
    };
    assert_eq!(n_compacted(r#"{"type":"compaction","content":"so far"}"#), 3);
    assert_eq!(n_compacted(r#"{"type":"compaction","content":null,"encrypted_content":"x"}"#), 3);
    assert_eq!(n_compacted(r#"{"type":"compaction","content":null}"#), 0);
}

#[test]
fn reads_what_is_beside_the_messages() {
    let body = r#"{"system":[{"type":"text","text":"s"}],"tools":[],"output_config":{"effort":"low","format":{"type":"json_schema"}},"messages":[],"output_format":7}"#;
    let conversation = read_body(body.as_bytes()).unwrap();
    let text = |span: Option<Span>| span.map(|span| str::from_utf8(span.of(body.as_bytes())).unwrap());
    assert_eq!(text(conversation.instructions), Some(r#"[{"type":"text","text":"s"}]"#));
    assert_eq!(text(conversation.tools), Some("[]"));
    assert_eq!(text(conversation.format), Some(r#"{"type":"json_schema"}"#));
    assert_eq!(conversation.model, None);
    assert_eq!(by_serde::parse(body.as_bytes()), Ok(conversation));
    for (beside, clears, compacts) in [
        (r#""context_management":null"#, false, false),
        (r#""context_management":{}"#, false, false),
        (r#""context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]}"#, false, false),
        (r#""context_management":{"edits":[{"keep":3,"type":"clear_tool_uses_20250919"}]}"#, true, false),
        (r#""context_management":{"edits":[{"type":"compact_20260112"}]}"#, false, true),
        (r#""compaction":{"type":"summarize"}"#, false, true),
    ] {
        let body = format!(r#"{{{beside},"messages":[]}}"#);
        let traits = read_body(body.as_bytes()).unwrap().traits;
        assert_eq!((traits.clears_itself, traits.compacts_itself), (clears, compacts), "{beside}");
    }
}

#[test]
fn a_turn_that_is_all_before_a_system_message_leaves_as_a_whole() {
    let system = r#"{"role":"system","content":"s"}"#;
    let is_bound = |before: &str| {
        let body = of(&format!("{},{before}{},{system}", assistant(&format!("{TEXT},{CALL}")), user(RESULT)));
        Messages.parse(body.as_bytes()).unwrap().units[0].flags.bound
    };
    assert!(is_bound(""));
    assert!(!is_bound(&format!("{},", user(TEXT))));
}

#[test]
fn escaped_keys_and_great_depth_are_read() {
    let body = r#"{"mess\u0061ges":[{"r\u006fle":"user","content":[{"t\u0079pe":"text","text":"x"}]}]}"#;
    let read = read_body(body.as_bytes()).unwrap();
    assert_eq!(describe(body, &read), [r#"0 0 User "x""#]);
    assert_eq!(by_serde::parse(body.as_bytes()), Ok(read));
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for body in [
        format!(r#"{{"x":{deep},"messages":[]}}"#),
        format!(r#"{{"context_management":{deep},"output_config":{deep},"messages":[]}}"#),
        format!(r#"{{"messages":[{{"role":"user","content":[{deep},{{"type":"tool_result","content":{deep}}}]}}]}}"#),
        format!(r#"{{"messages":[{{"role":"assistant","content":[{{"type":"tool_use","id":"a","input":{deep}}}]}}]}}"#),
    ] {
        assert!(Messages.parse(body.as_bytes()).is_ok());
    }
}

#[test]
fn says_why_it_refuses() {
    use ParseErrorKind::{DuplicateKey, IdNotAString, NoMessages, NotAnArray, NotAnObject, NotJson};
    check_refused("", 0, NotJson);
    check_refused("[1]", 0, NotAnObject);
    check_refused("{}", 0, NoMessages);
    check_refused(r#"{"messages":{}}"#, 12, NotAnArray);
    check_refused(r#"{"messages":[{},7]}"#, 16, NotAnObject);
    check_refused(r#"{"messages":[],"messages":[]}"#, 0, DuplicateKey);
    check_refused(r#"{"messages":[],"system":"","system":null}"#, 0, DuplicateKey);
    check_refused(r#"{"messages":[{"role":"user","role":"user"}]}"#, 13, DuplicateKey);
    check_refused(r#"{"messages":[{"content":[{"type":"text","type":"text"}]}]}"#, 25, DuplicateKey);
    check_refused(r#"{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":{}}]}]}"#, 68, IdNotAString);
    check_refused(
        r#"{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":[]}]}]}"#,
        75,
        IdNotAString,
    );
    check_refused(r#"{"messages":[]} {}"#, 16, NotJson);
    check_refused("{\"messages\":\n[{},]}", 17, NotJson);
}

#[test]
fn too_many_are_refused() {
    let entries = |n: usize| of(&user(&format!("{}{{}}", "{},".repeat(n - 1))));
    assert!(read_body(entries(MAX_ELEMENTS).as_bytes()).is_ok());
    for body in [entries(MAX_ELEMENTS + 1), of(&format!("{}{{}}", "{},".repeat(MAX_ELEMENTS)))] {
        assert_eq!(Messages.parse(body.as_bytes()).unwrap_err().kind, ParseErrorKind::TooMany);
    }
}

#[test]
fn rendered_results_copy_the_id_and_share_a_message() {
    let body = br#"{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"\u0061_1"}]}]}"#;
    let conversation = Messages.parse(body).unwrap();
    let BlockKind::ToolCall { id, .. } = &conversation.blocks[0].kind else { panic!("a call") };
    let one = Messages.render_tool_result(body, id, None, "a \"b\"\n");
    assert_eq!(
        one,
        br#"{"type":"tool_result","tool_use_id":"\u0061_1","content":"a \"b\"\n","is_error":true}"#.as_slice()
    );
    let empty = Messages.render_tool_result(body, id, None, "");
    assert_eq!(empty, br#"{"type":"tool_result","tool_use_id":"\u0061_1","is_error":true}"#.as_slice());
    let message = Messages.result_elements(vec![one, empty]);
    let text = String::from_utf8(message.concat()).unwrap();
    assert_eq!(message.len(), 1);
    let blocks = r#"{"type":"tool_result","tool_use_id":"\u0061_1","content":"a \"b\"\n","is_error":true},{"type":"tool_result","tool_use_id":"\u0061_1","is_error":true}"#;
    assert_eq!(text, format!(r#"{{"role":"user","content":[{blocks}]}}"#));
    assert_eq!(
        Messages.render_user_message("a\n"),
        br#"{"role":"user","content":[{"type":"text","text":"a\n"}]}"#.as_slice()
    );
}

/// Compares the reader with `serde_json`.
fn agree(body: &[u8]) -> Result<(), TestCaseError> {
    agrees(read_body(body), by_serde::parse(body), body)
}

const KEYS: [&str; 16] = [
    "messages",
    "role",
    "content",
    "type",
    "id",
    "tool_use_id",
    "name",
    "text",
    "input",
    "system",
    "model",
    "tools",
    "output_config",
    "context_management",
    "edits",
    "encrypted_content",
];

/// JSON text in which the keys that matter are frequent, and now and then wrong, repeated or escaped.
fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        4 => r#""(user|assistant|system|text|tool_use|tool_result|compaction|x|a\\n|\\u0061|\\ud800|é|\\\\)?""#,
        1 => Just("null".to_owned()),
        1 => r"-?(0|[1-9]\d{0,2})(\.\d)?(e[+-]?\d)?|true|false",
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        let key = prop_oneof![
            9 => prop::sample::select(&KEYS[..]),
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
    let kind = prop::sample::select(
        &[
            "tool_use",
            "tool_use",
            "tool_result",
            "tool_result",
            "text",
            "thinking",
            "server_tool_use",
            "compaction",
            "x",
        ][..],
    );
    let entry =
        (id, kind, value(), more(&["type", "id", "tool_use_id", "name", "x"])).prop_map(|(id, kind, content, more)| {
            let key = if kind == "tool_result" { "tool_use_id" } else { "id" };
            format!(r#"{{"{key}": {id},"content":{content},"type":"{kind}","text":"t"{more}}}"#)
        });
    let role = prop::sample::select(&["user", "user", "assistant", "assistant", "system", "x"][..]);
    let message = prop_oneof![
        6 => (prop::collection::vec(entry, 0..4), role, more(&["role", "content"]))
            .prop_map(|(entries, role, more)| format!(r#"{{"content":[{}],"role":"{role}"{more}}}"#, entries.join(" , "))),
        1 => value(),
    ];
    let of_request = || more(&["messages", "model", "tools", "system", "output_config", "context_management", "x"]);
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
