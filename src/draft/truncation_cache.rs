//! Truncations that are cached: a long result that comes again is neither unescaped nor cut again.
//!
//! A proposed edit follows from the content as it is written, from who sent it, from the tool, the model that counts and
//! the way back. All of these are the key; what else it follows from are settings, which last as long as the memory does.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use bytes::Bytes;
use quick_cache::{Weighter, sync::Cache};

use super::{
    Draft,
    replace::{NotApplicable, ProposedEdit},
    replacement::Replacement,
};
use crate::{
    conversation::UnitIndex,
    payload::{Caller, Fingerprint, PayloadName},
    plan::Sizes,
    span::Span,
};

/// The most bytes of the cached texts: those of a request of 8 MiB with nothing but long results, and
/// some more, as the shares of the memory do not fill alike.
const MAX_BYTES: u64 = 12 << 20;

/// The expected number of entries, which decides into how many shards the cache is split.
const EXPECTED_ENTRIES: usize = 1024;

/// The bytes of an entry beside its texts.
const ENTRY_BYTES: u64 = 256;

/// The cached truncations of one edit. It takes memory as it fills, and evicts the least used entries first.
pub struct TruncationCache {
    known: Cache<Key, Result<Arc<CachedEdit>, NotApplicable>, Weight>,
    hasher: RandomState,
}

/// Who sent it, what was sent, and what else it follows from. Whatever hashes do, no caller is ever given what came of a
/// text of another one.
type Key = (Caller, Fingerprint, u64);

/// A proposed edit with spans that are relative to the content, so that it holds wherever the content stands.
#[derive(Debug)]
struct CachedEdit {
    replacements: Vec<CachedReplacement>,
    bytes: Sizes,
}

#[derive(Debug)]
struct CachedReplacement {
    /// Counted from the beginning of the content.
    span: Span,
    with: Bytes,
    fingerprint: Fingerprint,
    stored: Option<PayloadName>,
}

#[derive(Clone, Debug)]
struct Weight;

impl Default for TruncationCache {
    fn default() -> Self {
        Self { known: Cache::with_weighter(EXPECTED_ENTRIES, MAX_BYTES, Weight), hasher: RandomState::new() }
    }
}

impl fmt::Debug for TruncationCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TruncationCache").field("n", &self.known.len()).finish_non_exhaustive()
    }
}

impl Weighter<Key, Result<Arc<CachedEdit>, NotApplicable>> for Weight {
    fn weight(&self, _: &Key, proposed: &Result<Arc<CachedEdit>, NotApplicable>) -> u64 {
        let replacements = proposed.as_ref().map_or(&[][..], |known| &known.replacements);
        ENTRY_BYTES + replacements.iter().map(|replacement| replacement.with.len() as u64).sum::<u64>()
    }
}

impl Draft<'_> {
    /// The edit that `proposed` returns for a result of `tool`, from the cache if it is there.
    pub fn cached(
        &self,
        truncation_cache: &TruncationCache,
        unit: UnitIndex,
        tool: &str,
        proposed: impl FnOnce() -> Result<ProposedEdit, NotApplicable>,
    ) -> Result<ProposedEdit, NotApplicable> {
        let content = self.request.conversation.unit(unit).and_then(|unit| unit.content);
        // Where an earlier edit has written, it is not the content alone that decides.
        let Some(content) = content.filter(|_| !self.has_replacements(unit)) else { return proposed() };
        let rest = truncation_cache.hasher.hash_one((
            tool,
            self.request.conversation.model.as_deref(),
            self.gauge().factor(),
            self.retrieval_method(),
        ));
        let key = (self.context.caller, self.fingerprints(unit).content, rest);
        if let Some(known) = truncation_cache.known.get(&key) {
            return known.map(|known| self.placed_at(&known, unit, content));
        }
        let proposed = proposed();
        truncation_cache.known.insert(
            key,
            proposed.as_ref().map(|proposed| Arc::new(CachedEdit::of(proposed, content))).map_err(|why| *why),
        );
        proposed
    }

    fn placed_at(&self, known: &CachedEdit, unit: UnitIndex, content: Span) -> ProposedEdit {
        let replacements = known.replacements.iter().map(|replacement| {
            let span =
                Span { start: content.start + replacement.span.start, end: content.start + replacement.span.end };
            Replacement {
                span,
                with: replacement.with.clone(),
                fingerprint: replacement.fingerprint,
                stored: replacement.stored,
                source: span,
                change: None,
            }
        });
        let call = self.pairing().answered_block(unit);
        ProposedEdit { unit, call, replacements: replacements.collect(), bytes: known.bytes, why: None }
    }
}

impl CachedEdit {
    fn of(proposed: &ProposedEdit, content: Span) -> Self {
        let replacements = proposed.replacements.iter().map(|replacement| CachedReplacement {
            span: Span { start: replacement.span.start - content.start, end: replacement.span.end - content.start },
            with: replacement.with.clone(),
            fingerprint: replacement.fingerprint,
            stored: replacement.stored,
        });
        Self { replacements: replacements.collect(), bytes: proposed.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Keys;

    #[test]
    fn a_cached_edit_weighs_what_its_texts_take() {
        let replacement = |n: usize| CachedReplacement {
            span: Span::default(),
            with: Bytes::from(vec![b'x'; n]),
            fingerprint: Fingerprint::default(),
            stored: None,
        };
        let weight = |replacements: Vec<CachedReplacement>| {
            let key = (Keys::new([0; 32]).caller(&[]), Fingerprint::default(), 0);
            Weight.weight(&key, &Ok(Arc::new(CachedEdit { replacements, bytes: Sizes::default() })))
        };
        assert_eq!(weight(vec![]), ENTRY_BYTES);
        assert_eq!(weight(vec![replacement(1000), replacement(500)]), ENTRY_BYTES + 1500);
    }
}
