//! `abridge status`: prints the state of a running proxy.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::iter;
use std::time::Duration;

use anyhow::Context;
use indicatif::{HumanBytes, HumanDuration};

use crate::cli::client::ProxyArgs;
use crate::cli::{Exit, escape, print, refuse, store};
use crate::config::{Config, Sources};
use crate::dialect::{Form, Usage};
use crate::history::{AddedLatency, RequestCounts, TokenTotals};
use crate::ledger;
use crate::proxy::cache_ledger::CacheAccount;
use crate::proxy::second_try::{FormsNote, Lesson};
use crate::proxy::status::{CacheStatus, Status, StoreStatus, TokenFactor, UpstreamStatus};
use crate::store::Stats;
use crate::units::{grouped, percent};

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
        return Ok(refuse(&proxy.refused(&answer)));
    }
    if args.json {
        return print([&answer.body[..], b"\n"]);
    }
    let status: Status = serde_json::from_slice(&answer.body)
        .with_context(|| format!("{} answers with a status that this version cannot read", proxy.name))?;
    print([status.to_text()])
}

/// The forms that upstreams require and the refusals that have taught them, as the running proxy or else the settings and the
/// store know them.
pub(super) fn required_forms(sources: &Sources, config: &Config) -> Vec<String> {
    let status = || -> anyhow::Result<Status> {
        let answer = ProxyArgs::default().proxy(sources, config)?.get("/abridge/status")?;
        anyhow::ensure!(answer.status == 200, "no status");
        Ok(serde_json::from_slice(&answer.body)?)
    };
    if let Ok(status) = status() {
        let upstreams = status.upstreams.iter();
        return upstreams.flat_map(|known| form_lines(&known.name, &known.forms, &known.lessons)).collect();
    }
    let stored = store::read(sources, config, async |store| FormsNote::stored(store).await);
    let stored = stored.ok().flatten().unwrap_or_default();
    let host = config.upstream.url.host();
    let lines = stored.iter().flat_map(|known| form_lines(&known.upstream, &[], &known.lessons));
    form_lines(host, &config.policy.at(host).forms, &[]).into_iter().chain(lines).collect()
}

/// A line for the forms that an upstream requires of all models, one for those of each model, and one for each refusal.
fn form_lines(upstream: &str, forms: &[Form], lessons: &[Lesson]) -> Vec<String> {
    const NAMELESS: &str = "a model without a name";
    let learnt = Lesson::forms(lessons);
    let line = |model: &str, forms: Vec<&str>, why: &str| {
        (!forms.is_empty()).then(|| format!("{upstream} requires of {model}: {} ({why})", forms.join(", ")))
    };
    let is_learnt = |form: &Form| learnt.iter().any(|(_, forms)| forms.contains(form));
    let of_all = forms.iter().filter(|form| !is_learnt(form)).map(|form| form.name()).collect();
    let mut lines: Vec<_> = line("all models", of_all, "documented, or in policy.forms").into_iter().collect();
    lines.extend(learnt.iter().filter_map(|(model, forms)| {
        let model = if model.is_empty() { NAMELESS } else { model };
        line(model, forms.iter().map(|form| form.name()).collect(), "learnt from refusals")
    }));
    lines.extend(lessons.iter().map(|Lesson { form, model, words, at }| {
        let model = model.as_deref().unwrap_or(NAMELESS);
        let day = ledger::date(u32::try_from(at / 86_400).unwrap_or_default());
        format!("{form} since {day}, when {model} was refused: {words}")
    }));
    lines
}

impl Status {
    fn to_text(&self) -> String {
        let mut text = String::new();
        let mut row = |name: &str, what: String| {
            // Writing into a String never fails.
            let _written = writeln!(text, "{name:18}{}", escape::to_single_line(&what, 400));
        };
        let edits = if self.edits.is_empty() { "none".to_owned() } else { self.edits.join(" ") };
        row("abridge", format!("{}, up {}", self.version, HumanDuration(Duration::from_secs(self.uptime_seconds))));
        match &self.upstreams[..] {
            [] | [_] => row("upstream", self.upstream.clone()),
            several => several.iter().for_each(|upstream| row("upstream", upstream.to_text())),
        }
        for UpstreamStatus { name, forms, lessons, .. } in &self.upstreams {
            let names = iter::once("forms").chain(iter::repeat(""));
            names.zip(form_lines(name, forms, lessons)).for_each(|(name, line)| row(name, line));
        }
        if let Some(savings) = &self.savings {
            row("cost", savings.clone());
        }
        row("edits", if self.dry_run { format!("{edits} (dry run: reported only)") } else { edits });
        row("requests", self.totals.requests.to_text(self.dry_run, self.why_unedited.as_deref()));
        row("tokens", self.tokens_text());
        row("offloaded", format!("{} in all requests", HumanBytes(self.totals.offloaded_bytes)));
        row("billed", self.billed_text());
        let [predicted, observed] = [self.totals.predicted_cached, self.totals.billed.cached].map(grouped);
        row("predicted cached", format!("{predicted}, observed {observed}"));
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
        let (in_flight, held) = (self.in_flight, HumanBytes(self.buffered_bytes));
        let memory = self.rss_bytes.map_or_else(String::new, |memory| format!(", {} of memory", HumanBytes(memory)));
        row("now", format!("{in_flight} in flight, {held} of bodies held{memory}"));
        text
    }

    fn tokens_text(&self) -> String {
        let TokenTotals { before, after } = self.totals.tokens;
        if before == 0 {
            return "none counted".to_owned();
        }
        let change = match percent(after, before) {
            share @ 101.. => format!("+{} %", share - 100),
            share => format!("-{} %", 100 - share),
        };
        format!("{} -> {} ({change})", grouped(before), grouped(after))
    }

    fn billed_text(&self) -> String {
        let Usage { input, cached, output, .. } = self.totals.billed;
        if input == 0 {
            return "the upstream has reported no tokens".to_owned();
        }
        let (share, input, cached) = (percent(cached, input), grouped(input), grouped(cached));
        format!("{input} input, {cached} of them read from cache ({share} %), {} output", grouped(output))
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
        let Self { name, url, answered, failed, forms: _, lessons: _ } = self;
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
        let kept = keeps_seconds.map(|seconds| HumanDuration(Duration::from_secs(seconds)));
        let kept = kept.map(|time| format!(", keeps prompts for {time}"));
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
    fn to_text(self, dry_run: bool, why_unedited: Option<&str>) -> String {
        let Self { total, edited, unedited, would_be_edited, not_understood, passed, failed, shed, refused, .. } = self;
        let why = why_unedited.map(|why| format!(" ({why})"));
        let edited = format!("{} edited{}", grouped(edited), why.unwrap_or_default());
        let mut parts = vec![edited, format!("{} unedited", grouped(unedited))];
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
            HumanBytes(bytes),
            HumanBytes(stored_bytes),
            HumanBytes(file_bytes)
        )
    }
}

/// The counts by reason, without zeros.
fn format_counts(counts: &BTreeMap<String, u64>) -> String {
    let counts: Vec<_> =
        counts.iter().filter(|(_, n)| **n > 0).map(|(reason, n)| format!("{reason} {}", grouped(*n))).collect();
    if counts.is_empty() { "never".to_owned() } else { counts.join(", ") }
}

#[cfg(test)]
mod tests;
