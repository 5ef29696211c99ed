//! `abridge savings`: prints what the ledger has of the last days.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, anyhow};

use crate::cli::client::ProxyArgs;
use crate::cli::{Exit, escape, print, refuse, store, to_json};
use crate::config::{Config, Sources};
use crate::engine::bookkeeper::{Day, stored_days};
use crate::ledger::{Account, Figures, Rows, Savings};
use crate::tokens::Usage;
use crate::tokens::prices::Nanodollars;
use crate::units::{counted, grouped};

/// Arguments of `savings`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The number of days, with today
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=400))]
    days: u32,
    /// The subject of each line
    #[arg(long, value_enum, default_value_t = By::Day)]
    by: By,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print CSV
    #[arg(long)]
    csv: bool,
    #[command(flatten)]
    at: ProxyArgs,
}

/// What lines are about.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum By {
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

/// A line: requests that were sent as edited, or of dry runs.
#[derive(serde::Serialize)]
struct Line {
    name: String,
    dry_run: bool,
    #[serde(flatten)]
    figures: Figures,
}

/// Prints the savings.
pub fn run(args: &Args, sources: &Sources, config: &Config) -> anyhow::Result<Exit> {
    let days = match read(args, sources, config) {
        Ok(days) => days,
        Err(error) => return Ok(refuse(&error)),
    };
    let lines = lines(&days, args.by);
    print([match (args.json, args.csv) {
        (true, _) => to_json(&lines)?,
        (_, true) => csv(&lines),
        _ if lines.is_empty() => format!("no request was billed in the last {} days\n", args.days),
        _ => table(&days, &lines, args.days),
    }])
}

/// The days as a running proxy tells them, or else the store.
fn read(args: &Args, sources: &Sources, config: &Config) -> anyhow::Result<Vec<Day>> {
    let proxy = args.at.proxy(sources, config)?;
    match proxy.get(&format!("/abridge/ledger?days={}", args.days)) {
        Ok(answer) if answer.status == 200 => serde_json::from_slice(&answer.body)
            .with_context(|| format!("{} answers with a ledger that this version cannot read", proxy.name)),
        Ok(answer) => Err(anyhow!("{} answers {}: {}", proxy.name, answer.status, answer.first_line())),
        Err(error) => {
            let n_days = args.days;
            let stored = store::read(sources, config, async |store| stored_days(store, n_days).await)?;
            stored.ok_or_else(|| anyhow::Error::new(error).context("the store cannot be read either"))
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

fn lines(days: &[Day], by: By) -> Vec<Line> {
    let mut sums = BTreeMap::<(String, bool), Figures>::new();
    for Day { day, rows } in days {
        for (account, figures) in rows.iter() {
            sums.entry((by.name(day, account).to_owned(), account.dry_run)).or_default().add(figures);
        }
    }
    sums.into_iter().map(|((name, dry_run), figures)| Line { name, dry_run, figures }).collect()
}

impl Line {
    fn saved(&self) -> String {
        let Figures { edited_cost, unedited_cost, .. } = self.figures;
        let [edited, unedited] = [edited_cost, unedited_cost].map(Nanodollars::dollars);
        if unedited == 0.0 { "-".to_owned() } else { format!("{:.0} %", 100.0 * (unedited - edited) / unedited) }
    }
}

fn table(days: &[Day], lines: &[Line], n_days: u32) -> String {
    let mut all = Rows::default();
    for day in days {
        all.merge(&day.rows);
    }
    let n_requests = lines.iter().map(|line| line.figures.requests).sum();
    let savings = Savings::of(&all).map_or_else(
        || format!("no tokens were reported for {}", counted(n_requests, "request")),
        |savings| savings.to_string(),
    );
    let mut text = format!("last {n_days} days: {savings}\n\n");
    let width = lines.iter().map(|line| line.name.chars().count()).max().unwrap_or_default().max(10);
    // Writing into a String never fails.
    let _written =
        writeln!(text, "{:width$}  requests   edited   input tokens       cost  without edits  saved  asked again", "");
    for line in lines {
        let Figures { requests, edited, billed, asked_again, .. } = line.figures;
        let [cost, without] = [line.figures.edited_cost, line.figures.unedited_cost].map(Nanodollars::dollars);
        let name = escape::to_single_line(if line.name.is_empty() { "-" } else { &line.name }, 64);
        let mark = if line.dry_run { "  (dry run)" } else { "" };
        let _written = writeln!(
            text,
            "{name:width$} {:>9} {:>8} {:>14} {:>10} {:>14} {:>6} {:>12}{mark}",
            grouped(requests),
            grouped(edited),
            grouped(billed.input),
            format!("${cost:.2}"),
            format!("${without:.2}"),
            line.saved(),
            grouped(asked_again),
        );
    }
    for (policy, experiment) in all.experiments().iter() {
        let policy = escape::to_single_line(policy, 64);
        let _written = write!(text, "\n{}", experiment.describe(&policy));
    }
    text
}

fn csv(lines: &[Line]) -> String {
    let mut text = "name,dry_run,requests,edited,unreported,unpriced,input_tokens,cached_tokens,written_tokens,output_tokens,edited_input_tokens,unedited_input_tokens,edited_cost_dollars,unedited_cost_dollars,asked_again,summaries,keep_alives\n".to_owned();
    for Line { name, dry_run, figures } in lines {
        let Figures { requests, edited, unreported, unpriced, asked_again, summaries, keep_alives, .. } = figures;
        let Figures { billed, edited_input, unedited_input, edited_cost, unedited_cost, .. } = figures;
        let Usage { input, cached, written, output, .. } = billed;
        let name = name.replace('"', "\"\"");
        let [edited_cost, unedited_cost] = [edited_cost, unedited_cost].map(|cost| cost.dollars());
        let _written = writeln!(
            text,
            "\"{name}\",{dry_run},{requests},{edited},{unreported},{unpriced},{input},{cached},{written},{output},{edited_input},{unedited_input},{edited_cost:.6},{unedited_cost:.6},{asked_again},{summaries},{keep_alives}"
        );
    }
    text
}
