//! JSON read with `serde_json` over raw values: slower than the cursor, it takes escaped keys and any depth, and says why
//! it refuses the rest.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, SeqAccess, Visitor},
};
use serde_json::{error::Category, value::RawValue};

use super::{ParseError, ParseErrorKind, history_keys::HistoryKeys, json::decode};
use crate::{conversation::MAX_ELEMENTS, span::Span};

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

/// A body, and the dialect that reads it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Json<'a> {
    dialect: &'static str,
    body: &'a str,
}

impl<'a> Json<'a> {
    /// A body, if it is UTF-8.
    pub(super) fn of(dialect: &'static str, body: &'a [u8]) -> Result<Self, ParseError> {
        let not_json = |offset| ParseError { dialect, offset, kind: ParseErrorKind::NotJson };
        let body = std::str::from_utf8(body).map_err(|invalid| not_json(invalid.valid_up_to()))?;
        Ok(Self { dialect, body })
    }

    /// The object that the body is.
    pub(super) fn whole<T: Deserialize<'a>>(&self) -> Result<T, ParseError> {
        self.object(self.body.trim_matches([' ', '\n', '\r', '\t']))
    }

    /// The body.
    pub(super) fn bytes(&self) -> &'a [u8] {
        self.body.as_bytes()
    }

    /// What its keys say of a history that the server has.
    pub(super) fn history_keys(&self) -> HistoryKeys {
        HistoryKeys::of(self.body)
    }

    /// The text of a value that may be a string.
    pub(super) fn text(&self, value: Option<&'a RawValue>) -> Result<Option<Cow<'a, str>>, ParseError> {
        match value.map(RawValue::get).filter(|raw| raw.starts_with('"')) {
            Some(raw) => match decode(raw.as_bytes()) {
                Some(text) => Ok(Some(text)),
                None => Err(self.refuse(raw, ParseErrorKind::NotJson)),
            },
            None => Ok(None),
        }
    }

    pub(super) fn array(&self, raw: &'a RawValue) -> Result<Vec<&'a RawValue>, ParseError> {
        let kind = if raw.get().starts_with('[') { ParseErrorKind::TooMany } else { ParseErrorKind::NotAnArray };
        let elements: Result<Elements<'a>, _> = serde_json::from_str(raw.get());
        elements.map(|Elements(elements)| elements).map_err(|_| self.refuse(raw.get(), kind))
    }

    /// An object of ours. An array is sorted out first, because `serde` would take it for a struct as well.
    pub(super) fn object<T: Deserialize<'a>>(&self, raw: &'a str) -> Result<T, ParseError> {
        if raw.starts_with('[') {
            return Err(self.refuse(raw, ParseErrorKind::NotAnObject));
        }
        serde_json::from_str(raw).map_err(|invalid| match invalid.classify() {
            Category::Data if raw.starts_with('{') => self.refuse(raw, ParseErrorKind::DuplicateKey),
            Category::Data => self.refuse(raw, ParseErrorKind::NotAnObject),
            _ => {
                let lines: usize = raw.split_inclusive('\n').take(invalid.line().saturating_sub(1)).map(str::len).sum();
                self.error(self.offset(raw) + lines + invalid.column().saturating_sub(1), ParseErrorKind::NotJson)
            }
        })
    }

    pub(super) fn refuse(&self, part: &str, kind: ParseErrorKind) -> ParseError {
        self.error(self.offset(part), kind)
    }

    pub(super) fn span(&self, raw: &RawValue) -> Span {
        let start = self.offset(raw.get());
        Span { start, end: start + raw.get().len() }
    }

    /// Where in the body `part` lies: `serde_json` borrows raw values from it.
    fn offset(&self, part: &str) -> usize {
        part.as_ptr().addr().saturating_sub(self.body.as_ptr().addr())
    }

    fn error(&self, offset: usize, kind: ParseErrorKind) -> ParseError {
        ParseError { dialect: self.dialect, offset, kind }
    }
}
