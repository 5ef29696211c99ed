//! Payloads as they lie in the file: long ones compressed, if that makes them smaller.

use bytes::Bytes;

/// Payloads up to this length are not worth the work.
const PACK_FROM: usize = 1024;

/// The quickest level that still makes text three times smaller.
const LEVEL: i32 = 1;

/// The first byte says how the rest is to be read.
const PLAIN: u8 = 0;
const ZSTD: u8 = 1;

/// A payload that is ready to be written.
pub(super) struct Packed {
    head: Vec<u8>,
    body: Bytes,
    /// The length of the payload itself.
    pub(super) plain_len: u64,
}

// === impl Packed ===

impl Packed {
    /// Packs a payload.
    pub(super) fn new(payload: Bytes) -> Self {
        let plain_len = payload.len() as u64;
        if payload.len() > PACK_FROM
            && let Ok(packed) = zstd::bulk::compress(&payload, LEVEL)
            && packed.len() + size_of::<u64>() < payload.len()
        {
            let head = [&[ZSTD][..], &plain_len.to_le_bytes()].concat();
            return Self { head, body: packed.into(), plain_len };
        }
        Self { head: vec![PLAIN], body: payload, plain_len }
    }

    /// How many bytes [`Packed::write`] writes.
    pub(super) fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Writes the packed payload; `to` is as long as [`Packed::len`] says.
    pub(super) fn write(&self, to: &mut [u8]) {
        if let Some((head, body)) = to.split_at_mut_checked(self.head.len()) {
            head.copy_from_slice(&self.head);
            body.copy_from_slice(&self.body);
        }
    }
}

/// The payload that was packed; none if these bytes are no packed payload.
pub(super) fn unpack(stored: &[u8]) -> Option<Bytes> {
    match stored.split_first()? {
        (&PLAIN, payload) => Some(Bytes::copy_from_slice(payload)),
        (&ZSTD, rest) => {
            let (len, packed) = rest.split_first_chunk()?;
            let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
            let payload = zstd::bulk::decompress(packed, len).ok()?;
            (payload.len() == len).then(|| payload.into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(payload: &[u8]) -> Vec<u8> {
        let packed = Packed::new(Bytes::copy_from_slice(payload));
        let mut stored = vec![0; packed.len()];
        packed.write(&mut stored);
        assert_eq!(unpack(&stored).as_deref(), Some(payload));
        stored
    }

    #[test]
    fn long_text_is_compressed_and_short_or_dense_bytes_are_not() {
        assert_eq!(packed(b"").len(), 1);
        assert_eq!(packed(&[b'a'; PACK_FROM]).len(), 1 + PACK_FROM);
        assert!(packed(&[b'a'; PACK_FROM + 1]).len() < 100);
        let mut hash = blake3::Hasher::new().finalize_xof();
        let mut dense = vec![0; 4096];
        hash.fill(&mut dense);
        assert_eq!(packed(&dense).len(), 1 + dense.len());
    }

    #[test]
    fn other_bytes_are_no_payload() {
        let mut stored = packed(&[b'a'; 5000]);
        for wrong in [&b""[..], b"\x02abc", b"\x01abc", &stored[..stored.len() - 1]] {
            assert_eq!(unpack(wrong), None);
        }
        // A length that lies.
        stored[1] ^= 1;
        assert_eq!(unpack(&stored), None);
    }
}
