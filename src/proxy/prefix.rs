//! How much of a request an earlier one began with: that is what an upstream's prompt cache can serve, if it still has it.
//!
//! The plan says what the model reads, the tools first and then message by message, and knows each by a hash that counting
//! has made. These are chained, so a message is known only if all before it were the same, for the same upstream, model and
//! caller. A message counts whole or not at all. Where no tokens were counted nothing is found out, and how long upstreams
//! keep what they cache is not known here.

use std::hash::{BuildHasher, RandomState};
use std::mem;

use http::Uri;
use rustc_hash::FxHashSet;

use crate::payload::{Caller, Fingerprint};
use crate::plan::Stretch;

/// What was sent before.
#[derive(Debug, Default)]
#[expect(clippy::disallowed_types, reason = "held for some microseconds, when an answer has ended")]
pub(super) struct Prompts {
    known: std::sync::Mutex<Known>,
    key: RandomState,
}

/// Names a prompt cache: that of an upstream for one caller.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Cache(u64);

/// The hashes of beginnings, in two generations: when the younger one is full it becomes the older one.
#[derive(Debug, Default)]
struct Known {
    young: FxHashSet<u64>,
    old: FxHashSet<u64>,
}

/// How many messages a generation has, in some 2 MB.
const GENERATION: usize = 128 << 10;

// === impl Prompts ===

impl Prompts {
    /// The cache that serves this caller there.
    pub(super) fn cache(&self, upstream: &Uri, caller: Caller) -> Cache {
        Cache(self.key.hash_one((upstream.authority().map(http::uri::Authority::as_str), caller)))
    }

    /// The share of these tokens, 0 to 1, that an earlier request began with. From now on this one did.
    pub(super) fn meet(&self, Cache(cache): Cache, model: &str, read: &[Stretch]) -> Option<f64> {
        let mut chain = Fingerprint::of(&cache.to_le_bytes()).then(Fingerprint::of(model.as_bytes()));
        let chained = read.iter().map(|stretch| {
            chain = chain.then(stretch.print);
            let [hash, _] = chain.halves();
            (hash, stretch.tokens)
        });
        let all: usize = read.iter().map(|stretch| stretch.tokens).sum();
        let known = self.known.lock().ok()?.meet(chained);
        #[expect(clippy::cast_precision_loss, reason = "tokens are far fewer than 2^53")]
        let share = known as f64 / all as f64;
        (all > 0).then_some(share)
    }
}

// === impl Known ===

impl Known {
    /// The tokens of those that begin as something that was met before. From now on all were.
    fn meet(&mut self, chained: impl Iterator<Item = (u64, usize)>) -> usize {
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

    /// Whether it was there.
    fn add(&mut self, hash: u64) -> bool {
        if !self.young.insert(hash) {
            return true;
        }
        let was_there = self.old.contains(&hash);
        if self.young.len() > GENERATION {
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

    fn read(texts: &[&str]) -> Vec<Stretch> {
        let stretch = |text: &&str| Stretch { print: Fingerprint::of(text.as_bytes()), tokens: text.len() };
        texts.iter().map(stretch).collect()
    }

    fn near(share: Option<f64>, expected: f64) -> bool {
        share.is_some_and(|share| (share - expected).abs() < 1e-9)
    }

    #[test]
    fn what_a_conversation_began_with_is_kept() {
        let (prompts, cache) = (Prompts::default(), Cache(1));
        let first = ["tools", "a", "long message"];
        assert!(near(prompts.meet(cache, "m", &read(&first)), 0.0), "nothing was there before");
        assert!(near(prompts.meet(cache, "m", &read(&first)), 1.0), "all of it was");
        // As much again is new.
        let grown = [&first[..], &["answer", "another long"]].concat();
        assert!(near(prompts.meet(cache, "m", &read(&grown)), 0.5));
        // What changes at the beginning changes all behind it.
        assert!(near(prompts.meet(cache, "m", &read(&["tools", "b", "long message"])), 5.0 / 18.0));
        assert_eq!(prompts.meet(cache, "m", &[]), None);
    }

    #[test]
    fn others_have_nothing_of_it() {
        let prompts = Prompts::default();
        let keys = Keys::new([7; 32]);
        let (here, there) = (Uri::from_static("http://here/v1"), Uri::from_static("http://there/v1"));
        let [one, other] = [b"one", b"two"].map(|credential| keys.caller(credential.as_slice()));
        let hello = read(&["tools", "hello"]);
        prompts.meet(prompts.cache(&here, one), "m", &hello);
        for (cache, model, expected) in [
            (prompts.cache(&here, other), "m", 0.0),
            (prompts.cache(&there, one), "m", 0.0),
            (prompts.cache(&here, one), "n", 0.0),
            (prompts.cache(&here, one), "m", 1.0),
        ] {
            assert!(near(prompts.meet(cache, model, &hello), expected), "{cache:?} {model}");
        }
    }

    #[test]
    fn what_is_known_is_bounded_and_the_latest_stays() {
        let mut known = Known::default();
        let mixed = |n: usize| (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for n in 0..5 * GENERATION {
            known.add(mixed(n));
            assert!(known.young.len() + known.old.len() <= 2 * GENERATION + 1);
        }
        assert!(known.add(mixed(5 * GENERATION - 1)) && known.add(mixed(4 * GENERATION)));
        assert!(!known.add(mixed(0)));
    }
}
