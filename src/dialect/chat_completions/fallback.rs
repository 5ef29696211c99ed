//! The thorough reader: `serde_json` over raw values, for bodies that the quick one gave up on.
//!
//! It takes escaped keys and any depth (`serde_json` passes raw values without recursion), and says why it refuses the
//! rest.

use std::{borrow::Cow, cell::OnceCell, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, SeqAccess, Visitor},
};
use serde_json::{error::Category, value::RawValue};

use super::{ParseError, ParseErrorKind, error};
use crate::{
    conversation::{Block, BlockKind, CallId, Conversation, Flags, MAX_ELEMENTS, Role, Unit},
    dialect::json::decode,
    span::Span,
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

/// The elements of an array, which are not gathered without end.
struct Elements<'a>(Vec<&'a RawValue>);

impl<'de> Deserialize<'de> for Elements<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Gather;
        impl<'de> Visitor<'de> for Gather {
            type Value = Elements<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an array of at most {MAX_ELEMENTS} elements")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
                let mut elements = Vec::new();
                while let Some(element) = array.next_element()? {
                    if elements.len() == MAX_ELEMENTS {
                        return Err(A::Error::invalid_length(MAX_ELEMENTS + 1, &self));
                    }
                    elements.push(element);
                }
                Ok(Elements(elements))
            }
        }
        deserializer.deserialize_seq(Gather)
    }
}

/// The conversation in `body`.
pub(super) fn parse(body: &[u8]) -> Result<Conversation<'_>, ParseError> {
    let text = std::str::from_utf8(body).map_err(|invalid| error(invalid.valid_up_to(), ParseErrorKind::NotJson))?;
    let mut reader = Reader { body: text, conversation: super::conversation() };
    reader.request()?;
    Ok(reader.conversation)
}

struct Reader<'a> {
    body: &'a str,
    conversation: Conversation<'a>,
}

impl<'a> Reader<'a> {
    fn request(&mut self) -> Result<(), ParseError> {
        let body = self.body;
        let request: Request<'a> = self.object(body.trim_matches([' ', '\n', '\r', '\t']))?;
        let messages = request.messages.ok_or_else(|| error(0, ParseErrorKind::NoMessages))?;
        self.conversation.model = self.text(request.model)?;
        self.conversation.tools = request.tools.map(|tools| self.span(tools));
        self.conversation.format = request.response_format.map(|format| self.span(format));
        for message in self.array(messages)? {
            self.message(message)?;
        }
        Ok(())
    }

    fn message(&mut self, raw: &'a RawValue) -> Result<(), ParseError> {
        let wire: WireMessage<'a> = self.object(raw.get())?;
        let index = self.conversation.units.len();
        let first_block = self.conversation.blocks.len();
        let span = self.span(raw);
        let role = self.text(wire.role)?.map_or(Role::Other, |name| Role::named(&name));
        match (role, wire.tool_calls) {
            (Role::Assistant, Some(calls)) => {
                for call in self.array(calls)? {
                    self.tool_call(index, call)?;
                }
            }
            (Role::Tool, _) => {
                let call_id = self.call_id(wire.tool_call_id)?;
                self.block(Block { unit: index, span, kind: BlockKind::ToolResult { call_id, may_leave: true } })?;
            }
            _ => {}
        }
        let blocks = first_block..self.conversation.blocks.len();
        let content = wire.content.map(|content| self.span(content));
        let flags = Flags { speaks: super::speaks(wire.content.map(|raw| raw.get().as_bytes())), ..Flags::default() };
        let turn = self.conversation.next_turn(false);
        let unit = Unit { element: index, span, role, turn, content, blocks, flags, known: OnceCell::new() };
        self.conversation.push_element(unit);
        Ok(())
    }

    fn tool_call(&mut self, unit: usize, raw: &'a RawValue) -> Result<(), ParseError> {
        let wire: WireCall<'a> = self.object(raw.get())?;
        let function = self.name(wire.function)?;
        let custom = self.name(wire.custom)?;
        let kind = BlockKind::ToolCall { id: self.call_id(wire.id)?, name: function.or(custom), answerable: true };
        self.block(Block { unit, span: self.span(raw), kind })
    }

    fn name(&self, value: Option<&'a RawValue>) -> Result<Option<Cow<'a, str>>, ParseError> {
        match value.filter(|raw| raw.get().starts_with('{')) {
            Some(raw) => self.text(self.object::<Named<'a>>(raw.get())?.name),
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
        match self.text(value)? {
            Some(text) => Ok(CallId { kind: "", raw: Some(self.span(raw)), text }),
            None => Err(self.refuse(raw.get(), ParseErrorKind::IdNotAString)),
        }
    }

    /// The text of a value that may be a string.
    fn text(&self, value: Option<&'a RawValue>) -> Result<Option<Cow<'a, str>>, ParseError> {
        match value.map(RawValue::get).filter(|raw| raw.starts_with('"')) {
            Some(raw) => match decode(raw.as_bytes()) {
                Some(text) => Ok(Some(text)),
                None => Err(self.refuse(raw, ParseErrorKind::NotJson)),
            },
            None => Ok(None),
        }
    }

    fn array(&self, raw: &'a RawValue) -> Result<Vec<&'a RawValue>, ParseError> {
        let kind = if raw.get().starts_with('[') { ParseErrorKind::TooMany } else { ParseErrorKind::NotAnArray };
        let elements: Result<Elements<'a>, _> = serde_json::from_str(raw.get());
        elements.map(|Elements(elements)| elements).map_err(|_| self.refuse(raw.get(), kind))
    }

    /// An object of ours. An array is sorted out first, because `serde` would take it for a struct as well.
    fn object<T: Deserialize<'a>>(&self, raw: &'a str) -> Result<T, ParseError> {
        if raw.starts_with('[') {
            return Err(self.refuse(raw, ParseErrorKind::NotAnObject));
        }
        serde_json::from_str(raw).map_err(|invalid| match invalid.classify() {
            Category::Data if raw.starts_with('{') => self.refuse(raw, ParseErrorKind::DuplicateKey),
            Category::Data => self.refuse(raw, ParseErrorKind::NotAnObject),
            _ => {
                let lines: usize = raw.split_inclusive('\n').take(invalid.line().saturating_sub(1)).map(str::len).sum();
                error(self.offset(raw) + lines + invalid.column().saturating_sub(1), ParseErrorKind::NotJson)
            }
        })
    }

    fn refuse(&self, part: &str, kind: ParseErrorKind) -> ParseError {
        error(self.offset(part), kind)
    }

    fn span(&self, raw: &RawValue) -> Span {
        let start = self.offset(raw.get());
        Span { start, end: start + raw.get().len() }
    }

    /// Where in the body `part` lies: `serde_json` borrows raw values from it.
    fn offset(&self, part: &str) -> usize {
        part.as_ptr().addr().saturating_sub(self.body.as_ptr().addr())
    }
}
