//! The thorough reader: `serde_json` over raw values, for bodies that the quick one gave up on.
//!
//! It takes escaped keys and any depth (`serde_json` passes raw values without recursion), and says why it refuses the
//! rest.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Message, NAME, ParseError, ParseErrorKind, error};
use crate::{
    conversation::{Block, BlockKind, CallId, Conversation, MAX_ELEMENTS, Role, UnitIndex},
    dialect::{json::id_text, thorough::Json},
};

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    response_format: Option<&'a RawValue>,
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct WireMessage<'a> {
    #[serde(borrow)]
    role: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_call_id: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct WireCall<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    function: Option<&'a RawValue>,
    #[serde(borrow)]
    custom: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    name: Option<&'a RawValue>,
}

/// The conversation in `body`.
pub(super) fn parse(body: &[u8]) -> Result<Conversation<'_>, ParseError> {
    let mut reader = Reader { json: Json::of(NAME, body)?, conversation: super::conversation() };
    reader.request()?;
    Ok(reader.conversation)
}

struct Reader<'a> {
    json: Json<'a>,
    conversation: Conversation<'a>,
}

impl<'a> Reader<'a> {
    fn request(&mut self) -> Result<(), ParseError> {
        let request: Request<'a> = self.json.whole()?;
        let messages = request.messages.ok_or_else(|| error(0, ParseErrorKind::NoMessages))?;
        self.conversation.model = self.json.text(request.model)?;
        self.conversation.tools = request.tools.map(|tools| self.json.span(tools));
        self.conversation.format = request.response_format.map(|format| self.json.span(format));
        for message in self.json.array(messages)? {
            self.message(message)?;
        }
        self.json.history_keys().apply(&mut self.conversation);
        Ok(())
    }

    fn message(&mut self, raw: &'a RawValue) -> Result<(), ParseError> {
        let wire: WireMessage<'a> = self.json.object(raw.get())?;
        let index = self.conversation.next_unit();
        let first_block = self.conversation.next_block();
        let span = self.json.span(raw);
        let role = self.json.text(wire.role)?.map_or(Role::Other, |name| Role::named(&name));
        match (role, wire.tool_calls) {
            (Role::Assistant, Some(calls)) => {
                for call in self.json.array(calls)? {
                    self.tool_call(index, call)?;
                }
            }
            (Role::Tool, _) => {
                let call_id = self.call_id(wire.tool_call_id)?;
                self.block(Block { unit: index, span, kind: BlockKind::ToolResult { call_id, may_leave: true } })?;
            }
            _ => {}
        }
        let speaks = super::speaks(wire.content.map(|raw| raw.get().as_bytes()));
        let content = wire.content.map(|content| self.json.span(content));
        super::push_message(&mut self.conversation, first_block, Message { span, role, content, speaks });
        Ok(())
    }

    fn tool_call(&mut self, unit: UnitIndex, raw: &'a RawValue) -> Result<(), ParseError> {
        let wire: WireCall<'a> = self.json.object(raw.get())?;
        let function = self.name(wire.function)?;
        let custom = self.name(wire.custom)?;
        let kind = BlockKind::ToolCall { id: self.call_id(wire.id)?, name: function.or(custom), answerable: true };
        self.block(Block { unit, span: self.json.span(raw), kind })
    }

    fn name(&self, value: Option<&'a RawValue>) -> Result<Option<Cow<'a, str>>, ParseError> {
        match value.filter(|raw| raw.get().starts_with('{')) {
            Some(raw) => self.json.text(self.json.object::<Named<'a>>(raw.get())?.name),
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

    fn call_id(&self, value: Option<&'a RawValue>) -> Result<CallId<'a>, ParseError> {
        let Some(raw) = value else { return Ok(CallId::default()) };
        match id_text(raw.get().as_bytes()) {
            Some(text) => Ok(CallId { kind: "", raw: Some(self.json.span(raw)), text }),
            None if raw.get().starts_with('"') => Err(self.json.refuse(raw.get(), ParseErrorKind::NotJson)),
            None => Err(self.json.refuse(raw.get(), ParseErrorKind::IdNotAString)),
        }
    }
}
