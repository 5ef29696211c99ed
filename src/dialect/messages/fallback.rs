//! The thorough reader of Anthropic Messages: `serde_json` over raw values, for bodies that the quick one gave up on.
//!
//! It takes escaped keys and any depth (`serde_json` passes raw values without recursion), and says why it refuses the
//! rest.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    NAME, ParseError, ParseErrorKind, error,
    view::{Entry, Fault, Message, RequestFields, View},
};
use crate::{conversation::Conversation, dialect::thorough::Json};

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
    #[serde(borrow)]
    caller: Option<&'a RawValue>,
}

/// The conversation in `body`.
pub(super) fn parse(body: &[u8]) -> Result<Conversation<'_>, ParseError> {
    let json = Json::of(NAME, body)?;
    let request: WireRequest<'_> = json.whole()?;
    let messages = request.messages.ok_or_else(|| error(0, ParseErrorKind::NoMessages))?;
    let mut view = View::new(body);
    for raw in json.array(messages)? {
        message(json, raw, &mut view)?;
    }
    let span = |value: Option<&RawValue>| value.map(|value| json.span(value));
    let beside = RequestFields {
        model: span(request.model),
        tools: span(request.tools),
        system: span(request.system),
        output_config: span(request.output_config),
        output_format: span(request.output_format),
        context_management: span(request.context_management),
        thinking: span(request.thinking),
        compaction: span(request.compaction),
        history: json.history_keys(),
    };
    view.finish(beside).map_err(of_fault)
}

fn message<'a>(json: Json<'a>, raw: &'a RawValue, view: &mut View<'a>) -> Result<(), ParseError> {
    let wire: WireMessage<'a> = json.object(raw.get())?;
    let entries = match wire.content.filter(|content| content.get().starts_with('[')) {
        Some(content) => json.array(content)?.into_iter().map(|raw| entry(json, raw)).collect::<Result<_, _>>()?,
        None => Vec::new(),
    };
    let span = |value: Option<&RawValue>| value.map(|value| json.span(value));
    let message = Message { span: json.span(raw), role: span(wire.role), content: span(wire.content) };
    view.message(message, &entries).map_err(of_fault)
}

fn entry<'a>(json: Json<'a>, raw: &'a RawValue) -> Result<Entry, ParseError> {
    if !raw.get().starts_with('{') {
        return Ok(Entry::opaque(json.span(raw)));
    }
    let wire: WireEntry<'a> = json.object(raw.get())?;
    let WireEntry { r#type, id, tool_use_id, name, content, text, encrypted_content, caller } = wire;
    let values = [r#type, id, tool_use_id, name, content, text, encrypted_content, caller];
    let values = values.map(|value| value.map(|value| json.span(value)));
    Entry::of(json.bytes(), json.span(raw), values).map_err(of_fault)
}

fn of_fault(Fault { at, kind }: Fault) -> ParseError {
    error(at.start, kind)
}
