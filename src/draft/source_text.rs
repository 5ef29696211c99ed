//! The texts of a result: as the client sent them, as an edit sees them, and as they stand now.

use std::{borrow::Cow, cell::OnceCell, fmt};

use super::{Draft, ParsedRequest, replacement::Replacement};
use crate::{
    conversation::UnitIndex,
    dialect::strings,
    payload::{DecodedValue, Fingerprint, PayloadName},
    span::Span,
};

/// One text of a result in the body. It is unescaped when it is read for the first time.
pub(super) struct SourceText<'a> {
    pub(super) request: ParsedRequest<'a>,
    pub(super) span: Span,
    pub(super) name: PayloadName,
    text: OnceCell<Cow<'a, str>>,
}

/// One text of a result as the client sent it, for an edit to look at.
pub struct ResultText<'t, 'd> {
    /// How many bytes it has.
    pub len: usize,
    /// How many texts the result has.
    pub n_texts: usize,
    /// The bytes of all of them.
    pub n_bytes: usize,
    pub(super) draft: &'t Draft<'d>,
    pub(super) source: &'t SourceText<'d>,
    /// Whether it is stored when it is replaced.
    pub(super) is_stored: bool,
    pub(super) retrieval: OnceCell<(String, String)>,
}

/// The text that stands at a place now: the client's, or what an earlier edit has put there.
pub(super) struct CurrentText<'t, 'd> {
    pub(super) source: &'t SourceText<'d>,
    pub(super) earlier: Option<&'t Replacement>,
    text: OnceCell<Cow<'t, str>>,
}

/// The part that is cut out of a text, and the words that take its place.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TextCut {
    /// Where the part that is taken out begins.
    pub from: usize,
    /// Where it ends.
    pub to: usize,
    /// The text that takes its place.
    pub words: String,
}

impl SourceText<'_> {
    pub(super) fn text(&self) -> &str {
        let ParsedRequest { body, .. } = self.request;
        // It has been read before, so it can be read.
        self.text.get_or_init(|| strings::text(body, self.span).unwrap_or_default())
    }
}

impl fmt::Debug for ResultText<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResultText")
            .field("n_texts", &self.n_texts)
            .field("n_bytes", &self.n_bytes)
            .finish_non_exhaustive()
    }
}

impl ResultText<'_, '_> {
    /// What it says. One that was seen before is not unescaped until then.
    pub fn text(&self) -> &str {
        self.source.text()
    }

    /// The handle and the words that say how to read what it names; both empty for a text that is not stored.
    pub fn retrieval(&self) -> (&str, &str) {
        let key = self.source.name.key;
        let words = || self.is_stored.then(|| (key.to_string(), self.draft.retrieval_words(key)));
        let (handle, how) = self.retrieval.get_or_init(|| words().unwrap_or_default());
        (handle, how)
    }
}

impl<'t, 'd> CurrentText<'t, 'd> {
    pub(super) fn new(source: &'t SourceText<'d>, earlier: Option<&'t Replacement>) -> Self {
        Self { source, earlier, text: OnceCell::new() }
    }

    pub(super) fn text(&self) -> &str {
        match self.earlier {
            Some(replacement) => self.text.get_or_init(|| replacement.text()),
            None => self.source.text(),
        }
    }

    /// The fingerprint under which its count is cached, and its length; it is not read for these.
    pub(super) fn identity(&self) -> (Fingerprint, usize) {
        match self.earlier {
            Some(replacement) => (replacement.fingerprint, replacement.with.len()),
            None => (Fingerprint::of(self.source.name.key.as_bytes()), self.source.name.len),
        }
    }
}

impl TextCut {
    /// Whether nothing of a text of this length is left.
    pub(super) fn is_whole(&self, len: usize) -> bool {
        self.from == 0 && self.to == len
    }

    /// The part of a text that is taken out; none if the text has no such part.
    pub(super) fn taken<'t>(&self, text: &'t str) -> Option<&'t str> {
        text.get(self.from..self.to)
    }

    /// A text with the words in place of that part.
    pub(super) fn applied(&self, text: &str) -> Option<String> {
        self.taken(text)?;
        Some([text.get(..self.from)?, &self.words, text.get(self.to..)?].concat())
    }
}

impl<'a> Draft<'a> {
    /// The texts of a result as the client sent them.
    pub(super) fn source_texts(&self, unit: UnitIndex) -> Vec<SourceText<'a>> {
        let ParsedRequest { dialect, body, conversation } = self.request;
        let Some(content) = conversation.unit(unit).and_then(|unit| unit.content) else { return Vec::new() };
        let fingerprint = |span: Span| {
            if span == content { self.fingerprints(unit).content } else { Fingerprint::of(span.of(body)) }
        };
        let spans = dialect.texts(body, content).into_iter();
        spans.filter_map(|span| self.source_text(span, || fingerprint(span))).collect()
    }

    /// The text at a span, known by `fingerprint`; none if the string stands for none.
    fn source_text(&self, span: Span, fingerprint: impl FnOnce() -> Fingerprint) -> Option<SourceText<'a>> {
        let ParsedRequest { body, .. } = self.request;
        let text = OnceCell::new();
        let read = || {
            let read = strings::text(body, span)?;
            Some(text.get_or_init(|| read).as_ref())
        };
        let name = match self.replacements.get(&span.start).and_then(|replacement| replacement.stored) {
            Some(name) => name,
            None => self.payload_name(span, fingerprint(), read)?,
        };
        Some(SourceText { request: self.request, span, name, text })
    }

    /// The name of what a value says, known by `fingerprint`; none if it does not say anything.
    pub(super) fn payload_name<'t>(
        &self,
        value: Span,
        fingerprint: Fingerprint,
        read: impl FnOnce() -> Option<&'t str>,
    ) -> Option<PayloadName> {
        let ParsedRequest { body, .. } = self.request;
        let decoded = || read().map(|text| DecodedValue { text, stored: strings::stored(body, value, text) });
        self.context.keys.name(self.context.caller, fingerprint, decoded)
    }
}
