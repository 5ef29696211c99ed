//! The encoding of payloads and summaries in the file: long ones are compressed if that makes them smaller.

use bytes::Bytes;

/// Payloads up to this length are not compressed.
const COMPRESS_FROM: usize = 1024;

/// The fastest level, which makes text about three times smaller.
const LEVEL: i32 = 1;

/// The first byte of a stored value is its encoding.
const PLAIN: u8 = 0;
const ZSTD: u8 = 1;

/// A payload or summary in the form that is written.
pub(super) struct Encoded {
    head: Vec<u8>,
    body: Bytes,
    /// The length before encoding.
    pub(super) plain_len: u64,
}

// === impl Encoded ===

impl Encoded {
    /// Encodes a payload.
    pub(super) fn new(payload: Bytes) -> Self {
        let plain_len = payload.len() as u64;
        if payload.len() > COMPRESS_FROM
            && let Ok(encoded) = zstd::bulk::compress(&payload, LEVEL)
            && encoded.len() + size_of::<u64>() < payload.len()
        {
            let head = [&[ZSTD][..], &plain_len.to_le_bytes()].concat();
            return Self { head, body: encoded.into(), plain_len };
        }
        Self { head: vec![PLAIN], body: payload, plain_len }
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
pub(super) fn decode(stored: &[u8]) -> Option<Bytes> {
    match stored.split_first()? {
        (&PLAIN, payload) => Some(Bytes::copy_from_slice(payload)),
        (&ZSTD, rest) => {
            let (len, encoded) = rest.split_first_chunk()?;
            let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
            let payload = zstd::bulk::decompress(encoded, len).ok()?;
            (payload.len() == len).then(|| payload.into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(payload: &[u8]) -> Vec<u8> {
        let encoded = Encoded::new(Bytes::copy_from_slice(payload));
        let mut stored = vec![0; encoded.len()];
        encoded.write(&mut stored);
        assert_eq!(decode(&stored).as_deref(), Some(payload));
        stored
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
    fn invalid_bytes_do_not_decode() {
        let mut stored = encoded(&[b'a'; 5000]);
        for wrong in [&b""[..], b"\x02abc", b"\x01abc", &stored[..stored.len() - 1]] {
            assert_eq!(decode(wrong), None);
        }
        // A wrong length.
        stored[1] ^= 1;
        assert_eq!(decode(&stored), None);
    }
}
