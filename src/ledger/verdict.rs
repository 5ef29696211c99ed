//! What the edits have saved, in one line.

use std::fmt;

use super::{Figures, Page};
use crate::tokens::prices::Nanodollars;
use crate::units::grouped;

/// What the edits have saved of a bill, net: broken caches, summaries and recalls are paid.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    figures: Figures,
    is_dry_run: bool,
}

impl Verdict {
    /// The verdict over a page: of the requests that were sent as edited, or of a dry run if there are no others.
    pub fn of(page: &Page) -> Self {
        let (edited, dry_run) = (page.total(false), page.total(true));
        let is_dry_run = edited.requests == 0 && dry_run.requests > 0;
        Self { figures: if is_dry_run { dry_run } else { edited }, is_dry_run }
    }

    /// Whether there is nothing to say, since no answer has reported its tokens.
    pub fn is_empty(&self) -> bool {
        self.figures.billed.input == 0
    }

    /// Whether it is about edits.
    pub fn is_of_edits(&self) -> bool {
        !self.is_empty() && self.figures.edited > 0
    }

    /// What was billed, and what the same requests cost with all of their tokens.
    fn costs(&self) -> (Nanodollars, Nanodollars) {
        let Figures { cost, other_cost, .. } = self.figures;
        if self.is_dry_run { (other_cost, cost) } else { (cost, other_cost) }
    }

    fn tokens(&self) -> (u64, u64) {
        let (billed, other) = (self.figures.billed.input, self.figures.other_input);
        if self.is_dry_run { (other, billed) } else { (billed, other) }
    }
}

impl fmt::Display for Verdict {
    /// `saved $1.84 of $13.10 (14 %) · 2 results asked for again`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { requests, edited, unpriced, unreported, asked_again, .. } = self.figures;
        let ((cost, full_cost), (tokens, all_tokens)) = (self.costs(), self.tokens());
        let (saved, would) = if self.is_dry_run { ("would have saved", "would be ") } else { ("saved", "") };
        if self.is_empty() {
            write!(f, "no tokens were reported for {}", count(requests, "request"))?;
            return Ok(());
        }
        if edited == 0 {
            write!(f, "nothing {would}edited in {}", count(requests, "request"))?;
        } else if full_cost > Nanodollars(0) {
            let percent = percent(full_cost.0.abs_diff(cost.0), full_cost.0);
            if cost <= full_cost {
                write!(f, "{saved} {} of {full_cost} ({percent} %)", Nanodollars(full_cost.0 - cost.0))?;
            } else {
                let more = Nanodollars(cost.0 - full_cost.0);
                write!(f, "{saved} nothing: {more} more than {full_cost} ({percent} %)")?;
            }
        } else {
            let percent = percent(all_tokens.saturating_sub(tokens), all_tokens);
            let saved_tokens = grouped(all_tokens.saturating_sub(tokens));
            write!(f, "{saved} {saved_tokens} of {} input tokens ({percent} %)", grouped(all_tokens))?;
        }
        if edited == 0 && cost > Nanodollars(0) {
            write!(f, ", which cost {cost}")?;
        }
        if asked_again > 0 {
            write!(f, " · {} asked for again", count(asked_again, "result"))?;
        }
        if unpriced > 0 && unpriced < requests {
            write!(f, " · {} without a price", count(unpriced, "request"))?;
        }
        if unreported > 0 {
            write!(f, " · {} without reported tokens", count(unreported, "request"))?;
        }
        Ok(())
    }
}

fn count(n: u64, what: &str) -> String {
    let end = if n == 1 { "" } else { "s" };
    format!("{} {what}{end}", grouped(n))
}

/// A part in per cent of a whole, rounded.
fn percent(part: u64, whole: u64) -> u64 {
    let hundredfold = u128::from(part) * 200 + u128::from(whole);
    u64::try_from(hundredfold / (2 * u128::from(whole.max(1)))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::{Account, Ledger};
    use super::*;
    use crate::tokens::Usage;

    fn said(dry_run: bool, figures: Figures) -> String {
        let ledger = Ledger::default();
        ledger.add(Account { dry_run, ..Account::default() }, figures);
        Verdict::of(&ledger.since_start()).to_string()
    }

    #[test]
    fn it_is_net_and_in_dollars_first() {
        let figures = Figures {
            requests: 40,
            edited: 12,
            cost: Nanodollars(11_260_000_000),
            other_cost: Nanodollars(13_100_000_000),
            asked_again: 2,
            billed: Usage { input: 1, ..Usage::default() },
            ..Figures::default()
        };
        assert_eq!(said(false, figures), "saved $1.84 of $13.10 (14 %) · 2 results asked for again");
        let dry_run = Figures { cost: figures.other_cost, other_cost: figures.cost, asked_again: 0, ..figures };
        assert_eq!(said(true, dry_run), "would have saved $1.84 of $13.10 (14 %)");
        let dearer = Figures { cost: Nanodollars(14_410_000_000), asked_again: 1, unreported: 3, ..figures };
        assert_eq!(
            said(false, dearer),
            "saved nothing: $1.31 more than $13.10 (10 %) · 1 result asked for again · 3 requests without reported tokens"
        );
    }

    #[test]
    fn without_a_price_it_is_in_tokens() {
        let billed = Usage { input: 60_000, ..Usage::default() };
        let figures =
            Figures { requests: 9, edited: 1, unpriced: 9, billed, other_input: 100_000, ..Figures::default() };
        assert_eq!(said(false, figures), "saved 40,000 of 100,000 input tokens (40 %)");
    }

    #[test]
    fn nothing_edited_and_nothing_reported_are_said() {
        let cost = Nanodollars(420_000_000);
        let billed = Usage { input: 1, ..Usage::default() };
        let figures = Figures { requests: 1, cost, other_cost: cost, billed, ..Figures::default() };
        assert_eq!(said(false, figures), "nothing edited in 1 request, which cost $0.42");
        let unreported = Figures { requests: 2, edited: 2, unreported: 2, ..Figures::default() };
        assert_eq!(said(false, unreported), "no tokens were reported for 2 requests");
        assert!(Verdict::of(&Page::default()).is_empty());
    }
}
