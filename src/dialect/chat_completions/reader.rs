//! Reads the whole body in one pass with a [`Cursor`], and says why where it cannot.

use std::borrow::Cow;

use super::{Message, ParseError, ParseErrorKind, error};
use crate::conversation::{Block, BlockKind, CallId, Conversation, MAX_ELEMENTS, Role, UnitIndex};
use crate::dialect::history_keys::HistoryKeys;
use crate::dialect::json::{Cursor, Unsupported, decode, fields, id_text};
use crate::span::Span;
use crate::string_index::StringIndex;

/// The conversation in `body`, whose long strings may be known.
pub(super) fn read<'a>(body: &'a [u8], strings: &'a StringIndex) -> Result<Conversation<'a>, ParseError> {
    let mut reader = Reader { cursor: Cursor::indexed(body, strings), conversation: super::conversation() };
    let read = reader.request();
    reader.cursor.finish(read).map_err(|(offset, kind)| error(offset, kind))?;
    Ok(reader.conversation)
}

struct Reader<'a> {
    cursor: Cursor<'a>,
    conversation: Conversation<'a>,
}

impl<'a> Reader<'a> {
    fn request(&mut self) -> Result<(), Unsupported> {
        let (mut messages, mut model, mut tools, mut format) = (None, None, None, None);
        let (start, mut history) = (self.cursor.at(), HistoryKeys::default());
        let mut key = self.cursor.first_key()?;
        while let Some(name) = key {
            let value = if &*name == b"messages" { self.messages()? } else { self.cursor.value()? };
            let place = match &*name {
                b"messages" => Some(&mut messages),
                b"model" => Some(&mut model),
                b"tools" => Some(&mut tools),
                b"response_format" => Some(&mut format),
                name => {
                    history.note(name, self.cursor.bytes(value));
                    None
                }
            };
            place.map_or(Ok(()), |place| self.cursor.once(start, place, value))?;
            key = self.cursor.next_key()?;
        }
        self.conversation.model = self.text(model)?;
        let cursor = &self.cursor;
        let said = |value: &Span| cursor.bytes(*value) != b"null";
        self.conversation.format = format.filter(said);
        self.conversation.tools = tools.filter(said);
        history.apply(&mut self.conversation);
        match messages.filter(said) {
            Some(_) => Ok(()),
            None => Err(self.cursor.refuse(0, ParseErrorKind::NoMessages)),
        }
    }

    fn messages(&mut self) -> Result<Span, Unsupported> {
        self.elements(|reader| {
            if reader.conversation.units.len() == MAX_ELEMENTS {
                return Err(reader.cursor.refuse(reader.cursor.at(), ParseErrorKind::TooMany));
            }
            reader.message()
        })
    }

    /// Reads the elements of an array; `null` is none.
    fn elements(&mut self, mut read: impl FnMut(&mut Self) -> Result<(), Unsupported>) -> Result<Span, Unsupported> {
        if self.cursor.peek() == Some(b'n') {
            return self.cursor.value();
        }
        let start = self.cursor.at();
        let mut more = self.cursor.first_element()?;
        while more {
            read(self)?;
            more = self.cursor.next_element()?;
        }
        Ok(Span { start, end: self.cursor.at() })
    }

    fn message(&mut self) -> Result<(), Unsupported> {
        let start = self.cursor.at();
        let index = self.conversation.next_unit();
        let first_block = self.conversation.next_block();
        let (mut role, mut content, mut call_id, mut calls) = (None, None, None, None);
        // Calls before the role are read when that is known.
        let mut has_read_calls = false;
        let mut key = self.cursor.first_key()?;
        while let Some(name) = key {
            let is_model = || role.is_some_and(|role| self.cursor.bytes(role) == b"\"assistant\"");
            let value = if &*name == b"tool_calls" && is_model() {
                has_read_calls = true;
                self.tool_calls(index)?
            } else {
                self.cursor.value()?
            };
            let place = match &*name {
                b"role" => Some(&mut role),
                b"content" => Some(&mut content),
                b"tool_call_id" => Some(&mut call_id),
                b"tool_calls" => Some(&mut calls),
                _ => None,
            };
            place.map_or(Ok(()), |place| self.cursor.once(start, place, value))?;
            key = self.cursor.next_key()?;
        }
        let span = Span { start, end: self.cursor.at() };
        let role = self.text(role)?.map_or(Role::Other, |name| Role::named(&name));
        if let Some(calls) = calls.filter(|_| role == Role::Assistant && !has_read_calls) {
            self.cursor.go_to(calls.start);
            self.tool_calls(index)?;
            self.cursor.go_to(span.end);
        }
        if role == Role::Tool {
            let call_id = self.call_id(call_id)?;
            self.block(Block { unit: index, span, kind: BlockKind::ToolResult { call_id, may_leave: true } })?;
        }
        let content = content.filter(|&content| self.cursor.bytes(content) != b"null");
        let speaks = super::speaks(content.map(|content| self.cursor.bytes(content)));
        super::push_message(&mut self.conversation, first_block, Message { span, role, content, speaks });
        Ok(())
    }

    fn tool_calls(&mut self, unit: UnitIndex) -> Result<Span, Unsupported> {
        self.elements(|reader| reader.tool_call(unit))
    }

    fn tool_call(&mut self, unit: UnitIndex) -> Result<(), Unsupported> {
        let start = self.cursor.at();
        let (mut id, mut function, mut custom) = (None, None, None);
        let mut key = self.cursor.first_key()?;
        while let Some(name) = key {
            match &*name {
                b"id" => {
                    let value = self.cursor.value()?;
                    self.cursor.once(start, &mut id, value)?;
                }
                b"function" => {
                    let name = self.name()?;
                    self.cursor.once(start, &mut function, name)?;
                }
                b"custom" => {
                    let name = self.name()?;
                    self.cursor.once(start, &mut custom, name)?;
                }
                _ => drop(self.cursor.value()?),
            }
            key = self.cursor.next_key()?;
        }
        let span = Span { start, end: self.cursor.at() };
        let name = function.flatten().or(custom.flatten());
        let kind = BlockKind::ToolCall { id: self.call_id(id)?, name, answerable: true };
        self.block(Block { unit, span, kind })
    }

    /// The `name` in a value that may be an object.
    fn name(&mut self) -> Result<Option<Cow<'a, str>>, Unsupported> {
        if self.cursor.peek() != Some(b'{') {
            self.cursor.value()?;
            return Ok(None);
        }
        let [found] = fields(&mut self.cursor, [b"name"])?;
        self.text(found)
    }

    fn block(&mut self, block: Block<'a>) -> Result<(), Unsupported> {
        if self.conversation.blocks.len() == MAX_ELEMENTS {
            return Err(self.cursor.refuse(block.span.start, ParseErrorKind::TooMany));
        }
        self.conversation.blocks.push(block);
        Ok(())
    }

    fn call_id(&mut self, value: Option<Span>) -> Result<CallId<'a>, Unsupported> {
        match value.map(|span| (span, self.cursor.bytes(span))) {
            None | Some((_, b"null")) => Ok(CallId::default()),
            Some((span, raw)) => match id_text(raw) {
                Some(text) => Ok(CallId { kind: "", raw: Some(span), text }),
                None if raw.starts_with(b"\"") => Err(self.cursor.refuse(span.start, ParseErrorKind::NotJson)),
                None => Err(self.cursor.refuse(span.start, ParseErrorKind::IdNotAString)),
            },
        }
    }

    /// The text of a value that may be a string, and then must be one that can be decoded.
    fn text(&self, value: Option<Span>) -> Result<Option<Cow<'a, str>>, Unsupported> {
        match value.map(|span| self.cursor.bytes(span)) {
            Some(raw @ [b'"', ..]) => decode(raw).map(Some).ok_or(Unsupported),
            _ => Ok(None),
        }
    }
}
