//! Reads the messages of a whole body in one pass with a [`Cursor`], and says why where it cannot.

use super::view::{ENTRY_KEYS, Entry, Fault, Message, RequestFields, View};
use super::{ParseError, ParseErrorKind, error};
use crate::conversation::{Conversation, MAX_ELEMENTS};
use crate::dialect::json::{Cursor, Unsupported, fields};
use crate::span::Span;
use crate::string_index::StringIndex;

/// The conversation in `body`, whose long strings may be known.
pub(super) fn read<'a>(body: &'a [u8], strings: &'a StringIndex) -> Result<Conversation<'a>, ParseError> {
    let mut reader =
        Reader { body, cursor: Cursor::indexed(body, strings), view: View::new(body), entries: Vec::new() };
    let read = reader.request();
    let beside = reader.cursor.finish(read).map_err(|(offset, kind)| error(offset, kind))?;
    reader.view.finish(beside).map_err(|Fault { at, kind }| error(at.start, kind))
}

struct Reader<'a> {
    body: &'a [u8],
    cursor: Cursor<'a>,
    view: View<'a>,
    /// The entries of the present message.
    entries: Vec<Entry>,
}

impl Reader<'_> {
    fn request(&mut self) -> Result<RequestFields, Unsupported> {
        let (start, mut messages, mut beside) = (self.cursor.at(), None, RequestFields::default());
        let mut key = self.cursor.first_key()?;
        while let Some(name) = key {
            let value = if &*name == b"messages" { self.messages()? } else { self.cursor.value()? };
            let place = match &*name {
                b"messages" => Some(&mut messages),
                b"model" => Some(&mut beside.model),
                b"tools" => Some(&mut beside.tools),
                b"system" => Some(&mut beside.system),
                b"output_config" => Some(&mut beside.output_config),
                b"output_format" => Some(&mut beside.output_format),
                b"context_management" => Some(&mut beside.context_management),
                b"thinking" => Some(&mut beside.thinking),
                b"compaction" => Some(&mut beside.compaction),
                name => {
                    beside.history.note(name, value.of(self.body));
                    None
                }
            };
            place.map_or(Ok(()), |place| self.cursor.once(start, place, value))?;
            key = self.cursor.next_key()?;
        }
        match messages.filter(|messages| messages.of(self.body) != b"null") {
            Some(_) => Ok(beside),
            None => Err(self.cursor.refuse(0, ParseErrorKind::NoMessages)),
        }
    }

    fn messages(&mut self) -> Result<Span, Unsupported> {
        if self.cursor.peek() == Some(b'n') {
            return self.cursor.value();
        }
        let start = self.cursor.at();
        let mut more = self.cursor.first_element()?;
        while more {
            self.message()?;
            more = self.cursor.next_element()?;
        }
        Ok(Span { start, end: self.cursor.at() })
    }

    fn message(&mut self) -> Result<(), Unsupported> {
        let start = self.cursor.at();
        let (mut role, mut content) = (None, None);
        self.entries.clear();
        let mut key = self.cursor.first_key()?;
        while let Some(name) = key {
            let value = if &*name == b"content" { self.content()? } else { self.cursor.value()? };
            let place = match &*name {
                b"role" => Some(&mut role),
                b"content" => Some(&mut content),
                _ => None,
            };
            place.map_or(Ok(()), |place| self.cursor.once(start, place, value))?;
            key = self.cursor.next_key()?;
        }
        let span = Span { start, end: self.cursor.at() };
        let read = self.view.message(Message { span, role, content }, &self.entries);
        read.map_err(|fault| self.refuse(fault))
    }

    fn refuse(&mut self, Fault { at, kind }: Fault) -> Unsupported {
        self.cursor.refuse(at.start, kind)
    }

    fn content(&mut self) -> Result<Span, Unsupported> {
        if self.cursor.peek() != Some(b'[') {
            return self.cursor.value();
        }
        let start = self.cursor.at();
        let mut more = self.cursor.first_element()?;
        while more {
            if self.entries.len() == MAX_ELEMENTS {
                return Err(self.cursor.refuse(start, ParseErrorKind::TooMany));
            }
            let entry = self.entry()?;
            self.entries.push(entry);
            more = self.cursor.next_element()?;
        }
        Ok(Span { start, end: self.cursor.at() })
    }

    fn entry(&mut self) -> Result<Entry, Unsupported> {
        if self.cursor.peek() != Some(b'{') {
            return self.cursor.value().map(Entry::opaque);
        }
        let start = self.cursor.at();
        let values = fields(&mut self.cursor, ENTRY_KEYS)?;
        Entry::of(self.body, Span { start, end: self.cursor.at() }, values).map_err(|fault| self.refuse(fault))
    }
}
