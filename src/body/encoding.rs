//! `content-encoding` of request bodies: gzip, deflate, br and zstd, decoded within a limit.

use std::io::{self, Read};

use bytes::Bytes;
use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

/// A supported content coding.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ContentCoding {
    /// `gzip`, also by its old name `x-gzip`.
    Gzip,
    /// `deflate`: zlib, as the standard says, or a raw stream, as some clients send.
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
    /// The body is not valid for its header.
    #[error("the request body is not valid for its content-encoding")]
    Broken(#[source] io::Error),
}

/// The largest window a zstd frame may ask for, as a power of two: 128 MiB, what `zstd -d` takes by default.
const ZSTD_WINDOW_LOG: u32 = 27;

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

    fn from_name(name: &[u8]) -> Self {
        let known = [
            (&b"gzip"[..], ContentCoding::Gzip),
            (b"x-gzip", ContentCoding::Gzip),
            (b"deflate", ContentCoding::Deflate),
            (b"br", ContentCoding::Brotli),
            (b"zstd", ContentCoding::Zstd),
        ];
        if name.is_empty() || name.eq_ignore_ascii_case(b"identity") {
            return Self::Identity;
        }
        known
            .into_iter()
            .find(|(known, _)| name.eq_ignore_ascii_case(known))
            .map_or(Self::Unsupported, |(_, encoding)| Self::Supported(encoding))
    }
}

// === impl ContentCoding ===

impl ContentCoding {
    /// Decodes a body to at most `limit` bytes; at most one byte more is ever in memory.
    pub fn decode(self, body: &[u8], limit: usize) -> Result<Bytes, DecodeError> {
        match self {
            Self::Gzip => read_limited(MultiGzDecoder::new(body), limit),
            // A zlib stream has a header with a checksum, a raw stream has none, so zlib is tried first.
            Self::Deflate => read_limited(ZlibDecoder::new(body), limit).or_else(|error| match error {
                DecodeError::Broken(_) => read_limited(DeflateDecoder::new(body), limit),
                too_long @ DecodeError::TooLong { .. } => Err(too_long),
            }),
            Self::Brotli => read_limited(brotli_decompressor::Decompressor::new(body, 16 * 1024), limit),
            Self::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::new(body).map_err(DecodeError::Broken)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG).map_err(DecodeError::Broken)?;
                read_limited(decoder, limit)
            }
        }
    }
}

fn read_limited(reader: impl Read, limit: usize) -> Result<Bytes, DecodeError> {
    let mut decoded = Vec::new();
    let one_more = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    reader.take(one_more).read_to_end(&mut decoded).map_err(DecodeError::Broken)?;
    if decoded.len() > limit {
        return Err(DecodeError::TooLong { limit });
    }
    Ok(decoded.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

    use super::*;

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

    fn raw_deflate(text: &[u8]) -> Vec<u8> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn each_coding_is_decoded() {
        let zstd = zstd::encode_all(TEXT, 1).unwrap();
        for (encoding, body) in [
            (ContentCoding::Gzip, gzip(TEXT)),
            (ContentCoding::Deflate, zlib(TEXT)),
            (ContentCoding::Deflate, raw_deflate(TEXT)),
            (ContentCoding::Zstd, zstd),
        ] {
            assert_eq!(encoding.decode(&body, 1000).unwrap(), TEXT, "{encoding:?}");
        }
    }

    #[test]
    fn a_body_of_the_limit_is_decoded_and_a_longer_one_is_refused() {
        assert!(ContentCoding::Gzip.decode(&gzip(TEXT), TEXT.len()).is_ok());
        let error = ContentCoding::Gzip.decode(&gzip(TEXT), TEXT.len() - 1).unwrap_err();
        assert!(matches!(error, DecodeError::TooLong { .. }), "{error}");
    }

    #[test]
    fn a_decompression_bomb_is_refused_in_each_coding() {
        let zeros = vec![0; 1 << 22];
        let zstd = zstd::encode_all(&zeros[..], 1).unwrap();
        for (encoding, body) in
            [(ContentCoding::Gzip, gzip(&zeros)), (ContentCoding::Deflate, zlib(&zeros)), (ContentCoding::Zstd, zstd)]
        {
            let error = encoding.decode(&body, 1 << 16).unwrap_err();
            assert!(matches!(error, DecodeError::TooLong { limit: 65536 }), "{encoding:?}: {error}");
        }
    }

    #[test]
    fn invalid_and_truncated_bodies_are_broken() {
        let half = gzip(TEXT)[..12].to_vec();
        for encoding in [ContentCoding::Gzip, ContentCoding::Deflate, ContentCoding::Brotli, ContentCoding::Zstd] {
            for body in [&b"not that"[..], &half] {
                let error = encoding.decode(body, 1000).unwrap_err();
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
