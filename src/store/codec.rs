//! The encoding of payloads and summaries in the file: long ones are compressed if that makes them smaller.

use bytes::Bytes;
use tokio::sync::Mutex;
use zstd::bulk::Compressor;

use crate::payload::{MediaType, Payload};

/// Payloads up to this length are not compressed.
const COMPRESS_FROM: usize = 1024;

/// The fastest level, which makes text about three times smaller.
const LEVEL: i32 = 1;

/// The first byte of a stored value is its encoding. With this bit, a byte with its type is the next one.
const PLAIN: u8 = 0;
const ZSTD: u8 = 1;
const TYPED: u8 = 2;

/// The first byte of a value that is encrypted, which this module does not decode.
pub(super) const SEALED: u8 = 4;

/// A payload or summary in the form that is written.
pub(super) struct Encoded {
    head: Vec<u8>,
    body: Bytes,
    /// The length before encoding.
    pub(super) plain_len: u64,
}

/// The compressor that was used last, for the next encoder: to make one takes longer than to compress a short text.
static SPARE: Mutex<Option<Compressor<'static>>> = Mutex::const_new(None);

/// A compressor that had a longer payload takes more memory, and is not kept.
const KEPT_UP_TO: usize = 64 << 10;

/// Encodes one value after the other in the same memory.
#[derive(Default)]
pub(super) struct Encoder {
    compressor: Option<Compressor<'static>>,
    longest: usize,
}

// === impl Encoder ===

impl Encoder {
    /// Encodes a payload with its type.
    pub(super) fn encode(&mut self, payload: &Payload) -> Encoded {
        let mut encoded = self.encode_bytes(payload.bytes());
        if let (Some(media), Some(encoding)) = (payload.media(), encoded.head.first_mut()) {
            *encoding |= TYPED;
            encoded.head.insert(1, media.code());
        }
        encoded
    }

    /// Encodes bytes that have no type.
    pub(super) fn encode_bytes(&mut self, payload: Bytes) -> Encoded {
        let plain_len = payload.len() as u64;
        let compressed = self.compress(&payload).filter(|body| body.len() + size_of::<u64>() < payload.len());
        match compressed {
            Some(body) => {
                let head = [&[ZSTD][..], &plain_len.to_le_bytes()].concat();
                Encoded { head, body: body.into(), plain_len }
            }
            None => Encoded { head: vec![PLAIN], body: payload, plain_len },
        }
    }

    fn compress(&mut self, payload: &[u8]) -> Option<Vec<u8>> {
        if payload.len() <= COMPRESS_FROM {
            return None;
        }
        if self.compressor.is_none() {
            let spare = SPARE.try_lock().ok().and_then(|mut spare| spare.take());
            self.compressor = spare.or_else(|| Compressor::new(LEVEL).ok());
        }
        self.longest = self.longest.max(payload.len());
        self.compressor.as_mut()?.compress(payload).ok()
    }

    /// Takes the compressor out, if it is to be kept.
    fn take_spare(&mut self) -> Option<Compressor<'static>> {
        self.compressor.take_if(|_| self.longest <= KEPT_UP_TO)
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        if let Some(compressor) = self.take_spare()
            && let Ok(mut spare) = SPARE.try_lock()
        {
            *spare = Some(compressor);
        }
    }
}

// === impl Encoded ===

impl Encoded {
    /// Encodes bytes that have no type.
    pub(super) fn new(payload: Bytes) -> Self {
        Encoder::default().encode_bytes(payload)
    }

    /// How many bytes [`Encoded::write`] writes.
    pub(super) fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Writes the encoded bytes; `to` is as long as [`Encoded::len`] says.
    pub(super) fn write(&self, to: &mut [u8]) {
        if let Some((head, body)) = to.split_at_mut_checked(self.head.len()) {
            head.copy_from_slice(&self.head);
            body.copy_from_slice(&self.body);
        }
    }
}

/// Decodes a stored value; `None` if the bytes are invalid.
pub(super) fn decode(stored: &[u8]) -> Option<Payload> {
    let (encoding, rest) = stored.split_first()?;
    let (media, rest) = if encoding & TYPED == 0 {
        (None, rest)
    } else {
        let (code, rest) = rest.split_first()?;
        (Some(MediaType::from_code(*code)?), rest)
    };
    let bytes = match encoding & !TYPED {
        PLAIN => Bytes::copy_from_slice(rest),
        ZSTD => {
            let (len, encoded) = rest.split_first_chunk()?;
            let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
            zstd::bulk::decompress(encoded, len).ok().filter(|payload| payload.len() == len)?.into()
        }
        _ => return None,
    };
    Some(Payload::stored(bytes, media))
}

/// Whether a later version has written a value in a way that this one does not know.
pub(super) fn is_later(stored: &[u8]) -> bool {
    match stored {
        [] | [PLAIN | ZSTD | SEALED, ..] => false,
        [encoding, code, ..] if *encoding < SEALED => MediaType::from_code(*code).is_none(),
        [encoding, ..] => *encoding > SEALED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(payload: &[u8]) -> Vec<u8> {
        let encoded = Encoded::new(Bytes::copy_from_slice(payload));
        let mut stored = vec![0; encoded.len()];
        encoded.write(&mut stored);
        assert_eq!(decode(&stored), Some(Bytes::copy_from_slice(payload).into()));
        stored
    }

    #[test]
    fn a_payload_keeps_its_type_and_one_without_is_written_as_before() {
        for payload in [&b""[..], b"abc", &[b'a'; 5000]].map(Bytes::from_static) {
            let written = |media| {
                let payload = Payload::stored(payload.clone(), media);
                let encoded = Encoder::default().encode(&payload);
                let mut stored = vec![0; encoded.len()];
                encoded.write(&mut stored);
                assert_eq!(decode(&stored), Some(payload));
                stored
            };
            let (typed, plain) = (written(Some(MediaType::Png)), written(None));
            assert_eq!((typed.len(), plain.as_slice()), (plain.len() + 1, encoded(&payload).as_slice()));
        }
    }

    #[test]
    fn a_compressor_is_kept_unless_it_had_a_long_payload() {
        let mut encoder = Encoder::default();
        let mut encode = |n| {
            let payload = Payload::from(Bytes::from(b"a line of text\n".repeat(n / 15)));
            assert_eq!(encoder.encode(&payload).body, Encoder::default().encode(&payload).body, "{n}");
            encoder.take_spare().is_some()
        };
        assert!(!encode(COMPRESS_FROM), "it needed none");
        assert!(encode(KEPT_UP_TO));
        assert!(!encode(KEPT_UP_TO + 15) && !encode(2 * COMPRESS_FROM), "it stays as large as it became");
    }

    #[test]
    fn long_text_is_compressed_and_short_or_dense_bytes_are_not() {
        assert_eq!(encoded(b"").len(), 1);
        assert_eq!(encoded(&[b'a'; COMPRESS_FROM]).len(), 1 + COMPRESS_FROM);
        assert!(encoded(&[b'a'; COMPRESS_FROM + 1]).len() < 100);
        let mut hash = blake3::Hasher::new().finalize_xof();
        let mut dense = vec![0; 4096];
        hash.fill(&mut dense);
        assert_eq!(encoded(&dense).len(), 1 + dense.len());
    }

    #[test]
    fn what_a_later_version_has_written_is_known_as_such() {
        for later in [&b"\x05"[..], b"\x63x", b"\xFF", b"\x02\xFFx", b"\x03\xFFx"] {
            assert!(is_later(later) && decode(later).is_none(), "{later:?}");
        }
        for other in [&b""[..], b"\0", b"\x01x", b"\x02", b"\x02\0x", b"\x03\0x", b"\x04x"] {
            assert!(!is_later(other), "{other:?}");
        }
    }

    #[test]
    fn invalid_bytes_do_not_decode() {
        let mut stored = encoded(&[b'a'; 5000]);
        for wrong in [&b""[..], b"\x02", b"\x02\x63x", b"\x04abc", b"\x01abc", &stored[..stored.len() - 1]] {
            assert_eq!(decode(wrong), None);
        }
        // A wrong length.
        stored[1] ^= 1;
        assert_eq!(decode(&stored), None);
    }
}
