//! `abridge savings`: prints what the ledger has of the last days.

use std::fmt::Write as _;

use anyhow::{Context, anyhow};

use crate::cli::client::ProxyArgs;
use crate::cli::{Exit, escape, print, refuse, store, to_json};
use crate::config::{Config, Sources};
use crate::engine::bookkeeper::{Day, stored_days};
use crate::ledger::{By, Figures, Line, Report, SHOWN_FROM};
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

/// Prints the savings.
pub fn run(args: &Args, sources: &Sources, config: &Config) -> anyhow::Result<Exit> {
    let days = match read(args, sources, config) {
        Ok(days) => days,
        Err(error) => return Ok(refuse(&error)),
    };
    let report = Report::of(days.iter().map(|Day { day, rows }| (day.as_str(), rows)), args.by);
    print([match (args.json, args.csv) {
        (true, _) => to_json(&report)?,
        (_, true) => csv(&report.lines),
        _ if report.lines.is_empty() => format!("no request was billed in the last {} days\n", args.days),
        _ => table(&report, args.days),
    }])
}

/// The days as a running proxy tells them, or else the store.
fn read(args: &Args, sources: &Sources, config: &Config) -> anyhow::Result<Vec<Day>> {
    let proxy = args.at.proxy(sources, config)?;
    match proxy.get(&format!("/abridge/ledger?days={}", args.days)) {
        Ok(answer) if answer.status == 200 => serde_json::from_slice(&answer.body)
            .with_context(|| format!("{} answers with a ledger that this version cannot read", proxy.name)),
        Ok(answer) => Err(proxy.refused(&answer)),
        Err(error) => {
            let n_days = args.days;
            let stored = store::read(sources, config, async |store| stored_days(store, n_days).await)?;
            let why = anyhow::Error::new(error);
            stored.ok_or_else(|| anyhow!("{why:#}; and the store of these settings cannot be read"))
        }
    }
}

/// The part that was saved; negative if the edits cost more, and left out of amounts that are not shown.
fn saved_part(figures: &Figures) -> String {
    let [edited, unedited] = [figures.edited_cost, figures.unedited_cost].map(Nanodollars::dollars);
    if figures.edited_cost.max(figures.unedited_cost) < SHOWN_FROM {
        "-".to_owned()
    } else {
        format!("{:.0} %", 100.0 * (unedited - edited) / unedited)
    }
}

fn table(report: &Report, n_days: u32) -> String {
    let Report { lines, savings, experiments } = report;
    let n_requests = lines.iter().map(|line| line.figures.requests).sum();
    let nothing = || format!("no tokens were reported for {}", counted(n_requests, "request"));
    let savings = savings.clone().unwrap_or_else(nothing);
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
            saved_part(&line.figures),
            grouped(asked_again),
        );
    }
    for comparison in experiments {
        let _written = write!(text, "\n{}", escape::to_lines(comparison.to_string().as_bytes()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_next_to_nothing_is_not_shown() {
        let part =
            |edited_cost, unedited_cost| saved_part(&Figures { edited_cost, unedited_cost, ..Figures::default() });
        assert_eq!(part(Nanodollars(20_000), Nanodollars(15_000)), "-");
        assert_eq!(part(Nanodollars(2_000_000), Nanodollars(8_000_000)), "75 %");
    }
}
