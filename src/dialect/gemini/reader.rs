//! Reads the contents of a whole body in one pass with a [`Cursor`], and says why where it cannot.

use super::NAME;
use super::view::{Content, FUNCTION_KEYS, PART_KEYS, Part, REQUEST_KEYS, View};
use crate::conversation::{Conversation, MAX_ELEMENTS};
use crate::dialect::json::{Cursor, ReadResult, fields};
use crate::dialect::reading;
use crate::dialect::{ParseError, ParseErrorKind};
use crate::span::Span;
use crate::string_index::StringIndex;

/// The conversation in `body`, whose long strings may be known.
pub(super) fn read<'a>(body: &'a [u8], strings: &'a StringIndex) -> Result<Conversation<'a>, ParseError> {
    let mut cursor = Cursor::indexed(body, strings);
    let mut reader = Reader { body, view: View::new(body), parts: Vec::new() };
    let list = |cursor: &mut Cursor<'a>| cursor.elements(|cursor| reader.content(cursor));
    let read = reading::request(&mut cursor, REQUEST_KEYS, list).and_then(|read| match read.0 {
        [Some(_), ..] => Ok(read),
        _ => Err(cursor.refuse((0, ParseErrorKind::NoMessages))),
    });
    let beside = cursor.finish(NAME, read)?;
    Ok(reader.view.finish(beside))
}

struct Reader<'a> {
    body: &'a [u8],
    view: View<'a>,
    /// The parts of the present content.
    parts: Vec<Part>,
}

impl<'a> Reader<'a> {
    fn content(&mut self, cursor: &mut Cursor<'a>) -> ReadResult {
        let start = cursor.at();
        let (mut role, mut parts) = (None, None);
        self.parts.clear();
        let span = cursor.members(|cursor, key| {
            let value = if &*key == b"parts" { self.parts(cursor)? } else { cursor.value()? };
            match &*key {
                b"role" => cursor.once(start, &mut role, value),
                b"parts" => cursor.once(start, &mut parts, value),
                _ => Ok(()),
            }
        })?;
        cursor.accept(self.view.content(Content { span, role, parts }, &self.parts))
    }

    fn parts(&mut self, cursor: &mut Cursor<'a>) -> ReadResult<Span> {
        let start = cursor.at();
        match cursor.peek() {
            Some(b'[') => {}
            // One part, as Google's JSON allows. A call or a result in it could not be edited.
            Some(b'{') if self.part(cursor)?.is_function() => {
                return Err(cursor.refuse((start, ParseErrorKind::NotAnArray)));
            }
            Some(b'{') => return Ok(Span { start, end: cursor.at() }),
            _ => return cursor.value(),
        }
        cursor.elements(|cursor| {
            if self.parts.len() == MAX_ELEMENTS {
                return Err(cursor.refuse((start, ParseErrorKind::TooMany)));
            }
            let part = self.part(cursor)?;
            self.parts.push(part);
            Ok(())
        })
    }

    fn part(&self, cursor: &mut Cursor<'a>) -> ReadResult<Part> {
        let start = cursor.at();
        let values = fields(cursor, PART_KEYS)?;
        let span = Span { start, end: cursor.at() };
        let mut function = [None; 3];
        if let Some(of) = Part::function(self.body, values) {
            cursor.go_to(of.start);
            function = fields(cursor, FUNCTION_KEYS)?;
            cursor.go_to(span.end);
        }
        Ok(Part::of(self.body, span, values, function))
    }
}
