//! The vocabularies of OpenAI's encodings, compiled in.
//!
//! tiktoken-rs brings them as lists in base64, seven megabytes of them; here the same tokens lie in less than a quarter of
//! that. A file in `assets/` is, compressed with zstd: how many ranks there are, in four bytes, the lowest first; for each
//! rank how long its token is, in one byte, nought where no token has that rank; then the tokens, one behind the other.
//! `scripts/pack_vocabularies.py` writes them, and a test holds them to the lists of tiktoken-rs.

use std::sync::LazyLock;

use rustc_hash::FxHashMap;
use tiktoken_rs::{CoreBPE, O200K_BASE_PAT_STR};

/// How GPT-4 and GPT-3.5 part a text before they look for tokens.
const CL100K: &str = "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s";
/// How all before them do.
const R50K: &str = "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++|\\s++$|\\s+(?!\\S)|\\s";

/// Each is built once in the process, when it is first needed.
pub(super) static O200K_BASE: LazyLock<CoreBPE> =
    LazyLock::new(|| built(include_bytes!("../../assets/o200k_base.zst"), O200K_BASE_PAT_STR));
pub(super) static CL100K_BASE: LazyLock<CoreBPE> =
    LazyLock::new(|| built(include_bytes!("../../assets/cl100k_base.zst"), CL100K));
pub(super) static P50K_BASE: LazyLock<CoreBPE> =
    LazyLock::new(|| built(include_bytes!("../../assets/p50k_base.zst"), R50K));
pub(super) static R50K_BASE: LazyLock<CoreBPE> =
    LazyLock::new(|| built(include_bytes!("../../assets/r50k_base.zst"), R50K));

#[expect(clippy::expect_used, reason = "what is compiled in is what the tests have read")]
fn built(packed: &[u8], pattern: &str) -> CoreBPE {
    let tokens = tokens(packed).expect("a vocabulary that can be read");
    CoreBPE::new(tokens, FxHashMap::default(), pattern).expect("a pattern that can be read")
}

/// The tokens with their ranks; none if that is no vocabulary.
fn tokens(packed: &[u8]) -> Option<FxHashMap<Vec<u8>, u32>> {
    let unpacked = zstd::decode_all(packed).ok()?;
    let (n_ranks, rest) = unpacked.split_first_chunk()?;
    let (lengths, mut rest) = rest.split_at_checked(u32::from_le_bytes(*n_ranks) as usize)?;
    let mut tokens = FxHashMap::default();
    tokens.reserve(lengths.len());
    for (rank, &length) in (0..).zip(lengths).filter(|(_, length)| **length > 0) {
        let (token, behind) = rest.split_at_checked(length.into())?;
        tokens.insert(token.to_vec(), rank);
        rest = behind;
    }
    Some(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Named = (&'static str, &'static [u8], &'static LazyLock<CoreBPE>, &'static CoreBPE);

    fn all() -> [Named; 4] {
        let files: [(_, &[u8]); 4] = [
            ("o200k_base", include_bytes!("../../assets/o200k_base.zst")),
            ("cl100k_base", include_bytes!("../../assets/cl100k_base.zst")),
            ("p50k_base", include_bytes!("../../assets/p50k_base.zst")),
            ("r50k_base", include_bytes!("../../assets/r50k_base.zst")),
        ];
        let ours = [&O200K_BASE, &CL100K_BASE, &P50K_BASE, &R50K_BASE];
        let theirs = [
            tiktoken_rs::o200k_base_singleton(),
            tiktoken_rs::cl100k_base_singleton(),
            tiktoken_rs::p50k_base_singleton(),
            tiktoken_rs::r50k_base_singleton(),
        ];
        let [a, b, c, d] = files;
        let with = |(name, packed): (_, _), n: usize| (name, packed, ours[n], theirs[n]);
        [with(a, 0), with(b, 1), with(c, 2), with(d, 3)]
    }

    /// The tokens of tiktoken-rs in the order of their ranks; its control tokens, which stand behind them, are none.
    fn list(vocabulary: &CoreBPE) -> Vec<Vec<u8>> {
        let special = vocabulary.special_tokens();
        let token = |rank| vocabulary.decode_bytes(&[rank]).unwrap_or_default();
        let is_special = |token: &[u8]| std::str::from_utf8(token).is_ok_and(|text| special.contains(text));
        let mut list: Vec<_> =
            (0..201_100).map(token).map(|token| if is_special(&token) { Vec::new() } else { token }).collect();
        while list.pop_if(|token| token.is_empty()).is_some() {}
        list
    }

    #[test]
    fn the_tokens_are_those_of_tiktoken() {
        for (name, packed, _, theirs) in all() {
            let (tokens, list) = (tokens(packed).unwrap(), list(theirs));
            assert_eq!(tokens.len(), list.iter().filter(|token| !token.is_empty()).count(), "{name}");
            for (rank, token) in (0..).zip(&list).filter(|(_, token)| !token.is_empty()) {
                assert_eq!(tokens.get(token), Some(&rank), "{name}");
            }
        }
    }

    #[test]
    fn texts_are_parted_as_tiktoken_parts_them() {
        let text = "I'LL say: it's 12345 o'clock -- naïve\u{a0}世界!\r\n\r\n  let x=[1,\t2];   \n\n\u{1f600}/end  ";
        for (name, _, ours, theirs) in all() {
            assert_eq!(ours.encode_ordinary(text), theirs.encode_ordinary(text), "{name}");
            let code = include_str!("vocabulary.rs");
            assert_eq!(ours.encode_ordinary(code), theirs.encode_ordinary(code), "{name}");
        }
    }
}
