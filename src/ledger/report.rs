//! The report that `abridge savings` prints and the page shows: the sums of some days by subject, and the arms of experiments.

use std::collections::BTreeMap;

use serde::Serialize;

use super::experiment::Comparison;
use super::{Account, Figures, Rows, Savings};

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
            experiments: all.experiments().iter().map(|(policy, experiment)| experiment.compare(policy)).collect(),
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
