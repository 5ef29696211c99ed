//! Bodies read with `serde_json` over raw values, which the readers of the dialects are compared with.

use std::{borrow::Cow, fmt};

use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::error::Category;
use serde_json::value::RawValue;

use crate::{
    conversation::MAX_ELEMENTS,
    dialect::{ParseError, ParseErrorKind, json::decode, reading::HistoryKeys},
    raw::Fields,
    span::Span,
};

/// What JSON takes for space.
const SPACE: [char; 4] = [' ', '\n', '\r', '\t'];

/// The elements of an array, which are not gathered without end.
struct Elements<'a>(Vec<&'a RawValue>);

impl<'de> Deserialize<'de> for Elements<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Gather;
        impl<'de> Visitor<'de> for Gather {
            type Value = Elements<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an array of at most {MAX_ELEMENTS} elements")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
                let mut elements = Vec::new();
                while let Some(element) = array.next_element()? {
                    if elements.len() == MAX_ELEMENTS {
                        return Err(A::Error::invalid_length(MAX_ELEMENTS + 1, &self));
                    }
                    elements.push(element);
                }
                Ok(Elements(elements))
            }
        }
        deserializer.deserialize_seq(Gather)
    }
}

/// Picks the values of the given keys out of an object. A key that comes twice is an error.
struct Pick<'k, const N: usize>([&'k [u8]; N]);

impl<'de, const N: usize> Visitor<'de> for Pick<'_, N> {
    type Value = [Option<&'de RawValue>; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut found = [None; N];
        while let Some(key) = object.next_key::<String>()? {
            let place = found.iter_mut().zip(self.0).find(|(_, name)| *name == key.as_bytes()).map(|(place, _)| place);
            if place.as_ref().is_some_and(|place| place.is_some()) {
                return Err(A::Error::custom("a key twice"));
            }
            let value = object.next_value()?;
            if let Some(place) = place {
                *place = Some(value);
            }
        }
        Ok(found)
    }
}

/// A body, and the dialect that reads it. Its values are spans into the body.
#[derive(Clone, Copy, Debug)]
pub(in crate::dialect) struct Json<'a> {
    dialect: &'static str,
    body: &'a str,
}

impl<'a> Json<'a> {
    /// A body, if it is UTF-8.
    pub(in crate::dialect) fn of(dialect: &'static str, body: &'a [u8]) -> Result<Self, ParseError> {
        let body = std::str::from_utf8(body).map_err(|invalid| {
            let offset = invalid.valid_up_to();
            ParseError { dialect, offset, kind: ParseErrorKind::NotJson }
        })?;
        Ok(Self { dialect, body })
    }

    /// The value that the body is.
    pub(in crate::dialect) fn whole(&self) -> Span {
        let start = self.body.len() - self.body.trim_start_matches(SPACE).len();
        Span { start, end: self.body.trim_end_matches(SPACE).len().max(start) }
    }

    /// The body.
    pub(in crate::dialect) fn bytes(&self) -> &'a [u8] {
        self.body.as_bytes()
    }

    /// What its keys say of a history that the server has.
    pub(in crate::dialect) fn history_keys(&self) -> HistoryKeys {
        let mut keys = HistoryKeys::default();
        for (key, value) in Fields::of(self.body).iter().flat_map(Fields::iter) {
            keys.note(key.as_bytes(), value.as_bytes());
        }
        keys
    }

    /// Whether a value begins with this byte: an object with `{`, an array with `[`, a string with `"`.
    pub(in crate::dialect) fn begins(&self, value: Span, byte: u8) -> bool {
        value.of(self.bytes()).first() == Some(&byte)
    }

    /// The text of a value that may be a string.
    pub(in crate::dialect) fn text(&self, value: Option<Span>) -> Result<Option<Cow<'a, str>>, ParseError> {
        match value.filter(|value| self.begins(*value, b'"')) {
            Some(value) => {
                let text = decode(value.of(self.bytes()));
                text.map(Some).ok_or_else(|| self.error(value.start, ParseErrorKind::NotJson))
            }
            None => Ok(None),
        }
    }

    /// The elements of an array.
    pub(in crate::dialect) fn array(&self, array: Span) -> Result<Vec<Span>, ParseError> {
        let kind = if self.begins(array, b'[') { ParseErrorKind::TooMany } else { ParseErrorKind::NotAnArray };
        let elements: Result<Elements<'a>, _> = serde_json::from_str(self.part(array));
        let Elements(elements) = elements.map_err(|_| self.error(array.start, kind))?;
        Ok(elements.into_iter().map(|element| self.span(element)).collect())
    }

    /// The values of the given keys of an object: none if a key is absent or its value is null.
    pub(in crate::dialect) fn fields<const N: usize>(
        &self,
        object: Span,
        keys: [&[u8]; N],
    ) -> Result<[Option<Span>; N], ParseError> {
        let mut reader = serde_json::Deserializer::from_str(self.part(object));
        let found = reader.deserialize_map(Pick(keys)).and_then(|found| reader.end().map(|()| found));
        let found = found.map_err(|invalid| match invalid.classify() {
            Category::Data if self.begins(object, b'{') => self.error(object.start, ParseErrorKind::DuplicateKey),
            Category::Data => self.error(object.start, ParseErrorKind::NotAnObject),
            _ => {
                let lines = self.part(object).split_inclusive('\n').take(invalid.line().saturating_sub(1));
                let before = lines.map(str::len).sum::<usize>() + invalid.column().saturating_sub(1);
                self.error(object.start + before, ParseErrorKind::NotJson)
            }
        })?;
        Ok(found.map(|value| value.filter(|value| value.get() != "null").map(|value| self.span(value))))
    }

    pub(in crate::dialect) fn error(&self, offset: usize, kind: ParseErrorKind) -> ParseError {
        ParseError { dialect: self.dialect, offset, kind }
    }

    fn part(&self, value: Span) -> &'a str {
        self.body.get(value.start..value.end).unwrap_or_default()
    }

    /// Where in the body a value is: `serde_json` borrows raw values from it.
    fn span(&self, raw: &RawValue) -> Span {
        let start = raw.get().as_ptr().addr().saturating_sub(self.body.as_ptr().addr());
        Span { start, end: start + raw.get().len() }
    }
}
