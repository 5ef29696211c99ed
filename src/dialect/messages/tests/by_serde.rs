//! Reads the messages of a body with `serde_json`, for comparison.

use super::{
    NAME, ParseError, ParseErrorKind, error,
    view::{ENTRY_KEYS, Entry, Fault, Message, RequestFields, View},
};
use crate::{conversation::Conversation, dialect::tests::by_serde::Json, span::Span};

const REQUEST_KEYS: [&[u8]; 9] = [
    b"messages",
    b"model",
    b"tools",
    b"system",
    b"output_config",
    b"output_format",
    b"context_management",
    b"thinking",
    b"compaction",
];

/// The conversation in `body`.
pub(super) fn parse(body: &[u8]) -> Result<Conversation<'_>, ParseError> {
    let json = Json::of(NAME, body)?;
    let [messages, model, tools, system, output_config, output_format, context_management, thinking, compaction] =
        json.fields(json.whole(), REQUEST_KEYS)?;
    let messages = messages.ok_or_else(|| error(0, ParseErrorKind::NoMessages))?;
    let mut view = View::new(body);
    for span in json.array(messages)? {
        message(json, span, &mut view)?;
    }
    let beside = RequestFields {
        model,
        tools,
        system,
        output_config,
        output_format,
        context_management,
        thinking,
        compaction,
        history: json.history_keys(),
    };
    view.finish(beside).map_err(of_fault)
}

fn message<'a>(json: Json<'a>, span: Span, view: &mut View<'a>) -> Result<(), ParseError> {
    let [role, content] = json.fields(span, [b"role".as_slice(), b"content"])?;
    let entries = match content.filter(|content| json.begins(*content, b'[')) {
        Some(content) => json.array(content)?.into_iter().map(|span| entry(json, span)).collect::<Result<_, _>>()?,
        None => Vec::new(),
    };
    view.message(Message { span, role, content }, &entries).map_err(of_fault)
}

fn entry(json: Json<'_>, span: Span) -> Result<Entry, ParseError> {
    if !json.begins(span, b'{') {
        return Ok(Entry::opaque(span));
    }
    Entry::of(json.bytes(), span, json.fields(span, ENTRY_KEYS)?).map_err(of_fault)
}

fn of_fault(Fault { at, kind }: Fault) -> ParseError {
    error(at.start, kind)
}
