//! The quick reader of items: one pass over the body with a [`Cursor`].
//!
//! It never guesses. Escaped keys, keys twice, great depth, a wrong type: it answers [`Unsupported`], and the caller asks
//! `serde_json`.

use super::items::{ITEM, Item, RequestFields, ViewBuilder};
use crate::conversation::Conversation;
use crate::dialect::json::{Cursor, Unsupported, fields, fields_of, once, require};
use crate::span::Span;
use crate::string_index::StringIndex;

/// The conversation in `body`, whose long strings may be known.
pub(super) fn scan<'a>(body: &'a [u8], strings: &'a StringIndex) -> Result<Conversation<'a>, Unsupported> {
    let mut scanner = Scanner { cursor: Cursor::indexed(body, strings), body, items: ViewBuilder::new(body) };
    let beside = scanner.request()?;
    scanner.cursor.end()?;
    scanner.items.finish(beside).map_err(|_| Unsupported)
}

struct Scanner<'a> {
    cursor: Cursor<'a>,
    body: &'a [u8],
    items: ViewBuilder<'a>,
}

impl Scanner<'_> {
    fn request(&mut self) -> Result<RequestFields, Unsupported> {
        let (mut input, mut text, mut beside) = (None, None, RequestFields::default());
        let mut key = self.cursor.first_key()?;
        while let Some(name) = key {
            let value = if name == b"input" { self.input()? } else { self.cursor.value()? };
            let place = match name {
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
            place.map_or(Ok(()), |place| once(place, value))?;
            key = self.cursor.next_key()?;
        }
        if let Some(text) = text.filter(|text| text.of(self.body).starts_with(b"{")) {
            [beside.format] = fields_of(self.body, text, [b"format"])?;
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
                other => require(other == b"null")?,
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
        self.items.item(span, &Item::of(&said)).map_err(|_| Unsupported)
    }
}
