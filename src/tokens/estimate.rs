//! Counting without a vocabulary: a quarter of the bytes.

use super::TokenCounter;

/// Four bytes a token: about right for English and for code, too many for the scripts of Asia.
#[derive(Clone, Copy, Debug)]
pub(super) struct Estimate;

impl TokenCounter for Estimate {
    fn count(&self, text: &str) -> usize {
        text.len().div_ceil(4)
    }
}
