//! Token counts by the rules of a dialect, remembered and bounded: nothing counts more tokens than it has bytes.

use super::Dialect;
use crate::payload::Fingerprint;
use crate::raw::{compact, lossy};
use crate::tokens::{Gauge, Subject};

/// How tokens are counted: the rules alone, neither remembered nor bounded.
pub trait TokenRules {
    /// The tokens of one element of the conversation; `element_tokens` remembers them.
    fn count_element(&self, gauge: &Gauge, raw: &[u8]) -> usize;

    /// The tokens of one part of a content; `part_tokens` remembers them.
    fn count_part(&self, gauge: &Gauge, raw: &[u8]) -> usize {
        gauge.text(&String::from_utf8_lossy(raw))
    }

    /// Returns what one call adds to the tokens of the element that it is in.
    fn count_call(&self, gauge: &Gauge, raw: &[u8]) -> usize;

    /// The tokens of the tools of a request; `tools_tokens` remembers them.
    fn count_tools(&self, gauge: &Gauge, raw: &[u8]) -> usize;

    /// The tokens of the format that a request asks the answer to have; `format_tokens` remembers them.
    fn count_format(&self, gauge: &Gauge, raw: &[u8]) -> usize {
        gauge.text(&compact(&lossy(raw)))
    }

    /// The tokens of instructions outside the array; `instructions_tokens` remembers them.
    fn count_instructions(&self, gauge: &Gauge, raw: &[u8]) -> usize {
        gauge.text(&String::from_utf8_lossy(raw))
    }
}

impl dyn Dialect + '_ {
    /// The tokens of one element of the conversation, remembered.
    pub fn element_tokens(&self, gauge: &Gauge, raw: &[u8]) -> usize {
        self.known_element_tokens(gauge, Fingerprint::of(raw), || raw)
    }

    /// The same of an element that is known by `fingerprint`. Its bytes are asked for only if it was not counted before.
    pub fn known_element_tokens<B: AsRef<[u8]>>(
        &self,
        gauge: &Gauge,
        fingerprint: Fingerprint,
        raw: impl FnOnce() -> B,
    ) -> usize {
        gauge.remembered(Subject::Element(self.facts().tag), fingerprint, || {
            let raw = raw();
            let raw = raw.as_ref();
            self.count_element(gauge, raw).min(raw.len())
        })
    }

    /// The tokens of one part of a content that is known by `fingerprint`, remembered.
    pub fn part_tokens(&self, gauge: &Gauge, fingerprint: Fingerprint, raw: &[u8]) -> usize {
        gauge.remembered(Subject::Part(self.facts().tag), fingerprint, || self.count_part(gauge, raw).min(raw.len()))
    }

    /// The tokens of the tools that a request offers, remembered.
    pub fn tools_tokens(&self, gauge: &Gauge, raw: &[u8]) -> usize {
        let count = || self.count_tools(gauge, raw).min(raw.len());
        gauge.remembered(Subject::Tools(self.facts().tag), Fingerprint::of(raw), count)
    }

    /// The tokens of the instructions that a request has outside the array, remembered.
    pub fn instructions_tokens(&self, gauge: &Gauge, raw: &[u8]) -> usize {
        let count = || self.count_instructions(gauge, raw).min(raw.len());
        gauge.remembered(Subject::Instructions(self.facts().tag), Fingerprint::of(raw), count)
    }

    /// The tokens of the format that a request asks the answer to have, remembered.
    pub fn format_tokens(&self, gauge: &Gauge, raw: &[u8]) -> usize {
        let count = || self.count_format(gauge, raw).min(raw.len());
        gauge.remembered(Subject::Format(self.facts().tag), Fingerprint::of(raw), count)
    }
}
