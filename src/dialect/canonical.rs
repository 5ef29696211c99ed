//! JSON values as a model reads them, in pieces: what the canonical forms of the dialects have in common.

use std::borrow::Cow;

use super::Field;
use super::json::{Cursor, ReadResult, Unsupported, each_element};
use crate::span::Span;

/// A member of an object: its key without quotes, and its value.
pub(super) type Member<'a> = (&'a [u8], &'a [u8]);

/// The members of an object except those that are `unread`, in the order in which they are written. `null` is the same as
/// nothing.
pub(super) fn members<'a>(cursor: &mut Cursor<'a>, unread: &[&[u8]]) -> ReadResult<Vec<Member<'a>>> {
    let mut members = Vec::new();
    cursor.members(|cursor, name| {
        let Cow::Borrowed(name) = name else { return Err(Unsupported) };
        let value = cursor.value()?;
        let value = cursor.bytes(value);
        if value != b"null" && !unread.contains(&name) {
            members.push((name, value));
        }
        Ok(())
    })?;
    Ok(members)
}

/// The elements of an array, each object as `of` puts it, except for those that come to nothing; nothing if none is left.
pub(super) fn elements<'a>(
    value: &'a [u8],
    of: impl Fn(&mut Cursor<'a>) -> ReadResult<Vec<&'a [u8]>>,
) -> ReadResult<Vec<&'a [u8]>> {
    let mut found = Vec::new();
    each_element(value, Span { start: 0, end: value.len() }, |cursor| {
        let element = if cursor.peek() == Some(b'{') {
            of(cursor)?
        } else {
            let element = cursor.value()?;
            vec![cursor.bytes(element)]
        };
        if !element.is_empty() {
            found.push(element);
        }
        Ok(())
    })?;
    Ok(if found.is_empty() { Vec::new() } else { array(found) })
}

/// Members as fields in the order of their names, without empty values.
pub(super) fn fields<'a>(members: Vec<(&'a [u8], Vec<&'a [u8]>)>) -> ReadResult<Vec<Field<'a>>> {
    let mut fields = Vec::new();
    for (name, value) in members.into_iter().filter(|(_, value)| !value.is_empty()) {
        fields.push(Field { name: str::from_utf8(name).map_err(|_| Unsupported)?, value });
    }
    fields.sort_by_key(|field| field.name); // stable
    Ok(fields)
}

/// A content, each part as `part` puts it, and a text behind `opening`. A string is the same as an array of one text, and no
/// text is the same as none.
pub(super) fn content<'a>(
    value: &'a [u8],
    unread: &[&[u8]],
    opening: &'static [u8],
    part: impl Fn(Vec<Member<'a>>) -> Vec<&'a [u8]>,
) -> ReadResult<Vec<&'a [u8]>> {
    if !value.starts_with(b"\"") {
        return elements(value, |cursor| Ok(part(members(cursor, unread)?)));
    }
    let text = text(opening, value);
    Ok(if text.is_empty() { text } else { array([text]) })
}

/// A text behind `opening`; nothing if it is empty.
pub(super) fn text<'a>(opening: &'static [u8], value: &'a [u8]) -> Vec<&'a [u8]> {
    if value == b"\"\"" { Vec::new() } else { vec![opening, value, b"}"] }
}

/// The value of a member.
pub(super) fn member<'a>(members: &[Member<'a>], name: &[u8]) -> Option<&'a [u8]> {
    members.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
}

/// An object with these members.
pub(super) fn object(members: Vec<Member<'_>>) -> Vec<&[u8]> {
    let mut pieces: Vec<&[u8]> = vec![b"{"];
    for (name, value) in members {
        pieces.extend([b"\"", name, b"\":", value, b","]);
    }
    pieces.push(b"}");
    pieces
}

/// An array of the elements.
pub(super) fn array<'a>(elements: impl IntoIterator<Item = Vec<&'a [u8]>>) -> Vec<&'a [u8]> {
    let mut pieces: Vec<&[u8]> = vec![b"["];
    for mut element in elements {
        pieces.append(&mut element);
        pieces.push(b",");
    }
    pieces.push(b"]");
    pieces
}
