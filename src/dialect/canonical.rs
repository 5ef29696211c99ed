//! Messages as their model reads them, in pieces, whichever way a client spells them from one request to the next.

use std::borrow::Cow;

use super::Field;
use super::json::{Cursor, ReadResult, Unsupported, each_element};
use crate::span::Span;

/// A member of an object: its key without quotes, and its value.
type Member<'a> = (&'a [u8], &'a [u8]);

/// The spellings of a dialect that make no difference. `null` is the same as nothing in all of them.
struct Spellings {
    /// Members that the model does not read as part of the conversation: marks for prompt caches, and what it thought, which
    /// agents leave out of older messages where a provider asks for that.
    unread: &'static [&'static [u8]],
    /// Members that say nothing if they have this value.
    silent: &'static [Member<'static>],
    /// The keys of contents and of lists: their entries have such spellings, too.
    contents: &'static [&'static [u8]],
    /// The types of parts that are texts. A content that is a string is the same as one text.
    texts: &'static [&'static [u8]],
    /// The types of parts that hold thoughts.
    thoughts: &'static [&'static [u8]],
}

/// Contents are looked into this deep: a result in a message of Messages has one.
const DEPTH: usize = 2;

const USER: &[u8] = b"\"user\"";

const CHAT: Spellings = Spellings {
    unread: &[
        b"cache_control",
        b"reasoning",
        b"reasoning_content",
        b"reasoning_details",
        b"reasoning_opaque",
        b"reasoning_text",
        b"thinking",
        b"thinking_blocks",
    ],
    silent: &[],
    contents: &[b"content", b"tool_calls"],
    texts: &[b"\"text\""],
    thoughts: &[b"\"reasoning\"", b"\"redacted_thinking\"", b"\"thinking\""],
};

const RESPONSES: Spellings = Spellings {
    // How far an item had come is not read either.
    unread: &[b"status", b"prompt_cache_breakpoint"],
    silent: &[(b"annotations", b"[]"), (b"logprobs", b"[]")],
    contents: &[b"content", b"output"],
    texts: &[b"\"input_text\"", b"\"output_text\"", b"\"text\""],
    thoughts: &[],
};

const MESSAGES: Spellings = Spellings {
    unread: &[b"cache_control"],
    silent: &[],
    contents: &[b"content"],
    texts: &[b"\"text\""],
    thoughts: &[b"\"redacted_thinking\"", b"\"thinking\""],
};

const GEMINI: Spellings = Spellings {
    unread: &[b"thoughtSignature", b"thought_signature"],
    silent: &[(b"thought", b"false")],
    contents: &[b"parts"],
    texts: &[],
    thoughts: &[],
};

impl Spellings {
    /// The members of an object that are read, by name.
    fn members<'a>(&self, cursor: &mut Cursor<'a>) -> ReadResult<Vec<Member<'a>>> {
        let mut members = Vec::new();
        cursor.members(|cursor, name| {
            let Cow::Borrowed(name) = name else { return Err(Unsupported) };
            let value = cursor.value()?;
            let value = cursor.bytes(value);
            if value != b"null" && !self.unread.contains(&name) && !self.silent.contains(&(name, value)) {
                members.push((name, value));
            }
            Ok(())
        })?;
        members.sort_by_key(|(name, _)| *name); // stable
        Ok(members)
    }

    /// The members of a message as fields, without empty ones.
    fn fields<'a>(&self, members: impl IntoIterator<Item = Member<'a>>) -> ReadResult<Vec<Field<'a>>> {
        let mut fields = Vec::new();
        for (name, value) in members {
            let value = self.value(name, value, DEPTH)?;
            if !value.is_empty() {
                fields.push(Field { name: str::from_utf8(name).map_err(|_| Unsupported)?, value });
            }
        }
        Ok(fields)
    }

    /// The fields of a message, or of an entry of one of the user, which reads as a message that holds it alone under `list`.
    fn message_or_entry<'a>(&self, message: &'a [u8], list: &'static str) -> ReadResult<Vec<Field<'a>>> {
        let members = self.members(&mut Cursor::starting(message, 0))?;
        let has_role = member(&members, b"role").is_some();
        let mut fields = if has_role || member(&members, b"parts").is_some() {
            self.fields(members)?
        } else {
            vec![Field { name: list, value: array([self.entry(members, DEPTH - 1)?]) }]
        };
        if !has_role {
            fields.push(Field { name: "role", value: vec![USER] });
        }
        Ok(fields)
    }

    /// A value. A content with nothing in it is the same as none.
    fn value<'a>(&self, name: &[u8], value: &'a [u8], depth: usize) -> ReadResult<Vec<&'a [u8]>> {
        let deeper = depth.checked_sub(1).filter(|_| self.contents.contains(&name));
        match (deeper, value.first()) {
            (Some(_), Some(b'"')) => Ok(array([text(value)])),
            (Some(depth), Some(b'[')) => self.entries(value, depth),
            _ => Ok(vec![value]),
        }
    }

    fn entries<'a>(&self, value: &'a [u8], depth: usize) -> ReadResult<Vec<&'a [u8]>> {
        let mut found = Vec::new();
        each_element(value, Span { start: 0, end: value.len() }, |cursor| {
            found.push(if cursor.peek() == Some(b'{') {
                self.entry(self.members(cursor)?, depth)?
            } else {
                let element = cursor.value()?;
                vec![cursor.bytes(element)]
            });
            Ok(())
        })?;
        Ok(array(found))
    }

    /// An entry of a content; nothing for a thought and for an empty text.
    fn entry<'a>(&self, members: Vec<Member<'a>>, depth: usize) -> ReadResult<Vec<&'a [u8]>> {
        let kind = member(&members, b"type");
        if kind.is_some_and(|kind| self.thoughts.contains(&kind)) || member(&members, b"thought") == Some(b"true") {
            return Ok(Vec::new());
        }
        let is_text = kind.is_none_or(|kind| self.texts.contains(&kind));
        if let ([(b"text", value @ [b'"', ..])] | [(b"text", value @ [b'"', ..]), (b"type", _)], true) =
            (members.as_slice(), is_text)
        {
            return Ok(text(value));
        }
        let mut pieces: Vec<&[u8]> = vec![b"{"];
        for (name, value) in members {
            let mut value = self.value(name, value, depth)?;
            if !value.is_empty() {
                pieces.extend([b"\"", name, b"\":"]);
                pieces.append(&mut value);
                pieces.push(b",");
            }
        }
        pieces.push(b"}");
        Ok(pieces)
    }
}

/// A text; nothing if it is empty.
fn text(value: &[u8]) -> Vec<&[u8]> {
    if value == b"\"\"" { Vec::new() } else { vec![b"{\"text\":", value, b"}"] }
}

/// The value of a member.
fn member<'a>(members: &[Member<'a>], name: &[u8]) -> Option<&'a [u8]> {
    members.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
}

/// An array of the elements that are something; nothing if none is.
fn array<'a>(elements: impl IntoIterator<Item = Vec<&'a [u8]>>) -> Vec<&'a [u8]> {
    let mut pieces: Vec<&[u8]> = Vec::new();
    for mut element in elements.into_iter().filter(|element| !element.is_empty()) {
        pieces.push(if pieces.is_empty() { b"[" } else { b"," });
        pieces.append(&mut element);
    }
    if !pieces.is_empty() {
        pieces.push(b"]");
    }
    pieces
}

/// The fields of a message of Chat Completions that its model reads, by name.
pub(super) fn chat(message: &[u8]) -> ReadResult<Vec<Field<'_>>> {
    CHAT.fields(CHAT.members(&mut Cursor::starting(message, 0))?)
}

/// The fields of an item, or of an `input` that is a string, that its model reads, by name.
pub(super) fn item(item: &[u8]) -> ReadResult<Vec<Field<'_>>> {
    if item.starts_with(b"\"") {
        let members: [Member<'_>; 2] = [(b"content", item), (b"role", USER)];
        return RESPONSES.fields(members);
    }
    let members = RESPONSES.members(&mut Cursor::starting(item, 0))?;
    let kind = member(&members, b"type");
    let is_message = kind.map_or(member(&members, b"role").is_some(), |kind| kind == b"\"message\"");
    let is_reasoning = kind == Some(b"\"reasoning\"");
    // The id of an item is not a part of what is read, unless the item is known by nothing else.
    let has_needless_id = is_message || is_reasoning || member(&members, b"call_id").is_some();
    let is_read = |name: &[u8]| match name {
        b"id" => !has_needless_id,
        b"type" => !is_message,
        // Whether a client sends all of it back depends on its settings.
        b"content" | b"encrypted_content" | b"summary" => !is_reasoning,
        _ => true,
    };
    RESPONSES.fields(members.into_iter().filter(|(name, _)| is_read(name)))
}

/// The fields of a message of Messages, or of an entry of one, that its model reads, by name.
pub(super) fn message(message: &[u8]) -> ReadResult<Vec<Field<'_>>> {
    MESSAGES.message_or_entry(message, "content")
}

/// The fields of a content of Gemini, or of a part of one, that its model reads, by name.
pub(super) fn gemini(message: &[u8]) -> ReadResult<Vec<Field<'_>>> {
    GEMINI.message_or_entry(message, "parts")
}

#[cfg(test)]
mod tests;
