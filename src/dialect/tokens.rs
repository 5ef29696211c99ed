//! Token counts by the rules of a dialect, remembered and bounded: nothing counts more tokens than it has bytes.

use super::Dialect;
use crate::payload::Fingerprint;
use crate::raw::{compact, lossy};
use crate::tokens::{Countable, Gauge, Subject};

/// How tokens are counted: the rules alone, neither remembered nor bounded.
pub trait TokenRules {
    /// The tokens of a part of a request that has this JSON. `tokens` of the dialect remembers them.
    fn count(&self, gauge: &Gauge, what: Countable, json: &str) -> usize;
}

/// What most dialects count of what they have no rule for: of the format of an answer its JSON, of instructions the text.
pub(super) fn usual(gauge: &Gauge, what: Countable, json: &str) -> usize {
    if what == Countable::Format { gauge.text(&compact(json)) } else { gauge.text(json) }
}

impl dyn Dialect + '_ {
    /// The tokens of one element of the conversation, remembered.
    pub fn element_tokens(&self, gauge: &Gauge, raw: &[u8]) -> usize {
        self.tokens(gauge, Countable::Element, raw)
    }

    /// The tokens of a part of a request, remembered.
    pub fn tokens(&self, gauge: &Gauge, what: Countable, raw: &[u8]) -> usize {
        self.known_tokens(gauge, what, Fingerprint::of(raw), || raw)
    }

    /// The same of what is known by `fingerprint`. Its bytes are asked for only if it was not counted before.
    pub fn known_tokens<B: AsRef<[u8]>>(
        &self,
        gauge: &Gauge,
        what: Countable,
        fingerprint: Fingerprint,
        raw: impl FnOnce() -> B,
    ) -> usize {
        gauge.remembered(Subject(what, self.facts().tag), fingerprint, || {
            let raw = raw();
            let raw = raw.as_ref();
            self.count(gauge, what, &lossy(raw)).min(raw.len())
        })
    }
}
