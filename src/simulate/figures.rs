//! Counts and costs of simulated requests.

use serde::Serialize;
use smart_default::SmartDefault;

use super::bill::Counted;
use crate::tokens::prices::Millionths;

/// The counts of some requests.
#[derive(Clone, Copy, Debug, Default, derive_more::Add, Eq, PartialEq, Serialize)]
pub struct Figures {
    /// The number of requests.
    pub requests: usize,
    /// The tokens of all requests.
    pub tokens_sent: usize,
    /// The tokens of the largest request.
    pub largest_request: usize,
    /// The number of requests with more tokens than the model's context window.
    pub beyond_window: usize,
    /// The number of requests to models whose window is unknown.
    pub window_unknown: usize,
    /// The tokens that a cache could serve, in whole blocks.
    pub tokens_cached: usize,
    /// The tokens after the cached ones that fill whole blocks, and are written to the cache.
    pub tokens_written: usize,
    /// The cost of all requests, in uncached input tokens.
    pub cost: u64,
    /// The number of requests that did not begin with the request before.
    pub frontier_moves: usize,
    /// The cleared results, each counted once.
    pub results_cleared: usize,
    /// The truncated results, each counted once.
    pub results_truncated: usize,
    /// The bytes of the stored payloads, each counted once.
    pub bytes_offloaded: usize,
    /// The number of summaries made.
    pub summaries: usize,
    /// The input tokens of the calls for summaries, including failed ones. They are part of `cost`, and not of the
    /// counts above.
    pub summary_tokens: usize,
    /// The part of `summary_tokens` that a cache could serve.
    pub summary_tokens_cached: usize,
}

/// The price of a token, as a multiple of the price of an uncached input token.
pub type Price = Millionths<1000>;

/// The prices of tokens that are read from the cache and written to it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, SmartDefault)]
pub struct Prices {
    /// A token read from the cache.
    #[default(Price::TENTH)]
    pub cache_read: Price,
    /// A token written to the cache.
    #[default(Price::ONE)]
    pub cache_write: Price,
}

/// The block size of prompt caches, in tokens.
const CACHE_BLOCK_TOKENS: usize = 128;

// === impl Figures ===

impl Figures {
    /// Adds a request to a model with this context window, which does not begin with the request before if it has `moved`.
    pub(super) fn add_request(&mut self, request: Counted, window: Option<usize>, moved: bool) {
        let Counted { tokens, .. } = request;
        let cached = request.cached();
        self.requests += 1;
        self.tokens_sent += tokens;
        self.largest_request = self.largest_request.max(tokens);
        self.beyond_window += usize::from(window.is_some_and(|window| tokens > window));
        self.window_unknown += usize::from(window.is_none());
        self.tokens_cached += cached;
        self.tokens_written += blocks(tokens) - cached;
        self.frontier_moves += usize::from(moved);
    }

    pub(super) fn add_summary_call(&mut self, call: Counted, made: bool) {
        self.summaries += usize::from(made);
        self.summary_tokens += call.tokens;
        self.summary_tokens_cached += call.cached();
    }

    pub(super) fn compute_cost(&mut self, prices: Prices) {
        let rest = self.tokens_sent - self.tokens_cached - self.tokens_written;
        let each = [
            prices.cache_read.of(self.tokens_cached + self.summary_tokens_cached),
            prices.cache_write.of(self.tokens_written),
            Price::ONE.of(rest + self.summary_tokens - self.summary_tokens_cached),
        ];
        let millionths = each.into_iter().fold(0, u64::saturating_add);
        self.cost = millionths.saturating_add(500_000) / 1_000_000;
    }

    /// The sum of two.
    pub(super) fn plus(&self, other: &Self) -> Self {
        let largest_request = self.largest_request.max(other.largest_request);
        let cost = self.cost.saturating_add(other.cost);
        let counts = |figures: &Self| Self { cost: 0, ..*figures };
        Self { largest_request, cost, ..counts(self) + counts(other) }
    }
}

impl Counted {
    /// The tokens that a cache with the request before could serve.
    fn cached(self) -> usize {
        blocks(self.shared.unwrap_or_default().min(self.tokens))
    }
}

/// The tokens of the whole blocks.
fn blocks(tokens: usize) -> usize {
    tokens / CACHE_BLOCK_TOKENS * CACHE_BLOCK_TOKENS
}
