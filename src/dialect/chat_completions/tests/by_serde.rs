//! Reads a body with `serde_json`, for comparison.

use std::borrow::Cow;

use super::{NAME, error};
use crate::conversation::{Block, BlockKind, CallId, Conversation, Flags, MAX_ELEMENTS, Role, Traits, Unit, UnitIndex};
use crate::dialect::reading::id_text;
use crate::dialect::tests::by_serde::Json;
use crate::dialect::{ParseError, ParseErrorKind};
use crate::span::Span;

/// The conversation in `body`.
pub(super) fn parse(body: &[u8]) -> Result<Conversation<'_>, ParseError> {
    let traits = Traits { pairs_by_position: true, ..Traits::default() };
    let conversation = Conversation { traits, ..Conversation::default() };
    let mut reader = Reader { json: Json::of(NAME, body)?, conversation };
    reader.request()?;
    Ok(reader.conversation)
}

struct Reader<'a> {
    json: Json<'a>,
    conversation: Conversation<'a>,
}

impl<'a> Reader<'a> {
    fn request(&mut self) -> Result<(), ParseError> {
        let keys = [b"model".as_slice(), b"tools", b"response_format", b"messages", b"n"];
        let [model, tools, format, messages, n] = self.json.fields(self.json.whole(), keys)?;
        let messages = messages.ok_or_else(|| error(0, ParseErrorKind::NoMessages))?;
        self.conversation.model = self.json.text(model)?;
        self.conversation.tools = tools;
        self.conversation.format = format;
        self.conversation.traits.answers_no_calls = n.is_some_and(|n| n.of(self.json.bytes()) != b"1");
        for message in self.json.array(messages)? {
            self.message(message)?;
        }
        self.json.history_keys().apply(&mut self.conversation);
        Ok(())
    }

    fn message(&mut self, span: Span) -> Result<(), ParseError> {
        let keys = [b"role".as_slice(), b"content", b"tool_call_id", b"tool_calls"];
        let [role, content, call_id, calls] = self.json.fields(span, keys)?;
        let index = self.conversation.next_unit();
        let role = self.json.text(role)?.map_or(Role::Other, |name| Role::named(&name));
        match (role, calls) {
            (Role::Assistant, Some(calls)) => {
                for call in self.json.array(calls)? {
                    self.tool_call(index, call)?;
                }
            }
            (Role::Tool, _) => {
                let call_id = self.call_id(call_id)?;
                self.block(Block { unit: index, span, kind: BlockKind::ToolResult { call_id, may_leave: true } })?;
            }
            _ => {}
        }
        let speaks = content.is_some_and(|content| !matches!(content.of(self.json.bytes()), b"\"\"" | b"[]"));
        let flags = Flags { speaks, ..Flags::default() };
        let unit = self.conversation.following(false);
        self.conversation.push_element(Unit { span, role, content, flags, ..unit });
        Ok(())
    }

    fn tool_call(&mut self, unit: UnitIndex, span: Span) -> Result<(), ParseError> {
        let [id, function, custom] = self.json.fields(span, [b"id".as_slice(), b"function", b"custom"])?;
        let function = self.name(function)?;
        let custom = self.name(custom)?;
        let kind = BlockKind::ToolCall { id: self.call_id(id)?, name: function.or(custom), answerable: true };
        self.block(Block { unit, span, kind })
    }

    fn name(&self, value: Option<Span>) -> Result<Option<Cow<'a, str>>, ParseError> {
        match value.filter(|value| self.json.begins(*value, b'{')) {
            Some(value) => {
                let [name] = self.json.fields(value, [b"name"])?;
                self.json.text(name)
            }
            None => Ok(None),
        }
    }

    fn block(&mut self, block: Block<'a>) -> Result<(), ParseError> {
        if self.conversation.blocks.len() == MAX_ELEMENTS {
            return Err(error(block.span.start, ParseErrorKind::TooMany));
        }
        self.conversation.blocks.push(block);
        Ok(())
    }

    fn call_id(&self, value: Option<Span>) -> Result<CallId<'a>, ParseError> {
        let Some(raw) = value else { return Ok(CallId::default()) };
        match id_text(raw.of(self.json.bytes())) {
            Some(text) => Ok(CallId { kind: "", raw: Some(raw), text }),
            None if self.json.begins(raw, b'"') => Err(error(raw.start, ParseErrorKind::NotJson)),
            None => Err(error(raw.start, ParseErrorKind::IdNotAString)),
        }
    }
}
