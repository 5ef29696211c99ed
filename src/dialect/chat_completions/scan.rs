//! The quick reader: one pass over the body with a [`Cursor`].
//!
//! It never guesses. Escaped keys, keys twice, great depth, a wrong type: it answers [`Unsupported`], and the caller asks
//! `serde_json`.

use std::borrow::Cow;

use super::Message;
use crate::conversation::{Block, BlockKind, CallId, Conversation, MAX_ELEMENTS, Role, UnitIndex};
use crate::dialect::history_keys::HistoryKeys;
use crate::dialect::json::{Cursor, Unsupported, decode, id_text, once, require};
use crate::span::Span;
use crate::string_index::StringIndex;

/// The conversation in `body`, whose long strings may be known.
pub(super) fn scan<'a>(body: &'a [u8], strings: &'a StringIndex) -> Result<Conversation<'a>, Unsupported> {
    let mut scanner = Scanner { cursor: Cursor::indexed(body, strings), conversation: super::conversation() };
    scanner.request()?;
    scanner.cursor.end()?;
    Ok(scanner.conversation)
}

struct Scanner<'a> {
    cursor: Cursor<'a>,
    conversation: Conversation<'a>,
}

impl<'a> Scanner<'a> {
    fn request(&mut self) -> Result<(), Unsupported> {
        let (mut messages, mut model, mut tools, mut format) = (None, None, None, None);
        let mut history = HistoryKeys::default();
        let mut key = self.cursor.first_key()?;
        while let Some(name) = key {
            match name {
                b"messages" => {
                    once(&mut messages, ())?;
                    self.messages()?;
                }
                b"model" => once(&mut model, self.cursor.value()?)?,
                b"tools" => once(&mut tools, self.cursor.value()?)?,
                b"response_format" => once(&mut format, self.cursor.value()?)?,
                name => {
                    let value = self.cursor.value()?;
                    history.note(name, self.cursor.bytes(value));
                }
            }
            key = self.cursor.next_key()?;
        }
        self.conversation.model = self.text(model)?;
        let said = |value: &Span| self.cursor.bytes(*value) != b"null";
        self.conversation.format = format.filter(said);
        self.conversation.tools = tools.filter(said);
        history.apply(&mut self.conversation);
        messages.ok_or(Unsupported)
    }

    fn messages(&mut self) -> Result<(), Unsupported> {
        let mut more = self.cursor.first_element()?;
        while more {
            require(self.conversation.units.len() < MAX_ELEMENTS)?;
            self.message()?;
            more = self.cursor.next_element()?;
        }
        Ok(())
    }

    fn message(&mut self) -> Result<(), Unsupported> {
        let start = self.cursor.at();
        let index = self.conversation.next_unit();
        let first_block = self.conversation.next_block();
        let (mut role, mut content, mut call_id, mut calls) = (None, None, None, None);
        let mut key = self.cursor.first_key()?;
        while let Some(name) = key {
            match name {
                b"role" => once(&mut role, self.cursor.value()?)?,
                b"content" => once(&mut content, self.cursor.value()?)?,
                b"tool_call_id" => once(&mut call_id, self.cursor.value()?)?,
                b"tool_calls" => {
                    once(&mut calls, ())?;
                    self.tool_calls(index)?;
                }
                _ => drop(self.cursor.value()?),
            }
            key = self.cursor.next_key()?;
        }
        let span = Span { start, end: self.cursor.at() };
        let role = self.text(role)?.map_or(Role::Other, |name| Role::named(&name));
        if role != Role::Assistant {
            self.conversation.blocks.truncate(first_block.get()); // calls of anyone else are no calls
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

    fn tool_calls(&mut self, unit: UnitIndex) -> Result<(), Unsupported> {
        if self.cursor.peek() != Some(b'[') {
            let value = self.cursor.value()?;
            return require(self.cursor.bytes(value) == b"null");
        }
        let mut more = self.cursor.first_element()?;
        while more {
            self.tool_call(unit)?;
            more = self.cursor.next_element()?;
        }
        Ok(())
    }

    fn tool_call(&mut self, unit: UnitIndex) -> Result<(), Unsupported> {
        let start = self.cursor.at();
        let (mut id, mut function, mut custom) = (None, None, None);
        let mut key = self.cursor.first_key()?;
        while let Some(name) = key {
            match name {
                b"id" => once(&mut id, self.cursor.value()?)?,
                b"function" => once(&mut function, self.name()?)?,
                b"custom" => once(&mut custom, self.name()?)?,
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
        let mut found = None;
        let mut key = self.cursor.first_key()?;
        while let Some(name) = key {
            let value = self.cursor.value()?;
            if name == b"name" {
                once(&mut found, value)?;
            }
            key = self.cursor.next_key()?;
        }
        self.text(found)
    }

    fn block(&mut self, block: Block<'a>) -> Result<(), Unsupported> {
        self.conversation.blocks.push(block);
        require(self.conversation.blocks.len() <= MAX_ELEMENTS)
    }

    fn call_id(&self, value: Option<Span>) -> Result<CallId<'a>, Unsupported> {
        match value.map(|span| (span, self.cursor.bytes(span))) {
            None | Some((_, b"null")) => Ok(CallId::default()),
            Some((span, raw)) => Ok(CallId { kind: "", raw: Some(span), text: id_text(raw).ok_or(Unsupported)? }),
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
