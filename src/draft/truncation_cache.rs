//! Truncations that are cached: a long result that comes again is neither unescaped nor cut again.
//!
//! A proposed edit follows from the content as it is written, from who sent it, from the tool, what may stay of it, the
//! model that counts and the way back. All of this is the key; what else it follows from are settings, which last as long as the memory does.

use std::{
    hash::{BuildHasher, Hash, RandomState},
    sync::Arc,
};

use quick_cache::{Weighter, sync::Cache};

use super::{
    Draft,
    replace::{NotApplicable, ProposedEdit},
    replacement::{NewValue, Replacement},
};
use crate::{
    conversation::UnitIndex,
    payload::{Caller, Fingerprint, PayloadName},
    plan::Sizes,
    span::Span,
};

/// The most bytes of all entries: those of two requests of 8 MiB with nothing but results of 10 KB.
const MAX_BYTES: u64 = 1 << 20;

/// The expected number of entries, which decides into how many shards the cache is split.
const EXPECTED_ENTRIES: usize = 1024;

/// The bytes of an entry beside its words, with its share of the tables around it.
const ENTRY_BYTES: u64 = 512;

/// The cached truncations of one edit. It takes memory as it fills, and evicts the least used entries first.
#[derive(Debug)]
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
    with: NewValue,
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

impl Weighter<Key, Result<Arc<CachedEdit>, NotApplicable>> for Weight {
    fn weight(&self, _: &Key, proposed: &Result<Arc<CachedEdit>, NotApplicable>) -> u64 {
        let replacements = proposed.as_ref().map_or(&[][..], |known| &known.replacements);
        let words =
            replacements.iter().map(|replacement| replacement.with.words.len() + size_of::<CachedReplacement>());
        ENTRY_BYTES + words.sum::<usize>() as u64
    }
}

impl Draft<'_> {
    /// The edit that `proposed` returns for a result of `tool` that follows from `most` too, which says what may stay of it, from the cache if it is there.
    pub fn cached(
        &self,
        truncation_cache: &TruncationCache,
        unit: UnitIndex,
        tool: &str,
        most: impl Hash,
        proposed: impl FnOnce() -> Result<ProposedEdit, NotApplicable>,
    ) -> Result<ProposedEdit, NotApplicable> {
        let content = self.request.conversation.unit(unit).and_then(|unit| unit.content);
        // Where an earlier edit has written, it is not the content alone that decides.
        let Some(content) = content.filter(|_| !self.has_replacements(unit)) else { return proposed() };
        let rest = truncation_cache.hasher.hash_one((
            tool,
            most,
            self.request.conversation.model.as_deref(),
            self.gauge().factor(),
            self.retrieval_method(),
            self.lacks_way(),
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
    fn a_cached_edit_weighs_what_it_takes() {
        let replacement = |n: usize| CachedReplacement {
            span: Span::default(),
            with: NewValue { head: 5000, words: vec![b'x'; n].into(), tail: 5000 },
            fingerprint: Fingerprint::default(),
            stored: None,
        };
        let weight = |replacements: Vec<CachedReplacement>| {
            let key = (Keys::new([0; 32]).caller(&[]), Fingerprint::default(), 0);
            Weight.weight(&key, &Ok(Arc::new(CachedEdit { replacements, bytes: Sizes::default() })))
        };
        let each = size_of::<CachedReplacement>() as u64;
        assert_eq!(weight(vec![]), ENTRY_BYTES);
        assert_eq!(weight(vec![replacement(1000), replacement(500)]), ENTRY_BYTES + 2 * each + 1500);
    }

    #[test]
    fn all_entries_together_take_no_more_than_they_may() {
        let truncation_cache = TruncationCache::default();
        let n_known = || truncation_cache.known.len() as u64;
        for n in 0..10_000_u64 {
            let with = NewValue { head: 5000, words: vec![b'x'; 250].into(), tail: 5000 };
            let replacement =
                CachedReplacement { span: Span::default(), with, fingerprint: Fingerprint::default(), stored: None };
            let edit = CachedEdit { replacements: vec![replacement], bytes: Sizes::default() };
            let caller = Keys::new([0; 32]).caller(&[]);
            truncation_cache.known.insert((caller, Fingerprint::of(&n.to_le_bytes()), 0), Ok(Arc::new(edit)));
            assert!(truncation_cache.known.weight() <= MAX_BYTES, "{n}");
        }
        // Those of a request of 8 MiB with nothing but results of 10 KB are there.
        assert!(n_known() > 839, "{}", n_known());
        // Where the tables stand that they are in, each takes less than it weighs.
        let tables = truncation_cache.known.memory_used();
        let each = (tables.entries + tables.map) as u64 / n_known() + size_of::<CachedEdit>() as u64;
        assert!(each <= ENTRY_BYTES, "{each}");
    }
}
