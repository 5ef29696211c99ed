//! Reads the messages of a body with `serde_json`, for comparison.

use super::{
    NAME, error,
    view::{ENTRY_KEYS, REQUEST_KEYS, View},
};
use crate::conversation::Conversation;
use crate::dialect::json::Fault;
use crate::dialect::reading::{Entry, Message};
use crate::dialect::tests::by_serde::Json;
use crate::dialect::{ParseError, ParseErrorKind};
use crate::span::Span;

/// The conversation in `body`.
pub(super) fn parse(body: &[u8]) -> Result<Conversation<'_>, ParseError> {
    let json = Json::of(NAME, body)?;
    let values = json.fields(json.whole(), REQUEST_KEYS)?;
    let messages = values[0].ok_or_else(|| error(0, ParseErrorKind::NoMessages))?;
    let mut view = View::new(body);
    for span in json.array(messages)? {
        message(json, span, &mut view)?;
    }
    view.finish((values, json.history_keys())).map_err(of_fault)
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

fn of_fault((offset, kind): Fault) -> ParseError {
    error(offset, kind)
}
