//! Reads the items of a body with `serde_json`, for comparison.

use super::items::{ITEM, Item, REQUEST_KEYS, ViewBuilder};
use super::{NAME, error};
use crate::conversation::Conversation;
use crate::dialect::ParseError;
use crate::dialect::json::Fault;
use crate::dialect::tests::by_serde::Json;

/// The conversation in `body`.
pub(super) fn parse(body: &[u8]) -> Result<Conversation<'_>, ParseError> {
    let json = Json::of(NAME, body)?;
    let values = json.fields(json.whole(), REQUEST_KEYS)?;
    let [input, ..] = values;
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
    items.finish((values, json.history_keys())).map_err(fault)
}

fn fault((offset, kind): Fault) -> ParseError {
    error(offset, kind)
}
