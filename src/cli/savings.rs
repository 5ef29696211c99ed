//! `abridge savings`: prints what the ledger has of the last days.

use std::fmt::Write as _;

use anyhow::{Context, anyhow};

use crate::cli::client::ProxyArgs;
use crate::cli::{Exit, escape, print, refuse, store, to_json};
use crate::config::{Config, Sources};
use crate::engine::bookkeeper::{Day, stored_days};
use crate::ledger::{Arm, By, Comparison, Estimate, Figures, Line, Means, Report};
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

/// Prints the savings.
pub fn run(args: &Args, sources: &Sources, config: &Config) -> anyhow::Result<Exit> {
    let days = match read(args, sources, config) {
        Ok(days) => days,
        Err(error) => return Ok(refuse(&error)),
    };
    let report = Report::of(days.iter().map(|Day { day, rows }| (day.as_str(), rows)), args.by);
    print([match (args.json, args.csv) {
        (true, _) => to_json(&report)?,
        (_, true) => csv(&report),
        _ if report.lines.is_empty() => format!("no request was billed in the last {} days\n", args.days),
        _ => table(&report, args.days),
    }])?;
    Ok(Exit::Ok)
}

/// The days as a running proxy tells them, or else the store.
fn read(args: &Args, sources: &Sources, config: &Config) -> anyhow::Result<Vec<Day>> {
    let proxy = args.at.proxy(sources, config)?;
    match proxy.get(&format!("/abridge/ledger?days={}", args.days)) {
        Ok(answer) if answer.status == 200 => serde_json::from_slice(&answer.body)
            .with_context(|| format!("{} answers with a ledger that this version cannot read", proxy.name())),
        Ok(answer) => Err(anyhow!("{} answers {}: {}", proxy.name(), answer.status, answer.first_line())),
        Err(error) => {
            let n_days = args.days;
            let stored = store::read(sources, config, async |store| stored_days(store, n_days).await)?;
            stored.ok_or_else(|| anyhow::Error::new(error).context("the store cannot be read either"))
        }
    }
}

/// The part that was saved; negative if the edits cost more.
fn saved_part(figures: &Figures) -> String {
    let [edited, unedited] = [figures.edited_cost, figures.unedited_cost].map(Nanodollars::dollars);
    if unedited == 0.0 { "-".to_owned() } else { format!("{:.0} %", 100.0 * (unedited - edited) / unedited) }
}

fn table(report: &Report, n_days: u32) -> String {
    let Report { lines, savings, experiments } = report;
    let n_requests = lines.iter().map(|line| line.figures.requests).sum();
    let nothing = || format!("no tokens were reported for {}", counted(n_requests, "request"));
    let savings = savings.clone().unwrap_or_else(nothing);
    let mut text = format!("last {n_days} days: {savings}\n\n");
    let width = lines.iter().map(|line| line.name.chars().count()).max().unwrap_or_default().max(10);
    let head = ["", "requests", "edited", "input tokens", "cost", "without edits", "saved", "asked again"];
    let [name, requests, edited, input, cost, without, saved, again] = head;
    // Writing into a String never fails.
    let _written = writeln!(
        text,
        "{name:width$} {requests:>9} {edited:>8} {input:>14} {cost:>10} {without:>14} {saved:>6} {again:>12}"
    );
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
            saved_part(&line.figures),
            grouped(asked_again),
        );
    }
    for experiment in experiments {
        let policy = escape::to_single_line(&experiment.policy, 64);
        let _written = write!(text, "\n{}", Comparison { policy, ..experiment.clone() });
    }
    text
}

/// The columns of a line, and those of an arm of an experiment.
const COLUMNS: &str = "name,dry_run,requests,edited,unreported,unpriced,input_tokens,cached_tokens,written_tokens,output_tokens,edited_input_tokens,unedited_input_tokens,edited_cost_dollars,unedited_cost_dollars,asked_again,summaries,keep_alives";
const N_COLUMNS: usize = 17;
const ARM_COLUMNS: &str = "experiment,arm_conversations,arm_requests,arm_unit,arm_amount,per_conversation,per_conversation_from,per_conversation_to,per_request,per_request_from,per_request_to,difference_per_conversation,difference_per_conversation_from,difference_per_conversation_to,difference_per_request,difference_per_request_from,difference_per_request_to";
const N_ARM_COLUMNS: usize = 17;

/// A row for each line, and one for each arm of an experiment. What a row is not about is empty.
fn csv(report: &Report) -> String {
    let mut text = format!("{COLUMNS},{ARM_COLUMNS}\n");
    let no_arm = ",".repeat(N_ARM_COLUMNS);
    for Line { name, dry_run, figures } in &report.lines {
        let Figures {
            requests,
            edited,
            unreported,
            unpriced,
            billed,
            edited_input,
            unedited_input,
            edited_cost,
            unedited_cost,
            asked_again,
            summaries,
            keep_alives,
        } = figures;
        let name = name.replace('"', "\"\"");
        let (input, cached, written, output) = (billed.input, billed.cached, billed.written, billed.output);
        let [edited_cost, unedited_cost] = [edited_cost, unedited_cost].map(|cost| cost.dollars());
        let _written = writeln!(
            text,
            "\"{name}\",{dry_run},{requests},{edited},{unreported},{unpriced},{input},{cached},{written},{output},{edited_input},{unedited_input},{edited_cost:.6},{unedited_cost:.6},{asked_again},{summaries},{keep_alives}{no_arm}"
        );
    }
    for Comparison { policy, unit, usual, tried, difference, .. } in &report.experiments {
        for (name, arm, difference) in [("usual", usual, Means::default()), (policy.as_str(), tried, *difference)] {
            let [name, policy] = [name, policy.as_str()].map(|name| name.replace('"', "\"\""));
            let Arm { conversations, requests, amount, means } = arm;
            let conversations = conversations.map(|n| n.to_string()).unwrap_or_default();
            let no_line = ",".repeat(N_COLUMNS - 1);
            let (means, difference) = (cells(*means), cells(difference));
            let _written = writeln!(
                text,
                "\"{name}\"{no_line},\"{policy}\",{conversations},{requests},{unit},{amount:.6},{means},{difference}"
            );
        }
    }
    text
}

/// Per conversation and per request: the estimate and its interval.
fn cells(Means { per_conversation, per_request }: Means) -> String {
    let cell = |value: Option<f64>| value.map(|value| format!("{value:.6}")).unwrap_or_default();
    let of_one = |of: Option<Estimate>| {
        let interval = of.and_then(|of| of.interval);
        [of.map(|of| of.estimate), interval.map(|[from, _]| from), interval.map(|[_, to]| to)].map(cell).join(",")
    };
    [per_conversation, per_request].map(of_one).join(",")
}
