//! Prints a simulation as a table.

use std::fmt;

use super::judge::median_ms;
use super::{Figures, Outcome, PolicyResult, Simulation, UnreadableFile};
use crate::units::grouped;

/// The longest policy name that is printed in full, in characters.
const MAX_NAME_CHARS: usize = 16;

/// The heads of the columns after the policy.
const HEAD: &str =
    "requests  tokens sent   largest beyond cached         cost moves cleared truncated  offloaded summaries";

/// The maximum number of unreadable files that are listed.
const MAX_UNREADABLE_SHOWN: usize = 10;

/// The maximum number of transcripts that are listed.
const MAX_SHOWN: usize = 50;

impl fmt::Display for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.totals.iter().map(|total| total.policy.chars().count());
        let width = names.fold("policy".len(), usize::max).min(MAX_NAME_CHARS);
        if let Some(verdict) = &self.verdict {
            let private =
                self.stand_in.map_or("", |_| "The files were only read. Nothing of them has left this machine.\n");
            writeln!(f, "{verdict}{private}")?;
        }
        writeln!(f, "{:width$} {HEAD}", "policy")?;
        for played in self.transcripts.iter().take(MAX_SHOWN) {
            let window = played.runs.first().and_then(|run| run.window);
            let window = window.map_or_else(|| "unknown".to_owned(), grouped);
            let model = played.model.as_deref().unwrap_or("none");
            let segments =
                if played.segments > 1 { format!(" in {} segments", played.segments) } else { String::new() };
            let (name, messages) = (&played.name, played.messages);
            writeln!(f, "\n{name}: {messages} messages{segments}, model {model}, window {window}")?;
            played.runs.iter().try_for_each(|run| write_row(f, width, &run.policy, &run.outcome.figures))?;
        }
        if let Some(more @ 1..) = self.transcripts.len().checked_sub(MAX_SHOWN) {
            writeln!(f, "\n{more} more transcripts are in the total; --json has all")?;
        }
        writeln!(f, "\ntotal: {} transcripts", self.transcripts.len())?;
        self.totals.iter().try_for_each(|total| write_row(f, width, &total.policy, &total.outcome.figures))?;
        self.write_regret(f, width)?;
        self.write_sightings(f, width)?;
        for PolicyResult { policy, outcome, .. } in
            self.totals.iter().filter(|total| total.outcome.keep_alive.calls > 0)
        {
            writeln!(f, "\ncaches kept by {policy} while tools run: {}", outcome.keep_alive)?;
        }
        writeln!(
            f,
            "\ncost: in uncached input tokens; {} for a cached one, {} for one that is written to the cache",
            self.prices.cache_read, self.prices.cache_write
        )?;
        if self.totals.iter().any(|total| total.outcome.figures.summaries > 0) {
            let made = self.stand_in.map_or_else(
                || "made by the upstream".to_owned(),
                |tokens| format!("no model was asked; for each, a text of {} tokens stands in", grouped(tokens)),
            );
            writeln!(f, "summaries: {made}")?;
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
        let answers = self.totals.first().map_or(0, |total| total.outcome.regret.answers);
        writeln!(f, "\nregret, of {} requests whose answer is recorded", grouped(answers))?;
        writeln!(f, "{:width$}   faults         hard     noise  recalls  cost with recalls  in the worst", "policy")?;
        for (n, PolicyResult { policy, outcome: Outcome { regret, .. }, .. }) in self.totals.iter().enumerate() {
            let runs = self.transcripts.iter().filter_map(|played| played.runs.get(n));
            let worst = runs.map(|run| run.outcome.regret.percent_with_recalls()).fold(0.0, f64::max);
            let [faults, hard] = [regret.faults, regret.hard].map(|faults| regret.per_100(faults));
            let noise = regret.placebo.map(|noise| format!("{:.2}", regret.per_100(noise)));
            let (noise, recalls) = (noise.as_deref().unwrap_or("-"), grouped(regret.faults));
            let cost = regret.percent_with_recalls();
            write!(f, "{policy:width$.width$} {faults:>8.2} {hard:>12.2} {noise:>9} {recalls:>8}")?;
            writeln!(f, " {cost:>16.1} % {worst:>11.1} %")?;
        }
        writeln!(f, "faults, hard, noise: in 100 requests; cost with recalls: in percent of no edits")
    }

    /// Writes what an upstream sees of each proxy.
    fn write_sightings(&self, f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
        let judged = || self.totals.iter().filter_map(|total| Some((&total.policy, total.outcome.sightings.as_ref()?)));
        if judged().next().is_none() {
            return Ok(());
        }
        writeln!(f, "\nwhat an upstream sees of a proxy, in requests, bytes and milliseconds")?;
        writeln!(f, "{:width$}     lost  refused words changed changed without need  further     median", "policy")?;
        for (policy, seen) in judged() {
            let [lost, refused, words] = [seen.lost, seen.refused, seen.words_changed].map(grouped);
            let (rewritten, further, median) =
                (grouped(seen.bytes_rewritten), grouped(seen.further), median_ms(&seen.micros));
            write!(f, "{policy:width$.width$} {lost:>8} {refused:>8} {words:>13} {rewritten:>20} {further:>8}")?;
            writeln!(f, " {median:>10.1}")?;
            if let Some(reason) = &seen.reason {
                writeln!(f, "  lost, the first of {policy}: {reason}")?;
            }
        }
        Ok(())
    }
}

/// Writes one row; 120 characters with the longest name.
fn write_row(f: &mut fmt::Formatter<'_>, width: usize, name: &str, figures: &Figures) -> fmt::Result {
    // "?" means requests to models whose window is unknown.
    let beyond = match (figures.beyond_window, figures.window_unknown) {
        (n, 0) => grouped(n),
        (0, _) => "?".to_owned(),
        (n, _) => format!("{}+?", grouped(n)),
    };
    let permille = (figures.tokens_cached * 1000).checked_div(figures.tokens_sent).unwrap_or_default();
    let cached = format!("{}.{} %", permille / 10, permille % 10);
    let [requests, sent, largest] = [figures.requests, figures.tokens_sent, figures.largest_request].map(grouped);
    let [moves, cleared] = [figures.frontier_moves, figures.results_cleared].map(grouped);
    let [truncated, offloaded] = [figures.results_truncated, figures.bytes_offloaded].map(grouped);
    let (cost, summaries) = (grouped(figures.cost), grouped(figures.summaries));
    write!(f, "{name:width$.width$} {requests:>8} {sent:>12} {largest:>9} {beyond:>6} {cached:>6} {cost:>12}")?;
    writeln!(f, " {moves:>5} {cleared:>7} {truncated:>9} {offloaded:>10} {summaries:>9}")
}
