//! How many tokens a text, a message or a list of tools is, and how many a model takes.
//!
//! Counting costs some 10 ns a byte, so nothing is counted twice: counts are remembered by the hash of what was counted, and
//! a conversation that comes again with a new tail costs that tail. The vocabularies are compiled in, and built when the
//! first text is counted, which takes 0.05 s: count on a thread that may block.
//!
//! Every count here is an estimate made of published rules; what an upstream reports as usage is the truth to compare with.
//! One thing is certain, and planners rely on it: **nothing counts more tokens than it has bytes of raw JSON.** So a body
//! shorter than a limit in tokens is below the limit, and need not be counted. Where the rules would say more (an image
//! that is only a link), the bytes are what counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use self::factor::Factor;
use self::memo::Memo;
use self::models::{Models, Reasoning};
use self::tiktoken::Encoding;
use crate::payload::Fingerprint;
use crate::units::prorated;

pub use self::memo::{Countable, Subject};

pub mod cache_calls;
pub mod factor;
pub mod image;
pub(crate) mod last_used;
mod memo;
mod merge;
pub mod models;
mod pretokens;
pub mod prices;
pub mod tiktoken;
mod vocabulary;

/// What a request costs beyond its messages and tools: the beginning of the answer. A body has more bytes than that
/// around its messages, so a whole request, too, has fewer tokens than bytes.
pub const REQUEST_OVERHEAD: usize = 3;

/// Shorter texts are counted again and not remembered: the counting is not dearer than the place that it would take.
const MIN_CACHED_BYTES: usize = 64;

/// `[tokens]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How tokens are counted.
    pub counter: Counter,
    /// Asks the upstream's `/models` once, with the key of the client's request, when the context window of a requested
    /// model is not known. After a failure it is asked again after five minutes.
    #[default(true)]
    pub ask_upstream: bool,
    /// Counts a conversation by what its model's tokens are billed as: the ratio of billed to counted tokens is learnt
    /// from the answers of the same upstream and model, and a conversation keeps the one that it begins with, which is in
    /// the store. Without a store, and with `false`, the ratio is that of the built-in table.
    #[default(true)]
    pub calibrate: bool,
    /// The handler of `[handlers]` that counts the tokens of a conversation once, when they are first counted: the ratio of
    /// its count to abridge's takes the place of what bills have taught, and the conversation keeps it.
    ///
    /// Not set: no handler is asked.
    ///
    /// Example: `"counts"`
    pub handler: Option<String>,
}

/// The memory for counts that are remembered, so that only the new end of a known conversation is counted: 57,344 counts,
/// of texts and of their pieces.
const MAX_MEMO_BYTES: usize = 4 << 20;

impl Settings {
    /// Whether conversations have their own ratio, where there is a store.
    pub fn is_calibrated(&self) -> bool {
        self.calibrate || self.handler.is_some()
    }
}

/// How texts are counted.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Counter {
    /// With the encoding of the model.
    #[default]
    Exact,
    /// A quarter of the bytes; needs no vocabulary.
    Estimate,
}

/// What can count for any model, and remembers what it has counted. Clones share all of it.
#[derive(Clone, Debug)]
pub struct Meter {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    counter: Counter,
    memo: Memo,
    models: Models,
    /// How many bytes were tokenised.
    n_tokenised: AtomicU64,
    /// Yields the thread to other tasks.
    yield_now: fn(),
}

/// What counts for one request.
#[derive(Clone, Debug)]
pub struct Gauge {
    shared: Arc<Shared>,
    /// The encoding that texts are counted in.
    pub encoding: Encoding,
    /// How many tokens are billed for each one that is counted.
    pub factor: Factor,
    /// How many tokens the model takes, prompt and answer together, if that is known. It is never guessed.
    pub window: Option<usize>,
    /// The properties of the model's reasoning.
    pub reasoning: Reasoning,
}

/// Tokens as billed.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Usage {
    /// Tokens of the request.
    pub input: u64,
    /// Those of them that the upstream's prompt cache served.
    pub cached: u64,
    /// Those of them that were written to the cache, where the upstream says so.
    pub written: u64,
    /// Those of the written ones that the cache keeps for an hour.
    pub written_hour: u64,
    /// Tokens of the answer.
    pub output: u64,
}

// === impl Meter ===

impl Meter {
    /// Nothing is built or allocated yet.
    pub fn new(tokens: &Settings, models: &[models::Settings]) -> Self {
        Self::with_yield(tokens, models, || ())
    }

    /// The same, and between two pieces of a text it calls `yield_now`: a megabyte takes 10 ms or more, and where there is
    /// one processor for all, others are served meanwhile.
    pub fn with_yield(tokens: &Settings, models: &[models::Settings], yield_now: fn()) -> Self {
        let memo = Memo::new(MAX_MEMO_BYTES);
        let (counter, models) = (tokens.counter, Models::new(models));
        Self { shared: Arc::new(Shared { counter, memo, models, n_tokenised: AtomicU64::new(0), yield_now }) }
    }

    /// Whether the two are clones of one.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Lets others have a turn: between the steps of a plan, and after each message that takes long.
    pub fn yield_now(&self) {
        (self.shared.yield_now)();
    }

    /// What counts for a request to this model, by the factor of the built-in table. An unknown model has the
    /// encoding of most, and no window.
    pub fn for_model(&self, model: Option<&str>) -> Gauge {
        let name = model.unwrap_or_default();
        let models::Model { window, encoding, token_factor: factor, reasoning } = self.models().find(name);
        let window = window.map(|(window, _)| window);
        Gauge { shared: Arc::clone(&self.shared), encoding, factor, window, reasoning }
    }

    /// How many tokens this model takes, prompt and answer together, if that is known.
    pub fn window(&self, model: Option<&str>) -> Option<usize> {
        self.models().find(model.unwrap_or_default()).window.map(|(window, _)| window)
    }

    /// How many bytes of text were tokenised since the start, for none of which a count was remembered.
    pub fn n_tokenised(&self) -> u64 {
        self.shared.n_tokenised.load(Ordering::Relaxed)
    }

    /// The known models.
    pub fn models(&self) -> &Models {
        &self.shared.models
    }
}

// === impl Gauge ===

impl Gauge {
    /// The same with another factor.
    #[must_use]
    pub fn billed_at(self, factor: Factor) -> Self {
        Self { factor, ..self }
    }

    /// The tokens of so many bytes that only their maker can read.
    pub fn sealed(&self, n_bytes: usize) -> usize {
        (n_bytes * 10).div_ceil(self.reasoning.sealed.max(1))
    }

    /// The tokens of a plain text.
    pub fn text(&self, text: &str) -> usize {
        if text.len() < MIN_CACHED_BYTES || self.shared.counter == Counter::Estimate {
            return self.billed(self.count(text), text.len());
        }
        self.words(text)
    }

    /// The tokens of a text of ours, which each request asks for again: it is remembered, however short.
    pub fn words(&self, text: &str) -> usize {
        let counted = match self.shared.counter {
            Counter::Exact => {
                let fingerprint = Fingerprint::of(text.as_bytes());
                self.shared.memo.get_or_count(Subject::TEXT, self.encoding, fingerprint, || self.count(text))
            }
            Counter::Estimate => self.count(text),
        };
        self.billed(counted, text.len())
    }

    /// As many tokens as a text that is known by `fingerprint` has at least, except those that merge at an end: those of
    /// its first `most` bytes, or of all of it if that was counted before. It is asked for once.
    pub fn at_least<'t>(&self, fingerprint: Fingerprint, most: usize, text: impl FnOnce() -> &'t str) -> usize {
        self.remembered(Subject(Countable::Beginning, 0), fingerprint, || {
            let text = text();
            let known = self.shared.memo.get(Subject::TEXT, self.encoding, Fingerprint::of(text.as_bytes()));
            let (counted, len) = known.map_or_else(
                || {
                    let beginning = text.get(..text.floor_char_boundary(most)).unwrap_or_default();
                    (self.count(beginning), beginning.len())
                },
                |known| (known, text.len()),
            );
            self.billed(counted, len)
        })
    }

    /// Counts a text, whatever its tokens are billed as, so that nothing is counted again with another factor. Of a long
    /// text, pieces that were counted before are remembered.
    fn count(&self, text: &str) -> usize {
        if self.shared.counter == Counter::Estimate {
            self.note_tokenised(text);
            // About right for English and for code, too many for the scripts of Asia.
            return text.len().div_ceil(4);
        }
        Encoding::count_pieces(text, |piece| {
            let count = || {
                self.note_tokenised(piece);
                self.encoding.count_piece(piece, self.shared.yield_now)
            };
            if piece.len() == text.len() {
                return count();
            }
            self.shared.memo.get_or_count(Subject::TEXT, self.encoding, Fingerprint::of(piece.as_bytes()), count)
        })
    }

    fn note_tokenised(&self, text: &str) {
        self.shared.n_tokenised.fetch_add(text.len() as u64, Ordering::Relaxed);
    }

    /// What the tokens of a text of so many bytes are billed as.
    fn billed(&self, counted: usize, n_bytes: usize) -> usize {
        (counted * self.factor.per_hundred() / 100).min(n_bytes)
    }

    /// The count of what is known by `fingerprint`, out of memory, or made now and remembered.
    pub fn remembered(&self, subject: Subject, fingerprint: Fingerprint, count: impl FnOnce() -> usize) -> usize {
        self.shared.memo.get_or_count(subject, self.encoding, self.under_factor(fingerprint), count)
    }

    fn under_factor(&self, fingerprint: Fingerprint) -> Fingerprint {
        let sealed = self.reasoning.sealed;
        match self.factor {
            Factor::ONE if sealed == Reasoning::default().sealed => fingerprint,
            factor => fingerprint.then(Fingerprint::of_numbers(factor.per_hundred(), sealed)),
        }
    }
}

// === impl Usage ===

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        *self = Self {
            input: self.input.saturating_add(other.input),
            cached: self.cached.saturating_add(other.cached),
            written: self.written.saturating_add(other.written),
            written_hour: self.written_hour.saturating_add(other.written_hour),
            output: self.output.saturating_add(other.output),
        };
    }
}

impl Usage {
    /// The same answer to a request of so many tokens, of which a cache serves so many. Of the others, those are written to it that
    /// were: all but as many as were not, or none.
    #[must_use]
    pub fn with_input(self, input: u64, cached: u64) -> Self {
        let cached = cached.min(input);
        let new = input - cached;
        let not_written = self.input.saturating_sub(self.cached).saturating_sub(self.written);
        let written = if self.written == 0 { 0 } else { new.saturating_sub(not_written) };
        let written_hour = prorated(written, self.written_hour, self.written);
        Self { input, cached, written, written_hour, output: self.output }
    }

    /// The same answer to a request of so many tokens, of which the cache serves the same share.
    #[must_use]
    pub fn of_input(self, input: u64) -> Self {
        self.with_input(input, prorated(self.cached, input, self.input))
    }
}

#[cfg(test)]
mod tests;
