//! Prints a simulation as a table.

use std::fmt;

use super::{Figures, PolicyTotal, Simulation, UnreadableFile};
use crate::units::grouped;

/// The longest policy name that is printed in full, in characters.
const MAX_NAME_CHARS: usize = 16;

/// The maximum number of unreadable files that are listed.
const MAX_UNREADABLE_SHOWN: usize = 10;

/// The maximum number of transcripts that are listed.
const MAX_SHOWN: usize = 50;

impl fmt::Display for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.totals.iter().map(|total| total.policy.chars().count());
        let width = names.fold("policy".len(), usize::max).min(MAX_NAME_CHARS);
        let head = [
            "requests",
            "tokens sent",
            "largest",
            "beyond",
            "cached",
            "cost",
            "moves",
            "cleared",
            "truncated",
            "offloaded",
            "summaries",
        ];
        if let Some(verdict) = &self.verdict {
            writeln!(f, "{verdict}{}", if self.stand_in.is_some() { super::verdict::PRIVATE } else { "" })?;
        }
        write_row(f, width, "policy", &head.map(str::to_owned))?;
        for played in self.transcripts.iter().take(MAX_SHOWN) {
            let window = played.runs.first().and_then(|run| run.window);
            let window = window.map_or_else(|| "unknown".to_owned(), grouped);
            let model = played.model.as_deref().unwrap_or("none");
            let segments =
                if played.segments > 1 { format!(" in {} segments", played.segments) } else { String::new() };
            let (name, messages) = (&played.name, played.messages);
            writeln!(f, "\n{name}: {messages} messages{segments}, model {model}, window {window}")?;
            played.runs.iter().try_for_each(|run| write_row(f, width, &run.policy, &cells(&run.figures)))?;
        }
        if let Some(more @ 1..) = self.transcripts.len().checked_sub(MAX_SHOWN) {
            writeln!(f, "\n{more} more transcripts are in the total; --json has all")?;
        }
        writeln!(f, "\ntotal: {} transcripts", self.transcripts.len())?;
        self.totals.iter().try_for_each(|total| write_row(f, width, &total.policy, &cells(&total.figures)))?;
        self.write_regret(f, width)?;
        self.write_sightings(f, width)?;
        writeln!(
            f,
            "\ncost: in uncached input tokens; {} for a cached one, {} for one that is written to the cache",
            self.prices.cache_read, self.prices.cache_write
        )?;
        if self.totals.iter().any(|total| total.figures.summaries > 0) {
            match self.stand_in {
                Some(tokens) => writeln!(
                    f,
                    "summaries: no model was asked; for each, a text of {} tokens stands in",
                    grouped(tokens)
                )?,
                None => writeln!(f, "summaries: made by the upstream")?,
            }
            writeln!(f, "the cost has in it what the calls for them send, not what they answer")?;
        }
        for UnreadableFile { name, why } in self.unreadable.iter().take(MAX_UNREADABLE_SHOWN) {
            writeln!(f, "not played: {name}: {why}")?;
        }
        match self.unreadable.len().checked_sub(MAX_UNREADABLE_SHOWN) {
            Some(more) if more > 0 => writeln!(f, "not played: {more} more"),
            _ => Ok(()),
        }
    }
}

impl Simulation {
    /// Writes what was missed, and what it costs to read that again.
    fn write_regret(&self, f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
        let answers = self.totals.first().map_or(0, |total| total.regret.answers);
        writeln!(f, "\nregret, of {} requests whose answer is recorded", grouped(answers))?;
        let head = ["faults", "hard", "noise", "recalls", "cost with recalls", "in the worst"];
        write_regret_row(f, width, "policy", &head.map(str::to_owned))?;
        for (n, PolicyTotal { policy, regret, .. }) in self.totals.iter().enumerate() {
            let runs = self.transcripts.iter().filter_map(|played| played.runs.get(n));
            let worst = runs.map(|run| run.regret.percent_with_recalls()).fold(0.0, f64::max);
            let cells = [
                format!("{:.2}", regret.faults_per_100()),
                format!("{:.2}", regret.hard_per_100()),
                regret.placebo_per_100().map_or_else(|| "-".to_owned(), |noise| format!("{noise:.2}")),
                grouped(regret.faults),
                format!("{:.1} %", regret.percent_with_recalls()),
                format!("{worst:.1} %"),
            ];
            write_regret_row(f, width, policy, &cells)?;
        }
        writeln!(f, "faults, hard, noise: in 100 requests; cost with recalls: in percent of no edits")
    }
}

impl Simulation {
    /// Writes what an upstream sees of each proxy.
    fn write_sightings(&self, f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
        let judged = || self.totals.iter().filter_map(|total| Some((&total.policy, total.sightings.as_ref()?)));
        if judged().next().is_none() {
            return Ok(());
        }
        writeln!(f, "\nwhat an upstream sees of a proxy, in requests, bytes and milliseconds")?;
        let row = |f: &mut fmt::Formatter<'_>, name: &str, cells: [&str; 6]| {
            let short: String = name.chars().take(width).collect();
            let [lost, refused, words, rewritten, further, within] = cells;
            writeln!(f, "{short:width$} {lost:>8} {refused:>8} {words:>13} {rewritten:>20} {further:>8} {within:>10}")
        };
        row(f, "policy", ["lost", "refused", "words changed", "changed without need", "further", "median"])?;
        for (policy, seen) in judged() {
            let [lost, refused, words] = [seen.lost, seen.refused, seen.words_changed].map(grouped);
            let (rewritten, further) = (grouped(seen.bytes_rewritten), grouped(seen.further));
            let within = format!("{:.1}", seen.median_ms());
            row(f, policy, [&lost, &refused, &words, &rewritten, &further, &within])?;
            if let Some(reason) = &seen.reason {
                writeln!(f, "  lost, the first of {policy}: {reason}")?;
            }
        }
        Ok(())
    }
}

fn write_regret_row(f: &mut fmt::Formatter<'_>, width: usize, name: &str, cells: &[String; 6]) -> fmt::Result {
    let [faults, hard, noise, recalls, cost, worst] = cells;
    let short: String = name.chars().take(width).collect();
    writeln!(f, "{short:width$} {faults:>8} {hard:>12} {noise:>9} {recalls:>8} {cost:>18} {worst:>13}")
}

/// Writes one row; 120 characters with the longest name.
fn write_row(f: &mut fmt::Formatter<'_>, width: usize, name: &str, cells: &[String; 11]) -> fmt::Result {
    let [requests, sent, largest, beyond, cached, cost, moves, cleared, truncated, offloaded, summaries] = cells;
    let short: String = name.chars().take(width).collect();
    writeln!(
        f,
        "{short:width$} {requests:>8} {sent:>12} {largest:>9} {beyond:>6} {cached:>6} {cost:>12} {moves:>5} {cleared:>7} {truncated:>9} {offloaded:>10} {summaries:>9}",
    )
}

fn cells(figures: &Figures) -> [String; 11] {
    // "?" means requests to models whose window is unknown.
    let beyond = match (figures.beyond_window, figures.window_unknown) {
        (n, 0) => grouped(n),
        (0, _) => "?".to_owned(),
        (n, _) => format!("{}+?", grouped(n)),
    };
    let permille = (figures.tokens_cached * 1000).checked_div(figures.tokens_sent).unwrap_or_default();
    [
        grouped(figures.requests),
        grouped(figures.tokens_sent),
        grouped(figures.largest_request),
        beyond,
        format!("{}.{} %", permille / 10, permille % 10),
        grouped(figures.cost),
        grouped(figures.frontier_moves),
        grouped(figures.results_cleared),
        grouped(figures.results_truncated),
        grouped(figures.bytes_offloaded),
        grouped(figures.summaries),
    ]
}
