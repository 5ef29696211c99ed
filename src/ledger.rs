//! The ledger: what answers cost, and what they would have cost without the edits, by day, upstream, model, policy, client and
//! caller. It has names and numbers, and nothing of what messages say.
//!
//! Each process counts what it has seen, and stores a page for each day under a key of its own. What several processes, or one
//! after the other, have stored adds up when it is read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::tokens::Usage;
use crate::tokens::prices::{KnownRates, Nanodollars};
use crate::units::civil;

mod estimate;
mod verdict;

pub use estimate::Forms;
pub use verdict::Verdict;

/// What one process has counted. Clones share it.
#[derive(Clone, Debug, Default)]
#[expect(clippy::disallowed_types, reason = "held for some instructions, after an answer has ended")]
pub struct Ledger(Arc<std::sync::Mutex<Counted>>);

#[derive(Debug, Default)]
struct Counted {
    days: BTreeMap<u32, Page>,
    // The days whose pages are not stored as they are now.
    unsaved: BTreeSet<u32>,
    since_start: Page,
}

/// The rows of one day.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Page(#[serde(with = "rows")] BTreeMap<Account, Figures>);

/// What a row is about. Clients choose some of the names, so all of them have a limit.
#[derive(Clone, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(default)]
pub struct Account {
    /// The name of the upstream.
    pub upstream: String,
    /// The model.
    pub model: String,
    /// The policy of the settings; `default` for the settings themselves.
    pub policy: String,
    /// The program that has sent the requests, as the beginning of its `user-agent` says; `abridge` for summaries.
    pub client: String,
    /// The name of the client in the settings, if it has one.
    pub caller: String,
    /// Whether the edits were reported and not made.
    pub dry_run: bool,
}

/// The sums of a row.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Figures {
    /// Requests that were answered.
    pub requests: u64,
    /// Those that were edited, or would have been.
    pub edited: u64,
    /// Those whose answer reported no tokens.
    pub unreported: u64,
    /// Those whose model has no price.
    pub unpriced: u64,
    /// The tokens as billed.
    pub billed: Usage,
    /// The input tokens of the same requests in their other form: without the edits, or in a dry run with them.
    pub other_input: u64,
    /// What the billed tokens cost.
    pub cost: Nanodollars,
    /// What the requests would have cost in their other form.
    pub other_cost: Nanodollars,
    /// Results that the model has asked for again after they were cleared.
    pub asked_again: u64,
    /// Calls for summaries, which are not among the requests.
    pub summaries: u64,
}

/// How many rows a page has; what comes beyond them is counted for the model `other` of the client `other`.
const MAX_ROWS: usize = 256;

/// The longest name of a row, in characters.
const MAX_NAME: usize = 64;

/// The length of a day, in seconds.
const DAY: u64 = 24 * 60 * 60;

// === impl Ledger ===

impl Ledger {
    /// Adds what was counted now.
    pub fn add(&self, account: Account, figures: Figures) {
        self.add_on(today(), account, figures);
    }

    /// Adds a call for a summary, which no request would have needed without edits.
    pub fn add_summary(&self, rates: &KnownRates, policy: &str, upstream: &str, model: &str, billed: Option<Usage>) {
        let rates = rates.of_model(model);
        let account = Account {
            upstream: upstream.to_owned(),
            model: model.to_owned(),
            policy: policy.to_owned(),
            client: "abridge".to_owned(),
            ..Account::default()
        };
        let figures = Figures {
            summaries: 1,
            unreported: u64::from(billed.is_none()),
            unpriced: u64::from(rates.is_none()),
            billed: billed.unwrap_or_default(),
            cost: rates.zip(billed).map_or(Nanodollars::default(), |(rates, billed)| rates.cost(&billed)),
            ..Figures::default()
        };
        self.add(account, figures);
    }

    fn add_on(&self, day: u32, account: Account, figures: Figures) {
        let account = account.bounded();
        self.with(|counted| {
            counted.days.entry(day).or_default().add(account.clone(), &figures);
            counted.unsaved.insert(day);
            counted.since_start.add(account, &figures);
        });
    }

    /// The pages that have changed since they were taken the last time, as they are to be stored.
    pub fn take_unsaved(&self) -> Vec<(u32, Page)> {
        self.with(|counted| {
            let unsaved = std::mem::take(&mut counted.unsaved);
            let page = |day: u32| Some((day, counted.days.get(&day)?.clone()));
            let pages: Vec<_> = unsaved.into_iter().filter_map(page).collect();
            // An answer may end a little after midnight that is counted for the day before.
            while counted.days.len() > 2 {
                counted.days.pop_first();
            }
            pages
        })
    }

    /// Has a page stored with the next ones, because it could not be stored now.
    pub fn put_back(&self, day: u32) {
        self.with(|counted| counted.unsaved.insert(day));
    }

    /// All that this process has counted.
    pub fn since_start(&self) -> Page {
        self.with(|counted| counted.since_start.clone())
    }

    fn with<T>(&self, with: impl FnOnce(&mut Counted) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Today, in days since 1970.
#[expect(clippy::disallowed_methods, reason = "a row has a day")]
pub fn today() -> u32 {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    u32::try_from(seconds / DAY).unwrap_or(u32::MAX)
}

/// A day as `2026-11-25`.
pub fn date(day: u32) -> String {
    let (year, month, day) = civil(day.into());
    format!("{year:04}-{month:02}-{day:02}")
}

// === impl Page ===

impl Page {
    /// Adds the rows of another page.
    pub fn merge(&mut self, other: Self) {
        for (account, figures) in other.0 {
            self.add(account, &figures);
        }
    }

    /// The rows.
    pub fn rows(&self) -> impl Iterator<Item = (&Account, &Figures)> {
        self.0.iter()
    }

    /// The sum of the rows whose requests were sent as edited, or in a dry run as they came.
    pub fn total(&self, dry_run: bool) -> Figures {
        let mut total = Figures::default();
        self.rows().filter(|(account, _)| account.dry_run == dry_run).for_each(|(_, figures)| total.add(figures));
        total
    }

    fn add(&mut self, account: Account, figures: &Figures) {
        let has_place = self.0.len() < MAX_ROWS || self.0.contains_key(&account);
        let account = if has_place { account } else { account.beyond() };
        self.0.entry(account).or_default().add(figures);
    }
}

/// A page as it is written: each row one object.
mod rows {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::ledger::{Account, Figures};

    #[derive(Deserialize, Serialize)]
    struct Row {
        #[serde(flatten)]
        account: Account,
        #[serde(flatten)]
        figures: Figures,
    }

    pub(super) fn serialize<S: Serializer>(rows: &BTreeMap<Account, Figures>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(rows.iter().map(|(account, figures)| Row { account: account.clone(), figures: *figures }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<Account, Figures>, D::Error> {
        let rows = Vec::<Row>::deserialize(from)?;
        Ok(rows.into_iter().map(|Row { account, figures }| (account, figures)).collect::<BTreeMap<_, _>>())
    }
}

// === impl Account ===

impl Account {
    fn bounded(self) -> Self {
        let bounded = |name: String| name.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect();
        let Self { upstream, model, policy, client, caller, dry_run } = self;
        let [upstream, model, policy, client, caller] = [upstream, model, policy, client, caller].map(bounded);
        Self { upstream, model, policy, client, caller, dry_run }
    }

    fn beyond(self) -> Self {
        const OTHER: &str = "other";
        Self { model: OTHER.to_owned(), client: OTHER.to_owned(), caller: OTHER.to_owned(), ..self }
    }
}

/// The name of a program, by its `user-agent`: `claude-cli/2.1.197 (external, cli)` is `claude-cli`.
pub fn client_of(user_agent: Option<&str>) -> String {
    let name = user_agent.unwrap_or_default().split(['/', ' ']).next().unwrap_or_default();
    if name.is_empty() { "unknown".to_owned() } else { name.chars().take(MAX_NAME).collect() }
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
            (&mut self.other_input, other.other_input),
            (&mut self.cost.0, other.cost.0),
            (&mut self.other_cost.0, other.other_cost.0),
            (&mut self.asked_again, other.asked_again),
            (&mut self.summaries, other.summaries),
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
        Figures { requests: 1, cost: Nanodollars(5), ..Figures::default() }
    }

    #[test]
    fn pages_of_several_processes_and_days_add_up() {
        let (one_process, other) = (Ledger::default(), Ledger::default());
        one_process.add_on(0, account("a"), one());
        one_process.add_on(0, account("a"), one());
        one_process.add_on(1, account("a"), one());
        other.add_on(0, account("b"), one());
        let mut all = Page::default();
        for (day, page) in one_process.take_unsaved().into_iter().chain(other.take_unsaved()) {
            assert!(day < 2);
            let stored = serde_json::to_string(&page).unwrap();
            all.merge(serde_json::from_str(&stored).unwrap());
        }
        let of =
            |model: &str| all.rows().find(|(account, _)| account.model == model).map(|(_, figures)| figures.requests);
        assert_eq!((of("a"), of("b"), all.total(false).cost), (Some(3), Some(1), Nanodollars(20)));
        assert!(one_process.take_unsaved().is_empty());
        one_process.put_back(1);
        assert_eq!(one_process.take_unsaved().len(), 1);
    }

    #[test]
    fn rows_and_names_have_a_limit() {
        let ledger = Ledger::default();
        for n in 0..2 * MAX_ROWS {
            ledger.add(account(&format!("{n}\n{}", "x".repeat(200))), one());
        }
        let page = ledger.since_start();
        assert_eq!((page.rows().count(), page.total(false).requests), (MAX_ROWS + 1, 2 * MAX_ROWS as u64));
        assert!(
            page.rows().all(|(account, _)| account.model.chars().count() <= MAX_NAME && !account.model.contains('\n'))
        );
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
