//! What takes the place of a JSON value.

use bytes::Bytes;

use super::ChangeId;
use crate::{
    dialect::strings,
    payload::{Fingerprint, PayloadName},
    span::{Span, Splice},
};

/// A JSON value of the body that is replaced by another one.
#[derive(Clone, Debug)]
pub(super) struct Replacement {
    pub(super) span: Span,
    /// The JSON value that stands there now.
    pub(super) with: NewValue,
    /// The fingerprint of that value.
    pub(super) fingerprint: Fingerprint,
    /// The name of what stood there, if that is stored.
    pub(super) stored: Option<PayloadName>,
    /// What is stored, as it is written: the value that is replaced, or base64 in it.
    pub(super) source: Span,
    /// The change that says so; none for one that is proposed only.
    pub(super) change: Option<ChangeId>,
}

/// A value that may have its two ends from the one that it replaces; they stay where they are.
#[derive(Clone, Debug)]
pub(super) struct NewValue {
    /// The length of the beginning, in bytes.
    pub(super) head: usize,
    /// What is put between the ends.
    pub(super) words: Bytes,
    /// The length of the end, in bytes.
    pub(super) tail: usize,
}

/// Two values are compared so many bytes at a time, and less than that of what they have in common is kept apart.
const BLOCK: usize = 64;

impl Replacement {
    pub(super) fn new(span: Span, with: Bytes, stored: Option<PayloadName>) -> Self {
        Self {
            span,
            fingerprint: Fingerprint::of(&with),
            with: NewValue::whole(with),
            stored,
            source: span,
            change: None,
        }
    }

    /// A message that another one stands for.
    pub(super) fn whole(span: Span, with: Bytes, change: ChangeId) -> Self {
        Self { change: Some(change), ..Self::new(span, with, None) }
    }

    pub(super) fn splice(&self) -> Splice {
        let Self { span: Span { start, end }, with: NewValue { head, words, tail }, .. } = self;
        Splice { span: Span { start: start + head, end: end - tail }, with: words.clone() }
    }

    /// What the value says that stands there now, if that is a string.
    pub(super) fn text(&self, body: &[u8]) -> String {
        let json = self.with.joined(self.span.of(body));
        strings::text(&json, Span { start: 0, end: json.len() }).unwrap_or_default().into_owned()
    }
}

impl NewValue {
    fn whole(words: Bytes) -> Self {
        Self { head: 0, words, tail: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.head + self.words.len() + self.tail
    }

    /// The same without the ends that it has in common with the value that it replaces.
    pub(super) fn without_ends(&self, replaced: &[u8]) -> Self {
        let with = self.joined(replaced);
        let head = common(with.chunks(BLOCK), replaced.chunks(BLOCK));
        let rest = with.get(head..).unwrap_or_default();
        let behind = replaced.get(head..).unwrap_or_default();
        let tail = common(rest.rchunks(BLOCK), behind.rchunks(BLOCK));
        if head + tail == 0 {
            return Self::whole(with);
        }
        Self { head, words: Bytes::copy_from_slice(rest.get(..rest.len() - tail).unwrap_or_default()), tail }
    }

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

/// The bytes of the first blocks, as far as both have the same ones.
fn common<'a>(one: impl Iterator<Item = &'a [u8]>, other: impl Iterator<Item = &'a [u8]>) -> usize {
    one.zip(other).take_while(|(one, other)| one == other).map(|(block, _)| block.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_value_only_what_is_not_in_the_replaced_one_is_kept() {
        let replaced: Vec<u8> = (0..20_000_u32).map(|n| b'a' + (n * n % 23) as u8).collect();
        for (head, tail) in [(0, 0), (1, 0), (0, 1), (63, 65), (64, 64), (5000, 4999), (12_000, 8000), (20_000, 0)] {
            let (first, last) = (&replaced[..head], &replaced[20_000 - tail..]);
            for words in [&b""[..], b"[cut]"] {
                let with = [first, words, last].concat();
                let known = NewValue::whole(with.clone().into()).without_ends(&replaced);
                assert_eq!(known.joined(&replaced), with, "{head} and {tail}");
                assert!(known.words.len() <= words.len() + 2 * BLOCK, "{head} and {tail}: {}", known.words.len());
            }
        }
        // Nothing in common, and all.
        assert_eq!(
            NewValue::whole(Bytes::from_static(b"\"other\"")).without_ends(&replaced).joined(&replaced),
            &b"\"other\""[..]
        );
        assert_eq!(NewValue::whole(replaced.clone().into()).without_ends(&replaced).words.len(), 0);
        assert_eq!(NewValue::whole(Bytes::new()).without_ends(b"").joined(b""), &b""[..]);
    }
}
