//! What takes the place of a JSON value.

use bytes::Bytes;

use super::ChangeId;
use crate::dialect::strings;
use crate::payload::{Fingerprint, PayloadName};
use crate::span::{Span, Splice};

/// A JSON value of the body that is replaced by another one.
#[derive(Clone, Debug)]
pub(super) struct Replacement {
    pub(super) span: Span,
    /// The JSON value that is there now.
    pub(super) with: NewValue,
    /// The fingerprint of that value.
    pub(super) fingerprint: Fingerprint,
    /// The name of what was there, if that is stored.
    pub(super) stored: Option<PayloadName>,
    /// The stored bytes, as written: the value that is replaced, or base64 in it.
    pub(super) source: Span,
    /// The change that says so; none for one that is proposed only.
    pub(super) change: Option<ChangeId>,
}

/// A value that may have its two ends from the one that it replaces; they stay where they are.
#[derive(Clone, Debug)]
pub(super) struct NewValue {
    /// The length of the beginning, in bytes.
    pub(super) head: usize,
    /// The text between the ends.
    pub(super) words: Bytes,
    /// The length of the end, in bytes.
    pub(super) tail: usize,
}

impl Replacement {
    pub(super) fn new(span: Span, with: NewValue, body: &[u8], stored: Option<PayloadName>) -> Self {
        let fingerprint = Fingerprint::of(&with.joined(span.of(body)));
        Self { span, with, fingerprint, stored, source: span, change: None }
    }

    /// A message that another one represents.
    pub(super) fn whole(span: Span, with: Bytes, change: ChangeId) -> Self {
        let fingerprint = Fingerprint::of(&with);
        Self { span, with: NewValue::whole(with), fingerprint, stored: None, source: span, change: Some(change) }
    }

    pub(super) fn splice(&self) -> Splice {
        let Self { span: Span { start, end }, with: NewValue { head, words, tail }, .. } = self;
        Splice { span: Span { start: start + head, end: end - tail }, with: words.clone() }
    }

    /// Whether the model can read what was there by the handle that is there now.
    pub(super) fn names_stored(&self) -> bool {
        let words = std::str::from_utf8(&self.with.words).unwrap_or_default();
        self.stored.is_some_and(|name| words.contains(&name.key.to_string()))
    }

    /// Returns what the value says that is there now, if that is a string.
    pub(super) fn text(&self, body: &[u8]) -> String {
        let json = self.with.joined(self.span.of(body));
        strings::text(&json, Span { start: 0, end: json.len() }).unwrap_or_default().into_owned()
    }
}

impl NewValue {
    pub(super) fn whole(words: Bytes) -> Self {
        Self { head: 0, words, tail: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.head + self.words.len() + self.tail
    }

    /// All of it, given the value that it replaces.
    fn joined(&self, replaced: &[u8]) -> Bytes {
        let Self { head, words, tail } = self;
        if head + tail == 0 {
            return words.clone();
        }
        let head = replaced.get(..*head).unwrap_or_default();
        let tail = replaced.get(replaced.len().saturating_sub(*tail)..).unwrap_or_default();
        [head, words, tail].concat().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::splice;

    #[test]
    fn a_splice_between_the_ends_makes_the_whole_value() {
        let body: Vec<u8> = (0..20_000_u32).map(|n| b'a' + (n * n % 23) as u8).collect();
        let span = Span { start: 100, end: 19_000 };
        for (head, tail) in [(0, 0), (1, 0), (0, 1), (63, 65), (5000, 4999), (18_000, 900), (18_900, 0)] {
            for words in [&b""[..], b"[cut]"] {
                let with = NewValue { head, words: Bytes::from_static(words), tail };
                let whole = [&body[100..100 + head], words, &body[19_000 - tail..19_000]].concat();
                assert_eq!((with.len(), &with.joined(span.of(&body))[..]), (whole.len(), &whole[..]));
                let replacement = Replacement::new(span, with, &body, None);
                assert_eq!(replacement.fingerprint, Fingerprint::of(&whole));
                let edited = [&body[..100], &whole[..], &body[19_000..]].concat();
                let spliced = splice(&Bytes::from(body.clone()), &[replacement.splice()]).concat();
                assert!(spliced == edited, "{head} and {tail}");
            }
        }
    }
}
