//! Reads the items of a whole body in one pass with a [`Cursor`], and says why where it cannot.

use super::NAME;
use super::items::{ITEM, Item, REQUEST_KEYS, ViewBuilder};
use crate::conversation::Conversation;
use crate::dialect::json::{Cursor, ReadResult, fields};
use crate::dialect::reading::{self, RequestFields};
use crate::dialect::{ParseError, ParseErrorKind};
use crate::span::Span;
use crate::string_index::StringIndex;

/// The conversation in `body`, whose long strings may be known.
pub(super) fn read<'a>(body: &'a [u8], strings: &'a StringIndex) -> Result<Conversation<'a>, ParseError> {
    let mut cursor = Cursor::indexed(body, strings);
    let mut reader = Reader { body, items: ViewBuilder::new(body) };
    let read = reader.request(&mut cursor);
    let beside = cursor.finish(NAME, read)?;
    reader.items.finish(beside).map_err(|fault| ParseError::new(NAME, fault))
}

struct Reader<'a> {
    body: &'a [u8],
    items: ViewBuilder<'a>,
}

impl<'a> Reader<'a> {
    /// Reads a request. Of its `text`, the format is returned.
    fn request(&mut self, cursor: &mut Cursor<'a>) -> ReadResult<RequestFields<6>> {
        let (mut values, history) = reading::request(cursor, REQUEST_KEYS, |cursor| self.input(cursor))?;
        let [_, text, ..] = &mut values;
        if let Some(config) = text.take().filter(|text| text.of(self.body).starts_with(b"{")) {
            let end = cursor.at();
            cursor.go_to(config.start);
            let [format] = fields(cursor, [b"format"])?;
            cursor.go_to(end);
            *text = format.filter(|format| format.of(self.body) != b"null");
        }
        Ok((values, history))
    }

    fn input(&mut self, cursor: &mut Cursor<'a>) -> ReadResult<Span> {
        if cursor.peek() == Some(b'[') {
            return cursor.elements(|cursor| self.item(cursor));
        }
        let start = cursor.at();
        let value = cursor.value()?;
        if !value.of(self.body).starts_with(b"\"") {
            return Err(cursor.refuse((start, ParseErrorKind::NotAnArray)));
        }
        self.items.text_input(value);
        Ok(value)
    }

    fn item(&mut self, cursor: &mut Cursor<'a>) -> ReadResult {
        let start = cursor.at();
        let found = fields(cursor, ITEM)?;
        let span = Span { start, end: cursor.at() };
        let said = found.map(|value| value.filter(|value| value.of(self.body) != b"null"));
        cursor.accept(self.items.item(span, &Item::of(&said)))
    }
}
