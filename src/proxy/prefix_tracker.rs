//! Tracks prompt prefixes: how much of a request an earlier one began with, which an upstream's prompt cache can serve.
//!
//! The plan lists what the model reads, the tools first and then each message, with hashes from token counting. The hashes
//! are chained, so a message is known only if all before it were the same, for the same upstream, model and caller. A
//! message counts whole or not at all. Without token counts it has no result, and the lifetime of upstream caches is not
//! considered.

use std::hash::BuildHasher as _;
use std::mem;

use http::Uri;
use rustc_hash::{FxBuildHasher, FxHashSet};

use crate::held::Held;
use crate::payload::{Caller, Fingerprint};
use crate::plan::PromptSegment;

/// The prefixes of all prompts that were sent.
#[derive(Debug, Default)]
pub(super) struct PrefixTracker {
    known: Held<KnownPrefixes>,
}

/// The id of a prompt cache: one upstream and one caller.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct CacheScope(pub(super) u64);

/// The hashes of prefixes in two generations: a full young generation replaces the old one.
#[derive(Debug, Default)]
struct KnownPrefixes {
    young: FxHashSet<u64>,
    old: FxHashSet<u64>,
}

/// The most messages in a generation, about 2 MB.
const MAX_GENERATION: usize = 128 << 10;

// === impl CacheScope ===

impl CacheScope {
    /// The prompt cache of this caller at this upstream. The name of a caller is a keyed hash.
    pub(super) fn of(upstream: &Uri, caller: Caller) -> Self {
        Self(FxBuildHasher.hash_one((upstream.authority().map(http::uri::Authority::as_str), caller)))
    }

    /// Its own cache for what dry runs would have sent.
    pub(super) fn of_dry_runs(self) -> Self {
        Self(!self.0)
    }
}

// === impl PrefixTracker ===

impl PrefixTracker {
    /// The share of the tokens, 0 to 1, that an earlier request began with; `None` without tokens. Adds this request.
    pub(super) fn track(&self, CacheScope(scope): CacheScope, model: &str, read: &[PromptSegment]) -> Option<f64> {
        if read.is_empty() {
            return None;
        }
        let mut chain = Fingerprint::of(&scope.to_le_bytes()).then(Fingerprint::of(model.as_bytes()));
        let chained = read.iter().map(|segment| {
            chain = chain.then(segment.fingerprint);
            let [hash, _] = chain.halves();
            (hash, segment.tokens)
        });
        let all: usize = read.iter().map(|segment| segment.tokens).sum();
        let known = self.known.with(|known| known.track(chained));
        #[expect(clippy::cast_precision_loss, reason = "tokens are far fewer than 2^53")]
        let share = known as f64 / all as f64;
        (all > 0).then_some(share)
    }
}

// === impl KnownPrefixes ===

impl KnownPrefixes {
    /// The tokens of the longest known prefix. Adds all hashes.
    fn track(&mut self, chained: impl Iterator<Item = (u64, usize)>) -> usize {
        let mut known = 0;
        let mut is_beginning = true;
        for (hash, tokens) in chained {
            is_beginning &= self.add(hash);
            if is_beginning {
                known += tokens;
            }
        }
        known
    }

    /// Adds a hash; returns whether it was known.
    fn add(&mut self, hash: u64) -> bool {
        if !self.young.insert(hash) {
            return true;
        }
        let was_there = self.old.contains(&hash);
        if self.young.len() > MAX_GENERATION {
            self.old = mem::take(&mut self.young);
            self.young.insert(hash);
        }
        was_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Keys;

    fn read(texts: &[&str]) -> Vec<PromptSegment> {
        let segment = |text: &&str| PromptSegment { fingerprint: Fingerprint::of(text.as_bytes()), tokens: text.len() };
        texts.iter().map(segment).collect()
    }

    fn near(share: Option<f64>, expected: f64) -> bool {
        share.is_some_and(|share| (share - expected).abs() < 1e-9)
    }

    #[test]
    fn a_repeated_prefix_is_known_and_a_change_ends_it() {
        let (prefixes, cache) = (PrefixTracker::default(), CacheScope(1));
        let first = ["tools", "a", "long message"];
        assert!(near(prefixes.track(cache, "m", &read(&first)), 0.0), "nothing was there before");
        assert!(near(prefixes.track(cache, "m", &read(&first)), 1.0), "all of it was");
        // Half of the tokens are new.
        let grown = [&first[..], &["answer", "another long"]].concat();
        assert!(near(prefixes.track(cache, "m", &read(&grown)), 0.5));
        // A change makes everything after it unknown.
        assert!(near(prefixes.track(cache, "m", &read(&["tools", "b", "long message"])), 5.0 / 18.0));
        assert_eq!(prefixes.track(cache, "m", &[]), None);
    }

    #[test]
    fn prefixes_are_separate_by_upstream_model_and_caller() {
        let prefixes = PrefixTracker::default();
        let keys = Keys::new([7; 32]);
        let (here, there) = (Uri::from_static("http://here/v1"), Uri::from_static("http://there/v1"));
        let [one, other] = [b"one", b"two"].map(|credential| keys.caller(credential.as_slice()));
        let hello = read(&["tools", "hello"]);
        prefixes.track(CacheScope::of(&here, one), "m", &hello);
        for (cache, model, expected) in [
            (CacheScope::of(&here, other), "m", 0.0),
            (CacheScope::of(&there, one), "m", 0.0),
            (CacheScope::of(&here, one), "n", 0.0),
            (CacheScope::of(&here, one), "m", 1.0),
        ] {
            assert!(near(prefixes.track(cache, model, &hello), expected), "{cache:?} {model}");
        }
    }

    #[test]
    fn known_prefixes_are_bounded_and_the_latest_stay() {
        let mut known = KnownPrefixes::default();
        let mixed = |n: usize| (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for n in 0..5 * MAX_GENERATION {
            known.add(mixed(n));
            assert!(known.young.len() + known.old.len() <= 2 * MAX_GENERATION + 1);
        }
        assert!(known.add(mixed(5 * MAX_GENERATION - 1)) && known.add(mixed(4 * MAX_GENERATION)));
        assert!(!known.add(mixed(0)));
    }
}
