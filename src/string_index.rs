//! Where the long strings of a body are, and their hashes, found chunk by chunk while the body arrives; and what the path of its
//! request says. The reader passes such
//! strings by their places. The hash serves where a content or a text is one such string; a content that is an array is
//! hashed as a whole, later.
//!
//! It looks at nothing but quotes and backslashes. In a body that is not JSON it is of no use, and does no harm: a reader that
//! has come to a string has read all quotes before it, as the index has.

use std::sync::Arc;

use bytes::Bytes;

use crate::payload::{Fingerprint, Fingerprinter};
use crate::raw::find_quote;
use crate::span::Span;

/// Shorter strings are not indexed: their ends are found as quickly.
const LONG: usize = 4 << 10;

/// The long strings of a body, in order, and what the path says that it was sent to.
#[derive(Clone, Debug, Default)]
pub struct StringIndex {
    strings: Vec<LongString>,
    path: PathFacts,
}

/// The facts in the path of a request besides its dialect.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PathFacts {
    /// The model, where the path names one.
    pub model: Option<Box<str>>,
    /// Whether the answer comes in frames of AWS's event stream, in which no call of the model can be answered.
    pub is_framed: bool,
}

#[derive(Clone, Copy, Debug)]
struct LongString {
    /// With both quotes.
    span: Span,
    /// None where no one was going to ask.
    fingerprint: Option<Fingerprint>,
}

/// A body, and where its long strings are, as far as that is known.
#[derive(Clone, Debug, derive_more::Deref)]
pub struct IndexedBody {
    /// The bytes.
    #[deref]
    pub bytes: Bytes,
    strings: Option<Arc<StringIndex>>,
}

/// Makes the index of a body that comes in chunks.
#[derive(Debug)]
pub struct StringIndexer {
    /// Shorter strings are not indexed.
    least: usize,
    /// Whether strings are hashed.
    hashes: bool,
    /// The bytes before the next chunk.
    at: usize,
    /// Whether the first byte of that is escaped.
    is_escaped: bool,
    /// Where the string begins that has not ended yet.
    open: Option<usize>,
    /// The hash of its part in the chunks before.
    before: Option<Box<Fingerprinter>>,
    found: Vec<LongString>,
}

// === impl StringIndex ===

impl StringIndex {
    /// An index without strings.
    pub const EMPTY: &'static Self = &Self { strings: Vec::new(), path: PathFacts { model: None, is_framed: false } };

    /// The long string that begins here, with both quotes.
    pub fn starting(&self, at: usize) -> Option<Span> {
        self.find(at).map(|string| string.span)
    }

    /// Returns what a value is known by, if it is a long string.
    pub fn fingerprint(&self, value: Span) -> Option<Fingerprint> {
        self.find(value.start).filter(|string| string.span == value).and_then(|string| string.fingerprint)
    }

    fn find(&self, at: usize) -> Option<&LongString> {
        let found = self.strings.binary_search_by_key(&at, |string| string.span.start).ok()?;
        self.strings.get(found)
    }

    /// Returns what the path says.
    pub fn path(&self) -> &PathFacts {
        &self.path
    }
}

// === impl IndexedBody ===

impl IndexedBody {
    /// A body with the index of its strings.
    pub fn new(bytes: Bytes, strings: StringIndex) -> Self {
        Self { bytes, strings: (!strings.strings.is_empty()).then(|| strings.into()) }
    }

    /// The same, sent to a path that says this.
    #[must_use]
    pub fn at(mut self, path: PathFacts) -> Self {
        if path != PathFacts::default() {
            Arc::make_mut(self.strings.get_or_insert_default()).path = path;
        }
        self
    }

    /// Returns what is known of its long strings.
    pub fn strings(&self) -> &StringIndex {
        self.strings.as_deref().unwrap_or(StringIndex::EMPTY)
    }
}

impl From<Bytes> for IndexedBody {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, strings: None }
    }
}

// === impl StringIndexer ===

impl StringIndexer {
    /// An indexer that `hashes` long strings, or only finds them.
    pub fn new(hashes: bool) -> Self {
        Self { least: LONG, hashes, at: 0, is_escaped: false, open: None, before: None, found: Vec::new() }
    }

    /// Reads the next chunk.
    pub fn push(&mut self, chunk: &[u8]) {
        let mut is_escaped = self.is_escaped;
        let _none_ends_it = find_quote(chunk, &mut is_escaped, |quote| {
            match self.open.take() {
                None => self.open = Some(self.at + quote),
                Some(start) => self.close(Span { start, end: self.at + quote + 1 }, chunk),
            }
            false
        });
        self.is_escaped = is_escaped;
        if let Some(start) = self.open.filter(|_| self.hashes) {
            let read = self.here(Span { start, end: self.at + chunk.len() }, chunk);
            self.before.get_or_insert_default().update(read);
        }
        self.at += chunk.len();
    }

    /// A string ends in this chunk.
    fn close(&mut self, span: Span, chunk: &[u8]) {
        let before = self.before.take();
        if span.len() < self.least {
            return;
        }
        let read = self.here(span, chunk);
        let hash = || match before {
            None => Fingerprint::of(read),
            Some(mut before) => {
                before.update(read);
                before.finish()
            }
        };
        self.found.push(LongString { span, fingerprint: self.hashes.then(hash) });
    }

    /// Returns what is in this chunk of a string that ends in it or goes on after it.
    fn here<'a>(&self, span: Span, chunk: &'a [u8]) -> &'a [u8] {
        Span { start: span.start.saturating_sub(self.at), end: span.end - self.at }.of(chunk)
    }

    /// The index of all chunks.
    pub fn finish(self) -> StringIndex {
        StringIndex { strings: self.found, path: PathFacts::default() }
    }
}

#[cfg(test)]
impl StringIndex {
    /// Of all strings, however short, in a body that comes in chunks of this size.
    pub(crate) fn of_all(body: &[u8], chunk: usize) -> Self {
        let mut indexer = StringIndexer { least: 0, ..StringIndexer::new(true) };
        body.chunks(chunk).for_each(|chunk| indexer.push(chunk));
        indexer.finish()
    }
}

#[cfg(test)]
mod tests;
