//! Reads the items of a body with `serde_json`, for comparison.

use super::items::{Fault, ITEM, Item, RequestFields, ViewBuilder};
use super::{NAME, ParseError, error};
use crate::conversation::Conversation;
use crate::dialect::tests::by_serde::Json;

const REQUEST_KEYS: [&[u8]; 8] = [
    b"input",
    b"text",
    b"model",
    b"tools",
    b"instructions",
    b"previous_response_id",
    b"conversation",
    b"context_management",
];

/// The conversation in `body`.
pub(super) fn parse(body: &[u8]) -> Result<Conversation<'_>, ParseError> {
    let json = Json::of(NAME, body)?;
    let [input, text, model, tools, instructions, previous_response, conversation, context_management] =
        json.fields(json.whole(), REQUEST_KEYS)?;
    let mut items = ViewBuilder::new(body);
    match input {
        Some(input) if json.begins(input, b'"') => items.text_input(input),
        Some(input) => {
            for span in json.array(input)? {
                items.item(span, &Item::of(&json.fields(span, ITEM)?)).map_err(fault)?;
            }
        }
        None => {}
    }
    let [format] = match text.filter(|text| json.begins(*text, b'{')) {
        Some(text) => json.fields(text, [b"format"])?,
        None => [None],
    };
    let beside = RequestFields {
        model,
        tools,
        format,
        instructions,
        previous_response,
        conversation,
        context_management,
        history: json.history_keys(),
    };
    items.finish(beside).map_err(fault)
}

fn fault((offset, kind): Fault) -> ParseError {
    error(offset, kind)
}
