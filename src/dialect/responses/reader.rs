//! Reads the items of a whole body in one pass with a [`Cursor`], and says why where it cannot.

use super::items::{ITEM, Item, RequestFields, ViewBuilder};
use super::{ParseError, ParseErrorKind, error};
use crate::conversation::Conversation;
use crate::dialect::json::{Cursor, Unsupported, fields};
use crate::span::Span;
use crate::string_index::StringIndex;

/// The conversation in `body`, whose long strings may be known.
pub(super) fn read<'a>(body: &'a [u8], strings: &'a StringIndex) -> Result<Conversation<'a>, ParseError> {
    let mut reader = Reader { cursor: Cursor::indexed(body, strings), body, items: ViewBuilder::new(body) };
    let fault = |(offset, kind)| error(offset, kind);
    let read = reader.request();
    let beside = reader.cursor.finish(read).map_err(fault)?;
    reader.items.finish(beside).map_err(fault)
}

struct Reader<'a> {
    cursor: Cursor<'a>,
    body: &'a [u8],
    items: ViewBuilder<'a>,
}

impl Reader<'_> {
    fn request(&mut self) -> Result<RequestFields, Unsupported> {
        let (start, mut input, mut text, mut beside) = (self.cursor.at(), None, None, RequestFields::default());
        let mut key = self.cursor.first_key()?;
        while let Some(name) = key {
            let value = if &*name == b"input" { self.input()? } else { self.cursor.value()? };
            let place = match &*name {
                b"input" => Some(&mut input),
                b"text" => Some(&mut text),
                b"model" => Some(&mut beside.model),
                b"tools" => Some(&mut beside.tools),
                b"instructions" => Some(&mut beside.instructions),
                b"previous_response_id" => Some(&mut beside.previous_response),
                b"conversation" => Some(&mut beside.conversation),
                b"context_management" => Some(&mut beside.context_management),
                name => {
                    beside.history.note(name, value.of(self.body));
                    None
                }
            };
            place.map_or(Ok(()), |place| self.cursor.once(start, place, value))?;
            key = self.cursor.next_key()?;
        }
        if let Some(text) = text.filter(|text| text.of(self.body).starts_with(b"{")) {
            let end = self.cursor.at();
            self.cursor.go_to(text.start);
            [beside.format] = fields(&mut self.cursor, [b"format"])?;
            self.cursor.go_to(end);
        }
        let said = |value: Option<Span>| value.filter(|value| value.of(self.body) != b"null");
        Ok(RequestFields {
            model: said(beside.model),
            tools: said(beside.tools),
            format: said(beside.format),
            instructions: said(beside.instructions),
            previous_response: said(beside.previous_response),
            conversation: said(beside.conversation),
            context_management: said(beside.context_management),
            history: beside.history,
        })
    }

    fn input(&mut self) -> Result<Span, Unsupported> {
        let start = self.cursor.at();
        if self.cursor.peek() != Some(b'[') {
            let value = self.cursor.value()?;
            match value.of(self.body) {
                [b'"', ..] => self.items.text_input(value),
                b"null" => {}
                _ => return Err(self.cursor.refuse(start, ParseErrorKind::NotAnArray)),
            }
            return Ok(value);
        }
        let mut more = self.cursor.first_element()?;
        while more {
            self.item()?;
            more = self.cursor.next_element()?;
        }
        Ok(Span { start, end: self.cursor.at() })
    }

    fn item(&mut self) -> Result<(), Unsupported> {
        let start = self.cursor.at();
        let found = fields(&mut self.cursor, ITEM)?;
        let span = Span { start, end: self.cursor.at() };
        let said = found.map(|value| value.filter(|value| value.of(self.body) != b"null"));
        let read = self.items.item(span, &Item::of(&said));
        read.map_err(|(offset, kind)| self.cursor.refuse(offset, kind))
    }
}
