//! The thorough reader of items: `serde_json` over raw values, for bodies that the quick one gave up on.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    NAME, ParseError, error,
    items::{Fault, Item, RequestFields, ViewBuilder},
};
use crate::{conversation::Conversation, dialect::thorough::Json, span::Span};

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    instructions: Option<&'a RawValue>,
    #[serde(borrow)]
    previous_response_id: Option<&'a RawValue>,
    #[serde(borrow)]
    conversation: Option<&'a RawValue>,
    #[serde(borrow)]
    context_management: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct WireText<'a> {
    #[serde(borrow)]
    format: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct WireItem<'a> {
    #[serde(borrow)]
    r#type: Option<&'a RawValue>,
    #[serde(borrow)]
    role: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    call_id: Option<&'a RawValue>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    output: Option<&'a RawValue>,
    #[serde(borrow)]
    environment: Option<&'a RawValue>,
    #[serde(borrow)]
    execution: Option<&'a RawValue>,
    #[serde(borrow)]
    caller: Option<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    // Not read here, but not to be there twice.
    #[serde(borrow, rename = "arguments")]
    _arguments: Option<&'a RawValue>,
    #[serde(borrow, rename = "input")]
    _input: Option<&'a RawValue>,
}

/// The conversation in `body`.
pub(super) fn parse(body: &[u8]) -> Result<Conversation<'_>, ParseError> {
    let json = Json::of(NAME, body)?;
    let request: Request<'_> = json.whole()?;
    let mut items = ViewBuilder::new(body);
    if let Some(input) = request.input {
        if input.get().starts_with('"') {
            items.text_input(json.span(input));
        } else {
            for raw in json.array(input)? {
                let item = item(json, &json.object(raw.get())?);
                items.item(json.span(raw), &item).map_err(fault)?;
            }
        }
    }
    let text = request.text.filter(|text| text.get().starts_with('{'));
    let text: Option<WireText<'_>> = text.map(|text| json.object(text.get())).transpose()?;
    let span = |value: Option<&RawValue>| value.map(|value| json.span(value));
    let beside = RequestFields {
        model: span(request.model),
        tools: span(request.tools),
        format: span(text.and_then(|text| text.format)),
        instructions: span(request.instructions),
        previous_response: span(request.previous_response_id),
        conversation: span(request.conversation),
        context_management: span(request.context_management),
        history: json.history_keys(),
    };
    items.finish(beside).map_err(fault)
}

fn item(json: Json<'_>, wire: &WireItem<'_>) -> Item {
    let span = |value: Option<&RawValue>| -> Option<Span> { value.map(|value| json.span(value)) };
    Item {
        kind: span(wire.r#type),
        role: span(wire.role),
        id: span(wire.id),
        call_id: span(wire.call_id),
        name: span(wire.name),
        content: span(wire.content),
        output: span(wire.output),
        environment: span(wire.environment),
        execution: span(wire.execution),
        caller: span(wire.caller),
        tools: span(wire.tools),
    }
}

fn fault((offset, kind): Fault) -> ParseError {
    error(offset, kind)
}
