//! The format of a stored value: a frame with its kind, name, encoding and checksum.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | [`MAGIC`], by which `store salvage` finds frames in a file that cannot be opened |
//! | 4 | kind, encoding, media type, 0 |
//! | 16 | the name under which it is stored |
//! | 8 | its length before encoding |
//! | 8 | the length of its body |
//! | 8 | XXH3 of all other bytes of the frame |
//! | … | the body, compressed if that makes it smaller |
//!
//! The name of a payload is a keyed hash of its content and its caller. A store knows neither the caller nor the key, so
//! it cannot check a payload against its name. XXH3 is checked at the speed of memory, before anything is decompressed.

use std::cell::RefCell;
use std::fmt;

use bytes::Bytes;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};
use zstd::bulk::{Compressor, Decompressor};

use super::shared::NoteKind;
use crate::payload::{ChainKey, MediaType, Payload, PayloadKey};

/// Payloads up to this length are not compressed.
const COMPRESS_FROM: usize = 1024;

/// The fastest level, which makes text about three times smaller.
const LEVEL: i32 = 1;

/// How a frame begins. A byte of it has its highest bit set, so no text has it.
pub(super) const MAGIC: [u8; 4] = *b"\xABabr";

/// The kinds of values.
pub(super) const PAYLOAD: u8 = b'p';
pub(super) const SUMMARY: u8 = b's';
pub(super) const INSPECTED: u8 = b'i';
pub(super) const NOTE: u8 = b'n';

const PLAIN: u8 = 0;
const ZSTD: u8 = 1;

/// The media type of what has none.
const NO_MEDIA: u8 = u8::MAX;

const ID_LEN: usize = 16;
pub(super) const HEAD_LEN: usize = 48;

/// The most bytes that a frame decodes to: the highest `server.max_body`.
const MAX_PLAIN: u64 = 2 << 30;

/// The kind and the identifier of a stored value.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) struct Name {
    pub(super) kind: u8,
    pub(super) id: [u8; ID_LEN],
}

/// Why a frame cannot be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Unreadable {
    /// It is not what was written under its name.
    Damaged,
    /// It is whole, and a later version has encoded it in a way that this one does not know.
    Later,
    /// It was encrypted under another secret.
    Foreign,
}

/// A frame whose checksum is right.
struct Frame<'t> {
    name: Name,
    encoding: u8,
    media: u8,
    plain_len: u64,
    body: &'t [u8],
}

thread_local! {
    /// The compressor of this thread: to make one takes longer than to compress a short text. It grows with the longest text,
    /// so only blocking threads, which end when they are idle, compress long ones.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
}

/// Values of more bytes are encoded on a blocking thread.
pub(super) const LARGE: usize = 64 << 10;

// === impl Name ===

impl Name {
    pub(super) fn of_payload(key: PayloadKey) -> Self {
        Self { kind: PAYLOAD, id: *key.as_bytes() }
    }

    pub(super) fn of_summary(beginning: ChainKey) -> Self {
        Self { kind: SUMMARY, id: *beginning.as_bytes() }
    }

    pub(super) fn of_inspected(id: &str) -> Self {
        Self { kind: INSPECTED, id: hashed(id.as_bytes()) }
    }

    pub(super) fn of_note(kind: NoteKind, key: ChainKey) -> Self {
        Self { kind: NOTE, id: hashed(&kind.name_of(key)) }
    }

    /// Of the secret of a file.
    pub(super) fn of_secret() -> Self {
        Self { kind: b'k', id: [0; ID_LEN] }
    }

    /// The payload of this name, if it is one.
    pub(super) fn payload(self) -> Option<PayloadKey> {
        (self.kind == PAYLOAD).then(|| PayloadKey::from_bytes(self.id))
    }

    /// The beginning of this name, if it is one.
    pub(super) fn summary(self) -> Option<ChainKey> {
        (self.kind == SUMMARY).then(|| ChainKey::from_bytes(self.id))
    }

    /// The name as bytes, which no two names have in common.
    pub(super) fn as_bytes(&self) -> Vec<u8> {
        [&[self.kind][..], &self.id].concat()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            PAYLOAD => return write!(f, "payload {}", PayloadKey::from_bytes(self.id)),
            SUMMARY => "summary",
            INSPECTED => "inspected request",
            NOTE => "note",
            _ => return f.write_str("secret"),
        };
        write!(f, "{what} {:032x}", u128::from_be_bytes(self.id))
    }
}

// === impl Frame ===

impl<'t> Frame<'t> {
    /// Reads the frame at the beginning of `bytes`; `None` if there is none, or if it is damaged.
    fn at_start(bytes: &'t [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_LEN>()?;
        let (checked, stored_checksum) = head.split_last_chunk()?;
        let (kind, fields) = checked.strip_prefix(&MAGIC)?.split_first_chunk::<4>()?;
        let (id, lengths) = fields.split_first_chunk()?;
        let (plain_len, body_len) = lengths.split_first_chunk()?;
        let body_len = usize::try_from(u64::from_le_bytes(body_len.try_into().ok()?)).ok()?;
        let body = rest.get(..body_len)?;
        let [kind, encoding, media, _] = *kind;
        let plain_len = u64::from_le_bytes(*plain_len);
        let is_whole = checksum(checked, body) == u64::from_le_bytes(*stored_checksum);
        is_whole.then_some(Self { name: Name { kind, id: *id }, encoding, media, plain_len, body })
    }

    fn decode(&self) -> Result<Payload, Unreadable> {
        let media = match self.media {
            NO_MEDIA => None,
            code => Some(MediaType::from_code(code).ok_or(Unreadable::Later)?),
        };
        let bytes = match self.encoding {
            PLAIN => Some(Bytes::copy_from_slice(self.body)),
            ZSTD => decompressed(self.body, self.plain_len),
            _ => return Err(Unreadable::Later),
        };
        let bytes = bytes.filter(|bytes| bytes.len() as u64 == self.plain_len).ok_or(Unreadable::Damaged)?;
        Ok(Payload::stored(bytes, media))
    }
}

/// Encodes a payload, or another value, which has no media type, for its name.
pub(super) fn encode(name: &Name, payload: &Payload) -> Vec<u8> {
    let plain = payload.bytes();
    let compressed = compressed(&plain).filter(|body| body.len() < plain.len());
    let (encoding, body) = compressed.as_deref().map_or((PLAIN, &*plain), |body| (ZSTD, body));
    let media = payload.media().map_or(NO_MEDIA, MediaType::code);
    let lengths = [plain.len(), body.len()].map(|len| (len as u64).to_le_bytes()).concat();
    let head = [&MAGIC[..], &[name.kind, encoding, media, 0], &name.id, &lengths].concat();
    [&head[..], &checksum(&head, body).to_le_bytes(), body].concat()
}

/// Decodes what was stored under a name.
pub(super) fn decode(name: &Name, stored: &[u8]) -> Result<Payload, Unreadable> {
    whole(name, stored)?.decode()
}

/// How long what was stored under a name is before encoding. Nothing is decoded.
pub(super) fn check(name: &Name, stored: &[u8]) -> Result<u64, Unreadable> {
    whole(name, stored).map(|frame| frame.plain_len)
}

fn whole<'t>(name: &Name, stored: &'t [u8]) -> Result<Frame<'t>, Unreadable> {
    let frame = Frame::at_start(stored).ok_or(Unreadable::Damaged)?;
    let is_it = frame.name == *name && HEAD_LEN + frame.body.len() == stored.len();
    is_it.then_some(frame).ok_or(Unreadable::Damaged)
}

/// The length of the frame that begins with these bytes, if they are the head of one. Nothing is checked.
pub(super) fn announced(head: &[u8]) -> Option<usize> {
    let lengths = head.strip_prefix(&MAGIC)?.get(28..36)?;
    let body_len = u64::from_le_bytes(lengths.try_into().ok()?);
    (body_len <= MAX_PLAIN).then(|| usize::try_from(body_len).ok()?.checked_add(HEAD_LEN)).flatten()
}

/// The name and the content of a frame that was found without its name.
pub(super) fn decode_found(stored: &[u8]) -> Option<(Name, Payload)> {
    let frame = Frame::at_start(stored)?;
    Some((frame.name, frame.decode().ok()?))
}

/// Compresses what is long enough.
fn compressed(plain: &[u8]) -> Option<Vec<u8>> {
    if plain.len() <= COMPRESS_FROM {
        return None;
    }
    COMPRESSOR.with_borrow_mut(|of_thread| {
        let compressor = of_thread.take().or_else(|| Compressor::new(LEVEL).ok())?;
        of_thread.insert(compressor).compress(plain).ok()
    })
}

/// The length is what a frame says, so it has a bound, and memory that is not there is an error.
fn decompressed(body: &[u8], len: u64) -> Option<Bytes> {
    let len = usize::try_from(len).ok().filter(|_| len <= MAX_PLAIN)?;
    let mut plain = Vec::new();
    plain.try_reserve_exact(len).ok()?;
    Decompressor::new().ok()?.decompress_to_buffer(body, &mut plain).ok()?;
    Some(plain.into())
}

fn checksum(head: &[u8], body: &[u8]) -> u64 {
    xxh3_64_with_seed(body, xxh3_64(head))
}

fn hashed(bytes: &[u8]) -> [u8; ID_LEN] {
    blake3::hash(bytes).as_bytes().first_chunk().copied().unwrap_or_default()
}

/// A frame with this encoding and this length before encoding, whose checksum is right: of a later version, or a forged
/// one.
#[cfg(any(test, feature = "testing"))]
pub(super) fn forged(stored: &[u8], encoding: u8, plain_len: Option<u64>) -> Option<Vec<u8>> {
    let (head, body) = stored.split_first_chunk::<HEAD_LEN>()?;
    let mut head = head.split_last_chunk::<8>()?.0.to_vec();
    *head.get_mut(MAGIC.len() + 1)? = encoding;
    if let Some(len) = plain_len {
        head.get_mut(24..32)?.copy_from_slice(&len.to_le_bytes());
    }
    head.extend(checksum(&head, body).to_le_bytes());
    Some([&head, body].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> Name {
        Name::of_payload(PayloadKey::from_bytes([7; 16]))
    }

    fn encoded(payload: &[u8]) -> Vec<u8> {
        let stored = encode(&name(), &Bytes::copy_from_slice(payload).into());
        assert_eq!(decode(&name(), &stored), Ok(Bytes::copy_from_slice(payload).into()));
        assert_eq!(check(&name(), &stored), Ok(payload.len() as u64));
        stored
    }

    #[test]
    fn a_payload_keeps_its_type() {
        for payload in [&b""[..], b"abc", &[b'a'; 5000]].map(Bytes::from_static) {
            for media in [None, Some(MediaType::Png), Some(MediaType::Bytes)] {
                let payload = Payload::stored(payload.clone(), media);
                let stored = encode(&name(), &payload);
                assert_eq!(decode(&name(), &stored), Ok(payload));
            }
        }
    }

    #[test]
    fn a_compressor_that_was_used_before_makes_the_same_bytes() {
        for n in [LARGE, LARGE + 15, 2 * COMPRESS_FROM, LARGE, 4 * LARGE, 2 * COMPRESS_FROM] {
            let text = b"a line of text\n".repeat(n / 15);
            assert_eq!(encoded(&text)[HEAD_LEN..], Compressor::new(LEVEL).unwrap().compress(&text).unwrap(), "{n}");
            // A long text of a batch leaves its compressor to the next one.
            assert!(COMPRESSOR.with_borrow(Option::is_some), "{n}");
        }
    }

    #[test]
    fn long_text_is_compressed_and_short_or_dense_bytes_are_not() {
        assert_eq!(encoded(b"").len(), HEAD_LEN);
        assert_eq!(encoded(&[b'a'; COMPRESS_FROM]).len(), HEAD_LEN + COMPRESS_FROM);
        assert!(encoded(&[b'a'; COMPRESS_FROM + 1]).len() < HEAD_LEN + 100);
        let mut hash = blake3::Hasher::new().finalize_xof();
        let mut dense = vec![0; 4096];
        hash.fill(&mut dense);
        assert_eq!(encoded(&dense).len(), HEAD_LEN + dense.len());
    }

    #[test]
    fn each_bit_counts_and_so_do_the_name_and_the_length() {
        for payload in [&b"a text"[..], &[b'a'; 5000]] {
            let stored = encoded(payload);
            for bit in 0..stored.len() * 8 {
                let mut wrong = stored.clone();
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(decode(&name(), &wrong), Err(Unreadable::Damaged), "{bit}");
                assert_eq!(check(&name(), &wrong), Err(Unreadable::Damaged), "{bit}");
            }
            for cut in 0..stored.len() {
                assert_eq!(decode(&name(), &stored[..cut]), Err(Unreadable::Damaged), "{cut}");
            }
            assert_eq!(decode(&name(), &[&stored[..], b"x"].concat()), Err(Unreadable::Damaged));
            let other = Name::of_summary(ChainKey::from_bytes([7; 16]));
            assert_eq!(decode(&other, &stored), Err(Unreadable::Damaged));
        }
    }

    #[test]
    fn what_a_later_version_has_written_is_known_as_such() {
        let later = forged(&encoded(&[b'a'; 5000]), 99, None).unwrap();
        assert_eq!(decode(&name(), &later), Err(Unreadable::Later));
        assert_eq!(check(&name(), &later), Ok(5000));
    }

    #[test]
    fn a_length_that_is_a_lie_allocates_nothing() {
        let zeros = encoded(&vec![0; 1 << 20]);
        assert!(zeros.len() < 1000);
        for len in [0, 1, (1 << 20) - 1, (1 << 20) + 1, 1 << 31, (1 << 31) + 1, 1 << 47, u64::MAX] {
            for encoding in [PLAIN, ZSTD] {
                let lie = forged(&zeros, encoding, Some(len)).unwrap();
                assert_eq!(decode(&name(), &lie), Err(Unreadable::Damaged), "{len}");
            }
        }
        let truth = forged(&zeros, ZSTD, None).unwrap();
        assert_eq!((&truth, decode(&name(), &truth).is_ok()), (&zeros, true));
        let plain = forged(&encoded(b"abc"), ZSTD, None).unwrap();
        assert_eq!(decode(&name(), &plain), Err(Unreadable::Damaged));
    }

    #[test]
    fn a_frame_is_found_among_other_bytes() {
        let frame = encoded(&[b'a'; 5000]);
        let bytes = [b"\xABab\xABabr", &frame[..], b"after"].concat();
        let at = memchr::memmem::find(&bytes[7..], &MAGIC).unwrap() + 7;
        assert_eq!(at, 7);
        assert_eq!(announced(&bytes[at..]), Some(frame.len()));
        assert_eq!(decode_found(&bytes[at..]), Some((name(), Bytes::from_static(&[b'a'; 5000]).into())));
        assert_eq!(decode_found(&bytes[3..]), None);
    }
}
