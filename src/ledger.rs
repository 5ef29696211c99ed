//! The ledger: what answers cost, and what they would have cost without the edits, by day, upstream, model, policy, client and
//! caller. It has names and numbers, and nothing of what messages say.
//!
//! Each process counts what it has seen, and stores the rows of each day under its own key. The rows of several processes
//! are added when the ledger is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::NaiveDate;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::held::Held;
use crate::platform::since_1970;
use crate::tokens::Usage;
use crate::tokens::prices::{Nanodollars, PriceList};

mod counterfactual;
mod experiment;
mod report;

pub use counterfactual::Counterfactual;
pub use experiment::{Arm, Assignment, Comparison, Estimate, Experiment, Experiments, Means, Unit};
pub use report::{By, FOR_LESS, Line, Report, SHOWN_FROM, Savings};

/// The counts of one process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Held<Counted>>);

#[derive(Debug, Default)]
struct Counted {
    days: BTreeMap<u32, CountedDay>,
    /// How many changes there were of all days, and how many days were dropped.
    n_changes: u64,
    n_dropped: u32,
    /// The rows of earlier days, which are stored.
    earlier: Rows,
}

/// The rows of one day.
#[derive(Clone, Debug, Default)]
pub struct CountedDay {
    /// The rows.
    pub rows: Rows,
    /// How many days had been dropped when it was begun: a clock that is set back may begin a day twice.
    pub n_dropped: u32,
    /// The number of its last change, and of the last one that is stored.
    n_changes: u64,
    n_stored: u64,
}

/// Sums by account, and by the arms of experiments.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Rows {
    #[serde(serialize_with = "write_rows", deserialize_with = "read_rows")]
    accounts: BTreeMap<Account, Figures>,
    /// The arms of experiments.
    pub experiments: Experiments,
}

/// The subject of a row. Clients choose some of the names, so all of them have a limit.
#[derive(Clone, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(default)]
pub struct Account {
    /// The name of the upstream.
    pub upstream: String,
    /// The model.
    pub model: String,
    /// The policy of the settings; `default` for the settings themselves.
    pub policy: String,
    /// The program that has sent the requests, as the beginning of its `user-agent` says; `abridge` for calls that it makes itself.
    pub client: String,
    /// The name of the client in the settings, if it has one.
    pub caller: String,
    /// Whether the edits were reported and not made.
    pub dry_run: bool,
}

/// The sums of a row. Of the costs with and without the edits one was billed, and the other is an estimate: in a dry run the one
/// with the edits.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Figures {
    /// Requests that were answered.
    pub requests: u64,
    /// Those that were edited, or would have been.
    pub edited: u64,
    /// Requests and summaries whose answer reported no tokens.
    pub unreported: u64,
    /// Requests and summaries whose model has no price.
    pub unpriced: u64,
    /// The tokens as billed.
    pub billed: Usage,
    /// The input tokens with the edits.
    pub edited_input: u64,
    /// The input tokens without the edits.
    pub unedited_input: u64,
    /// The cost with the edits, in billionths of a dollar.
    pub edited_cost: Nanodollars,
    /// The cost without the edits, in billionths of a dollar.
    pub unedited_cost: Nanodollars,
    /// Results that the model has asked for again after they were cleared.
    pub asked_again: u64,
    /// Calls for summaries, which are not among the requests.
    pub summaries: u64,
    /// Calls that keep prompt caches, which are not among the requests.
    pub keep_alives: u64,
}

/// From so many rows on, further accounts are counted for the model and the client `other`, as clients choose these names; from
/// four times as many on, for the caller `other`, too.
const MAX_ROWS: usize = 256;
const MAX_ROWS_OF_CALLERS: usize = 4 * MAX_ROWS;

/// The longest name in an account, in characters.
const MAX_NAME: usize = 64;

/// How many days are kept here: the last two that have changed, as a clock may be set back, and more while the store fails.
const KEPT_DAYS: usize = 2;
const MAX_DAYS: usize = 8;

/// The length of a day, in seconds.
const DAY: u64 = 24 * 60 * 60;

// === impl Ledger ===

impl Ledger {
    /// Adds what was counted now, of a conversation that may be in an experiment.
    pub fn add(&self, account: Account, figures: &Figures, assignment: Option<&Assignment>) {
        self.add_on(today(), account, figures, assignment);
    }

    /// Adds a call that abridge has made itself; `calls` says of which kind.
    pub fn add_own(
        &self,
        rates: &PriceList,
        [policy, upstream, model]: [&str; 3],
        billed: Option<Usage>,
        calls: Figures,
        assignment: Option<&Assignment>,
    ) {
        let rates = rates.dollars(model);
        let account = Account {
            upstream: upstream.to_owned(),
            model: model.to_owned(),
            policy: policy.to_owned(),
            client: "abridge".to_owned(),
            ..Account::default()
        };
        let (unreported, billed) = (u64::from(billed.is_none()), billed.unwrap_or_default());
        let figures = Figures {
            unreported,
            unpriced: u64::from(rates.is_none()),
            billed,
            edited_input: billed.input,
            edited_cost: rates.map_or(Nanodollars::default(), |rates| rates.cost(&billed)),
            ..calls
        };
        self.add(account, &figures, assignment);
    }

    fn add_on(&self, day: u32, mut account: Account, figures: &Figures, assignment: Option<&Assignment>) {
        account.limit_names();
        let is_dry_run = account.dry_run;
        self.0.with(|counted| {
            let n_dropped = counted.n_dropped;
            let counted_day =
                counted.days.entry(day).or_insert_with(|| CountedDay { n_dropped, ..CountedDay::default() });
            counted.n_changes += 1;
            counted_day.n_changes = counted.n_changes;
            counted_day.rows.add(account, figures);
            if let Some(assignment) = assignment.filter(|_| !is_dry_run) {
                counted_day.rows.experiments.add(assignment, figures);
            }
            counted.drop_days();
        });
    }

    /// Returns the days, counted since 1970, that are not stored as they are now. They stay so until [`Self::mark_saved`].
    pub fn unsaved(&self) -> Vec<(u32, CountedDay)> {
        self.0.with(|counted| {
            let unsaved = counted.days.iter().filter(|(_, of)| of.n_stored < of.n_changes);
            unsaved.map(|(day, of)| (*day, of.clone())).collect()
        })
    }

    /// Notes that these rows of a day are stored.
    pub fn mark_saved(&self, day: u32, saved: &CountedDay) {
        self.0.with(|counted| {
            if let Some(day) = counted.days.get_mut(&day) {
                day.n_stored = day.n_stored.max(saved.n_changes);
            }
            counted.drop_days();
        });
    }

    /// The savings of the edits since the start; `None` if no answer has reported its tokens.
    pub fn savings(&self) -> Option<Savings> {
        Savings::of(&self.since_start())
    }

    /// All that this process has counted.
    pub fn since_start(&self) -> Rows {
        self.0.with(|counted| {
            let mut all = counted.earlier.clone();
            counted.days.values().for_each(|day| all.merge(&day.rows));
            all
        })
    }
}

impl Counted {
    /// Keeps the last days, and what is not stored.
    fn drop_days(&mut self) {
        while self.days.len() > KEPT_DAYS {
            let Some((day, of)) = self.days.iter().min_by_key(|(_, of)| of.n_changes) else { return };
            if of.n_stored < of.n_changes && self.days.len() <= MAX_DAYS {
                return;
            }
            self.earlier.merge(&of.rows);
            self.n_dropped += 1;
            let day = *day;
            self.days.remove(&day);
        }
    }
}

/// Today, in days since 1970.
pub fn today() -> u32 {
    u32::try_from(since_1970().as_secs() / DAY).unwrap_or(u32::MAX)
}

/// A day as `2026-11-25`.
pub fn date(day: u32) -> String {
    i32::try_from(day).ok().and_then(NaiveDate::from_epoch_days).unwrap_or_default().to_string()
}

// === impl Rows ===

impl Rows {
    /// Adds other rows.
    pub fn merge(&mut self, other: &Self) {
        other.iter().for_each(|(account, figures)| self.add(account.clone(), figures));
        self.experiments.merge(&other.experiments);
    }

    /// Each account, and its sums.
    pub fn iter(&self) -> impl Iterator<Item = (&Account, &Figures)> {
        self.accounts.iter()
    }

    /// The sum over the requests of dry runs, or over all others.
    pub fn total(&self, dry_run: bool) -> Figures {
        let mut total = Figures::default();
        self.iter().filter(|(account, _)| account.dry_run == dry_run).for_each(|(_, figures)| total.add(figures));
        total
    }

    fn add(&mut self, account: Account, figures: &Figures) {
        if let Some(sums) = self.accounts.get_mut(&account) {
            return sums.add(figures);
        }
        let account = match self.accounts.len() {
            ..MAX_ROWS => account,
            n_rows => account.other(n_rows < MAX_ROWS_OF_CALLERS),
        };
        self.accounts.entry(account).or_default().add(figures);
    }
}

/// A row as it is written, in a list.
#[derive(Deserialize, Serialize)]
struct Row {
    #[serde(flatten)]
    account: Account,
    #[serde(flatten)]
    figures: Figures,
}

fn write_rows<S: Serializer>(rows: &BTreeMap<Account, Figures>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(rows.iter().map(|(account, figures)| Row { account: account.clone(), figures: *figures }))
}

fn read_rows<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<Account, Figures>, D::Error> {
    let rows = Vec::<Row>::deserialize(from)?;
    Ok(rows.into_iter().map(|Row { account, figures }| (account, figures)).collect())
}

// === impl Account ===

impl Account {
    fn limit_names(&mut self) {
        let Self { upstream, model, policy, client, caller, dry_run: _ } = self;
        for name in [upstream, model, policy, client, caller] {
            let is_short_and_plain = name.len() <= MAX_NAME && name.bytes().all(|byte| (b' '..=b'~').contains(&byte));
            if !is_short_and_plain {
                *name = name.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect();
            }
        }
    }

    fn other(self, has_caller: bool) -> Self {
        const OTHER: &str = "other";
        let caller = if has_caller { self.caller } else { OTHER.to_owned() };
        Self { model: OTHER.to_owned(), client: OTHER.to_owned(), caller, ..self }
    }
}

/// The name of a program, by its `user-agent`: `claude-cli/2.1.197 (external, cli)` is `claude-cli`.
pub fn client_of(user_agent: Option<&str>) -> &str {
    let name = user_agent.unwrap_or_default().split(['/', ' ']).next().unwrap_or_default();
    if name.is_empty() { "unknown" } else { name }
}

// === impl Figures ===

impl Figures {
    /// Adds other figures.
    pub fn add(&mut self, other: &Self) {
        for (sum, n) in [
            (&mut self.requests, other.requests),
            (&mut self.edited, other.edited),
            (&mut self.unreported, other.unreported),
            (&mut self.unpriced, other.unpriced),
            (&mut self.edited_input, other.edited_input),
            (&mut self.unedited_input, other.unedited_input),
            (&mut self.edited_cost.0, other.edited_cost.0),
            (&mut self.unedited_cost.0, other.unedited_cost.0),
            (&mut self.asked_again, other.asked_again),
            (&mut self.summaries, other.summaries),
            (&mut self.keep_alives, other.keep_alives),
        ] {
            *sum = sum.saturating_add(n);
        }
        self.billed += other.billed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(model: &str) -> Account {
        Account { model: model.to_owned(), ..Account::default() }
    }

    fn one() -> Figures {
        Figures { requests: 1, edited_cost: Nanodollars(5), ..Figures::default() }
    }

    fn n_requests(rows: &Rows) -> u64 {
        rows.total(false).requests
    }

    #[test]
    fn rows_of_several_processes_and_days_add_up() {
        let (one_process, other) = (Ledger::default(), Ledger::default());
        one_process.add_on(0, account("a"), &one(), None);
        one_process.add_on(0, account("a"), &one(), None);
        one_process.add_on(1, account("a"), &one(), None);
        other.add_on(0, account("b"), &one(), None);
        let mut all = Rows::default();
        for (day, CountedDay { rows, .. }) in one_process.unsaved().into_iter().chain(other.unsaved()) {
            assert!(day < 2);
            let stored = serde_json::to_string(&rows).unwrap();
            all.merge(&serde_json::from_str(&stored).unwrap());
        }
        let of =
            |model: &str| all.iter().find(|(account, _)| account.model == model).map(|(_, figures)| figures.requests);
        assert_eq!((of("a"), of("b"), all.total(false).edited_cost), (Some(3), Some(1), Nanodollars(20)));
    }

    #[test]
    fn what_changes_while_it_is_being_stored_is_stored_again() {
        let ledger = Ledger::default();
        ledger.add_on(0, account("a"), &one(), None);
        let being_stored = ledger.unsaved();
        ledger.add_on(0, account("a"), &one(), None);
        ledger.mark_saved(0, &being_stored[0].1);
        let next = ledger.unsaved();
        assert_eq!(next.iter().map(|(_, unsaved)| n_requests(&unsaved.rows)).collect::<Vec<_>>(), [2]);
        ledger.mark_saved(0, &next[0].1);
        // The one before ends after it.
        ledger.mark_saved(0, &being_stored[0].1);
        assert!(ledger.unsaved().is_empty());
    }

    #[test]
    fn days_are_kept_until_they_are_stored_or_too_many() {
        let ledger = Ledger::default();
        for day in 0..20 {
            ledger.add_on(day, account("a"), &one(), None);
        }
        let unsaved = ledger.unsaved();
        assert_eq!(unsaved.iter().map(|(day, _)| *day).collect::<Vec<_>>(), (12..20).collect::<Vec<_>>());
        for (day, of) in &unsaved {
            ledger.mark_saved(*day, of);
        }
        // The clock is set back.
        ledger.add_on(18, account("a"), &one(), None);
        let rows: Vec<_> = ledger.unsaved().iter().map(|(day, of)| (*day, n_requests(&of.rows))).collect();
        assert_eq!(rows, [(18, 2)]);
        assert_eq!(n_requests(&ledger.since_start()), 21);
    }

    #[test]
    fn after_a_clock_was_set_back_by_days_nothing_takes_the_place_of_what_is_stored() {
        let (ledger, mut stored) = (Ledger::default(), BTreeMap::new());
        for (n, day) in (1..).zip([10, 20, 21, 10, 10, 10, 30, 10, 31, 10, 32, 20, 10]) {
            ledger.add_on(day, account("a"), &one(), None);
            for (day, of) in ledger.unsaved() {
                ledger.mark_saved(day, &of);
                stored.insert((day, of.n_dropped), n_requests(&of.rows));
            }
            assert_eq!([stored.values().sum::<u64>(), n_requests(&ledger.since_start())], [n; 2], "after {n}");
        }
        assert!(stored.len() < 10, "the day that goes on has one row: {stored:?}");
    }

    #[test]
    fn names_that_one_caller_invents_hide_no_other_caller() {
        let ledger = Ledger::default();
        let of = |caller: &str, client: String| Account { client, caller: caller.to_owned(), ..account("a") };
        for n in 0..2 * MAX_ROWS {
            ledger.add_on(0, of("greedy", format!("agent{n}")), &one(), None);
        }
        ledger.add_on(0, of("other tenant", "codex".to_owned()), &one(), None);
        let rows = ledger.since_start();
        let n_of = |caller| rows.iter().filter(|(row, _)| row.caller == caller).map(|(_, of)| of.requests).sum::<u64>();
        assert_eq!([n_of("greedy"), n_of("other tenant")], [2 * MAX_ROWS as u64, 1]);
        for n in 0..2 * MAX_ROWS_OF_CALLERS {
            ledger.add_on(0, of(&format!("caller {n}"), "codex".to_owned()), &one(), None);
        }
        assert!(ledger.since_start().iter().count() <= MAX_ROWS_OF_CALLERS + 1);
    }

    #[test]
    fn rows_and_names_have_a_limit() {
        let ledger = Ledger::default();
        for n in 0..2 * MAX_ROWS {
            ledger.add_on(0, account(&format!("{n}\n{}", "x".repeat(200))), &one(), None);
        }
        let rows = ledger.since_start();
        assert_eq!((rows.iter().count(), n_requests(&rows)), (MAX_ROWS + 1, 2 * MAX_ROWS as u64));
        let is_limited = |name: &str| name.chars().count() <= MAX_NAME && !name.contains('\n');
        assert!(rows.iter().all(|(account, _)| is_limited(&account.model)));
    }

    #[test]
    fn days_are_dates() {
        for (day, date_of) in
            [(0, "1970-01-01"), (11_016, "2000-02-29"), (11_017, "2000-03-01"), (20_782, "2026-11-25")]
        {
            assert_eq!(date(day), date_of);
        }
    }

    #[test]
    fn a_client_is_named_by_its_program() {
        for (agent, name) in [
            (Some("claude-cli/2.1.197 (external, cli)"), "claude-cli"),
            (Some("codex_cli_rs/0.169.0 (Debian 12; x86_64)"), "codex_cli_rs"),
            (Some(" "), "unknown"),
            (None, "unknown"),
        ] {
            assert_eq!(client_of(agent), name);
        }
    }
}
