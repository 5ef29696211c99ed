//! `content-encoding` of request bodies: gzip, deflate, br and zstd, decoded within a limit.

use std::io::{self, Read};

use bytes::Bytes;
use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

/// A coding that we can undo.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Encoding {
    /// `gzip`, also by its old name `x-gzip`.
    Gzip,
    /// `deflate`: zlib as the standard says, or raw as some clients send.
    Deflate,
    /// `br`.
    Brotli,
    /// `zstd`.
    Zstd,
}

/// How a body is coded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Coding {
    /// Not at all.
    Plain,
    /// By one coding that we know.
    Known(Encoding),
    /// In a way that we do not know: several codings, or another one.
    Unknown,
}

/// Why a body was not decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// It decodes to more than the limit.
    #[error("the request body decodes to more than {limit} bytes")]
    TooLong {
        /// The limit, in bytes.
        limit: usize,
    },
    /// It is not what its header says.
    #[error("the request body is not valid for its content-encoding")]
    Broken(#[source] io::Error),
}

/// The largest window a zstd frame may ask for, as a power of two: 128 MiB, what `zstd -d` takes by default.
const ZSTD_WINDOW_LOG: u32 = 27;

// === impl Coding ===

impl Coding {
    /// What the headers say.
    pub fn of(headers: &HeaderMap) -> Self {
        let mut values = headers.get_all(CONTENT_ENCODING).iter();
        match (values.next().map(|value| value.as_bytes().trim_ascii()), values.next()) {
            (None, _) => Self::Plain,
            (Some(name), None) => Self::named(name),
            (Some(_), Some(_)) => Self::Unknown,
        }
    }

    fn named(name: &[u8]) -> Self {
        let known = [
            (&b"gzip"[..], Encoding::Gzip),
            (b"x-gzip", Encoding::Gzip),
            (b"deflate", Encoding::Deflate),
            (b"br", Encoding::Brotli),
            (b"zstd", Encoding::Zstd),
        ];
        if name.is_empty() || name.eq_ignore_ascii_case(b"identity") {
            return Self::Plain;
        }
        known
            .into_iter()
            .find(|(known, _)| name.eq_ignore_ascii_case(known))
            .map_or(Self::Unknown, |(_, encoding)| Self::Known(encoding))
    }
}

// === impl Encoding ===

impl Encoding {
    /// Decodes a body to at most `limit` bytes; not one more is ever held.
    pub fn decode(self, body: &[u8], limit: usize) -> Result<Bytes, DecodeError> {
        match self {
            Self::Gzip => drain(MultiGzDecoder::new(body), limit),
            // A raw stream cannot be told for sure, a zlib stream has a header with a check: it comes first.
            Self::Deflate => drain(ZlibDecoder::new(body), limit).or_else(|error| match error {
                DecodeError::Broken(_) => drain(DeflateDecoder::new(body), limit),
                too_long @ DecodeError::TooLong { .. } => Err(too_long),
            }),
            Self::Brotli => drain(brotli_decompressor::Decompressor::new(body, 16 * 1024), limit),
            Self::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::new(body).map_err(DecodeError::Broken)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG).map_err(DecodeError::Broken)?;
                drain(decoder, limit)
            }
        }
    }
}

fn drain(reader: impl Read, limit: usize) -> Result<Bytes, DecodeError> {
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
    fn decodes_each_coding() {
        let zstd = zstd::encode_all(TEXT, 1).unwrap();
        for (encoding, body) in [
            (Encoding::Gzip, gzip(TEXT)),
            (Encoding::Deflate, zlib(TEXT)),
            (Encoding::Deflate, raw_deflate(TEXT)),
            (Encoding::Zstd, zstd),
        ] {
            assert_eq!(encoding.decode(&body, 1000).unwrap(), TEXT, "{encoding:?}");
        }
    }

    #[test]
    fn decodes_a_body_of_exactly_the_limit_and_no_longer() {
        assert!(Encoding::Gzip.decode(&gzip(TEXT), TEXT.len()).is_ok());
        let error = Encoding::Gzip.decode(&gzip(TEXT), TEXT.len() - 1).unwrap_err();
        assert!(matches!(error, DecodeError::TooLong { .. }), "{error}");
    }

    #[test]
    fn refuses_a_bomb_in_each_coding() {
        let zeros = vec![0; 1 << 22];
        let zstd = zstd::encode_all(&zeros[..], 1).unwrap();
        for (encoding, body) in
            [(Encoding::Gzip, gzip(&zeros)), (Encoding::Deflate, zlib(&zeros)), (Encoding::Zstd, zstd)]
        {
            let error = encoding.decode(&body, 1 << 16).unwrap_err();
            assert!(matches!(error, DecodeError::TooLong { limit: 65536 }), "{encoding:?}: {error}");
        }
    }

    #[test]
    fn calls_garbage_and_truncated_bodies_broken() {
        let half = gzip(TEXT)[..12].to_vec();
        for encoding in [Encoding::Gzip, Encoding::Deflate, Encoding::Brotli, Encoding::Zstd] {
            for body in [&b"not that"[..], &half] {
                let error = encoding.decode(body, 1000).unwrap_err();
                assert!(matches!(error, DecodeError::Broken(_)), "{encoding:?}: {error}");
            }
        }
    }

    #[test]
    fn reads_the_header() {
        let coding = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(CONTENT_ENCODING, value.parse().unwrap());
            }
            Coding::of(&headers)
        };
        assert_eq!(coding(&[]), Coding::Plain);
        assert_eq!(coding(&["identity"]), Coding::Plain);
        assert_eq!(coding(&["GZip"]), Coding::Known(Encoding::Gzip));
        assert_eq!(coding(&["gzip, br"]), Coding::Unknown);
        assert_eq!(coding(&["gzip", "br"]), Coding::Unknown);
        assert_eq!(coding(&["compress"]), Coding::Unknown);
    }
}
