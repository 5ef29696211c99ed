//! Truncations that are cached: a long result that comes again is neither unescaped nor cut again.
//!
//! A proposed edit follows from the content as it is written, from who sent it, from the tool, what may stay of it, the
//! model that counts and the way back. All of this is the key; what else it follows from are settings, which last as long as the memory does.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;

use quick_cache::sync::Cache;
use smart_default::SmartDefault;

use super::Draft;
use super::replace::{NotApplicable, Proposed, ProposedEdit, Replacement};
use crate::conversation::UnitIndex;
use crate::payload::cache::By;
use crate::payload::{Caller, Fingerprint};
use crate::span::{Span, Splice};

/// The most bytes of all entries: those of two requests of 8 MiB with nothing but results of 10 KB.
const MAX_BYTES: u64 = 1 << 20;

/// The expected number of entries, which decides into how many shards the cache is split.
const EXPECTED_ENTRIES: usize = 1024;

/// The bytes of an entry beside its words, with its share of the tables around it.
const ENTRY_BYTES: u64 = 512;

/// The cached truncations of one edit. It takes memory as it fills, and evicts the least used entries first.
#[derive(Debug, SmartDefault)]
pub struct TruncationCache {
    #[default(Cache::with_weighter(EXPECTED_ENTRIES, MAX_BYTES, By(weight)))]
    known: Cache<Key, CachedEdit, By<CachedEdit>>,
    hasher: RandomState,
}

/// Who sent it, what was sent, and what else it follows from. Whatever hashes do, no caller is ever given what came of a
/// text of another one.
type Key = (Caller, Fingerprint, u64);

/// A proposed edit with spans that are relative to the content, so that it holds wherever the content stands.
type CachedEdit = Result<Arc<ProposedEdit>, NotApplicable>;

fn weight(proposed: &CachedEdit) -> u64 {
    let replacements = proposed.as_ref().map_or(&[][..], |known| &known.replacements);
    let words = replacements.iter().map(|replacement| replacement.splice.with.len() + size_of::<Replacement>());
    ENTRY_BYTES + words.sum::<usize>() as u64
}

impl Draft<'_> {
    /// The facts that decide, besides a text, whether its replacement is smaller.
    pub fn basis(&self) -> impl Hash + use<'_> {
        let model = self.conversation.model.as_deref();
        (model, self.gauge().factor, self.retrieval_method(), self.lacks_way())
    }

    /// The edit that `propose` returns for a result of `tool` that follows from `most` too, which says what may stay of it,
    /// from the cache if it is there.
    pub fn cached(
        &self,
        cache: &TruncationCache,
        unit: UnitIndex,
        tool: &str,
        most: impl Hash,
        propose: impl FnOnce() -> Proposed,
    ) -> Proposed {
        let content = self.unit(unit).and_then(|unit| unit.content);
        // Where an earlier edit has written, it is not the content alone that decides.
        let Some(content) = content.filter(|_| !self.has_replacements(unit)) else { return propose() };
        let call = self.pairing().answered_block(unit);
        let rest = cache.hasher.hash_one((tool, most, self.basis()));
        let key = (self.context.caller, self.content_fingerprint(unit), rest);
        if let Some(known) = cache.known.get(&key) {
            return known.map(|known| ProposedEdit { unit, call, ..known.moved(0, content.start) });
        }
        let proposed = propose();
        let cached = proposed.as_ref().map(|proposed| Arc::new(proposed.moved(content.start, 0)));
        cache.known.insert(key, cached.map_err(|why| *why));
        proposed
    }
}

impl ProposedEdit {
    /// The same for a content that begins elsewhere.
    fn moved(&self, from: usize, to: usize) -> Self {
        let at = |Span { start, end }| Span { start: start - from + to, end: end - from + to };
        let moved = |of: &Replacement| {
            let splice = Splice { span: at(of.splice.span), ..of.splice.clone() };
            Replacement { span: at(of.span), source: at(of.source), splice, ..of.clone() }
        };
        Self { replacements: self.replacements.iter().map(moved).collect(), ..*self }
    }
}
