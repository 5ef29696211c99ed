//! The quick reader of Anthropic Messages: one pass over the body with a [`Cursor`].
//!
//! It never guesses. Escaped keys, keys twice, great depth, a wrong type: it answers [`Unsupported`], and the caller asks
//! `serde_json`.

use super::view::{ENTRY_KEYS, Entry, Fault, Message, RequestFields, View};
use crate::conversation::{Conversation, MAX_ELEMENTS};
use crate::dialect::json::{Cursor, Unsupported, fields, once, require};
use crate::span::Span;
use crate::string_index::StringIndex;

/// The conversation in `body`, whose long strings may be known.
pub(super) fn scan<'a>(body: &'a [u8], strings: &'a StringIndex) -> Result<Conversation<'a>, Unsupported> {
    let mut scanner =
        Scanner { body, cursor: Cursor::indexed(body, strings), view: View::new(body), entries: Vec::new() };
    let beside = scanner.request()?;
    scanner.cursor.end()?;
    scanner.view.finish(beside).map_err(Unsupported::from)
}

impl From<Fault> for Unsupported {
    fn from(_: Fault) -> Self {
        Self
    }
}

struct Scanner<'a> {
    body: &'a [u8],
    cursor: Cursor<'a>,
    view: View<'a>,
    /// The entries of the present message.
    entries: Vec<Entry>,
}

impl Scanner<'_> {
    fn request(&mut self) -> Result<RequestFields, Unsupported> {
        let (mut messages, mut beside) = (None, RequestFields::default());
        let mut key = self.cursor.first_key()?;
        while let Some(name) = key {
            let place = match name {
                b"messages" => {
                    once(&mut messages, ())?;
                    self.messages()?;
                    None
                }
                b"model" => Some(&mut beside.model),
                b"tools" => Some(&mut beside.tools),
                b"system" => Some(&mut beside.system),
                b"output_config" => Some(&mut beside.output_config),
                b"output_format" => Some(&mut beside.output_format),
                b"context_management" => Some(&mut beside.context_management),
                b"thinking" => Some(&mut beside.thinking),
                b"compaction" => Some(&mut beside.compaction),
                name => {
                    let value = self.cursor.value()?;
                    beside.history.note(name, value.of(self.body));
                    None
                }
            };
            if let Some(place) = place {
                once(place, self.cursor.value()?)?;
            }
            key = self.cursor.next_key()?;
        }
        messages.map(|()| beside).ok_or(Unsupported)
    }

    fn messages(&mut self) -> Result<(), Unsupported> {
        let mut more = self.cursor.first_element()?;
        while more {
            self.message()?;
            more = self.cursor.next_element()?;
        }
        Ok(())
    }

    fn message(&mut self) -> Result<(), Unsupported> {
        let start = self.cursor.at();
        let (mut role, mut content) = (None, None);
        self.entries.clear();
        let mut key = self.cursor.first_key()?;
        while let Some(name) = key {
            match name {
                b"role" => once(&mut role, self.cursor.value()?)?,
                b"content" => once(&mut content, self.content()?)?,
                _ => drop(self.cursor.value()?),
            }
            key = self.cursor.next_key()?;
        }
        let span = Span { start, end: self.cursor.at() };
        Ok(self.view.message(Message { span, role, content }, &self.entries)?)
    }

    fn content(&mut self) -> Result<Span, Unsupported> {
        if self.cursor.peek() != Some(b'[') {
            return self.cursor.value();
        }
        let start = self.cursor.at();
        let mut more = self.cursor.first_element()?;
        while more {
            require(self.entries.len() < MAX_ELEMENTS)?;
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
        Ok(Entry::of(self.body, Span { start, end: self.cursor.at() }, values)?)
    }
}
