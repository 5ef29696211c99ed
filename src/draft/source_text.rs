//! The texts of a result: as the client sent them, as an edit sees them, and as they stand now.

use std::{borrow::Cow, cell::OnceCell};

use super::Draft;
use crate::conversation::{BlockIndex, UnitIndex};
use crate::dialect::media::{self, MediaForm, MediaPart};
use crate::dialect::strings;
use crate::payload::media::{Base64, Media};
use crate::payload::{DecodedValue, Fingerprint, MediaType, PayloadName};
use crate::recall::Via;
use crate::span::Span;

/// One text of a result in the body, or a part of it that is none. A text is unescaped when it is read for the first time.
#[derive(Debug)]
pub(super) struct SourceText<'a> {
    body: &'a [u8],
    /// The bytes that are replaced.
    pub(super) span: Span,
    /// The stored bytes, as written: all of that, or the encoded part of it.
    pub(super) source: Span,
    pub(super) name: PayloadName,
    /// The fingerprint of a part that is not text.
    pub(super) part: Option<Fingerprint>,
    text: OnceCell<Cow<'a, str>>,
}

/// One text of a result as the client sent it, for an edit to look at, or a part that is none.
#[derive(Debug)]
pub struct ResultText<'t, 'd> {
    /// How many bytes it has, as they are read back.
    pub len: usize,
    /// The type that these are read back with; none of a text that is nothing else.
    pub media: Option<MediaType>,
    /// How many texts the result has.
    pub n_texts: usize,
    /// The bytes of all of them.
    pub n_bytes: usize,
    /// The block of the call that the result answers.
    pub(super) call: Option<BlockIndex>,
    pub(super) draft: &'t Draft<'d>,
    pub(super) source: &'t SourceText<'d>,
    /// All texts of the result.
    pub(super) sources: &'t [SourceText<'d>],
    /// Whether it is stored when it is replaced.
    pub(super) is_stored: bool,
    pub(super) retrieval: OnceCell<(String, String)>,
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
    /// Whether the text was unescaped, as one that was not seen before.
    pub(super) fn was_read(&self) -> bool {
        self.text.get().is_some()
    }

    pub(super) fn text(&self) -> &str {
        // It has been read before, so it can be read; a part that is not text has none.
        self.text.get_or_init(|| strings::text(self.body, self.span).unwrap_or_default())
    }

    /// The fingerprint under which its count is cached, and its length; it is not read for these.
    pub(super) fn identity(&self) -> (Fingerprint, usize) {
        let PayloadName { key, len, media, .. } = self.name;
        let is_encoded = Fingerprint::of_numbers(usize::from(media.is_some()), 0);
        (Fingerprint::of(key.as_bytes()).then(is_encoded), len)
    }
}

impl<'t> ResultText<'t, '_> {
    /// Returns what it says. One that was seen before is not unescaped until then.
    pub fn text(&self) -> &str {
        self.source.text()
    }

    /// How many texts of the result there are that `is_counted` holds for, and how many bytes these have. It gets the length
    /// of each, and what reads it.
    pub fn count_texts(&self, is_counted: impl Fn(usize, &dyn Fn() -> &'t str) -> bool) -> (usize, usize) {
        let counted = self.sources.iter().filter(|source| is_counted(source.name.len, &|| source.text()));
        counted.fold((0, 0), |(n, bytes), source| (n + 1, bytes + source.name.len))
    }

    /// The handle and the words that say how to read what it names; both empty for a text that is not stored.
    pub fn retrieval(&self) -> (&str, &str) {
        let PayloadName { key, media, .. } = self.source.name;
        let words = || {
            let by_hash = self.draft.recall.via == Via::Retrieve;
            let handle = if by_hash { key.hash() } else { key.to_string() };
            (handle, self.draft.retrieval_words(key, media.unwrap_or(MediaType::Text)))
        };
        let (handle, how) = self.retrieval.get_or_init(|| self.is_stored.then(words).unwrap_or_default());
        (handle, how)
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
    pub fn result_texts(&self, unit: UnitIndex) -> Vec<Cow<'a, str>> {
        self.text_spans(unit).into_iter().filter_map(|text| strings::text(self.body, text)).collect()
    }

    /// The bytes of the texts of a result as the client wrote them, without the marks for the cache, which move.
    pub fn text_len(&self, unit: UnitIndex) -> usize {
        self.text_spans(unit).into_iter().map(Span::len).sum()
    }

    fn text_spans(&self, unit: UnitIndex) -> Vec<Span> {
        self.unit(unit).map(|unit| self.request().texts(unit)).unwrap_or_default()
    }

    /// The texts of a result as the client sent them, and its parts that are none if `media` says so, in order.
    pub(super) fn source_texts(&self, unit: UnitIndex, media: bool) -> Vec<SourceText<'a>> {
        let Some(content) = self.unit(unit).and_then(|unit| unit.content) else { return Vec::new() };
        let fingerprint = |span: Span| match self.context.strings.fingerprint(span) {
            Some(known) => known,
            None if span == content => self.content_fingerprint(unit),
            None => Fingerprint::of(span.of(self.body)),
        };
        let encoded = |span: Span| {
            let base64 = if media { Base64::of_text(span.of(self.body))? } else { return None };
            let (name, source) = self.encoded_name(span, &base64, fingerprint(span))?;
            Some(SourceText { body: self.body, span, source, name, part: None, text: OnceCell::new() })
        };
        let text = |span| encoded(span).or_else(|| self.source_text(span, || fingerprint(span)));
        let mut texts: Vec<_> = self.dialect.texts(self.body, content).into_iter().filter_map(text).collect();
        if media {
            texts.extend(media::parts(self.body, content).iter().filter_map(|part| self.source_part(part)));
            texts.sort_by_key(|text| text.span.start);
        }
        texts
    }

    /// The payloads of a result and their names in the store: its texts and media; the JSON of its content if it has neither.
    pub(super) fn payloads_of(&self, unit: UnitIndex) -> Vec<(Span, PayloadName)> {
        let texts = self.source_texts(unit, true).into_iter().filter(|text| text.name.len > 0);
        let mut payloads: Vec<_> = texts.map(|text| (text.source, text.name)).collect();
        if payloads.is_empty()
            && let Some(content) = self.unit(unit).and_then(|unit| unit.content)
            && let [b'[' | b'{', ..] = content.of(self.body)
        {
            let text = strings::text_or_json(self.body, content);
            let name = self.payload_name(content, self.content_fingerprint(unit), || text.as_deref());
            payloads.extend(name.map(|name| (content, name)));
        }
        payloads
    }

    /// A part of a content that is not text: what its base64 encodes, or else its data as a text.
    pub(super) fn source_part(&self, part: &MediaPart<'a>) -> Option<SourceText<'a>> {
        let MediaPart { span, data, form } = part;
        let fingerprint = Fingerprint::of(span.of(self.body));
        let base64 = match form {
            MediaForm::Url => Base64::of_url(data.of(self.body)),
            MediaForm::Base64(declared) => Base64::whole(data.of(self.body), declared.as_deref()),
            MediaForm::Text => None,
        };
        let encoded = base64.and_then(|base64| self.encoded_name(*data, &base64, fingerprint));
        let as_text = || Some((self.source_text(*data, || Fingerprint::of(data.of(self.body)))?.name, *data));
        let (name, source) = encoded.or_else(as_text)?;
        let part = Some(fingerprint);
        Some(SourceText { body: self.body, span: *span, source, name, part, text: OnceCell::new() })
    }

    /// The name of what base64 in a string encodes, and where that is; none if it is not exact.
    fn encoded_name(&self, string: Span, base64: &Base64, known_by: Fingerprint) -> Option<(PayloadName, Span)> {
        const DECODED: usize = 1; // the same bytes have another name as a text
        let decoded = OnceCell::new();
        let read = || {
            let media = base64.decode(string.of(self.body))?;
            let Media { media, bytes } = decoded.get_or_init(|| media);
            Some(DecodedValue { len: bytes.len(), stored: bytes, media: Some(*media) })
        };
        let known_by = known_by.then(Fingerprint::of_numbers(DECODED, 0));
        let name = self.context.keys.name(self.context.caller, known_by, read)?;
        let at = |offset: usize| string.start + offset;
        Some((name, Span { start: at(base64.range.start), end: at(base64.range.end) }))
    }

    /// The text at a span, known by `fingerprint`; none if the string encodes none.
    pub(super) fn source_text(&self, span: Span, fingerprint: impl FnOnce() -> Fingerprint) -> Option<SourceText<'a>> {
        let text = OnceCell::new();
        let read = || {
            let read = strings::text(self.body, span)?;
            Some(text.get_or_init(|| read).as_ref())
        };
        let name = match self.replacements.get(&span.start).and_then(|replacement| replacement.stored) {
            Some(name) => name,
            None => self.payload_name(span, fingerprint(), read)?,
        };
        Some(SourceText { body: self.body, span, source: span, name, part: None, text })
    }

    /// The name of what a value says, known by `fingerprint`; none if it does not say anything.
    pub(super) fn payload_name<'t>(
        &self,
        value: Span,
        fingerprint: Fingerprint,
        read: impl FnOnce() -> Option<&'t str>,
    ) -> Option<PayloadName> {
        let decoded = || {
            read().map(|text| DecodedValue {
                len: text.len(),
                stored: strings::stored(self.body, value, text),
                media: None,
            })
        };
        self.context.keys.name(self.context.caller, fingerprint, decoded)
    }
}
