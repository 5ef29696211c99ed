//! Texts that were taken out of a body, as they were written or as they are stored.

use bytes::Bytes;

use super::PayloadKey;
use super::media::{self, MediaType};
use crate::raw;

/// A text that was taken out of a body, unescaped or decoded only when it is needed: mostly it is stored already.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Payload {
    bytes: Bytes,
    /// As many as `bytes` has; fewer if `bytes` is a JSON string, and this its text, or base64 of so many bytes.
    len: usize,
    media: Option<MediaType>,
}

/// A payload that was taken out and must be stored.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OffloadedPayload {
    /// Its name.
    pub key: PayloadKey,
    /// The text that was taken out, as recall gives it back.
    pub payload: Payload,
    /// Whether an earlier request has likely stored it, as the model has read it.
    pub likely_stored: bool,
}

impl Payload {
    /// The stored form of a JSON value, given as it is written, and the length and the type of that: the value itself if it is
    /// as long; or else, with a type, the bytes that base64 encodes, and without, the text of a string. These are always
    /// shorter.
    pub fn of_value(raw: Bytes, len: usize, media: Option<MediaType>) -> Self {
        Self { bytes: raw, len, media }
    }

    /// Returns what a store has kept.
    pub fn stored(bytes: Bytes, media: Option<MediaType>) -> Self {
        Self { len: bytes.len(), bytes, media }
    }

    /// The payload as recall gives it back.
    pub fn bytes(&self) -> Bytes {
        if self.bytes.len() == self.len {
            return self.bytes.clone();
        }
        // It has been read before, so it can be read.
        if self.media.is_some() {
            return media::decoded(&self.bytes).map_or_else(|| self.bytes.clone(), Bytes::from);
        }
        // An escape is longer than what it encodes, so there is none between the quotes if the lengths are the same.
        if self.bytes.len() == self.len + 2 {
            return self.bytes.slice(1..=self.len); // without a copy
        }
        let text = raw::utf8(&self.bytes).and_then(raw::unescaped);
        text.map_or_else(|| self.bytes.clone(), |text| text.into_owned().into())
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its type; none for a text.
    pub fn media(&self) -> Option<MediaType> {
        self.media
    }

    /// The name of the file that it is exported to has this end.
    pub fn extension(&self) -> &'static str {
        self.media.unwrap_or(MediaType::Text).extension()
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self::stored(bytes, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_what_the_string_says() {
        for text in ["", "a", "é", "a\nb", "\\", "\u{1}😀"] {
            let raw = serde_json::to_string(text).unwrap();
            let payload = Payload::of_value(raw.into(), text.len(), None);
            assert_eq!((payload.bytes(), payload.len()), (Bytes::from_static(text.as_bytes()), text.len()));
        }
        assert_eq!(Payload::from(Bytes::from_static(b"{}")).bytes(), "{}");
        assert!(Payload::of_value(Bytes::from_static(b"\"\""), 0, None).is_empty());
        assert!(!Payload::from(Bytes::from_static(b"{}")).is_empty());
        let half = Bytes::from_static(br#""\ud83d""#);
        assert_eq!(Payload::of_value(half.clone(), half.len(), None).bytes(), half);
    }

    #[test]
    fn a_string_without_escapes_is_not_copied() {
        let raw = Bytes::from_static("\"é, as it is\"".as_bytes());
        let payload = Payload::of_value(raw.clone(), raw.len() - 2, None).bytes();
        assert_eq!(payload.as_ptr_range(), raw[1..raw.len() - 1].as_ptr_range());
    }

    #[test]
    fn a_payload_with_a_type_is_what_the_base64_stands_for() {
        let png = Some(MediaType::Png);
        for (written, bytes) in [("iVBORw==", &b"\x89PNG"[..]), (r"\/\/\/\/", &[0xFF; 3]), ("", b"")] {
            let payload = Payload::of_value(written.into(), bytes.len(), png);
            assert_eq!((payload.bytes().as_ref(), payload.len(), payload.media()), (bytes, bytes.len(), png));
            assert_eq!(Payload::stored(payload.bytes(), png).bytes(), bytes);
        }
        assert_eq!(
            (Payload::of_value(Bytes::new(), 0, png).extension(), Payload::from(Bytes::new()).extension()),
            ("png", "txt")
        );
    }
}
