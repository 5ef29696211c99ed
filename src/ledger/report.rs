//! The report that `abridge savings` prints and the page shows: the sums of some days by subject, the arms of experiments, and
//! the savings of the edits in one line.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::experiment::Comparison;
use super::{Account, Figures, Rows};
use crate::tokens::prices::Nanodollars;
use crate::units::{counted, grouped, percent};

/// The subject of each line.
#[derive(Clone, Copy, Debug, clap::ValueEnum, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum By {
    /// A day
    Day,
    /// A model
    Model,
    /// A program that sends requests
    Client,
    /// A client that the settings name
    Caller,
    /// A policy
    Policy,
    /// An upstream
    Upstream,
}

/// The sums of some days.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The savings in words, if they are known.
    pub savings: Option<String>,
    /// The sums by subject.
    pub lines: Vec<Line>,
    /// The arms of each experiment.
    pub experiments: Vec<Comparison>,
}

/// A line: requests that were sent as edited, or of dry runs.
#[derive(Debug, Serialize)]
pub struct Line {
    /// The subject.
    pub name: String,
    /// Whether the requests are those of dry runs.
    pub dry_run: bool,
    /// The sums.
    #[serde(flatten)]
    pub figures: Figures,
}

impl Report {
    /// Sums up these days.
    pub fn of<'a>(days: impl IntoIterator<Item = (&'a str, &'a Rows)>, by: By) -> Self {
        let (mut all, mut sums) = (Rows::default(), BTreeMap::<(String, bool), Figures>::new());
        for (day, rows) in days {
            all.merge(rows);
            for (account, figures) in rows.iter() {
                sums.entry((by.name(day, account).to_owned(), account.dry_run)).or_default().add(figures);
            }
        }
        let line = |((name, dry_run), figures)| Line { name, dry_run, figures };
        Self {
            savings: Savings::of(&all).map(|savings| savings.to_string()),
            lines: sums.into_iter().map(line).collect(),
            experiments: all.experiments.iter().map(|(policy, experiment)| experiment.compare(policy)).collect(),
        }
    }
}

impl By {
    fn name<'a>(self, day: &'a str, account: &'a Account) -> &'a str {
        match self {
            Self::Day => day,
            Self::Model => &account.model,
            Self::Client => &account.client,
            Self::Caller => &account.caller,
            Self::Policy => &account.policy,
            Self::Upstream => &account.upstream,
        }
    }
}

// === the savings ===

/// The savings of the edits on a bill, net: broken caches, summaries and recalls are paid.
#[derive(Clone, Copy, Debug)]
pub struct Savings {
    figures: Figures,
    is_dry_run: bool,
}

/// The words after the numbers of requests, in the sentence on amounts below [`SHOWN_FROM`].
pub const FOR_LESS: &str = "edited, for less";

/// The least sum of dollars whose digits say something.
pub const SHOWN_FROM: Nanodollars = Nanodollars(1_000_000);

impl Savings {
    /// The savings of the edits in some rows; if all are of dry runs, those that there would be. `None` if no answer has
    /// reported its tokens.
    pub fn of(rows: &Rows) -> Option<Self> {
        let (edited, dry_run) = (rows.total(false), rows.total(true));
        let is_dry_run = edited.requests == 0 && dry_run.requests > 0;
        let figures = if is_dry_run { dry_run } else { edited };
        (figures.billed.input > 0).then_some(Self { figures, is_dry_run })
    }

    /// Whether a request was edited, or would have been.
    pub fn has_edits(&self) -> bool {
        self.figures.edited > 0
    }
}

impl fmt::Display for Savings {
    /// `saved $1.84 of $13.10 (14 %) · 2 results asked for again`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { requests, edited_cost, unedited_cost, edited_input, unedited_input, .. } = self.figures;
        let Figures { unpriced, unreported, asked_again, .. } = self.figures;
        let (saved, would_be) = if self.is_dry_run { ("would have saved", "would be ") } else { ("saved", "") };
        if !self.has_edits() {
            write!(f, "nothing {would_be}edited in {}", counted(requests, "request"))?;
            if edited_cost > Nanodollars(0) {
                write!(f, ", which cost {edited_cost}")?;
            }
        } else if unedited_cost > Nanodollars(0) && edited_cost.max(unedited_cost) < SHOWN_FROM {
            let Figures { edited, .. } = self.figures;
            write!(f, "{edited} of {} {would_be}{FOR_LESS} than {SHOWN_FROM}", counted(requests, "request"))?;
        } else if unedited_cost > Nanodollars(0) {
            let difference = Nanodollars(unedited_cost.0.abs_diff(edited_cost.0));
            let percent = percent(difference.0, unedited_cost.0);
            if edited_cost <= unedited_cost {
                write!(f, "{saved} {difference} of {unedited_cost} ({percent} %)")?;
            } else {
                write!(f, "{saved} nothing: {difference} more than {unedited_cost} ({percent} %)")?;
            }
        } else {
            let difference = unedited_input.saturating_sub(edited_input);
            let percent = percent(difference, unedited_input);
            write!(f, "{saved} {} of {} input tokens ({percent} %)", grouped(difference), grouped(unedited_input))?;
        }
        if asked_again > 0 {
            write!(f, " · {} asked for again", counted(asked_again, "result"))?;
        }
        if unpriced > 0 && unpriced < requests {
            write!(f, " · {} without a price", counted(unpriced, "request"))?;
        }
        if unreported > 0 {
            write!(f, " · {} without reported tokens", counted(unreported, "request"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Account, Ledger};
    use super::*;
    use crate::tokens::Usage;

    fn saved(dry_run: bool, figures: Figures) -> Option<String> {
        let ledger = Ledger::default();
        ledger.add(Account { dry_run, ..Account::default() }, &figures, None);
        Savings::of(&ledger.since_start()).map(|savings| savings.to_string())
    }

    #[test]
    fn they_are_net_and_in_dollars_first() {
        let figures = Figures {
            requests: 40,
            edited: 12,
            edited_cost: Nanodollars(11_260_000_000),
            unedited_cost: Nanodollars(13_100_000_000),
            asked_again: 2,
            billed: Usage { input: 1, ..Usage::default() },
            ..Figures::default()
        };
        assert_eq!(saved(false, figures).unwrap(), "saved $1.84 of $13.10 (14 %) · 2 results asked for again");
        let dry_run = Figures { asked_again: 0, ..figures };
        assert_eq!(saved(true, dry_run).unwrap(), "would have saved $1.84 of $13.10 (14 %)");
        let dearer = Figures { edited_cost: Nanodollars(14_410_000_000), asked_again: 1, unreported: 3, ..figures };
        assert_eq!(
            saved(false, dearer).unwrap(),
            "saved nothing: $1.31 more than $13.10 (10 %) · 1 result asked for again · 3 requests without reported tokens"
        );
    }

    #[test]
    fn of_a_first_short_request_no_share_of_nothing_is_said() {
        let figures = Figures {
            requests: 1,
            edited: 1,
            edited_cost: Nanodollars(10_200),
            unedited_cost: Nanodollars(7_500),
            billed: Usage { input: 60, ..Usage::default() },
            ..Figures::default()
        };
        assert_eq!(saved(false, figures).unwrap(), "1 of 1 request edited, for less than $0.0010");
    }

    #[test]
    fn without_a_price_they_are_in_tokens() {
        let figures = Figures {
            requests: 9,
            edited: 1,
            unpriced: 9,
            billed: Usage { input: 60_000, ..Usage::default() },
            edited_input: 60_000,
            unedited_input: 100_000,
            ..Figures::default()
        };
        assert_eq!(saved(false, figures).unwrap(), "saved 40,000 of 100,000 input tokens (40 %)");
    }

    #[test]
    fn nothing_edited_is_said_and_nothing_reported_is_none() {
        let cost = Nanodollars(420_000_000);
        let billed = Usage { input: 1, ..Usage::default() };
        let figures = Figures { requests: 1, edited_cost: cost, unedited_cost: cost, billed, ..Figures::default() };
        assert_eq!(saved(false, figures).unwrap(), "nothing edited in 1 request, which cost $0.42");
        assert_eq!(saved(false, Figures { requests: 2, edited: 2, unreported: 2, ..Figures::default() }), None);
    }
}
