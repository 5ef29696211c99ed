//! The reader reads what `serde_json` says.
//!
//! The input is a body. It is read once more with one more key at its end, which is written with an escape and moves no byte
//! that the view shows.

use abridge_proxy::conversation::{BlockKind, CallId, Conversation, Role, Unit};
use abridge_proxy::dialect::{Dialect, Entries, strings};
use abridge_proxy::span::Span;
use serde_json::Value;
use serde_json::value::RawValue;

const KEY: &[u8] = br#""\u0078":0"#;

/// Reads a body with and without that key, and once more with `serde_json` alone.
pub fn run(body: &[u8]) {
    let dialect = super::dialect();
    let plain = dialect.parse(body);
    let Some(odd) = odd(body) else {
        assert!(plain.is_err(), "no object, and read all the same");
        return;
    };
    match (plain, dialect.parse(&odd)) {
        (Ok(plain), Ok(escaped)) => {
            assert_eq!(plain, escaped);
            if strings::verify(body).is_ok() {
                judge(dialect, body, &plain);
            }
        }
        (Err(_), Err(_)) => {}
        (Ok(_), Err(error)) => panic!("{error}, but not without one key more"),
        (Err(error), Ok(_)) => panic!("{error}, but not with one key more"),
    }
}

/// The body with a key at its end that has an escape; none if it does not end as an object does.
pub(super) fn odd(body: &[u8]) -> Option<Vec<u8>> {
    let end = body.iter().rposition(|byte| !b" \n\r\t".contains(byte)).filter(|&end| body[end] == b'}')?;
    let last = body[..end].iter().rfind(|byte| !b" \n\r\t".contains(byte))?;
    let comma: &[u8] = if *last == b'{' { b"" } else { b"," };
    Some([&body[..end], comma, KEY, &body[end..]].concat())
}

/// What `serde_json` makes of the body. It knows neither great depth nor half surrogate pairs; such bodies are left to
/// the reader.
fn judge(dialect: &dyn Dialect, body: &[u8], conversation: &Conversation<'_>) {
    let Ok(value) = serde_json::from_slice::<Value>(body) else { return };
    let messages = value["messages"].as_array().expect("there are messages");
    assert_eq!(conversation.units.len(), messages.len());
    assert_eq!(conversation.model.as_deref(), value["model"].as_str());
    assert_eq!(conversation.tools.map(|tools| read(body, tools)), said(&value, "tools"));
    assert_eq!(conversation.format.map(|format| read(body, format)), said(&value, "response_format"));
    for (message, value) in conversation.units.iter().zip(messages) {
        assert_eq!(&read(body, message.span), value);
        let role = value["role"].as_str().map_or(Role::Other, Role::named);
        assert_eq!(message.role, role);
        assert_eq!(message.content.map(|content| read(body, content)), said(value, "content"));
        judge_blocks(body, conversation, message, value);
        judge_parts(dialect, body, message, value);
    }
    if let Some(tools) = conversation.tools {
        dialect.tool_names(body, tools);
    }
}

fn judge_blocks(body: &[u8], conversation: &Conversation<'_>, message: &Unit, value: &Value) {
    let blocks = conversation.blocks_of(message);
    if message.role == Role::Tool {
        assert_eq!(blocks.len(), 1);
        let BlockKind::ToolResult { call_id, .. } = &blocks[0].kind else { panic!("a call in a result") };
        assert_eq!(blocks[0].span, message.span);
        judge_id(body, call_id, &value["tool_call_id"]);
        return;
    }
    let none = Vec::new();
    let calls = value["tool_calls"].as_array().filter(|_| message.role == Role::Assistant).unwrap_or(&none);
    assert_eq!(blocks.len(), calls.len());
    for (block, call) in blocks.iter().zip(calls) {
        assert_eq!(&read(body, block.span), call);
        let BlockKind::ToolCall { id, name, .. } = &block.kind else { panic!("a result in a call") };
        judge_id(body, id, &call["id"]);
        assert_eq!(name.as_deref(), call["function"]["name"].as_str().or(call["custom"]["name"].as_str()));
    }
}

fn judge_id(body: &[u8], id: &CallId<'_>, value: &Value) {
    assert_eq!(id.raw.map(|raw| read(body, raw)).unwrap_or_default(), *value);
    // A number is an id, as it is written.
    let number = value.is_number().then(|| id.raw.map(|raw| String::from_utf8_lossy(&body[raw.start..raw.end])));
    let expected = number.flatten().unwrap_or_else(|| value.as_str().unwrap_or_default().into());
    assert_eq!(id.text, expected);
}

/// What edits ask for of one message.
fn judge_parts(dialect: &dyn Dialect, body: &[u8], message: &Unit, value: &Value) {
    for text in message.content.map(|content| dialect.texts(body, content)).unwrap_or_default() {
        assert!(message.span.start < text.start && text.end < message.span.end);
        let read = read(body, text);
        assert_eq!(strings::text(body, text).as_deref(), read.as_str());
        let written = strings::render(read.as_str().expect("a text"));
        assert_eq!(serde_json::from_slice::<Value>(&written).ok(), Some(read));
    }
    if let Some(Entries { spans, reasoning: _, key: Some(Span { start, end }) }) = dialect.entries(body, message.span) {
        let calls: Vec<_> = spans.into_iter().map(|span| read(body, span)).collect();
        assert_eq!(value["tool_calls"].as_array(), Some(&calls));
        let without = [&body[message.span.start..start], &body[end..message.span.end]].concat();
        let mut expected = value.clone();
        expected.as_object_mut().expect("an object").remove("tool_calls").expect("calls");
        assert_eq!(serde_json::from_slice::<Value>(&without).ok(), Some(expected));
    }
    for call in value["tool_calls"].as_array().into_iter().flatten() {
        let call = call.to_string().into_bytes();
        let Some(input) = dialect.input(&call, Span { start: 0, end: call.len() }) else { continue };
        let emptied = [&call[..input.span.start], input.emptied.as_bytes(), &call[input.span.end..]].concat();
        serde_json::from_slice::<Value>(&emptied).expect("a call without arguments is still JSON");
    }
}

/// The value that a span covers, and nothing but that.
fn read(body: &[u8], span: Span) -> Value {
    let raw: &RawValue = serde_json::from_slice(span.of(body)).expect("a span is a value");
    assert_eq!(raw.get().len(), span.len(), "no white space around it");
    serde_json::from_str(raw.get()).expect("it was read as part of the body")
}

/// A value that is there and not null.
fn said(value: &Value, key: &str) -> Option<Value> {
    value.get(key).filter(|value| !value.is_null()).cloned()
}
