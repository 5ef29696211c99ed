//! Reads the messages of a whole body in one pass with a [`Cursor`], and says why where it cannot.

use super::NAME;
use super::view::{ENTRY_KEYS, Entry, Message, REQUEST_KEYS, View};
use crate::conversation::{Conversation, MAX_ELEMENTS};
use crate::dialect::json::{Cursor, ReadResult, fields};
use crate::dialect::reading;
use crate::dialect::{ParseError, ParseErrorKind};
use crate::span::Span;
use crate::string_index::StringIndex;

/// The conversation in `body`, whose long strings may be known.
pub(super) fn read<'a>(body: &'a [u8], strings: &'a StringIndex) -> Result<Conversation<'a>, ParseError> {
    let mut cursor = Cursor::indexed(body, strings);
    let mut reader = Reader { body, view: View::new(body), entries: Vec::new() };
    let list = |cursor: &mut Cursor<'a>| cursor.elements(|cursor| reader.message(cursor));
    let read = reading::request(&mut cursor, REQUEST_KEYS, list).and_then(|read| match read.0 {
        [Some(_), ..] => Ok(read),
        _ => Err(cursor.refuse((0, ParseErrorKind::NoMessages))),
    });
    let beside = cursor.finish(NAME, read)?;
    reader.view.finish(beside).map_err(|fault| ParseError::new(NAME, fault))
}

struct Reader<'a> {
    body: &'a [u8],
    view: View<'a>,
    /// The entries of the present message.
    entries: Vec<Entry>,
}

impl<'a> Reader<'a> {
    fn message(&mut self, cursor: &mut Cursor<'a>) -> ReadResult {
        let start = cursor.at();
        let (mut role, mut content) = (None, None);
        self.entries.clear();
        let span = cursor.members(|cursor, key| {
            let value = if &*key == b"content" { self.content(cursor)? } else { cursor.value()? };
            match &*key {
                b"role" => cursor.once(start, &mut role, value),
                b"content" => cursor.once(start, &mut content, value),
                _ => Ok(()),
            }
        })?;
        cursor.accept(self.view.message(Message { span, role, content }, &self.entries))
    }

    fn content(&mut self, cursor: &mut Cursor<'a>) -> ReadResult<Span> {
        if cursor.peek() != Some(b'[') {
            return cursor.value();
        }
        let start = cursor.at();
        cursor.elements(|cursor| {
            if self.entries.len() == MAX_ELEMENTS {
                return Err(cursor.refuse((start, ParseErrorKind::TooMany)));
            }
            let entry = self.entry(cursor)?;
            self.entries.push(entry);
            Ok(())
        })
    }

    fn entry(&self, cursor: &mut Cursor<'a>) -> ReadResult<Entry> {
        if cursor.peek() != Some(b'{') {
            return cursor.value().map(Entry::opaque);
        }
        let start = cursor.at();
        let values = fields(cursor, ENTRY_KEYS)?;
        cursor.accept(Entry::of(self.body, Span { start, end: cursor.at() }, values))
    }
}
