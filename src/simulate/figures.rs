//! What is added up, and what it costs.

use std::str::FromStr;

use serde::{Serialize, Serializer};

/// What came of some requests.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Figures {
    /// How many there were.
    pub requests: usize,
    /// The tokens of all of them.
    pub tokens_sent: usize,
    /// The tokens of the largest.
    pub largest_request: usize,
    /// How many had more tokens than the model takes.
    pub beyond_window: usize,
    /// Of how many nobody knows that, because the window is not known.
    pub window_unknown: usize,
    /// The tokens that a cache could serve, in whole blocks.
    pub tokens_cached: usize,
    /// The tokens behind those that fill whole blocks.
    pub tokens_written: usize,
    /// What all of it costs, in uncached input tokens.
    pub cost: u64,
    /// How many did not begin with what was sent before.
    pub frontier_moves: usize,
    /// The results that were cleared, each once.
    pub results_cleared: usize,
    /// The results that were truncated, each once.
    pub results_truncated: usize,
    /// The length of what was stored, each payload once.
    pub bytes_offloaded: usize,
    /// How many summaries were made.
    pub summaries: usize,
    /// The tokens that were sent to have them made, also of those that failed. They are not among those above, but the cost has
    /// them in it.
    pub summary_tokens: usize,
    /// Those of them that a cache could serve.
    pub summary_tokens_cached: usize,
}

/// What a call for a summary takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Call {
    pub(super) tokens: usize,
    /// The tokens that it shares with the request before.
    pub(super) shared: usize,
}

/// What one request has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) tokens: usize,
    /// The tokens that it shares with the one before.
    pub(super) shared: usize,
    pub(super) window: Option<usize>,
    pub(super) moved: bool,
}

/// What a token costs, in thousandths of a thousandth of an uncached input token.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Price(u64);

/// What tokens cost that a cache serves, and those that it takes in.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub struct Prices {
    /// Served.
    pub cache_read: Price,
    /// Taken in.
    pub cache_write: Price,
}

/// The tokens that caches hold together.
const BLOCK: usize = 128;

const UNIT: u64 = 1_000_000;

// === impl Figures ===

impl Figures {
    pub(super) fn add(&mut self, request: Request) {
        let Request { tokens, shared, window, moved } = request;
        let blocks = |tokens: usize| tokens / BLOCK * BLOCK;
        let cached = blocks(shared.min(tokens));
        self.requests += 1;
        self.tokens_sent += tokens;
        self.largest_request = self.largest_request.max(tokens);
        self.beyond_window += usize::from(window.is_some_and(|window| tokens > window));
        self.window_unknown += usize::from(window.is_none());
        self.tokens_cached += cached;
        self.tokens_written += blocks(tokens) - cached;
        self.frontier_moves += usize::from(moved);
    }

    pub(super) fn add_call(&mut self, call: Call, made: bool) {
        self.summaries += usize::from(made);
        self.summary_tokens += call.tokens;
        self.summary_tokens_cached += call.shared.min(call.tokens) / BLOCK * BLOCK;
    }

    pub(super) fn settle(&mut self, prices: Prices) {
        let rest = self.tokens_sent - self.tokens_cached - self.tokens_written;
        let cost = |tokens: usize, price: u64| u128::try_from(tokens).unwrap_or(u128::MAX) * u128::from(price);
        let sum = cost(self.tokens_cached, prices.cache_read.0)
            + cost(self.tokens_written, prices.cache_write.0)
            + cost(rest, UNIT)
            + cost(self.summary_tokens_cached, prices.cache_read.0)
            + cost(self.summary_tokens - self.summary_tokens_cached, UNIT);
        self.cost = u64::try_from((sum + u128::from(UNIT / 2)) / u128::from(UNIT)).unwrap_or(u64::MAX);
    }

    /// The sum of two.
    pub(super) fn plus(&self, other: &Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            tokens_sent: self.tokens_sent + other.tokens_sent,
            largest_request: self.largest_request.max(other.largest_request),
            beyond_window: self.beyond_window + other.beyond_window,
            window_unknown: self.window_unknown + other.window_unknown,
            tokens_cached: self.tokens_cached + other.tokens_cached,
            tokens_written: self.tokens_written + other.tokens_written,
            cost: self.cost.saturating_add(other.cost),
            frontier_moves: self.frontier_moves + other.frontier_moves,
            results_cleared: self.results_cleared + other.results_cleared,
            results_truncated: self.results_truncated + other.results_truncated,
            bytes_offloaded: self.bytes_offloaded + other.bytes_offloaded,
            summaries: self.summaries + other.summaries,
            summary_tokens: self.summary_tokens + other.summary_tokens,
            summary_tokens_cached: self.summary_tokens_cached + other.summary_tokens_cached,
        }
    }
}

// === impl Prices ===

impl Default for Prices {
    /// What caches cost that charge for reading alone.
    fn default() -> Self {
        Self { cache_read: Price(UNIT / 10), cache_write: Price(UNIT) }
    }
}

// === impl Price ===

impl FromStr for Price {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const ALLOWED: &str = "not a price; allowed: 0 to 1000 uncached tokens, such as 0.1, with at most 6 decimals";
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(decimals) || decimals.len() > 6 {
            return Err(ALLOWED);
        }
        let number: u64 = format!("{whole}{decimals:0<6}").parse().map_err(|_| ALLOWED)?;
        if number > 1000 * UNIT { Err(ALLOWED) } else { Ok(Self(number)) }
    }
}

impl std::fmt::Display for Price {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let decimals = format!("{:06}", self.0 % UNIT);
        let decimals = decimals.trim_end_matches('0');
        write!(f, "{}.{}", self.0 / UNIT, if decimals.is_empty() { "0" } else { decimals })
    }
}

impl Serialize for Price {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        // The text is a number, so that is what it becomes.
        to.serialize_f64(self.to_string().parse().unwrap_or_default())
    }
}
