//! Tests of the reader, its comparison with `serde_json`, and what is written and read beside.

use proptest::prelude::*;

use super::*;
use crate::conversation::Conversation;
use crate::dialect::answer::{Answer, AnswerFormat, Stop};
use crate::dialect::{ParseError, ParseErrorKind, tests::agrees};
use crate::string_index::StringIndex;
use crate::summary::{InputElement, Prompt, PromptMode, SummaryInput};
use crate::{
    conversation::{BlockKind, Pairing, Unit},
    tokens::Usage,
};

mod by_serde;

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
        let flags = [(unit.flags.bound, " bound"), (unit.flags.thinks, " thinks"), (unit.flags.barrier, " parts")];
        let mute = if unit.flags.speaks { "" } else { " mute" };
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
                BlockKind::ToolResult { call_id, .. } => format!("  result {}", call_id.text),
            });
        }
    }
    lines
}

fn of(contents: &str) -> String {
    format!(r#"{{"contents":[{contents}]}}"#)
}

fn check(contents: &str, expected: &[&str]) {
    let body = of(contents);
    let read = read_body(body.as_bytes()).expect("nothing odd");
    assert_eq!(describe(&body, &read), expected, "{contents}");
    assert_eq!(by_serde::parse(body.as_bytes()), Ok(read));
}

fn model(parts: &str) -> String {
    format!(r#"{{"role":"model","parts":[{parts}]}}"#)
}

fn user(parts: &str) -> String {
    format!(r#"{{"parts":[{parts}],"role":"user"}}"#)
}

const CALL: &str = r#"{"functionCall":{"id":"a","name":"f","args":{"x":1}}}"#;
const RESULT: &str = r#"{"functionResponse":{"id":"a","name":"f","response":{"output":"x"}}}"#;
const TEXT: &str = r#"{"text":"t"}"#;

#[test]
fn contents_of_the_user_have_a_unit_for_each_part_and_those_of_the_model_are_one() {
    check(
        &[
            user(TEXT),
            model(&format!("{TEXT},{CALL}")),
            user(&format!("{RESULT} , {TEXT},{{\"inlineData\":{{}}}}")),
            r#"{"parts":[{"text":"no role"}]}"#.to_owned(),
            r#"{"role":"user"}"#.to_owned(),
            r#"{"role":"system","parts":[]}"#.to_owned(),
        ]
        .join(","),
        &[
            "0 0 User \"t\"",
            &format!("1 1 Assistant [{TEXT},{CALL}]"),
            "  call a Some(\"f\")",
            "2 2 Tool {\"output\":\"x\"}",
            "  result a",
            "2 3 User \"t\"",
            "2 3 User -",
            "3 3 User \"no role\"",
            "4 3 User -",
            "5 4 Other parts []",
        ],
    );
}

#[test]
fn contents_with_a_signature_or_an_unknown_part_are_bound() {
    let signed = r#"{"functionCall":{"id":"a","name":"f"},"thoughtSignature":"c2ln"}"#;
    for (parts, flags) in [
        (CALL.to_owned(), " mute"),
        (signed.to_owned(), " mute bound"),
        (signed.replace("thoughtSignature", "thought_signature"), " mute bound"),
        (format!(r#"{{"text":"hm","thought":true}},{signed}"#), " mute bound thinks"),
        (format!(r#"{{"text":"","thoughtSignature":"c2ln"}},{CALL}"#), " mute bound"),
        (format!(r#"{{"executableCode":{{}}}},{CALL}"#), " bound"),
        (format!("{TEXT},{CALL}"), ""),
    ] {
        check(&model(&parts), &[&format!("0 0 Assistant{flags} [{parts}]"), "  call a Some(\"f\")"]);
    }
}

/// The results by the calls that they answer, in order: `-` for one that answers none.
fn pairs(contents: &[String]) -> Vec<String> {
    let body = of(&contents.join(","));
    let conversation = read_body(body.as_bytes()).unwrap();
    let pairing = Pairing::of(&conversation);
    let call = |result: &crate::conversation::PairedResult| match result.answers.and_then(|call| pairing.call(call)) {
        Some(call) => call.block.get().to_string(),
        None => "-".to_owned(),
    };
    pairing.results.iter().map(call).collect()
}

#[test]
fn results_without_an_id_answer_the_calls_of_their_function_in_order() {
    let call = |id: &str, name: &str| format!(r#"{{"functionCall":{{{id}"name":"{name}"}}}}"#);
    let result = |id: &str, name: &str| format!(r#"{{"functionResponse":{{{id}"name":"{name}","response":{{}}}}}}"#);
    let id = |id: &str| format!(r#""id":"{id}","#);
    let two = |one: String, other: String| format!("{one},{other}");
    // Blocks count calls and results alike.
    let same = [model(&two(call("", "f"), call("", "f"))), user(&two(result("", "f"), result("", "f")))];
    assert_eq!(pairs(&same), ["0", "1"]);
    let crossed = [model(&two(call("", "f"), call("", "g"))), user(&two(result("", "g"), result("", "f")))];
    assert_eq!(pairs(&crossed), ["1", "0"]);
    let again = [same[0].clone(), same[1].clone(), same[0].clone(), user(&result("", "f"))];
    assert_eq!(pairs(&again), ["0", "1", "4"]);
    let named = |of_call: &str, of_result: &str| [model(&call(of_call, "f")), user(&result(of_result, "f"))];
    assert_eq!(pairs(&named(&id("a"), &id("a"))), ["0"]);
    assert_eq!(pairs(&named(&id("a"), "")), ["0"]);
    assert_eq!(pairs(&named("", &id("a"))), ["0"]);
    assert_eq!(pairs(&named(&id("f"), "")), ["0"]);
    assert_eq!(pairs(&[model(&call("", "f")), user(&result("", "g"))]), ["-"]);
    // An id twice: the name says which call it is.
    let twice = model(&two(call(&id("a"), "f"), call(&id("a"), "g")));
    assert_eq!(pairs(&[twice.clone(), user(&result(&id("a"), "g"))]), ["1"]);
    assert_eq!(pairs(&[twice.clone(), user(&result(&id("a"), "f"))]), ["0"]);
    assert_eq!(pairs(&[twice, user(&two(result(&id("a"), "g"), result(&id("a"), "f")))]), ["1", "0"]);
    let same_name = model(&two(call(&id("a"), "f"), call(&id("a"), "f")));
    assert_eq!(pairs(&[same_name, user(&two(result(&id("a"), "f"), result(&id("a"), "f")))]), ["0", "1"]);
}

#[test]
fn reads_what_is_beside_the_contents() {
    let body = r#"{"systemInstruction":{"parts":[]},"tools":[{"functionDeclarations":[{"name":"f"},{"name":"g"}]},{"googleSearch":{}}],"generationConfig":{"maxOutputTokens":9,"responseSchema":{"type":"OBJECT"}},"contents":[]}"#;
    let conversation = read_body(body.as_bytes()).unwrap();
    let text = |span: Option<Span>| span.map(|span| str::from_utf8(span.of(body.as_bytes())).unwrap());
    assert_eq!(text(conversation.instructions), Some(r#"{"parts":[]}"#));
    assert_eq!(text(conversation.format), Some(r#"{"type":"OBJECT"}"#));
    assert_eq!(conversation.traits.max_answer_tokens, Some(9));
    assert!(!conversation.traits.history_elsewhere);
    assert_eq!(Gemini.tool_names(body.as_bytes(), conversation.tools.unwrap()), ["f", "g"]);
    let cached = r#"{"contents":[],"cachedContent":"cachedContents/1"}"#;
    assert!(read_body(cached.as_bytes()).unwrap().traits.history_elsewhere);
}

#[test]
fn a_request_whose_tokens_are_counted_may_be_inside_the_body() {
    let request = format!(r#"{{"model":"models/m","tools":[],"contents":[{}]}}"#, model(CALL));
    let body = format!(r#" {{"x":1, "generateContentRequest": {request} , "y":2}}"#);
    let conversation = read_body(body.as_bytes()).unwrap();
    assert_eq!((conversation.blocks.len(), conversation.tools.is_some()), (1, true));
    assert_eq!(conversation.blocks[0].span.of(body.as_bytes()), CALL.as_bytes());
    for other in [
        format!("{body} 7"),
        r#"{"generateContentRequest":7}"#.to_owned(),
        r#"{"generateContentRequest":{"contents":[]},"generateContentRequest":{}}"#.to_owned(),
    ] {
        assert!(read_body(other.as_bytes()).is_err(), "{other}");
    }
}

#[test]
fn says_why_it_refuses() {
    use ParseErrorKind::{DuplicateKey, IdNotAString, NoMessages, NotAnArray, NotAnObject};
    let check = |body: &str, offset, kind| {
        let error = ParseError { dialect: NAME, offset, kind };
        assert_eq!(read_body(body.as_bytes()), Err(error), "{body}");
        assert_eq!(by_serde::parse(body.as_bytes()), Err(error), "{body}");
    };
    check("{}", 0, NoMessages);
    check(r#"{"contents":{}}"#, 12, NotAnArray);
    check(r#"{"contents":[7]}"#, 13, NotAnObject);
    check(r#"{"contents":[{"parts":[7]}]}"#, 23, NotAnObject);
    check(r#"{"contents":[{"parts":[{"text":"a","text":"b"}]}]}"#, 23, DuplicateKey);
    check(r#"{"contents":[{"role":"model","parts":[{"functionCall":[]}]}]}"#, 54, NotAnObject);
    check(r#"{"contents":[{"role":"model","parts":[{"functionCall":{"id":[]}}]}]}"#, 60, IdNotAString);
}

#[test]
fn escaped_keys_and_great_depth_are_read() {
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let body = of(&model(&format!(r#"{{"functionC\u0061ll":{{"n\u0061me":"f","args":{{"x":{deep}}}}}}}"#)));
    let read = read_body(body.as_bytes()).unwrap();
    assert!(matches!(&read.blocks[0].kind, BlockKind::ToolCall { name: Some(name), .. } if name == "f"));
    assert_eq!(Gemini.input(body.as_bytes(), read.blocks[0].span), None, "an odd one is left alone");
}

#[test]
fn paths_name_the_model() {
    let of = |path: &str| (Gemini.base_path(path).map(str::to_owned), Gemini.path_facts(path).model.map(String::from));
    let model = |model: &str| Some(model.to_owned());
    assert_eq!(of("/v1beta/models/gemini-3-pro:generateContent"), (model("/v1beta"), model("gemini-3-pro")));
    assert_eq!(of("/models/gemini%2D3:streamGenerateContent"), (model(""), model("gemini-3")));
    let vertex = "/v1/projects/p/locations/global/publishers/google";
    assert_eq!(of(&format!("{vertex}/models/gemini-3:generateContent")), (model(vertex), model("gemini-3")));
    for other in
        ["/v1beta/models/m:embedContent", "/v1beta/models/m", "/v1internal:generateContent", "/models/:generateContent"]
    {
        assert_eq!(of(other), (None, None), "{other}");
    }
    assert_eq!(of("/v1beta/models/m:countTokens"), (None, model("m")));
    assert_eq!(Gemini.path_of("gemini-3"), "/v1beta/models/gemini-3:streamGenerateContent?alt=sse");
}

#[test]
fn texts_are_all_strings_of_a_response_and_no_thoughts() {
    let check = |content: &str, expected: &[&str]| {
        let texts = Gemini.texts(content.as_bytes(), Span { start: 0, end: content.len() });
        let texts: Vec<_> = texts.iter().map(|text| str::from_utf8(text.of(content.as_bytes())).unwrap()).collect();
        assert_eq!(texts, expected, "{content}");
    };
    check(r#"{"output":"a\"b and so on and on","n":7}"#, &[r#""a\"b and so on and on""#]);
    check(
        r#"{"r":{"content":[{"type":"text","text":"this and that, and so on and on"}]}}"#,
        &[r#""text""#, r#""this and that, and so on and on""#],
    );
    check(r#"{"n":[1,2,3],"s":"a"}"#, &[r#"{"n":[1,2,3],"s":"a"}"#]);
    check(r#""s""#, &[r#""s""#]);
    check(r#"[{"text":"a"},{"text":"b","thought":true},{"inlineData":{"data":"c"}}]"#, &[r#""a""#]);
}

#[test]
fn results_have_the_name_of_the_function_and_the_id_if_the_call_has_one() {
    let body = br#"{"contents":[{"role":"model","parts":[{"functionCall":{"id":"\u0061","name":"f"}},{"functionCall":{"name":"g"}}]}]}"#;
    let conversation = read_body(body).unwrap();
    let rendered = conversation.blocks.iter().map(|block| match &block.kind {
        BlockKind::ToolCall { id, name, .. } => Gemini.render_tool_result(body, id, name.as_deref(), "a \"b\""),
        BlockKind::ToolResult { .. } => panic!("a call"),
    });
    let rendered: Vec<_> = rendered.collect();
    assert_eq!(
        Gemini.result_elements(rendered),
        [Bytes::from_static(br#"{"role":"user","parts":[{"functionResponse":{"id":"\u0061","name":"f","response":{"error":"a \"b\""}}},{"functionResponse":{"name":"g","response":{"error":"a \"b\""}}}]}"#)]
    );
    assert_eq!(Gemini.render_user_message("a\n"), br#"{"role":"user","parts":[{"text":"a\n"}]}"#.as_slice());
}

#[test]
fn signatures_and_spelling_make_no_other_content() {
    let canonical = |content: &str| Gemini.canonical(content.as_bytes()).concat();
    let same = |contents: &[&str]| {
        for content in contents {
            assert_eq!(canonical(content), canonical(contents[0]), "{content}");
        }
        canonical(contents[0])
    };
    let user =
        same(&[r#"{"role":"user","parts":[{"text":"x"}]}"#, r#"{"parts": [ {"text":"x"} ]}"#, r#"{"text":"x"}"#]);
    let answer = same(&[
        r#"{"role":"model","parts":[{"text":"x"}]}"#,
        r#"{"role":"model","parts":[{"text":"x","thoughtSignature":"s"}]}"#,
        r#"{"role":"model","parts":[{"text":"hm","thought":true},{"text":"x","thought":false},{"text":"","thoughtSignature":"s"}]}"#,
    ]);
    assert_ne!(user, answer);
    assert_ne!(user, canonical(r#"{"parts":[{"text":"y"}]}"#));
}

#[test]
fn answers_are_read_as_a_whole_from_events_and_from_an_array() {
    let first = r#"{"candidates":[{"content":{"parts":[{"text":"hm","thought":true},{"text":"a "}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":10,"totalTokenCount":10}}"#;
    let last = r#"{"candidates":[{"content":{"parts":[{"text":"b"}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":10,"toolUsePromptTokenCount":2,"cachedContentTokenCount":4,"candidatesTokenCount":3,"thoughtsTokenCount":5}}"#;
    let (mut events, mut whole) = (Answer::with_text(), Answer::with_text());
    for event in [first, last] {
        assert!(Gemini.reports(event.as_bytes()));
        Gemini.read_answer(event.as_bytes(), &mut events).unwrap();
    }
    Gemini.read_answer(format!("[{first}\n,\n{last}]").as_bytes(), &mut whole).unwrap();
    assert_eq!(events, whole);
    assert_eq!((events.text.as_deref(), events.stop_reason.as_deref()), (Some("a b"), Some("STOP")));
    assert_eq!(events.usage, Some(Usage { input: 12, cached: 4, written: 0, written_hour: 0, output: 8 }));
    assert!(!events.calls_tool && !events.is_error);
    assert_eq!(
        [Gemini.stop("STOP"), Gemini.stop("MAX_TOKENS"), Gemini.stop("SAFETY")],
        [Stop::Done, Stop::Length, Stop::ContentFilter]
    );
    let mut error = Answer::default();
    Gemini.read_answer(br#"[{"error":{"code":429}}]"#, &mut error).unwrap();
    assert!(error.is_error);
    assert!(!Gemini.reports(br#"{"candidates":[{"content":{}}]}"#));
    assert!(Gemini.read_answer(b"7", &mut error).is_err());
}

#[test]
fn requests_for_a_summary_are_made_of_the_clients() {
    let body = r#"{"systemInstruction":{"parts":[{"text":"Be brief."}]},"tools":[{"functionDeclarations":[{"name":"f"}]}],"generationConfig":{"temperature":0.5,"responseMimeType":"application/json","maxOutputTokens":64,"thinkingConfig":{"thinkingBudget":100}},"safetySettings":[],"contents":[]}"#;
    let signed = r#"{"role":"model","parts":[{"text":"hm","thought":true},{"functionCall":{"name":"f"},"thoughtSignature":"s"}]}"#;
    let thought = r#"{"role":"model","parts":[{"text":"hm","thought":true}]}"#;
    let messages = [signed, thought].map(|json| InputElement {
        json: Bytes::from_static(json.as_bytes()),
        tokens: 1,
        opens: true,
        must_alternate: false,
    });
    let source = SummaryInput { body: body.into(), messages: messages.into(), n_leading: 0, base_tokens: 0 };
    let request = |input, model| {
        let prompt = Prompt { input, system: "Sum up.", instruction: "Now.", max_tokens: 500, model };
        String::from_utf8(Gemini.summary_request(&source, &prompt).unwrap().to_vec()).unwrap()
    };
    let instruction = r#"{"role":"user","parts":[{"text":"Now."}]}"#;
    assert_eq!(
        request(PromptMode::Cached, None),
        format!(
            r#"{{"systemInstruction":{{"parts":[{{"text":"Be brief."}}]}},"tools":[{{"functionDeclarations":[{{"name":"f"}}]}}],"safetySettings":[],"contents":[{signed},{thought},{instruction}],"toolConfig":{{"functionCallingConfig":{{"mode":"NONE"}}}},"generationConfig":{{"temperature":0.5,"thinkingConfig":{{"thinkingBudget":100}},"maxOutputTokens":600}}}}"#
        )
    );
    assert_eq!(
        request(PromptMode::Fresh, Some("gemini-3")),
        format!(
            r#"{{"systemInstruction":{{"parts":[{{"text":"Sum up."}}]}},"contents":[{{"role":"model","parts":[{{"functionCall":{{"name":"f"}}}}]}},{instruction}],"generationConfig":{{"maxOutputTokens":4596}}}}"#
        )
    );
    assert_eq!(request(PromptMode::Plain, Some("gemini-3")), format!(r#"{{"contents":[{instruction}]}}"#));
}

#[test]
fn errors_have_the_shape_of_the_api() {
    let error = ErrorFields { message: "too \"long\"", is_client_error: true, code: "body_too_large" };
    let expected = r#"{"error":{"code":400,"status":"INVALID_ARGUMENT","message":"too \"long\""}}"#;
    assert_eq!(Gemini.error_body(&error), expected.as_bytes());
}

const KEYS: [&str; 14] = [
    "contents",
    "role",
    "parts",
    "text",
    "thought",
    "thoughtSignature",
    "functionCall",
    "functionResponse",
    "id",
    "name",
    "args",
    "response",
    "tools",
    "generationConfig",
];

/// JSON text in which the keys that matter are frequent, and now and then wrong, repeated or escaped.
fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        4 => r#""(user|model|f|g|a|x|a\\n|\\u0061|\\ud800|é|\\\\)?""#,
        1 => Just("null".to_owned()),
        1 => r"-?(0|[1-9]\d{0,2})(\.\d)?(e[+-]?\d)?|true|false",
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        let key = prop_oneof![9 => prop::sample::select(&KEYS[..]), 1 => Just(r"\u0069d")];
        let pair = (key, inner.clone()).prop_map(|(key, value)| format!("\"{key}\": {value}"));
        prop_oneof![
            2 => prop::collection::vec(pair, 0..5).prop_map(|pairs| format!("{{{}}}", pairs.join(","))),
            1 => prop::collection::vec(inner, 0..4).prop_map(|items| format!("[{}]", items.join(","))),
        ]
    })
}

/// A body that is nearly always a request: contents with calls and results, and some of the above in between.
fn body() -> impl Strategy<Value = String> {
    let id = prop::sample::select(&[r#""id":"a","#, r#""id":"b","#, r#""id":null,"#, r#""id":"","#, ""][..]);
    let kind = prop::sample::select(&["functionCall", "functionCall", "functionResponse", "functionResponse", "x"][..]);
    let name = prop::sample::select(&["f", "g"][..]);
    let function = (id, kind, name, value())
        .prop_map(|(id, kind, name, value)| format!(r#"{{"{kind}":{{{id}"name":"{name}","response":{value}}}}}"#));
    let part = prop_oneof![6 => function, 1 => Just(TEXT.to_owned()), 1 => value()];
    let role = prop::sample::select(&["user", "user", "model", "model", "function", "x"][..]);
    let content = prop_oneof![
        6 => (prop::collection::vec(part, 0..4), role)
            .prop_map(|(parts, role)| format!(r#"{{"parts":[{}],"role":"{role}"}}"#, parts.join(" , "))),
        1 => value(),
    ];
    prop::collection::vec(content, 0..6)
        .prop_map(|contents| format!("{{\"x\":0,\n\"contents\":[{}]}}", contents.join(", ")))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn readers_agree_on_valid_json(body in prop_oneof![body(), value()]) {
        agrees(read_body(body.as_bytes()), by_serde::parse(body.as_bytes()), body.as_bytes())?;
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
        agrees(read_body(&body), by_serde::parse(&body), &body)?;
    }
}
