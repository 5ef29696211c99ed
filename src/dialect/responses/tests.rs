//! Tests of the reader, and its comparison with `serde_json`.

use proptest::prelude::*;

use super::*;
use crate::conversation::Conversation;
use crate::dialect::{ParseError, ParseErrorKind};
use crate::string_index::StringIndex;
use crate::{
    conversation::{BlockKind, CallIndex, Flags, MAX_ELEMENTS, Pairing},
    dialect::tests::agrees,
};

mod by_serde;
mod parts;

/// Reads a body with and without an index of its strings.
fn read_body(body: &[u8]) -> Result<Conversation<'_>, ParseError> {
    let read = items::read(body, StringIndex::EMPTY);
    assert_eq!(items::read(body, &StringIndex::of_all(body, 7)), read);
    read
}

/// One line for each unit and block, with the bytes they cover.
fn describe(body: &str, conversation: &Conversation<'_>) -> Vec<String> {
    let text = |span: Span| str::from_utf8(span.of(body.as_bytes())).unwrap();
    let mut lines = Vec::new();
    for unit in &conversation.units {
        let Flags { bound, stays, barrier, loads, for_program, runs_program, in_program, .. } = unit.flags;
        let of_program = [(for_program, " for program"), (runs_program, " runs"), (in_program, " inside")];
        let flags: String = [(bound, " bound"), (stays, " stays"), (barrier, " parts"), (loads, " loads")]
            .iter()
            .chain(&of_program)
            .filter(|flag| flag.0)
            .map(|flag| flag.1)
            .collect();
        lines.push(format!("{} {:?}{flags} {}", unit.turn, unit.role, unit.content.map_or("-", text)));
        for block in conversation.blocks_of(unit) {
            assert_eq!(block.span, unit.span);
            lines.push(match &block.kind {
                BlockKind::ToolCall { id, name, answerable } => {
                    let id = (id.kind, id.raw.map_or("-", text));
                    format!("  call {} {} {} {answerable}", id.0, id.1, name.as_deref().unwrap_or("-"))
                }
                BlockKind::ToolResult { call_id, may_leave } => {
                    format!("  result {} {} {may_leave}", call_id.kind, call_id.raw.map_or("-", text))
                }
            });
        }
    }
    lines
}

fn read(body: &str) -> Conversation<'_> {
    let scanned = read_body(body.as_bytes()).expect("nothing odd");
    assert_eq!(by_serde::parse(body.as_bytes()).as_ref(), Ok(&scanned));
    scanned
}

fn check(items: &str, expected: &[&str]) {
    let body = format!(r#"{{"model":"m","input":[{items}]}}"#);
    assert_eq!(describe(&body, &read(&body)), expected, "{items}");
}

fn error(offset: usize, kind: ParseErrorKind) -> ParseError {
    ParseError { dialect: NAME, offset, kind }
}

fn check_refused(body: &str, offset: usize, kind: ParseErrorKind) {
    assert_eq!(Responses.parse(body.as_bytes()), Err(error(offset, kind)), "{body}");
}

#[test]
fn reads_messages() {
    check(
        r#"{"role":"system","content":"s"} , {"type":"message","content":[{}],"role":"user"},{"role":"developer"},
           {"type":"message","role":"assistant","content":null},{"type":null,"role":"assistant","content":"a"},{"role":"tool","content":"t"},{"role":7}"#,
        &[
            r#"0 System "s""#,
            "1 User [{}]",
            "2 Developer -",
            "3 Assistant -",
            r#"3 Assistant "a""#,
            r#"4 Other "t""#,
            "5 Other -",
        ],
    );
}

#[test]
fn a_turn_is_a_run_of_items_of_the_model() {
    check(
        r#"{"type":"reasoning","id":"rs_1","content":[]},{"type":"message","role":"assistant","content":"a"},
           {"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"custom_tool_call","call_id":"2","name":"g","input":"x"},
           {"type":"custom_tool_call_output","call_id":"2","output":"y"},{"type":"function_call_output","call_id":"1","output":[]},
           {"type":"function_call","call_id":"3"}"#,
        &[
            "0 Assistant bound -",
            r#"0 Assistant "a""#,
            "0 Assistant -",
            r#"  call function "1" f true"#,
            "0 Assistant -",
            r#"  call custom "2" g true"#,
            r#"1 Tool "y""#,
            r#"  result custom "2" true"#,
            "2 Tool []",
            r#"  result function "1" true"#,
            "3 Assistant -",
            r#"  call function "3" - true"#,
        ],
    );
}

#[test]
fn reads_each_kind_of_call() {
    check(
        r#"{"type":"local_shell_call","call_id":"1","id":"lsh_1"},{"type":"local_shell_call_output","id":"1","output":"{}"},
           {"type":"shell_call","call_id":"2","environment":{"type":"local"}},{"type":"shell_call_output","call_id":"2","output":[{"stdout":""}]},
           {"type":"apply_patch_call","call_id":"3"},{"type":"apply_patch_call_output","call_id":"3","status":"completed"},
           {"type":"computer_call","call_id":"4"},{"type":"computer_call_output","call_id":"4","output":{}},
           {"type":"tool_search_call","call_id":"5","execution":"client"},{"type":"tool_search_output","call_id":"5","execution":"client","tools":[]},
           {"type":"function_call","call_id":null},{"type":"function_call_output","output":"x"},{"type":"function_call_output","call_id":"","output":"x"}"#,
        &[
            "0 Assistant -",
            r#"  call function "1" - true"#,
            r#"1 Tool "{}""#,
            r#"  result function "1" true"#,
            "2 Assistant -",
            r#"  call shell "2" - true"#,
            r#"3 Tool [{"stdout":""}]"#,
            r#"  result shell "2" true"#,
            "4 Assistant -",
            r#"  call apply_patch "3" - true"#,
            "5 Tool -",
            r#"  result apply_patch "3" true"#,
            "6 Assistant -",
            r#"  call computer "4" - false"#,
            "7 Tool {}",
            r#"  result computer "4" false"#,
            "8 Assistant -",
            r#"  call function "5" - false"#,
            "9 Tool -",
            r#"  result function "5" false"#,
            "10 Assistant -",
            "  call function - - false",
            r#"11 Tool "x""#,
            "  result function - false",
            r#"12 Tool "x""#,
            r#"  result function "" false"#,
        ],
    );
}

#[test]
fn what_a_server_does_itself_is_bound_to_its_turn() {
    check(
        r#"{"type":"reasoning"},{"type":"web_search_call","id":"ws_1"},{"type":"mcp_call","id":"m","output":"x"},
           {"type":"tool_search_call","call_id":null,"execution":"server"},{"type":"tool_search_output","call_id":null,"tools":[]},
           {"type":"shell_call","call_id":"1","environment":{"type":"container_reference","container_id":"c"}},
           {"type":"shell_call_output","call_id":"1","output":[]},{"type":"message","role":"assistant","content":"a"}"#,
        &[
            "0 Assistant bound -",
            "0 Assistant bound parts -",
            "0 Assistant bound parts -",
            "0 Assistant bound parts -",
            "0 Assistant bound parts -",
            "0 Assistant bound parts -",
            "0 Assistant bound parts -",
            r#"0 Assistant "a""#,
        ],
    );
}

#[test]
fn what_nobody_knows_stays() {
    check(
        r#"{"type":"additional_tools","role":"developer","tools":[]},{"type":"ghost_snapshot"},{},{"type":7,"role":"user"},
           {"type":"reasoning"},{"type":"x_search_call"},{"type":"mcp_approval_request","id":"mcpr_1"},
           {"type":"mcp_approval_response","approval_request_id":"mcpr_1"},
           {"type":"program","call_id":"p"},{"type":"function_call","call_id":"1","caller":{"type":"program","caller_id":"p"}},
           {"type":"function_call","call_id":"2","caller":{"type":"direct"}}"#,
        &[
            "0 Developer parts loads -",
            "1 Other stays parts -",
            "2 Other stays parts -",
            "3 Other stays parts -",
            "4 Assistant bound -",
            "4 Assistant stays parts -",
            "4 Assistant bound stays parts -",
            "5 Other stays parts -",
            "6 Assistant bound parts runs -",
            "6 Assistant for program runs inside -",
            r#"  call function "1" - true"#,
            "6 Assistant inside -",
            r#"  call function "2" - true"#,
        ],
    );
}

#[test]
fn beside_a_reference_no_call_leaves_and_no_result_is_an_orphan() {
    check(
        r#"{"id":"rs_1"},{"type":"function_call","call_id":"1","name":"f"},{"type":"function_call_output","call_id":"2","output":""},{"type":"item_reference","id":"msg_1"}"#,
        &[
            "0 Other stays parts -",
            "1 Assistant stays -",
            r#"  call function "1" f true"#,
            r#"2 Tool """#,
            r#"  result function "2" false"#,
            "3 Other stays parts -",
        ],
    );
}

#[test]
fn the_newest_compaction_stands_for_all_before_it() {
    for kind in ["compaction", "compaction_summary", "context_compaction"] {
        let body = format!(
            r#"{{"input":[{{"role":"user"}},{{"type":"{kind}"}},{{"role":"user"}},{{"type":"{kind}","encrypted_content":"x"}},{{"role":"user"}}]}}"#
        );
        let conversation = read(&body);
        assert_eq!((conversation.traits.n_compacted, conversation.first_editable().get()), (4, 4));
    }
    let orphan = r#"{"input":[{"type":"compaction"},{"type":"function_call_output","call_id":"1"}]}"#;
    let answer = &Pairing::of(&read(orphan)).results[0];
    assert!(answer.answers.is_none() && !answer.may_leave);
}

#[test]
fn reads_what_stands_beside_the_items() {
    let text = |body: &str| {
        let conversation = read(body);
        let text = |span: Option<Span>| span.map(|span| str::from_utf8(span.of(body.as_bytes())).unwrap().to_owned());
        let Conversation { model, tools, format, instructions, .. } = &conversation;
        (model.as_deref().map(str::to_owned), text(*tools), text(*format), text(*instructions))
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        text(
            r#" {"instructions":"be good","input":[],"text":{"verbosity":"low","format":{"type":"text"}},"tools":[ ],"model":"gpt\u002d5"} "#
        ),
        (some("gpt-5"), some("[ ]"), some(r#"{"type":"text"}"#), some("\"be good\""))
    );
    assert_eq!(text(r#"{"instructions":null,"text":null,"tools":null,"model":null}"#), (None, None, None, None));
    let traits = |beside: &str| {
        let body = format!(r#"{{"input":[{{"type":"function_call_output","call_id":"1"}}],{beside}}}"#);
        let conversation = read(&body);
        let may_leave = Pairing::of(&conversation).results[0].may_leave;
        (conversation.traits.history_elsewhere, conversation.traits.compacts_itself, may_leave)
    };
    assert_eq!(traits(r#""previous_response_id":"resp_1""#), (true, false, false));
    assert_eq!(traits(r#""conversation":{"id":"conv_1"}"#), (true, false, false));
    assert_eq!(
        traits(r#""previous_response_id":null,"conversation":null,"context_management":null"#),
        (false, false, true)
    );
    assert_eq!(traits(r#""context_management":[{"type":"compaction","compact_threshold":1000}]"#), (false, true, true));
    assert_eq!(traits(r#""previous_response_id":"","conversation":"","context_management":[ ]"#), (false, false, true));
    assert!(read(r#"{"input":[{"role":"user"},{"type":"compaction_trigger"}]}"#).traits.compacts_itself);
}

#[test]
fn an_input_may_be_a_text_or_nothing() {
    let body = r#"{"input" : "hello","model":"m"}"#;
    assert_eq!(describe(body, &read(body)), [r#"0 User "hello""#]);
    for body in [r#"{"input":[]}"#, r#"{"input":null}"#, r#"{"previous_response_id":"x"}"#, "{}"] {
        assert!(read(body).units.is_empty(), "{body}");
    }
}

#[test]
fn results_answer_calls_of_their_kind() {
    let body = r#"{"input":[{"type":"function_call","call_id":"1"},{"type":"custom_tool_call","call_id":"1"},{"type":"local_shell_call","call_id":"2"},
        {"type":"custom_tool_call_output","call_id":"1"},{"type":"function_call_output","call_id":"1"},{"type":"function_call_output","call_id":"2"},{"type":"shell_call_output","call_id":"2"}]}"#;
    let conversation = read(body);
    let pairing = Pairing::of(&conversation);
    let answers: Vec<_> = pairing.results.iter().map(|result| result.answers.map(CallIndex::get)).collect();
    assert_eq!(answers, [Some(1), Some(0), Some(2), None]);
}

#[test]
fn escaped_keys_and_great_depth_are_read() {
    let body = r#"{"inp\u0075t":[{"typ\u0065":"function_call","call_id":"1"}]}"#;
    let conversation = read(body);
    assert_eq!(describe(body, &conversation), ["0 Assistant -", r#"  call function "1" - true"#]);
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let body = format!(r#"{{"x":{deep},"input":[{{"role":"user","content":{deep}}},{{"type":"x","y":{deep}}}]}}"#);
    assert_eq!(Responses.parse(body.as_bytes()).unwrap().units.len(), 2);
    check_refused(&format!(r#"{{"input":{deep}}}"#), 10, ParseErrorKind::NotAnObject);
}

#[test]
fn says_why_it_refuses() {
    use ParseErrorKind::{DuplicateKey, IdNotAString, NotAnArray, NotAnObject, NotJson};
    check_refused("", 0, NotJson);
    check_refused("[1]", 0, NotAnObject);
    check_refused(r#"{"input":{}}"#, 9, NotAnArray);
    check_refused(r#"{"input":7}"#, 9, NotAnArray);
    check_refused(r#"{"input":["x"]}"#, 10, NotAnObject);
    check_refused(r#"{"input":[],"input":[]}"#, 0, DuplicateKey);
    for key in ITEM_KEYS {
        check_refused(&format!(r#"{{"input":[{{"{key}":null,"{key}":null}}]}}"#), 10, DuplicateKey);
    }
    check_refused(r#"{"input":[{"type":"function_call","call_id":true}]}"#, 44, IdNotAString);
    check_refused(r#"{"input":[{"type":"function_call_output","call_id":[]}]}"#, 51, IdNotAString);
    check_refused("{\"input\":\n[{},]}", 14, NotJson);
    let body = format!(r#"{{"input":[{}{{}}]}}"#, "{},".repeat(MAX_ELEMENTS));
    assert_eq!(Responses.parse(body.as_bytes()).unwrap_err().kind, ParseErrorKind::TooMany);
}

const ITEM_KEYS: [&str; 13] = [
    "type",
    "role",
    "id",
    "call_id",
    "name",
    "content",
    "output",
    "environment",
    "execution",
    "caller",
    "tools",
    "arguments",
    "input",
];

#[test]
fn a_rendered_result_copies_the_id_and_has_the_form_of_its_kind() {
    for (call, expected) in [
        ("function_call", r#"{"type":"function_call_output","call_id":"\u0061\/b","output":"a \"b\"\n\\"}"#),
        ("local_shell_call", r#"{"type":"function_call_output","call_id":"\u0061\/b","output":"a \"b\"\n\\"}"#),
        ("custom_tool_call", r#"{"type":"custom_tool_call_output","call_id":"\u0061\/b","output":"a \"b\"\n\\"}"#),
        (
            "shell_call",
            r#"{"type":"shell_call_output","call_id":"\u0061\/b","output":[{"stdout":"","stderr":"a \"b\"\n\\","outcome":{"type":"exit","exit_code":1}}]}"#,
        ),
        (
            "apply_patch_call",
            r#"{"type":"apply_patch_call_output","call_id":"\u0061\/b","status":"failed","output":"a \"b\"\n\\"}"#,
        ),
    ] {
        let body = format!(r#"{{"input":[{{"type":"{call}","id":"x","call_id":"\u0061\/b"}}]}}"#);
        let conversation = read(&body);
        let BlockKind::ToolCall { id, .. } = &conversation.blocks[0].kind else { panic!("a call") };
        let rendered = Responses.render_tool_result(body.as_bytes(), id, None, "a \"b\"\n\\");
        assert_eq!(String::from_utf8_lossy(&rendered), expected);
        // It answers the call.
        let both = format!(r#"{{"input":[{{"type":"{call}","id":"x","call_id":"\u0061\/b"}},{expected}]}}"#);
        assert!(Pairing::of(&read(&both)).calls[0].answered);
    }
    let said = Responses.render_user_message("a\n");
    assert_eq!(said, br#"{"type":"message","role":"user","content":"a\n"}"#.as_slice());
}

/// Compares the reader with `serde_json`.
fn agree(body: &[u8]) -> Result<(), TestCaseError> {
    agrees(read_body(body), by_serde::parse(body), body)
}

/// JSON text in which the keys that matter are frequent, and now and then wrong, repeated or escaped.
fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        4 => r#""(user|assistant|message|reasoning|server|local|x|a\\n|\\u0061|\\ud800|é|\\\\)?""#,
        1 => Just("null".to_owned()),
        1 => r"-?(0|[1-9]\d{0,2})(\.\d)?(e[+-]?\d)?|true|false",
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        let key = prop_oneof![
            9 => prop::sample::select(&ITEM_KEYS[..]),
            3 => prop::sample::select(&["model", "tools", "text", "format", "instructions", "conversation"][..]),
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

/// A body that is nearly always a request: items of all types, and some of the above in between.
fn body() -> impl Strategy<Value = String> {
    const KINDS: [&str; 16] = [
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "shell_call",
        "shell_call_output",
        "local_shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "reasoning",
        "compaction",
        "item_reference",
        "compaction_trigger",
        "program",
        "unheard_of",
    ];
    let id = || prop::sample::select(&[r#""a""#, r#""b""#, r#""\u0061""#, r#""""#, "null"][..]);
    let item = prop_oneof![
        6 => (prop::sample::select(&KINDS[..]), id(), id(), more(&ITEM_KEYS), more(&ITEM_KEYS))
            .prop_map(|(kind, id, call, more, other)| format!(r#"{{"type":"{kind}","id":{id}, "call_id":{call}{more}{other}}}"#)),
        1 => value(),
    ];
    let of_request = || {
        more(&[
            "input",
            "model",
            "tools",
            "text",
            "instructions",
            "previous_response_id",
            "conversation",
            "context_management",
        ])
    };
    (prop::collection::vec(item, 0..6), of_request(), of_request())
        .prop_map(|(items, more, other)| format!("{{\"x\":0,\n\"input\":[{}]{more}{other}}}", items.join(", ")))
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
