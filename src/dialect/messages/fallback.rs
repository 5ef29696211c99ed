//! The thorough reader of Anthropic Messages: `serde_json` over raw values, for bodies that the quick one gave up on.
//!
//! It takes escaped keys and any depth (`serde_json` passes raw values without recursion), and says why it refuses the
//! rest.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, SeqAccess, Visitor},
};
use serde_json::{error::Category, value::RawValue};

use super::{
    ParseError, ParseErrorKind, error,
    view::{Beside, Entry, Fault, Message, View},
};
use crate::{
    conversation::{Conversation, MAX_ELEMENTS},
    span::Span,
};

#[derive(Deserialize)]
struct WireRequest<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    system: Option<&'a RawValue>,
    #[serde(borrow)]
    output_config: Option<&'a RawValue>,
    #[serde(borrow)]
    output_format: Option<&'a RawValue>,
    #[serde(borrow)]
    context_management: Option<&'a RawValue>,
    #[serde(borrow)]
    thinking: Option<&'a RawValue>,
    #[serde(borrow)]
    compaction: Option<&'a RawValue>,
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct WireMessage<'a> {
    #[serde(borrow)]
    role: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct WireEntry<'a> {
    #[serde(borrow)]
    r#type: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_use_id: Option<&'a RawValue>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    encrypted_content: Option<&'a RawValue>,
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
    let reader = Reader { body: text };
    reader.request()
}

#[derive(Clone, Copy)]
struct Reader<'a> {
    body: &'a str,
}

impl<'a> Reader<'a> {
    fn request(self) -> Result<Conversation<'a>, ParseError> {
        let request: WireRequest<'a> = self.object(self.body.trim_matches([' ', '\n', '\r', '\t']))?;
        let messages = request.messages.ok_or_else(|| error(0, ParseErrorKind::NoMessages))?;
        let mut view = View::new(self.body.as_bytes());
        for message in self.array(messages)? {
            self.message(message, &mut view)?;
        }
        let span = |value: Option<&RawValue>| value.map(|value| self.span(value));
        let beside = Beside {
            model: span(request.model),
            tools: span(request.tools),
            system: span(request.system),
            output_config: span(request.output_config),
            output_format: span(request.output_format),
            context_management: span(request.context_management),
            thinking: span(request.thinking),
            compaction: span(request.compaction),
        };
        view.finish(beside).map_err(of_fault)
    }

    fn message(self, raw: &'a RawValue, view: &mut View<'a>) -> Result<(), ParseError> {
        let wire: WireMessage<'a> = self.object(raw.get())?;
        let entries = match wire.content.filter(|content| content.get().starts_with('[')) {
            Some(content) => {
                self.array(content)?.into_iter().map(|entry| self.entry(entry)).collect::<Result<_, _>>()?
            }
            None => Vec::new(),
        };
        let span = |value: Option<&RawValue>| value.map(|value| self.span(value));
        let message = Message { span: self.span(raw), role: span(wire.role), content: span(wire.content) };
        view.message(message, &entries).map_err(of_fault)
    }

    fn entry(self, raw: &'a RawValue) -> Result<Entry, ParseError> {
        if !raw.get().starts_with('{') {
            return Ok(Entry::opaque(self.span(raw)));
        }
        let wire: WireEntry<'a> = self.object(raw.get())?;
        let WireEntry { r#type, id, tool_use_id, name, content, text, encrypted_content } = wire;
        let values = [r#type, id, tool_use_id, name, content, text, encrypted_content];
        let values = values.map(|value| value.map(|value| self.span(value)));
        Entry::of(self.body.as_bytes(), self.span(raw), values).map_err(of_fault)
    }

    fn array(self, raw: &'a RawValue) -> Result<Vec<&'a RawValue>, ParseError> {
        let kind = if raw.get().starts_with('[') { ParseErrorKind::TooMany } else { ParseErrorKind::NotAnArray };
        let elements: Result<Elements<'a>, _> = serde_json::from_str(raw.get());
        elements.map(|Elements(elements)| elements).map_err(|_| self.refuse(raw.get(), kind))
    }

    /// An object of ours. An array is sorted out first, because `serde` would take it for a struct as well.
    fn object<T: Deserialize<'a>>(self, raw: &'a str) -> Result<T, ParseError> {
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

    fn refuse(self, part: &str, kind: ParseErrorKind) -> ParseError {
        error(self.offset(part), kind)
    }

    fn span(self, raw: &RawValue) -> Span {
        let start = self.offset(raw.get());
        Span { start, end: start + raw.get().len() }
    }

    /// Where in the body `part` lies: `serde_json` borrows raw values from it.
    fn offset(self, part: &str) -> usize {
        part.as_ptr().addr().saturating_sub(self.body.as_ptr().addr())
    }
}

fn of_fault(Fault { at, kind }: Fault) -> ParseError {
    error(at.start, kind)
}
