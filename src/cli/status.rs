//! `abridge status`: prints the state of a running proxy.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, anyhow};

use crate::cli::client::ProxyArgs;
use crate::cli::{Exit, escape, print, refuse};
use crate::config::{Config, Sources};
use crate::dialect::Usage;
use crate::history::{AddedLatency, RequestCounts, TokenTotals};
use crate::proxy::cache_ledger::CacheAccount;
use crate::proxy::status::{CacheStatus, Status, StoreStatus, TokenFactor, UpstreamStatus};
use crate::store::Stats;
use crate::units::grouped;

/// Arguments of `status`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: ProxyArgs,
}

/// Prints the status, or the reason why there is none.
pub fn run(args: &Args, sources: &Sources, config: &Config) -> anyhow::Result<Exit> {
    let proxy = args.at.proxy(sources, config)?;
    let answer = proxy.get("/abridge/status")?;
    if answer.status != 200 {
        return refuse(&anyhow!("{} answers {}: {}", proxy.name(), answer.status, answer.first_line()));
    }
    if args.json {
        print([&answer.body[..], b"\n"])?;
        return Ok(Exit::Ok);
    }
    let status: Status = serde_json::from_slice(&answer.body)
        .with_context(|| format!("{} answers with a status that this version cannot read", proxy.name()))?;
    print([status.to_text()])?;
    Ok(Exit::Ok)
}

impl Status {
    fn to_text(&self) -> String {
        let mut text = String::new();
        let mut row = |name: &str, what: String| {
            // Writing into a String never fails.
            let _written = writeln!(text, "{name:18}{}", escape::to_single_line(&what, 400));
        };
        let edits = if self.edits.is_empty() { "none".to_owned() } else { self.edits.join(" ") };
        row("abridge", format!("{}, up {}", self.version, format_uptime(self.uptime_seconds)));
        match &self.upstreams[..] {
            [] | [_] => row("upstream", self.upstream.clone()),
            several => several.iter().for_each(|upstream| row("upstream", upstream.to_text())),
        }
        for UpstreamStatus { name, forms, .. } in self.upstreams.iter().filter(|upstream| !upstream.forms.is_empty()) {
            let forms: Vec<_> = forms.iter().map(|form| form.name()).collect();
            row("forms", format!("{name} requires: {} (learnt from refusals)", forms.join(", ")));
        }
        row("edits", if self.dry_run { format!("{edits} (dry run: reported only)") } else { edits });
        row("requests", self.totals.requests.to_text(self.dry_run));
        row("tokens", self.tokens_text());
        row("offloaded", format!("{} in all requests", format_bytes(self.totals.offloaded_bytes)));
        row("billed", self.billed_text());
        row("predicted cached", self.predicted_text());
        self.token_factors.iter().for_each(|learnt| row("token factor", learnt.to_text()));
        self.caches.iter().for_each(|cache| row("cache", cache.to_text()));
        row("added", self.added_text());
        row("fail-open", format_counts(&self.fail_open));
        row("regrets", format_counts(&self.regrets));
        row("store", self.store.as_ref().map_or_else(|| "off".to_owned(), StoreStatus::to_text));
        if let Some(notice) = &self.store_notice {
            row("", notice.clone());
        }
        let keep = self.inspect_keep;
        row("inspect", if keep == 0 { "off".to_owned() } else { format!("the last {keep} edited requests are kept") });
        let (in_flight, held) = (self.in_flight, format_bytes(self.buffered_bytes));
        let memory = self.rss_bytes.map_or_else(String::new, |memory| format!(", {} of memory", format_bytes(memory)));
        row("now", format!("{in_flight} in flight, {held} of bodies held{memory}"));
        text
    }

    fn tokens_text(&self) -> String {
        let TokenTotals { before, after } = self.totals.tokens;
        if before == 0 {
            return "none counted".to_owned();
        }
        format!("{} -> {} ({})", grouped(before), grouped(after), percent_change(before, after))
    }

    fn billed_text(&self) -> String {
        let Usage { input, cached, output } = self.totals.billed;
        if input == 0 {
            return "the upstream has reported no tokens".to_owned();
        }
        let (share, input, cached) = (percent(cached, input), grouped(input), grouped(cached));
        format!("{input} input, {cached} of them read from cache ({share} %), {} output", grouped(output))
    }

    fn predicted_text(&self) -> String {
        format!("{}, observed {}", grouped(self.totals.predicted_cached), grouped(self.totals.billed.cached))
    }

    fn added_text(&self) -> String {
        let AddedLatency { p50, p99, count } = self.totals.added_ms;
        if count == 0 {
            return "no conversation yet".to_owned();
        }
        format!("p50 {p50:.1} ms, p99 {p99:.1} ms, of the last {count} conversations")
    }
}

impl UpstreamStatus {
    fn to_text(&self) -> String {
        let Self { name, url, answered, failed, forms: _ } = self;
        let failed = if *failed > 0 { format!(", {} failed", grouped(*failed)) } else { String::new() };
        format!("{name}: {url}, {} answered{failed}", grouped(*answered))
    }
}

impl CacheStatus {
    fn to_text(&self) -> String {
        let Self { account, cost } = self;
        let CacheAccount { upstream, model, requests, smallest, keeps_seconds, lost, .. } = account;
        let name = format!("{model} at {upstream}");
        if smallest.is_none() {
            return format!("{name}: no cached tokens reported, of {} requests that had some", grouped(*requests));
        }
        let kept = keeps_seconds.map(|seconds| format!(", keeps prompts for {}", format_uptime(seconds)));
        let causes = [
            ("edits", lost.edits, cost.edits),
            ("pauses", lost.expired, cost.expired),
            ("the client's changes", lost.client, cost.client),
            ("the upstream", lost.upstream, cost.upstream),
        ];
        let each = causes.map(|(cause, n, cost)| format!("{} to {cause} (costs {})", grouped(n), grouped(cost)));
        format!("{name}{}: tokens lost: {}", kept.unwrap_or_default(), each.join(", "))
    }
}

impl TokenFactor {
    fn to_text(&self) -> String {
        let Self { upstream, model, factor, answers } = self;
        format!("{model} at {upstream}: {factor:.2} billed for each one counted, from {} answers", grouped(*answers))
    }
}

impl RequestCounts {
    fn to_text(self, dry_run: bool) -> String {
        let Self { total, edited, unedited, would_be_edited, not_understood, passed, failed, shed, refused } = self;
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

impl StoreStatus {
    fn to_text(&self) -> String {
        let Self { path, stats, trouble } = self;
        let Stats { payloads, bytes, stored_bytes, file_bytes, failures, .. } = stats.unwrap_or_default();
        let trouble = trouble.as_ref().map(|trouble| format!("; TROUBLE: {trouble}")).unwrap_or_default();
        let failures = if failures > 0 { format!(", {failures} failures") } else { String::new() };
        format!(
            "{}: {} payloads, {} as {}, file {}{failures}{trouble}",
            path.as_deref().unwrap_or("in memory"),
            grouped(payloads),
            format_bytes(bytes),
            format_bytes(stored_bytes),
            format_bytes(file_bytes)
        )
    }
}

/// The counts by reason, without zeros.
fn format_counts(counts: &BTreeMap<String, u64>) -> String {
    let counts: Vec<_> =
        counts.iter().filter(|(_, n)| **n > 0).map(|(reason, n)| format!("{reason} {}", grouped(*n))).collect();
    if counts.is_empty() { "never".to_owned() } else { counts.join(", ") }
}

fn percent_change(before: u64, after: u64) -> String {
    let share = percent(after, before);
    if share > 100 { format!("+{} %", share - 100) } else { format!("-{} %", 100 - share) }
}

/// `part` as a percentage of `whole`, rounded.
fn percent(part: u64, whole: u64) -> u128 {
    div_rounded(100 * u128::from(part), whole)
}

fn div_rounded(n: u128, by: u64) -> u128 {
    let by = u128::from(by.max(1));
    (n + by / 2) / by
}

/// A number of bytes in the largest unit of which there is at least one.
pub(super) fn format_bytes(n: u64) -> String {
    let units = [(1_u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.into_iter().find(|(size, _)| n >= *size);
    unit.map_or_else(
        || format!("{n} B"),
        |(size, name)| {
            let tenths = div_rounded(10 * u128::from(n), size);
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        },
    )
}

fn format_uptime(seconds: u64) -> String {
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
    fn a_status_prints_in_14_lines() {
        let json = r#"{"version":"1","started":1,"uptime_seconds":7380,"upstream":"http://u/v1","edits":["a","b"],
            "requests":{"total":12345,"edited":12000,"unedited":340,"shed":5},"tokens":{"before":1000000,"after":250000},
            "offloaded_bytes":1536,"billed":{"input":1000,"cached":900,"output":20},"predicted_cached":950,
            "added_ms":{"p50":0.31,"p99":2.26,"count":500},"fail_open":{"bug":0,"not_stored":2},"regrets":{"repeated":3,"recalled":1},
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
regrets           recalled 1, repeated 3
store             /s: 3 payloads, 4.0 KiB as 1.0 KiB, file 2.0 MiB; TROUBLE: full
inspect           off
now               1 in flight, 0 B of bodies held, 50.0 MiB of memory
";
        assert_eq!(status.to_text(), expected);
        let several = r#"{"upstreams":[{"name":"default","url":"http://u/v1","answered":3},
            {"name":"anthropic","url":"http://a","answered":1200,"failed":2}]}"#;
        let status: Status = serde_json::from_str(several).unwrap();
        let (text, mine) = (status.to_text(), "upstream          anthropic: http://a, 1,200 answered, 2 failed\n");
        assert!(text.contains("upstream          default: http://u/v1, 3 answered\n") && text.contains(mine), "{text}");
        let asks = r#"{"upstreams":[{"name":"default","url":"http://u/v1","forms":["filled","unique_ids"]}]}"#;
        let text = serde_json::from_str::<Status>(asks).unwrap().to_text();
        let line = "forms             default requires: filled, unique_ids (learnt from refusals)\n";
        assert!(text.contains(line), "{text}");
        let learnt = r#"{"token_factors":[{"upstream":"default","model":"m","factor":1.55,"answers":1200}]}"#;
        let status: Status = serde_json::from_str(learnt).unwrap();
        let line = "token factor      m at default: 1.55 billed for each one counted, from 1,200 answers\n";
        assert!(status.to_text().contains(line), "{}", status.to_text());
        let caches = r#"{"caches":[{"upstream":"u","model":"m","requests":9,"smallest":1024,"keeps_seconds":300,
            "lost":{"edits":5000,"expired":20},"cost":{"edits":4500,"expired":18}},{"upstream":"u","model":"n","requests":7}]}"#;
        let text = serde_json::from_str::<Status>(caches).unwrap().to_text();
        for line in [
            "cache             m at u, keeps prompts for 5 min: tokens lost: 5,000 to edits (costs 4,500), 20 to pauses (costs 18), 0 to the client's changes (costs 0), 0 to the upstream (costs 0)\n",
            "cache             n at u: no cached tokens reported, of 7 requests that had some\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let empty = Status::default().to_text();
        assert!(empty.lines().count() == 14 && empty.contains("none counted"), "{empty}");
    }

    #[test]
    fn bytes_and_uptimes_have_units() {
        assert_eq!([0, 1023, 1024, 5 << 30].map(format_bytes), ["0 B", "1023 B", "1.0 KiB", "5.0 GiB"]);
        assert_eq!([59, 61, 3_600, 90_000].map(format_uptime), ["59 s", "1 min", "1 h 0 min", "1 d 1 h"]);
    }
}
