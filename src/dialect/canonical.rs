//! Messages as their model reads them, in pieces, whichever way a client spells them from one request to the next.

use std::borrow::Cow;

use super::Field;
use super::json::{Cursor, ReadResult, Unsupported, each_element};
use crate::span::Span;

/// A member of an object: its key without quotes, and its value.
type Member<'a> = (&'a [u8], &'a [u8]);

/// The members of an object except those that are `unread`, in the order in which they are written. `null` is the same as
/// nothing.
fn members<'a>(cursor: &mut Cursor<'a>, unread: &[&[u8]]) -> ReadResult<Vec<Member<'a>>> {
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
fn elements<'a>(
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

/// Members as fields in the order of their names, each value as `of` puts it, without empty ones.
fn fields<'a>(
    members: impl IntoIterator<Item = Member<'a>>,
    of: impl Fn(&[u8], &'a [u8]) -> ReadResult<Vec<&'a [u8]>>,
) -> ReadResult<Vec<Field<'a>>> {
    let mut fields = Vec::new();
    for (name, value) in members {
        let value = of(name, value)?;
        if !value.is_empty() {
            fields.push(Field { name: str::from_utf8(name).map_err(|_| Unsupported)?, value });
        }
    }
    fields.sort_by_key(|field| field.name); // stable
    Ok(fields)
}

/// A content, each part as `part` puts it, and a text behind `opening`. A string is the same as an array of one text, and no
/// text is the same as none.
fn content<'a>(
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
fn text<'a>(opening: &'static [u8], value: &'a [u8]) -> Vec<&'a [u8]> {
    if value == b"\"\"" { Vec::new() } else { vec![opening, value, b"}"] }
}

/// The value of a member.
fn member<'a>(members: &[Member<'a>], name: &[u8]) -> Option<&'a [u8]> {
    members.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
}

/// An object with these members.
fn object(members: Vec<Member<'_>>) -> Vec<&[u8]> {
    let mut pieces: Vec<&[u8]> = vec![b"{"];
    for (name, value) in members {
        pieces.extend([b"\"", name, b"\":", value, b","]);
    }
    pieces.push(b"}");
    pieces
}

/// An array of the elements.
fn array<'a>(elements: impl IntoIterator<Item = Vec<&'a [u8]>>) -> Vec<&'a [u8]> {
    let mut pieces: Vec<&[u8]> = vec![b"["];
    for mut element in elements {
        pieces.append(&mut element);
        pieces.push(b",");
    }
    pieces.push(b"]");
    pieces
}

// === Chat Completions ===

/// Members of a message, a part or a call that a model does not read as part of the conversation: marks for prompt caches,
/// and what it thought, which agents leave out of older messages where a provider asks for that.
const UNREAD: [&[u8]; 8] = [
    b"cache_control",
    b"reasoning",
    b"reasoning_content",
    b"reasoning_details",
    b"reasoning_opaque",
    b"reasoning_text",
    b"thinking",
    b"thinking_blocks",
];

/// The types of parts that hold thoughts.
const THOUGHTS: [&[u8]; 3] = [b"\"reasoning\"", b"\"redacted_thinking\"", b"\"thinking\""];

/// The fields of a message that its model reads, by name.
pub(super) fn chat(message: &[u8]) -> ReadResult<Vec<Field<'_>>> {
    const TEXT: &[u8] = br#"{"type":"text","text":"#;
    let part = |members: Vec<_>| match (member(&members, b"type"), member(&members, b"text")) {
        (Some(b"\"text\""), Some(value @ [b'"', ..])) if members.len() == 2 => text(TEXT, value),
        (Some(kind), _) if THOUGHTS.contains(&kind) => Vec::new(),
        _ => object(members),
    };
    fields(members(&mut Cursor::starting(message, 0), &UNREAD)?, |name, value| match (name, value.first()) {
        (b"content", Some(b'"' | b'[')) => content(value, &UNREAD, TEXT, part),
        (b"tool_calls", Some(b'[')) => elements(value, |call| Ok(object(members(call, &UNREAD)?))),
        _ => Ok(vec![value]),
    })
}

// === Responses ===

/// Members of an item or a part that a model does not read: marks for prompt caches, and how far an item had come.
const UNREAD_OF_ITEMS: [&[u8]; 2] = [b"status", b"prompt_cache_breakpoint"];

/// What reasoning holds. Whether a client sends all of it back depends on its settings.
const REASONING: [&[u8]; 3] = [b"content", b"encrypted_content", b"summary"];

/// Members of a text part that say nothing where they are empty.
const NOTES: [&[u8]; 2] = [b"annotations", b"logprobs"];

/// The fields of an item, or of an `input` that is a string, that its model reads, by name.
pub(super) fn item(item: &[u8]) -> ReadResult<Vec<Field<'_>>> {
    if item.starts_with(b"\"") {
        let members: [Member<'_>; 2] = [(b"content", item), (b"role", USER)];
        return fields(members, |name, value| if name == b"role" { Ok(vec![value]) } else { item_content(value) });
    }
    let members = members(&mut Cursor::starting(item, 0), &UNREAD_OF_ITEMS)?;
    let kind = member(&members, b"type");
    let is_message = kind.map_or(member(&members, b"role").is_some(), |kind| kind == b"\"message\"");
    let is_reasoning = kind == Some(b"\"reasoning\"");
    // The id of an item is not a part of what is read, unless the item is known by nothing else.
    let has_needless_id = is_message || is_reasoning || member(&members, b"call_id").is_some();
    let is_read = |name: &[u8]| match name {
        b"id" => !has_needless_id,
        b"type" => !is_message,
        name => !(is_reasoning && REASONING.contains(&name)),
    };
    fields(members.into_iter().filter(|(name, _)| is_read(name)), |name, value| match (name, value.first()) {
        (b"content" | b"output", Some(b'"' | b'[')) => item_content(value),
        _ => Ok(vec![value]),
    })
}

fn item_content(value: &[u8]) -> ReadResult<Vec<&[u8]>> {
    const TEXT: &[u8] = br#"{"text":"#;
    let is_plain =
        |(name, value): &Member<'_>| matches!(*name, b"type" | b"text") || (NOTES.contains(name) && *value == b"[]");
    content(value, &UNREAD_OF_ITEMS, TEXT, |members| match (member(&members, b"type"), member(&members, b"text")) {
        (Some(b"\"input_text\"" | b"\"output_text\"" | b"\"text\""), Some(value @ [b'"', ..]))
            if members.iter().all(is_plain) =>
        {
            text(TEXT, value)
        }
        _ => object(members),
    })
}

// === Messages ===

const USER: &[u8] = b"\"user\"";

/// The fields of a message, or of an entry of one, that its model reads, by name. An entry of a user message reads as a message
/// of the user that holds it alone.
pub(super) fn message(message: &[u8]) -> ReadResult<Vec<Field<'_>>> {
    let members = block_members(&mut Cursor::starting(message, 0))?;
    if member(&members, b"role").is_none() {
        let value = array(Some(block(members, 1)?).filter(|block| !block.is_empty()));
        return Ok(vec![Field { name: "content", value }, Field { name: "role", value: vec![USER] }]);
    }
    fields(members, |name, value| if name == b"content" { block_content(value, 1) } else { Ok(vec![value]) })
}

/// A string is the same as an array of one text, as clients write a content as an array where they move their mark for the prompt
/// cache to it. No text is the same as none. Blocks are looked into this deep.
fn block_content(value: &[u8], depth: usize) -> ReadResult<Vec<&[u8]>> {
    match value.first() {
        Some(b'"') if value == b"\"\"" => Ok(Vec::new()),
        Some(b'"') => Ok(array([vec![b"{\"text\":", value, b",\"type\":\"text\",}"]])),
        Some(b'[') => elements(value, |cursor| block(block_members(cursor)?, depth)),
        _ => Ok(vec![value]),
    }
}

/// One block; nothing for a thought.
fn block(members: Vec<Member<'_>>, depth: usize) -> ReadResult<Vec<&[u8]>> {
    if matches!(member(&members, b"type"), Some(b"\"redacted_thinking\"" | b"\"thinking\"")) {
        return Ok(Vec::new());
    }
    let mut pieces: Vec<&[u8]> = vec![b"{"];
    for (name, value) in members {
        let deeper = depth.checked_sub(1).filter(|_| name == b"content");
        let mut value = deeper.map_or_else(|| Ok(vec![value]), |depth| block_content(value, depth))?;
        if !value.is_empty() {
            pieces.extend([b"\"", name, b"\":"]);
            pieces.append(&mut value);
            pieces.push(b",");
        }
    }
    pieces.push(b"}");
    Ok(pieces)
}

/// The members of an object that are read, by name: all but a mark for the prompt cache.
fn block_members<'a>(cursor: &mut Cursor<'a>) -> ReadResult<Vec<Member<'a>>> {
    let mut members = members(cursor, &[b"cache_control"])?;
    members.sort_by_key(|(name, _)| *name); // stable
    Ok(members)
}

// === Gemini ===

/// The fields of a content, or of a part of one, that its model reads, by name. A part of a content of the user reads as a content
/// that holds it alone.
pub(super) fn gemini(message: &[u8]) -> ReadResult<Vec<Field<'_>>> {
    let read = members(&mut Cursor::starting(message, 0), &[])?;
    let Some(parts) = member(&read, b"parts") else {
        let part = part(&mut Cursor::starting(message, 0))?;
        let value = if part.is_empty() { Vec::new() } else { array([part]) };
        return Ok(vec![Field { name: "parts", value }, Field { name: "role", value: vec![USER] }]);
    };
    let members: [Member<'_>; 2] = [(b"parts", parts), (b"role", member(&read, b"role").unwrap_or(USER))];
    let is_list = |name: &[u8], value: &[u8]| name == b"parts" && value.starts_with(b"[");
    fields(members, |name, value| if is_list(name, value) { elements(value, part) } else { Ok(vec![value]) })
}

/// A part by the names of its members, without signatures; nothing for a thought and for an empty text.
fn part<'a>(cursor: &mut Cursor<'a>) -> ReadResult<Vec<&'a [u8]>> {
    let mut read = members(cursor, &[b"thoughtSignature", b"thought_signature"])?;
    if member(&read, b"thought") == Some(b"true") {
        return Ok(Vec::new());
    }
    read.retain(|(name, value)| !matches!((*name, *value), (b"thought", b"false") | (b"text", b"\"\"")));
    read.sort_by_key(|(name, _)| *name);
    Ok(if read.is_empty() { Vec::new() } else { object(read) })
}

#[cfg(test)]
mod tests;
