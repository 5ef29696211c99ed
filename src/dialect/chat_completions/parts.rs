//! Where in a message or a call the values are that an edit may replace or cut out. Asked for only where an edit does:
//! the view of the whole request leaves them out.
//!
//! This gives up on anything odd. Then there is nothing to replace, and the message stays.

use std::borrow::Cow;

use super::tokens::is_text_part;
use crate::dialect::json::{Cursor, ReadResult, Unsupported, decode, each_element, fields, fields_of, objects};
use crate::dialect::{CallInput, Emptied, Entries};
use crate::span::Span;

/// A string as the whole content, or the texts of its parts: strings, and those of objects that are text parts.
pub(super) fn texts(body: &[u8], content: Span) -> ReadResult<Vec<Span>> {
    if Cursor::starting(body, content.start).peek() == Some(b'"') {
        return Ok(vec![content]);
    }
    let mut texts = Vec::new();
    each_element(body, content, |cursor| {
        let text = if cursor.peek() == Some(b'{') {
            let [kind, text] = fields(cursor, [b"type", b"text"])?;
            let kind = kind.filter(|kind| kind.of(body) != b"null");
            // A type that is not a string is none that is known.
            let kind = kind.map(|kind| decode(kind.of(body)).unwrap_or_default());
            text.filter(|_| is_text_part(kind.as_deref()))
        } else {
            Some(cursor.value()?)
        };
        texts.extend(text.filter(|text| text.of(body).starts_with(b"\"")));
        Ok(())
    })?;
    Ok(texts)
}

/// The arguments of a function. The input of a custom tool is not JSON, so nothing is known to mean none.
pub(super) fn input(body: &[u8], call: Span) -> ReadResult<Option<CallInput>> {
    let [function] = fields_of(body, call, [b"function"])?;
    let [arguments] = fields_of(body, function.ok_or(Unsupported)?, [b"arguments"])?;
    Ok(arguments.and_then(|span| match span.of(body).first() {
        Some(b'"') => Some(CallInput { span, emptied: "\"{}\"" }),
        Some(b'{') => Some(CallInput { span, emptied: "{}" }),
        _ => None,
    }))
}

/// The key `tool_calls` with its value and one of the commas around it: that before it, unless it is the first key.
fn calls_key(body: &[u8], message: Span) -> ReadResult<Option<Span>> {
    let (mut before, mut calls, mut behind) = (None, None, None);
    Cursor::starting(body, message.start).members(|cursor, name| {
        let start = name.as_ptr().addr().saturating_sub(body.as_ptr().addr()).saturating_sub(1);
        let end = cursor.value()?.end;
        match calls {
            None if &*name == b"tool_calls" => calls = Some(Span { start, end }),
            None => before = Some(end),
            Some(_) => behind = behind.or(Some(start)),
        }
        Ok(())
    })?;
    let with_comma = |calls: Span| match before {
        Some(start) => Span { start, ..calls },
        None => Span { end: behind.unwrap_or(calls.end), ..calls },
    };
    Ok(calls.map(with_comma))
}

/// The entries of `tool_calls`.
pub(super) fn entries(body: &[u8], message: Span) -> ReadResult<Option<Entries>> {
    let (Some(key), [Some(calls)]) = (calls_key(body, message)?, fields_of(body, message, [b"tool_calls"])?) else {
        return Ok(None);
    };
    let mut spans = Vec::new();
    each_element(body, calls, |cursor| {
        spans.push(cursor.value()?);
        Ok(())
    })?;
    Ok(Some(Entries { spans, reasoning: Vec::new(), emptied: Emptied::CutKey(key) }))
}

/// The names of functions and custom tools.
pub(super) fn tool_names(body: &[u8], tools: Span) -> ReadResult<Vec<Cow<'_, str>>> {
    objects(body, tools, [b"function", b"custom"], |_, [function, custom]| {
        let tool = function.or(custom).filter(|tool| tool.of(body).starts_with(b"{"));
        let [name] = tool.map_or(Ok([None]), |tool| fields_of(body, tool, [b"name"]))?;
        Ok(name.and_then(|name| decode(name.of(body))))
    })
}

#[cfg(test)]
mod tests;
