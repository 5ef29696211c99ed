//! `abridge status`: how a running proxy does, on one screen.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, anyhow};
use serde::Deserialize;

use crate::cli::client::At;
use crate::cli::{Exit, complain, escape, print};
use crate::config::{Config, Sources};
use crate::dialect::Usage;
use crate::units::grouped;

/// Whom to ask, and how to print.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: At,
}

/// What is shown of `/abridge/status`. What an older or newer proxy does not say is 0.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    version: String,
    uptime_seconds: u64,
    upstream: String,
    dry_run: bool,
    edits: Vec<String>,
    inspect_keep: usize,
    requests: Requests,
    tokens: Pair,
    offloaded_bytes: u64,
    billed: Usage,
    predicted_cached: u64,
    added_ms: Added,
    fail_open: BTreeMap<String, u64>,
    store: Option<Store>,
    in_flight: u64,
    buffered_bytes: u64,
    rss_bytes: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Requests {
    total: u64,
    edited: u64,
    unedited: u64,
    would_be_edited: u64,
    not_understood: u64,
    passed: u64,
    failed: u64,
    shed: u64,
    refused: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pair {
    before: u64,
    after: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Added {
    p50: f64,
    p99: f64,
    count: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Store {
    path: Option<String>,
    payloads: u64,
    bytes: u64,
    stored_bytes: u64,
    file_bytes: u64,
    failures: u64,
    trouble: Option<String>,
}

/// Prints it, or says why there is nothing to print.
pub fn run(args: &Args, sources: &Sources, config: &Config) -> anyhow::Result<Exit> {
    let proxy = args.at.proxy(sources, config)?;
    let answer = proxy.get("/abridge/status", "at")?;
    if answer.status != 200 {
        complain(&anyhow!("{} answers {}: {}", proxy.name(), answer.status, answer.sentence()));
        return Ok(Exit::No);
    }
    if args.json {
        print([&answer.body[..], b"\n"])?;
        return Ok(Exit::Ok);
    }
    let status: Status = serde_json::from_slice(&answer.body)
        .with_context(|| format!("{} answers with no status that this abridge can read", proxy.name()))?;
    print([status.to_text()])?;
    Ok(Exit::Ok)
}

impl Status {
    fn to_text(&self) -> String {
        let mut text = String::new();
        let mut row = |name: &str, what: String| {
            // Into a String nothing fails.
            let _written = writeln!(text, "{name:18}{}", escape::line(&what, 400));
        };
        let edits = if self.edits.is_empty() { "none".to_owned() } else { self.edits.join(" ") };
        row("abridge", format!("{}, up {}", self.version, uptime(self.uptime_seconds)));
        row("upstream", self.upstream.clone());
        row("edits", if self.dry_run { format!("{edits} (dry run: reported only)") } else { edits });
        row("requests", self.requests.to_text(self.dry_run));
        row("tokens", self.tokens());
        row("offloaded", format!("{} in all requests", bytes(self.offloaded_bytes)));
        row("billed", self.billed());
        row("predicted cached", self.predicted());
        row("added", self.added());
        row("fail-open", some(&self.fail_open));
        row("store", self.store.as_ref().map_or_else(|| "off".to_owned(), Store::to_text));
        let keep = self.inspect_keep;
        row("inspect", if keep == 0 { "off".to_owned() } else { format!("the last {keep} edited requests are kept") });
        let (in_flight, held) = (self.in_flight, bytes(self.buffered_bytes));
        let memory = self.rss_bytes.map_or_else(String::new, |memory| format!(", {} of memory", bytes(memory)));
        row("now", format!("{in_flight} in flight, {held} of bodies held{memory}"));
        text
    }

    fn tokens(&self) -> String {
        let Pair { before, after } = self.tokens;
        if before == 0 {
            return "none counted".to_owned();
        }
        format!("{} -> {} ({})", grouped(before), grouped(after), change(before, after))
    }

    fn billed(&self) -> String {
        let Usage { input, cached, output } = self.billed;
        if input == 0 {
            return "the upstream has told of no tokens".to_owned();
        }
        let (share, input, cached) = (percent(cached, input), grouped(input), grouped(cached));
        format!("{input} input, {cached} of them read from cache ({share} %), {} output", grouped(output))
    }

    fn predicted(&self) -> String {
        format!("{}, observed {}", grouped(self.predicted_cached), grouped(self.billed.cached))
    }

    fn added(&self) -> String {
        let Added { p50, p99, count } = self.added_ms;
        if count == 0 {
            return "no conversation yet".to_owned();
        }
        format!("p50 {p50:.1} ms, p99 {p99:.1} ms, of the last {count} conversations")
    }
}

impl Requests {
    fn to_text(&self, dry_run: bool) -> String {
        let Self { total, edited, unedited, would_be_edited, not_understood, passed, failed, shed, refused } = *self;
        let mut parts = vec![format!("{} edited", grouped(edited)), format!("{} unedited", grouped(unedited))];
        for (n, what) in [
            (would_be_edited, "would be edited"),
            (not_understood, "not understood"),
            (passed, "passed"),
            (failed, "failed"),
            (shed, "shed"),
            (refused, "refused"),
        ] {
            if n > 0 || dry_run && what == "would be edited" {
                parts.push(format!("{} {what}", grouped(n)));
            }
        }
        format!("{}: {}", grouped(total), parts.join(", "))
    }
}

impl Store {
    fn to_text(&self) -> String {
        let Self { path, payloads, bytes: plain, stored_bytes, file_bytes, failures, trouble } = self;
        let trouble = trouble.as_ref().map(|trouble| format!("; TROUBLE: {trouble}")).unwrap_or_default();
        let failures = if *failures > 0 { format!(", {failures} failures") } else { String::new() };
        format!(
            "{}: {} payloads, {} as {}, file {}{failures}{trouble}",
            path.as_deref().unwrap_or("in memory"),
            grouped(*payloads),
            bytes(*plain),
            bytes(*stored_bytes),
            bytes(*file_bytes)
        )
    }
}

/// Counts by reason, without those that are 0.
fn some(counts: &BTreeMap<String, u64>) -> String {
    let counts: Vec<_> =
        counts.iter().filter(|(_, n)| **n > 0).map(|(reason, n)| format!("{reason} {}", grouped(*n))).collect();
    if counts.is_empty() { "never".to_owned() } else { counts.join(", ") }
}

fn change(before: u64, after: u64) -> String {
    let share = percent(after, before);
    if share > 100 { format!("+{} %", share - 100) } else { format!("-{} %", 100 - share) }
}

/// How many hundredths of the whole a part is, rounded.
fn percent(part: u64, whole: u64) -> u128 {
    rounded(100 * u128::from(part), whole)
}

fn rounded(n: u128, by: u64) -> u128 {
    let by = u128::from(by.max(1));
    (n + by / 2) / by
}

/// A number of bytes, in the largest unit that is not nought.
pub(super) fn bytes(n: u64) -> String {
    let units = [(1_u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.into_iter().find(|(size, _)| n >= *size);
    unit.map_or_else(
        || format!("{n} B"),
        |(size, name)| {
            let tenths = rounded(10 * u128::from(n), size);
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        },
    )
}

fn uptime(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_one_screen() {
        let json = r#"{"version":"1","started":1,"uptime_seconds":7380,"upstream":"http://u/v1","edits":["a","b"],
            "requests":{"total":12345,"edited":12000,"unedited":340,"shed":5},"tokens":{"before":1000000,"after":250000},
            "offloaded_bytes":1536,"billed":{"input":1000,"cached":900,"output":20},"predicted_cached":950,
            "added_ms":{"p50":0.31,"p99":2.26,"count":500},"fail_open":{"bug":0,"not_stored":2},
            "store":{"path":"/s","payloads":3,"bytes":4096,"stored_bytes":1024,"file_bytes":2097152,"trouble":"full"},
            "in_flight":1,"buffered_bytes":0,"rss_bytes":52428800,"later":{"x":1}}"#;
        let status: Status = serde_json::from_str(json).unwrap();
        let expected = "\
abridge           1, up 2 h 3 min
upstream          http://u/v1
edits             a b
requests          12,345: 12,000 edited, 340 unedited, 5 shed
tokens            1,000,000 -> 250,000 (-75 %)
offloaded         1.5 KiB in all requests
billed            1,000 input, 900 of them read from cache (90 %), 20 output
predicted cached  950, observed 900
added             p50 0.3 ms, p99 2.3 ms, of the last 500 conversations
fail-open         not_stored 2
store             /s: 3 payloads, 4.0 KiB as 1.0 KiB, file 2.0 MiB; TROUBLE: full
inspect           off
now               1 in flight, 0 B of bodies held, 50.0 MiB of memory
";
        assert_eq!(status.to_text(), expected);
        let empty = Status::default().to_text();
        assert!(empty.lines().count() == 13 && empty.contains("none counted"), "{empty}");
    }

    #[test]
    fn numbers_are_for_people() {
        assert_eq!([0, 1023, 1024, 5 << 30].map(bytes), ["0 B", "1023 B", "1.0 KiB", "5.0 GiB"]);
        assert_eq!([59, 61, 3_600, 90_000].map(uptime), ["59 s", "1 min", "1 h 0 min", "1 d 1 h"]);
    }
}
