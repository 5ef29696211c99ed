//! Reads the contents of a body with `serde_json`, for comparison.

use super::{
    NAME,
    view::{FUNCTION_KEYS, PART_KEYS, REQUEST_KEYS, View, function, part_of},
};
use crate::dialect::{ParseError, ParseErrorKind};
use crate::{
    conversation::Conversation,
    dialect::reading::{Entry, Message},
    dialect::tests::by_serde::Json,
    span::Span,
};

/// The conversation in `body`.
pub(super) fn parse(body: &[u8]) -> Result<Conversation<'_>, ParseError> {
    let json = Json::of(NAME, body)?;
    let values = json.fields(json.whole(), REQUEST_KEYS)?;
    let contents = values[0].ok_or_else(|| json.error(0, ParseErrorKind::NoMessages))?;
    let mut view = View::new(body);
    for span in json.array(contents)? {
        content(json, span, &mut view)?;
    }
    Ok(view.finish((values, json.history_keys())))
}

fn content<'a>(json: Json<'a>, span: Span, view: &mut View<'a>) -> Result<(), ParseError> {
    let [role, parts] = json.fields(span, [b"role".as_slice(), b"parts"])?;
    let entries = if let Some(parts) = parts.filter(|parts| json.begins(*parts, b'[')) {
        json.array(parts)?.into_iter().map(|span| part(json, span)).collect::<Result<_, _>>()?
    } else {
        if let Some(object) = parts.filter(|parts| json.begins(*parts, b'{')) {
            return Err(json.error(object.start, ParseErrorKind::NotAnArray));
        }
        Vec::new()
    };
    view.content(Message { span, role, content: parts }, &entries).map_err(|fault| ParseError::new(NAME, fault))
}

fn part(json: Json<'_>, span: Span) -> Result<Entry, ParseError> {
    let values = json.fields(span, PART_KEYS)?;
    let of_function = match function(json.bytes(), values) {
        Some(function) => json.fields(function, FUNCTION_KEYS)?,
        None => [None; 3],
    };
    Ok(part_of(json.bytes(), span, values, of_function))
}
