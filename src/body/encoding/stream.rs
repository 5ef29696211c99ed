//! Decoders of answers that come in chunks.

use std::io::{self, ErrorKind, Write};
use std::mem;
use std::sync::Arc;

use brotli_decompressor::reader::{Allocator, StandardAlloc};
use brotli_decompressor::writer::DecompressorWriterCustomAlloc;
use bytes::Bytes;
use flate2::write::{MultiGzDecoder, ZlibDecoder};

use super::{BROTLI_BUFFER, BrotliWindow, Budget, ContentCoding, Lease, memory};
use crate::held::Held;

/// Decodes an answer as it comes.
#[derive(derive_more::Debug)]
pub struct StreamDecoder {
    coding: ContentCoding,
    // None where the memory is not leased.
    budget: Option<Budget>,
    // Made at the first chunk, which says how large its window is.
    #[debug(skip)]
    decoder: Option<Box<dyn Write + Send + Sync>>,
    lease: Lease,
    plain: Plain,
}

/// Decoded bytes that are not taken yet.
#[derive(Clone, Debug, Default)]
struct Plain(Arc<Held<Vec<u8>>>);

/// The memory of a decoder of gzip and deflate, in bytes: window, tables and buffer.
const INFLATE: usize = 96 << 10;

/// How many bytes are decoded at a time: they may become a thousand times longer.
const STEP: usize = 1 << 10;

/// The most bytes that these may become: 4 MiB.
const MAX_PLAIN: usize = 4 << 20;

impl StreamDecoder {
    /// A decoder whose memory is leased of a budget, if there is one, while at most a quarter of it is used.
    pub fn new(coding: ContentCoding, budget: Option<Budget>) -> Self {
        Self { coding, budget, decoder: None, lease: Lease::default(), plain: Plain::default() }
    }

    /// Decodes a chunk, and passes on what it holds; `false` if nothing more can be decoded.
    #[must_use]
    pub fn decode(&mut self, chunk: &[u8], mut read: impl FnMut(Bytes)) -> bool {
        chunk.chunks(STEP).all(|piece| {
            let written = self.write(piece);
            read(self.plain.0.with(mem::take).into());
            written.is_ok()
        })
    }

    fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        if self.decoder.is_none() {
            self.decoder = Some(self.begin(piece)?);
        }
        let Some(decoder) = &mut self.decoder else { return Ok(()) };
        decoder.write_all(piece)?;
        decoder.flush()
    }

    /// A decoder for a stream that begins so.
    fn begin(&mut self, piece: &[u8]) -> io::Result<Box<dyn Write + Send + Sync>> {
        let window_log = self.coding.window_log(piece);
        let needed = match self.coding {
            ContentCoding::Gzip | ContentCoding::Deflate => INFLATE,
            ContentCoding::Brotli | ContentCoding::Zstd => memory(window_log),
        };
        if let Some(budget) = &self.budget
            && (budget.used() > budget.limit() / 4 || !budget.extend(&mut self.lease, needed))
        {
            return Err(ErrorKind::OutOfMemory.into());
        }
        let plain = self.plain.clone();
        Ok(match self.coding {
            ContentCoding::Gzip => Box::new(MultiGzDecoder::new(plain)),
            ContentCoding::Deflate => Box::new(ZlibDecoder::new(plain)),
            ContentCoding::Brotli => {
                let memory = StandardAlloc::default;
                let buffer = memory().alloc_cell(BROTLI_BUFFER);
                Box::new(DecompressorWriterCustomAlloc::new(plain, buffer, BrotliWindow, memory(), memory()))
            }
            ContentCoding::Zstd => {
                let mut decoder = zstd::stream::write::Decoder::new(plain)?;
                decoder.window_log_max(window_log)?;
                Box::new(decoder)
            }
        })
    }
}

impl Write for Plain {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.with(|plain| {
            if plain.len() + bytes.len() > MAX_PLAIN {
                return Err(ErrorKind::OutOfMemory.into());
            }
            plain.extend_from_slice(bytes);
            Ok(bytes.len())
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};

    use super::*;

    const EVENT: &[u8] = b"data: {\"usage\":{\"input_tokens\":7}}\n\n";

    /// A stream of two events, and how long it is with the first one alone, after which the encoder was flushed.
    fn encoded<W: Write>(
        mut encoder: W,
        written: impl Fn(&W) -> usize,
        finish: impl Fn(W) -> Vec<u8>,
    ) -> (Vec<u8>, usize) {
        encoder.write_all(EVENT).unwrap();
        encoder.flush().unwrap();
        let first = written(&encoder);
        encoder.write_all(EVENT).unwrap();
        (finish(encoder), first)
    }

    fn samples() -> Vec<(ContentCoding, Vec<u8>, usize)> {
        let level = Compression::default();
        let gzip = encoded(GzEncoder::new(Vec::new(), level), |of| of.get_ref().len(), |of| of.finish().unwrap());
        let zlib = encoded(ZlibEncoder::new(Vec::new(), level), |of| of.get_ref().len(), |of| of.finish().unwrap());
        let zstd = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        let zstd = encoded(zstd, |of| of.get_ref().len(), |of| of.finish().unwrap());
        // As Google's encoder writes it: a block that is stored as it is, and one that refers to it.
        let second = [0x31, 0x02, 0x00, 0x40, 0x02, 0x20, 0x8a, 0x09, 0xcb, 0x07];
        let brotli = [&[0x8b, 0x11, 0x80], EVENT, &second].concat();
        let with = |coding, (bytes, first)| (coding, bytes, first);
        vec![
            with(ContentCoding::Gzip, gzip),
            with(ContentCoding::Deflate, zlib),
            with(ContentCoding::Zstd, zstd),
            with(ContentCoding::Brotli, (brotli, EVENT.len() + 3)),
        ]
    }

    #[test]
    fn a_chunk_holds_all_that_was_flushed_into_it() {
        for (coding, bytes, first) in samples() {
            for n in [1, 7, bytes.len()] {
                let (mut decoder, mut plain) = (StreamDecoder::new(coding, None), Vec::new());
                let (first, rest) = bytes.split_at(first);
                for chunk in first.chunks(n) {
                    assert!(decoder.decode(chunk, |more| plain.extend(more)), "{coding:?}");
                }
                assert_eq!(plain, EVENT, "{coding:?} by {n}");
                for chunk in rest.chunks(n) {
                    assert!(decoder.decode(chunk, |more| plain.extend(more)), "{coding:?}");
                }
                assert_eq!(plain, [EVENT, EVENT].concat(), "{coding:?} by {n}");
            }
        }
    }

    #[test]
    fn what_is_invalid_or_becomes_too_long_ends_it() {
        let zeros = vec![0; 64 << 20];
        let bomb = zstd::encode_all(&zeros[..], 1).unwrap();
        let mut longest = 0;
        let is_sound =
            StreamDecoder::new(ContentCoding::Zstd, None).decode(&bomb, |more| longest = longest.max(more.len()));
        assert!(!is_sound && longest <= MAX_PLAIN && longest > 0, "{longest}");
        for (coding, bytes, _) in samples() {
            let wrong = [&[0xff; 3], &bytes[..]].concat();
            let mut decoder = StreamDecoder::new(coding, None);
            assert!(!decoder.decode(&wrong, |more| assert!(more.is_empty())), "{coding:?}");
        }
    }

    #[test]
    fn its_memory_is_leased_while_a_quarter_of_the_budget_is_used() {
        for (coding, bytes, _) in samples() {
            let of_decoder = match coding {
                ContentCoding::Gzip | ContentCoding::Deflate => INFLATE,
                _ => memory(coding.window_log(&bytes)),
            };
            let five = 5 * of_decoder;
            for (limit, used, suffices) in [
                (of_decoder, 0, true),
                (of_decoder - 1, 0, false),
                (five, of_decoder, true),
                (five, 2 * of_decoder, false),
            ] {
                let budget = Budget::new(limit);
                let others = budget.lease(used).unwrap();
                let mut decoder = StreamDecoder::new(coding, Some(budget.clone()));
                assert_eq!(decoder.decode(&bytes, |_| ()), suffices, "{coding:?}");
                assert_eq!(budget.used(), used + if suffices { of_decoder } else { 0 });
                drop((decoder, others));
                assert_eq!(budget.used(), 0);
            }
        }
    }
}
