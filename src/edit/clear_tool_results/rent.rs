//! Whether a pass pays, by the prices of tokens.
//!
//! A pass takes results out, and so breaks the prompt cache: all that stays after the first of them, and was sent before,
//! is written once more at the price of a write, where it would have been read. Without the pass, what could be taken out
//! is read with each request. How many requests will follow is unknown, so the rule is that of renting skis: results that
//! may be cleared pay rent, which is what reading them costs, and the pass is made when the rent has reached its price.
//!
//! A conversation may end right after a pass, which then has saved nothing. Where reading is cheap, one pass can cost as
//! much as a large part of all requests so far. So a pass is made only if it leaves the requests so far, with all passes,
//! at most a sixteenth dearer than they were without any. That holds from then on, as a pass only saves later.
//!
//! Where a pass may be made at every request, all input tokens together cost at most twice as much as under the best
//! schedule of passes, which knows how the conversation goes on. From one pass to the next the rent stays below the price
//! of the pass, and the pass costs that once more. In the same stretch the best schedule either pays the same rent, or makes
//! a pass earlier, when less followed it; everything that has come since then was written at the full price under both.

use std::collections::HashMap;

use crate::draft::RowIndex;
use crate::tokens::prices::{Break, Prices};

/// The part of the cost without passes that passes may add to it at any time: one of so many.
const MOST_ADDED: u64 = 16;

/// The rent since the last pass, and what it is compared with.
#[derive(Default)]
pub(super) struct Rent {
    prices: Prices,
    /// In millionths of an input token.
    paid: u64,
    /// The tokens of each message as the passes so far have left them.
    tokens: Sums,
    /// How many messages the last request had.
    n_sent: usize,
    /// The tokens beside the messages.
    base: usize,
    /// The cost of the requests so far without passes, and the additions and savings of passes.
    unedited: u64,
    added: u64,
    saved: u64,
    /// The tokens of each message that passes have taken out, and of all of them.
    cleared: HashMap<RowIndex, usize>,
    n_cleared: usize,
    /// The price of a pass at the present request.
    price: u64,
}

/// Numbers in a row, of which ranges are added up in logarithmic time: a Fenwick tree.
#[derive(Debug, Default)]
struct Sums(Vec<usize>);

impl Rent {
    /// Before any message has come. `base` are the tokens that a request has beside its messages.
    pub(super) fn new(prices: Prices, base: usize) -> Self {
        Self { prices, base, ..Self::default() }
    }

    /// The next message came.
    pub(super) fn came(&mut self, tokens: usize) {
        self.tokens.push(tokens);
    }

    /// A pass takes so many tokens out of a message.
    pub(super) fn clear(&mut self, number: RowIndex, tokens: usize) {
        let freed = self.tokens.subtract(number.get(), tokens);
        self.cleared.insert(number, freed);
        self.n_cleared += freed;
    }

    /// A message is not there any more.
    pub(super) fn remove(&mut self, number: RowIndex) {
        self.tokens.subtract(number.get(), usize::MAX);
        self.n_cleared -= self.cleared.remove(&number).unwrap_or_default();
    }

    /// A request is about to be sent, in which a pass would free so many tokens, from the message of a number on. Says
    /// whether that pays. If not, they pay their rent.
    pub(super) fn is_due(&mut self, first: Option<RowIndex>, freed: usize) -> bool {
        let Prices { read, write, .. } = self.prices;
        let n_sent = std::mem::replace(&mut self.n_sent, self.tokens.0.len());
        let sent = self.tokens.before(n_sent);
        let (base_sent, new) = if n_sent > 0 { (self.base, 0) } else { (0, self.base) };
        let new = new + self.tokens.before(self.n_sent) - sent;
        let unedited = read.of(base_sent + sent + self.n_cleared).saturating_add(write.of(new));
        self.unedited = self.unedited.saturating_add(unedited);
        self.saved = self.saved.saturating_add(read.of(self.n_cleared));
        let Some(first) = first else { return false };
        let broken = match self.prices.on_break {
            Break::Suffix => sent.saturating_sub(self.tokens.before(first.get())),
            Break::All => self.base + sent,
        };
        self.price = write.above(read).of(broken.saturating_sub(freed));
        self.paid = self.paid.saturating_add(read.of(freed));
        let added = self.added.saturating_add(self.price).saturating_sub(self.saved);
        self.paid >= self.price && added <= self.unedited / MOST_ADDED
    }

    /// The pass was made.
    pub(super) fn settle(&mut self) {
        self.settle_cold();
        self.added = self.added.saturating_add(self.price);
    }

    /// The pass was made after a pause in which the cache has expired: all is written again, with it or without.
    pub(super) fn settle_cold(&mut self) {
        self.paid = 0;
    }
}

impl Sums {
    fn push(&mut self, number: usize) {
        let at = self.0.len() + 1;
        let first = at - (at & at.wrapping_neg());
        let sum = number + self.before(at - 1) - self.before(first);
        self.0.push(sum);
    }

    /// The sum of all before one.
    fn before(&self, end: usize) -> usize {
        let (mut at, mut sum) = (end.min(self.0.len()), 0);
        while at > 0 {
            sum += self.0.get(at - 1).copied().unwrap_or_default();
            at &= at - 1;
        }
        sum
    }

    /// Makes one smaller, at most by what it is, and returns by how much.
    fn subtract(&mut self, index: usize, by: usize) -> usize {
        let by = by.min(self.before(index + 1) - self.before(index));
        let mut at = index + 1;
        while let Some(sum) = self.0.get_mut(at - 1) {
            *sum -= by;
            at += at & at.wrapping_neg();
        }
        by
    }
}

#[cfg(test)]
mod tests;
