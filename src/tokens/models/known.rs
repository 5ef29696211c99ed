//! Well-known models, as they were documented by their makers on 2026-11-21.
//!
//! A window is here only if it is the same wherever the model is offered under that name; where makers write "128K" and
//! it is not known which thousand they mean, it is the smaller one. Names that move from model to model are not here.

use std::borrow::Cow;

use crate::tokens::tiktoken::Encoding::{self, Cl100kBase, O200kBase, O200kHarmony, P50kBase, R50kBase};

/// A line of the table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Known {
    /// A bare name, or the beginning of one and `*`.
    pattern: &'static str,
    pub(super) window: Option<usize>,
    pub(super) encoding: Option<Encoding>,
}

/// The first line that fits is the one that counts.
const TABLE: [Known; 3] =
    [known("gpt-4o*", 128_000, O200kBase), known("gpt-4*", 8_192, Cl100kBase), window("gpt-4*", 8_192)];

const fn known(pattern: &'static str, window: usize, encoding: Encoding) -> Known {
    Known { pattern, window: Some(window), encoding: Some(encoding) }
}

const fn window(pattern: &'static str, window: usize) -> Known {
    Known { pattern, window: Some(window), encoding: None }
}

const fn encoding(pattern: &'static str, encoding: Encoding) -> Known {
    Known { pattern, window: None, encoding: Some(encoding) }
}

/// What is known of a model, given its [`bare`] name.
pub(super) fn find(bare: &str) -> Option<&'static Known> {
    TABLE.iter().find(|known| match known.pattern.strip_suffix('*') {
        Some(beginning) => bare.starts_with(beginning),
        None => bare == known.pattern,
    })
}

/// The name without what gateways and releases put around it: in lower case, without the provider before it, the variant
/// behind a colon, the date at its end. `openai/gpt-4o-2024-08-06:extended` is `gpt-4o`.
pub(super) fn bare(name: &str) -> Cow<'_, str> {
    let name = name.strip_prefix("ft:").unwrap_or(name);
    let name = name.rsplit('/').next().unwrap_or(name);
    let name = name.split([':', '@']).next().unwrap_or(name);
    let name = name.strip_suffix("-latest").unwrap_or(name);
    let name = without_date(name);
    if name.bytes().any(|byte| byte.is_ascii_uppercase()) { name.to_ascii_lowercase().into() } else { name.into() }
}

/// Without `-2024-08-06` or `-20240806` at the end.
fn without_date(name: &str) -> &str {
    let is_date = |end: &str| {
        end.bytes().enumerate().all(|(n, byte)| match (end.len(), n) {
            (_, 0) | (11, 5 | 8) => byte == b'-',
            _ => byte.is_ascii_digit(),
        })
    };
    [11, 9]
        .into_iter()
        .filter_map(|length| name.split_at_checked(name.len().checked_sub(length)?))
        .find_map(|(name, end)| is_date(end).then_some(name))
        .unwrap_or(name)
}
