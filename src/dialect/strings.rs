//! JSON strings and the texts that they encode, the same in every dialect.
//!
//! Half a surrogate pair, as JavaScript leaves it where it cuts a string inside a character, reads as U+FFFD.

use std::{borrow::Cow, ops::Range};

use bytes::Bytes;
use memchr::memchr;
use serde::de::IgnoredAny;

use super::json::{Cursor, Unsupported, decode};
use crate::{raw, span::Span};

/// Checks what [`Dialect::parse`](super::Dialect::parse) leaves out, so that a body that it accepted is known to be valid
/// JSON throughout. Needed only where a body is about to be changed: an untouched one is forwarded as it came. Also takes a
/// stretch of a body that begins and ends between values. The error is the offset of a fault, or near it.
pub fn verify(body: &[u8]) -> Result<(), usize> {
    if raw::utf8(body).is_none() {
        str::from_utf8(body).map_err(|error| error.valid_up_to())?; // says where
    }
    check_escapes(body)?;
    if raw::control(body).is_none() {
        return Ok(()); // not even a line end between the values: no need to tell inside from outside
    }
    let mut cursor = Cursor::starting(body, 0);
    while let Some(quote) = body.get(cursor.at()..).and_then(|rest| memchr(b'"', rest)) {
        let start = cursor.at() + quote;
        cursor.go_to(start);
        let string = cursor.string().map_err(|Unsupported| start)?;
        if let Some(at) = raw::control(string.of(body)) {
            return Err(start + at);
        }
    }
    Ok(())
}

/// Checks all escapes of a body. Its structure is valid, so backslashes are in strings only.
fn check_escapes(body: &[u8]) -> Result<(), usize> {
    let is_valid = |at: usize| match body.get(at) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => true,
        Some(b'u') => body.get(at + 1..at + 5).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)),
        _ => false,
    };
    raw::find_escaped(body, is_valid).map_or(Ok(()), Err)
}

/// The text of a JSON string, with U+FFFD for each half of a surrogate pair, or an object as it is written; none if it is neither.
pub fn text(body: &[u8], string: Span) -> Option<Cow<'_, str>> {
    let raw = string.of(body);
    let object = || raw::utf8(raw).filter(|raw| raw.starts_with('{')).map(Cow::Borrowed);
    decode(raw).or_else(|| raw::string(raw::utf8(raw)?)).or_else(object)
}

/// Whether a text is a JSON object.
pub fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// Whether a JSON value is a string that is empty or has white space alone.
pub fn is_blank(json: &[u8]) -> bool {
    let may_be = json.starts_with(b"\"") && json.iter().all(|byte| b"\" \\nrt".contains(byte));
    may_be && text(json, Span { start: 0, end: json.len() }).is_some_and(|text| text.trim().is_empty())
}

/// The text of a string, the JSON of any other value. Arguments of calls are either.
pub fn text_or_json(body: &[u8], value: Span) -> Option<Cow<'_, str>> {
    text(body, value).or_else(|| raw::utf8(value.of(body)).map(Cow::Borrowed))
}

/// The stored form of a value with this `text`: the text of a string, unless it has half a surrogate pair; else the value as
/// it is written.
pub fn stored<'a>(body: &'a [u8], value: Span, text: &'a str) -> &'a [u8] {
    let raw = value.of(body);
    if raw.starts_with(b"\"") && !raw::has_half(raw) { text.as_bytes() } else { raw }
}

/// A text as a JSON string.
pub fn render(text: &str) -> Bytes {
    let mut string = Vec::with_capacity(text.len() + text.len() / 8 + 2);
    push_string(&mut string, text);
    string.into()
}

/// Writes `text` as a JSON string.
pub(super) fn push_string(out: &mut Vec<u8>, text: &str) {
    let _written = serde_json::to_writer(out, text); // nothing fails in memory
}

/// `words` in place of these bytes of the text of a JSON string: which bytes of the string, as it is written, they take the
/// place of, and how they are written there.
pub fn render_cut(body: &[u8], string: Span, cut: &Range<usize>, words: &str) -> (Range<usize>, Bytes) {
    let cut = raw::written_at(string.of(body), cut);
    let quoted = render(words);
    let written = quoted.slice(1..quoted.len().saturating_sub(1));
    (cut, written)
}
