//! `content-encoding`: gzip, deflate, br and zstd. Request bodies are decoded within a limit, and answers as they come.

use std::io::{self, ErrorKind, Read};

use brotli_decompressor::reader::{Allocator, DecompressorCustomAlloc, StandardAlloc};
use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};

use super::{Budget, Lease};

mod stream;

pub use stream::StreamDecoder;

/// A supported content coding.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ContentCoding {
    /// `gzip`, also by its old name `x-gzip`.
    Gzip,
    /// `deflate`: zlib, as the standard says.
    Deflate,
    /// `br`.
    Brotli,
    /// `zstd`.
    Zstd,
}

/// The value of a `content-encoding` field.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ContentEncoding {
    /// None.
    Identity,
    /// One supported coding.
    Supported(ContentCoding),
    /// Several codings, or an unknown one.
    Unsupported,
}

/// Why a body was not decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The decoded body exceeds the limit.
    #[error("the request body decodes to more than {limit} bytes")]
    TooLong {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The budget does not have so many bytes, for the decoded body and the decoder itself.
    #[error("the decoded request body has no room in memory")]
    NoBudget {
        /// How many.
        needed: usize,
    },
    /// The body is not valid for its header.
    #[error("the request body is not valid for its content-encoding")]
    Broken(#[source] io::Error),
}

/// The largest window a zstd frame may ask for, as a power of two: 128 MiB, what `zstd -d` takes by default.
const ZSTD_WINDOW_LOG: u32 = 27;

/// The value of `content-type`. Without one, it is that of events: the backend behind `ChatGPT` sends them so
/// (openclaw/openclaw#91662, `KarpelesLab/teamclaude#456`), and what is not an event is not read as one.
pub fn content_type(headers: &HeaderMap) -> &[u8] {
    headers.get(CONTENT_TYPE).map_or(b"text/event-stream", HeaderValue::as_bytes)
}

/// Whether a value of `content-type` is of this type, whatever its parameters.
pub fn is_type(kind: &[u8], name: &str) -> bool {
    kind.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name.as_bytes()))
}

/// Whether the content is of this type.
pub fn is_of_type(headers: &HeaderMap, name: &str) -> bool {
    is_type(content_type(headers), name)
}

// === impl ContentEncoding ===

impl ContentEncoding {
    /// Reads the headers.
    pub fn from_headers(headers: &HeaderMap) -> Self {
        let mut values = headers.get_all(CONTENT_ENCODING).iter();
        match (values.next().map(|value| value.as_bytes().trim_ascii()), values.next()) {
            (None, _) => Self::Identity,
            (Some(name), None) => Self::from_name(name),
            (Some(_), Some(_)) => Self::Unsupported,
        }
    }

    /// The decoder of an answer with this field; `None` if it has none, or one that is not supported. `budget` as in
    /// [`StreamDecoder::new`].
    pub fn decoder(self, budget: Option<&Budget>) -> Option<Box<StreamDecoder>> {
        let Self::Supported(coding) = self else { return None };
        Some(Box::new(StreamDecoder::new(coding, budget.cloned())))
    }

    fn from_name(name: &[u8]) -> Self {
        match name.to_ascii_lowercase().as_slice() {
            b"" | b"identity" => Self::Identity,
            b"gzip" | b"x-gzip" => Self::Supported(ContentCoding::Gzip),
            b"deflate" => Self::Supported(ContentCoding::Deflate),
            b"br" => Self::Supported(ContentCoding::Brotli),
            b"zstd" => Self::Supported(ContentCoding::Zstd),
            _ => Self::Unsupported,
        }
    }
}

// === impl ContentCoding ===

impl ContentCoding {
    /// Decodes a body to at most `limit` bytes. The memory of the decoder and of the decoded bytes is leased before it is
    /// allocated. The lease is attached to the returned bytes.
    pub fn decode(self, body: &[u8], limit: usize, budget: &Budget) -> Result<Bytes, DecodeError> {
        let window_log = self.window_log(body);
        let needed = memory(window_log);
        let _decoder = budget.lease(needed).ok_or(DecodeError::NoBudget { needed })?;
        let read = |reader: &mut dyn Read| read_limited(reader, limit, budget);
        match self {
            Self::Gzip => read(&mut MultiGzDecoder::new(body)),
            Self::Deflate => read(&mut ZlibDecoder::new(body)),
            Self::Brotli => {
                let memory = StandardAlloc::default;
                let buffer = memory().alloc_cell(BROTLI_BUFFER);
                read(&mut DecompressorCustomAlloc::new(body, buffer, BrotliWindow, memory(), memory()))
            }
            Self::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::new(body).map_err(DecodeError::Broken)?;
                decoder.window_log_max(window_log).map_err(DecodeError::Broken)?;
                read(&mut decoder)
            }
        }
    }

    /// The window that a body asks its decoder for, as a power of two.
    fn window_log(self, body: &[u8]) -> u32 {
        match self {
            Self::Gzip | Self::Deflate => 15,
            Self::Brotli => brotli_window_log(body),
            Self::Zstd => zstd_window_log(body),
        }
    }
}

/// The memory of a decoder besides its window, in bytes.
const DECODER: usize = 256 << 10;

/// The memory of a decoder with a window of this size.
fn memory(window_log: u32) -> usize {
    (1 << window_log) + DECODER
}

/// How many bytes of a body the decoder of brotli reads at a time.
const BROTLI_BUFFER: usize = 16 << 10;

/// Allocates the window of brotli: nothing where the system has no memory, which the decoder takes for an error.
/// [`StandardAlloc`] would end the process.
struct BrotliWindow;

impl Allocator<u8> for BrotliWindow {
    type AllocatedMemory = <StandardAlloc as Allocator<u8>>::AllocatedMemory;

    fn alloc_cell(&mut self, len: usize) -> Self::AllocatedMemory {
        let mut window = Vec::new();
        if window.try_reserve_exact(len).is_ok() {
            window.resize(len, 0);
        }
        window.into()
    }

    fn free_cell(&mut self, _window: Self::AllocatedMemory) {}
}

/// RFC 7932, section 9.1: the first bits of a stream say how large its window is.
fn brotli_window_log(body: &[u8]) -> u32 {
    let first = u32::from(body.first().copied().unwrap_or_default());
    match (first & 1, (first >> 1) & 7, (first >> 4) & 7) {
        (0, ..) => 16,
        (_, 0, 0) => 17,
        (_, 0, n) => 8 + n,
        (_, n, _) => 17 + n,
    }
}

/// RFC 8878, section 3.1.1.1: the descriptor of a frame says how large its window is, or that it is all of the content. Later
/// frames must not ask for more.
fn zstd_window_log(body: &[u8]) -> u32 {
    let log = match body {
        [0x28, 0xb5, 0x2f, 0xfd, descriptor, window, ..] if descriptor & 0x20 == 0 => 11 + u32::from(*window >> 3),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let content = zstd::zstd_safe::get_frame_content_size(body).ok().flatten().unwrap_or_default();
            u64::BITS - content.leading_zeros()
        }
        _ => 20,
    };
    log.clamp(10, ZSTD_WINDOW_LOG)
}

/// How many bytes are decoded at a time, before the lease is extended.
const PIECE: usize = 64 << 10;

/// Reads to the end. The room grows by doubling, and is leased with what is copied into it before it is allocated.
fn read_limited(reader: &mut dyn Read, limit: usize, budget: &Budget) -> Result<Bytes, DecodeError> {
    let (mut decoded, mut lease, mut piece) = (Vec::new(), Lease::default(), vec![0; PIECE]);
    loop {
        let n = match reader.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => n,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(DecodeError::Broken(error)),
        };
        if decoded.len() + n > limit {
            return Err(DecodeError::TooLong { limit });
        }
        if decoded.capacity() - decoded.len() < n {
            let room = (2 * decoded.len()).clamp(PIECE, limit.max(PIECE)).max(decoded.len() + n);
            let needed = room + decoded.len();
            let more = room - decoded.len();
            if !budget.extend_to(&mut lease, needed) || decoded.try_reserve_exact(more).is_err() {
                return Err(DecodeError::NoBudget { needed });
            }
            lease.shrink_to(room);
        }
        decoded.extend_from_slice(piece.get(..n).unwrap_or_default());
    }
    // Pages that were never written cost nothing.
    lease.shrink_to(decoded.len());
    Ok(lease.hold(decoded))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};

    use super::*;

    const PLENTY: usize = 1 << 30;

    fn decode(coding: ContentCoding, body: &[u8], limit: usize) -> Result<Bytes, DecodeError> {
        let budget = Budget::new(PLENTY);
        let decoded = coding.decode(body, limit, &budget);
        assert_eq!(budget.used(), decoded.as_ref().map_or(0, Bytes::len));
        decoded
    }

    const TEXT: &[u8] = b"{\"messages\":[]}";

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn zlib(text: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn each_coding_is_decoded() {
        let zstd = zstd::encode_all(TEXT, 1).unwrap();
        for (encoding, body) in
            [(ContentCoding::Gzip, gzip(TEXT)), (ContentCoding::Deflate, zlib(TEXT)), (ContentCoding::Zstd, zstd)]
        {
            assert_eq!(decode(encoding, &body, 1000).unwrap(), TEXT, "{encoding:?}");
        }
    }

    #[test]
    fn a_body_of_the_limit_is_decoded_and_a_longer_one_is_refused() {
        assert!(decode(ContentCoding::Gzip, &gzip(TEXT), TEXT.len()).is_ok());
        let error = decode(ContentCoding::Gzip, &gzip(TEXT), TEXT.len() - 1).unwrap_err();
        assert!(matches!(error, DecodeError::TooLong { .. }), "{error}");
    }

    #[test]
    fn a_decompression_bomb_is_refused_in_each_coding() {
        let zeros = vec![0; 1 << 22];
        let zstd = zstd::encode_all(&zeros[..], 1).unwrap();
        for (encoding, body) in
            [(ContentCoding::Gzip, gzip(&zeros)), (ContentCoding::Deflate, zlib(&zeros)), (ContentCoding::Zstd, zstd)]
        {
            let error = decode(encoding, &body, 1 << 16).unwrap_err();
            assert!(matches!(error, DecodeError::TooLong { limit: 65536 }), "{encoding:?}: {error}");
        }
    }

    #[test]
    fn what_is_decoded_and_the_decoder_are_leased_before_they_are_allocated() {
        let zeros = vec![0; 1 << 22];
        let bodies = [
            (ContentCoding::Gzip, gzip(&zeros)),
            (ContentCoding::Deflate, zlib(&zeros)),
            (ContentCoding::Zstd, zstd::encode_all(&zeros[..], 1).unwrap()),
        ];
        for (coding, body) in bodies {
            let of_decoder = (1 << coding.window_log(&body)) + DECODER;
            let least = 3 * (1 << 22) / 2 + of_decoder;
            assert!(coding.decode(&body, 1 << 22, &Budget::new(2 * (1 << 22) + of_decoder)).is_ok(), "{coding:?}");
            for budget in [of_decoder - 1, of_decoder + (1 << 20), least - (1 << 22)] {
                let budget = Budget::new(budget);
                let refused = coding.decode(&body, 1 << 22, &budget);
                assert!(matches!(refused, Err(DecodeError::NoBudget { .. })), "{coding:?}: {refused:?}");
                assert_eq!(budget.used(), 0);
            }
        }
    }

    #[test]
    fn a_decoder_is_leased_by_the_window_that_a_body_asks_for() {
        let zstd = |log: u32| {
            let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
            encoder.window_log(log).unwrap();
            encoder.write_all(TEXT).unwrap();
            encoder.finish().unwrap()
        };
        for log in [10, 20, 27] {
            assert_eq!(zstd_window_log(&zstd(log)), (log + 1).min(27));
        }
        let whole = |n: usize| zstd_window_log(&zstd::bulk::compress(&vec![7; n], 1).unwrap());
        // The last one is longer than its window.
        assert_eq!([100, 1000, 100_000, 5 << 20].map(whole), [10, 10, 17, 20]);
        let brotli = [&[0x5b_u8][..], &[0x0b], &[0x00], &[0x11], &[]].map(brotli_window_log);
        assert_eq!(brotli, [22, 22, 16, 9, 16]);
    }

    #[test]
    fn a_window_that_the_system_has_no_memory_for_is_empty() {
        use brotli_decompressor::reader::SliceWrapper as _;
        assert_eq!(BrotliWindow.alloc_cell(3).slice(), [0; 3]);
        assert!(BrotliWindow.alloc_cell(usize::MAX >> 1).slice().is_empty());
    }

    #[test]
    fn invalid_and_truncated_bodies_are_broken() {
        let half = gzip(TEXT)[..12].to_vec();
        for encoding in [ContentCoding::Gzip, ContentCoding::Deflate, ContentCoding::Brotli, ContentCoding::Zstd] {
            for body in [&b"not that"[..], &half] {
                let error = decode(encoding, body, 1000).unwrap_err();
                assert!(matches!(error, DecodeError::Broken(_)), "{encoding:?}: {error}");
            }
        }
    }

    #[test]
    fn one_known_coding_is_supported_and_others_are_not() {
        let coding = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(CONTENT_ENCODING, value.parse().unwrap());
            }
            ContentEncoding::from_headers(&headers)
        };
        assert_eq!(coding(&[]), ContentEncoding::Identity);
        assert_eq!(coding(&["identity"]), ContentEncoding::Identity);
        assert_eq!(coding(&["GZip"]), ContentEncoding::Supported(ContentCoding::Gzip));
        assert_eq!(coding(&["gzip, br"]), ContentEncoding::Unsupported);
        assert_eq!(coding(&["gzip", "br"]), ContentEncoding::Unsupported);
        assert_eq!(coding(&["compress"]), ContentEncoding::Unsupported);
    }
}
