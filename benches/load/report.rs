//! The results, as Markdown tables for BENCHMARKS.md or as JSON.

use std::fmt::{self, Display, Formatter};
use std::io::{self, Write as _};

use anyhow::Result;
use serde::Serialize;

use super::machine::{Facts, Footprint};
use super::recorded::Texts;
use super::stats::{Ratio, float};
use super::target::Route;
use super::{events, interference, latency, memory as loads, rate, streams};

/// All that one run has found out; what was not measured is empty.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Results {
    pub(crate) machine: Facts,
    pub(crate) footprint: Option<Footprint>,
    pub(crate) latency: Vec<latency::Table>,
    /// Requests with the texts of a session, and which one that is.
    pub(crate) recorded: Vec<latency::Table>,
    pub(crate) texts: Option<Texts>,
    /// Requests whose results are truncated and cleared.
    pub(crate) reduced: Vec<latency::Table>,
    /// Small requests by themselves, and beside large ones that are counted.
    #[serde(rename = "beside")]
    pub(crate) interference: Vec<interference::Row>,
    pub(crate) rate: Vec<rate::Row>,
    pub(crate) spaced: Vec<events::Row>,
    pub(crate) packed: Vec<events::Row>,
    pub(crate) streams: Vec<streams::Row>,
    pub(crate) memory: Vec<loads::Row>,
}

/// A bound that a figure has to keep.
#[derive(Clone, Debug)]
struct Goal {
    what: String,
    bound: String,
    found: String,
    kept: bool,
}

impl Results {
    pub(crate) fn print(&self, json: bool) -> Result<()> {
        let mut out = io::stdout().lock();
        if json {
            serde_json::to_writer_pretty(&mut out, self)?;
            writeln!(out)?;
        } else {
            write!(out, "{self}")?;
        }
        Ok(out.flush()?)
    }

    fn goals(&self) -> Vec<Goal> {
        let mut goals = Vec::new();
        for (bytes, bound) in [(2 << 10, 1.1), (1 << 20, 1.9), (8 << 20, 2.2)] {
            let table = self.latency.iter().find(|table| table.bytes == bytes);
            let row = table.and_then(|table| table.rows.iter().find(|row| row.route == Route::Edit));
            if let Some(ratio) = row.and_then(|row| row.to_nginx) {
                goals.push(Goal::ratio(&format!("added p50 at {}, nothing to edit", size(bytes)), bound, ratio));
            }
        }
        let spaced = self.spaced.iter().find(|row| row.route == Route::Edit);
        if let Some(ratio) = spaced.and_then(|row| row.delay_to_nginx) {
            goals.push(Goal::ratio("added delay of an event", 1.2, ratio));
        }
        if let Some(bytes) = self.streams.iter().find(|row| row.route == Route::Edit).and_then(|row| row.bytes_a_stream)
        {
            goals.push(Goal::bytes("memory of a slow stream", 32 << 10, bytes));
        }
        for row in &self.memory {
            goals.push(Goal::bytes(&format!("memory under {}", row.load), loads::BOUND, row.peak_bytes));
        }
        if let Some(footprint) = &self.footprint {
            goals.push(Goal::bytes("memory when idle", 10_000_000, footprint.idle_bytes));
            let binary_bytes = usize::try_from(footprint.binary_bytes).unwrap_or(usize::MAX);
            goals.push(Goal::bytes("binary", 24 << 20, binary_bytes));
        }
        goals
    }
}

impl Goal {
    fn ratio(what: &str, bound: f64, found: Ratio) -> Self {
        Self {
            what: what.to_owned(),
            bound: format!("{bound} × nginx"),
            found: times(Some(found)),
            kept: found.value <= bound,
        }
    }

    fn bytes(what: &str, bound: usize, found: usize) -> Self {
        Self { what: what.to_owned(), bound: memory(Some(bound)), found: memory(Some(found)), kept: found <= bound }
    }
}

impl Display for Results {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.machine.line())?;
        if let Some(footprint) = &self.footprint {
            writeln!(
                f,
                "\nBinary {}, {} when idle, ready {} after its start.",
                memory(usize::try_from(footprint.binary_bytes).ok()),
                memory(Some(footprint.idle_bytes)),
                time(footprint.start_micros)
            )?;
        }
        for table in &self.latency {
            write_latency(f, "Request", table)?;
        }
        if let Some(Texts { session, backslash_each, quote_each }) = &self.texts {
            writeln!(
                f,
                "\nTexts of a session: {session}, with a backslash each {backslash_each:.1} bytes and an escaped quote each {quote_each:.1}."
            )?;
        }
        for table in &self.recorded {
            write_latency(f, "Texts of a session: request", table)?;
        }
        for table in &self.reduced {
            write_latency(f, "Truncated and cleared: request", table)?;
        }
        write_interference(f, &self.interference)?;
        write_rate(f, &self.rate)?;
        write_spaced(f, &self.spaced)?;
        write_packed(f, &self.packed)?;
        write_streams(f, &self.streams)?;
        write_memory(f, &self.memory)?;
        write_goals(f, &self.goals())
    }
}

fn write_latency(f: &mut Formatter<'_>, what: &str, table: &latency::Table) -> fmt::Result {
    let columns = ["", "p50", "p99", "added p50", "added p99", "added p50 to nginx's", "CPU a request", "peak memory"];
    write_head(f, &format!("{what} of {}", size(table.bytes)), &columns)?;
    for row in &table.rows {
        let proxy = row.route != Route::Direct;
        write_row(
            f,
            row.route,
            &[
                time(row.p50),
                time(row.p99),
                if proxy { time(row.added_p50) } else { String::new() },
                if proxy { time(row.added_p99) } else { String::new() },
                times(row.to_nginx),
                if proxy { time(row.cpu) } else { String::new() },
                memory(row.peak_bytes),
            ],
        )?;
    }
    Ok(())
}

fn write_interference(f: &mut Formatter<'_>, rows: &[interference::Row]) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    let columns = ["", "requests", "p50", "p99", "p50 beside it", "p99 beside it", "ratio of p99"];
    write_head(f, "Requests of 2 KB beside one of 1 MB that is all new", &columns)?;
    for row in rows {
        let interference::Row { alone, beside, .. } = row;
        let requests = alone.requests + beside.requests;
        let times = [alone.p50, alone.p99, beside.p50, beside.p99].map(time);
        let ratio = format!("{:.2}", beside.p99 / alone.p99);
        write_row(f, row.route, &[&[requests.to_string()][..], &times[..], &[ratio]].concat())?;
    }
    Ok(())
}

fn write_rate(f: &mut Formatter<'_>, rows: &[rate::Row]) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    let columns = ["", "requests/s", "to nginx's", "CPU a request", "peak memory"];
    write_head(f, "Requests of 2 KB over 32 connections", &columns)?;
    for row in rows {
        write_row(
            f,
            row.route,
            &[
                format!("{:.0}", row.per_second),
                row.to_nginx.map(|ratio| format!("{ratio:.2}")).unwrap_or_default(),
                if row.route == Route::Direct { String::new() } else { time(row.cpu) },
                memory(row.peak_bytes),
            ],
        )?;
    }
    Ok(())
}

fn write_spaced(f: &mut Formatter<'_>, rows: &[events::Row]) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    let columns = ["", "delay p50", "delay p99", "added p50", "added p50 to nginx's", "CPU an event", "CPU to nginx's"];
    write_head(f, "Events, one each millisecond", &columns)?;
    for row in rows {
        let proxy = row.route != Route::Direct;
        write_row(
            f,
            row.route,
            &[
                time(row.delay_p50),
                time(row.delay_p99),
                if proxy { time(row.added_delay) } else { String::new() },
                times(row.delay_to_nginx),
                if proxy { time(row.cpu) } else { String::new() },
                row.cpu_to_nginx.map(|ratio| format!("{ratio:.2}")).unwrap_or_default(),
            ],
        )?;
    }
    Ok(())
}

fn write_packed(f: &mut Formatter<'_>, rows: &[events::Row]) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    write_head(f, "Events, back to back", &["", "time an event", "CPU an event", "CPU to nginx's"])?;
    for row in rows {
        write_row(
            f,
            row.route,
            &[
                time(row.pace),
                if row.route == Route::Direct { String::new() } else { time(row.cpu) },
                row.cpu_to_nginx.map(|ratio| format!("{ratio:.2}")).unwrap_or_default(),
            ],
        )?;
    }
    Ok(())
}

fn write_streams(f: &mut Formatter<'_>, rows: &[streams::Row]) -> fmt::Result {
    let Some(first) = rows.first() else {
        return Ok(());
    };
    let columns = ["", "events", "delay p50", "delay p99", "longest delay", "memory a stream", "CPU an event"];
    write_head(f, &format!("{} slow streams at a time", first.streams), &columns)?;
    for row in rows {
        write_row(
            f,
            row.route,
            &[
                row.events.to_string(),
                time(row.delay_p50),
                time(row.delay_p99),
                time(row.delay_max),
                memory(row.bytes_a_stream),
                if row.route == Route::Direct { String::new() } else { time(row.cpu) },
            ],
        )?;
    }
    Ok(())
}

fn write_memory(f: &mut Formatter<'_>, rows: &[loads::Row]) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    write_head(f, "Memory under load", &["", "connections", "bytes each", "served", "refused", "memory at most"])?;
    for row in rows {
        let loads::Row { load, connections, request_bytes, served, refused, peak_bytes } = row;
        let peak = memory(Some(*peak_bytes));
        writeln!(f, "| {load} | {connections} | {request_bytes} | {served} | {refused} | {peak} |")?;
    }
    Ok(())
}

fn write_goals(f: &mut Formatter<'_>, goals: &[Goal]) -> fmt::Result {
    if goals.is_empty() {
        return Ok(());
    }
    write_head(f, "Goals", &["", "at most", "found", ""])?;
    for goal in goals {
        let verdict = if goal.kept { "kept" } else { "**missed**" };
        writeln!(f, "| {} | {} | {} | {verdict} |", goal.what, goal.bound, goal.found)?;
    }
    Ok(())
}

fn write_head(f: &mut Formatter<'_>, title: &str, columns: &[&str]) -> fmt::Result {
    writeln!(f, "\n### {title}\n\n| {} |", columns.join(" | "))?;
    writeln!(f, "|---|{}", "---:|".repeat(columns.len().saturating_sub(1)))
}

fn write_row(f: &mut Formatter<'_>, route: Route, cells: &[String]) -> fmt::Result {
    writeln!(f, "| {} | {} |", route.label(), cells.join(" | "))
}

/// Microseconds, or milliseconds from a thousand of them.
fn time(micros: f64) -> String {
    match micros.abs() {
        ..10.0 => format!("{micros:.1} µs"),
        ..1000.0 => format!("{micros:.0} µs"),
        _ => format!("{:.2} ms", micros / 1000.0),
    }
}

fn times(ratio: Option<Ratio>) -> String {
    ratio.map(|Ratio { value, low, high }| format!("{value:.2} ({low:.2}–{high:.2})")).unwrap_or_default()
}

fn memory(bytes: Option<usize>) -> String {
    bytes.map(|bytes| if bytes < 1 << 20 { kib(bytes) } else { mib(bytes) }).unwrap_or_default()
}

fn kib(bytes: usize) -> String {
    format!("{:.1} KiB", float(bytes) / 1024.0)
}

fn mib(bytes: usize) -> String {
    format!("{:.1} MiB", float(bytes) / 1_048_576.0)
}

/// A body size as the tables' titles say it.
fn size(bytes: usize) -> String {
    if bytes < 1 << 20 { format!("{} KB", bytes >> 10) } else { format!("{} MB", bytes >> 20) }
}
