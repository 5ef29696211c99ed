//! The upstream: whether it is there and trusted, what its clock shows, and what it says of its models.

use std::time::Duration;

use anyhow::Context;

use super::Findings;
use crate::config::{Config, Environment};
use crate::store::Clock;
use crate::upstream::Upstream;
use crate::upstream::connect::n_system_roots;
use crate::upstream::probe::{Probe, ProbeOutcome};

/// How long each step may take.
pub(in crate::cli) const PATIENCE: Duration = Duration::from_secs(5);

/// How far two clocks may be apart, in seconds.
const APART: u64 = 60;

/// How many windows are named.
const SHOWN: usize = 3;

pub(super) async fn look(findings: &mut Findings, config: &Config, environment: &Environment) {
    roots(findings, config);
    let upstream = match client(config, environment) {
        Ok(upstream) => upstream,
        Err(error) => {
            let fix = "name a PEM file with certificates in upstream.ca_file, and an http:// or socks5:// proxy in HTTPS_PROXY";
            return findings.fault("upstream", format!("{error:#}"), fix);
        }
    };
    let probed = Probe::run(&upstream, PATIENCE.min(config.upstream.connect_timeout.0)).await;
    let said = probed.outcome.describe(&probed.url, &upstream);
    match probed.outcome.advice(&config.upstream) {
        None => findings.ok("upstream", said),
        Some(fix) => findings.fault("upstream", said, fix),
    }
    clock(findings, probed.date());
    windows(findings, config, probed).await;
}

/// The upstream as these settings have it, with abridge's own key, if it has one.
pub(in crate::cli) fn client(config: &Config, environment: &Environment) -> anyhow::Result<Upstream> {
    let key = environment.api_key.as_ref().map(|key| key.bearer().context("upstream.api_key_env"));
    Ok(Upstream::new(&config.upstream, &environment.proxies, key.transpose()?)?)
}

fn roots(findings: &mut Findings, config: &Config) {
    if config.upstream.url.uri().scheme_str() != Some("https") {
        return findings.ok("roots", "not needed: the upstream is asked without TLS");
    }
    match n_system_roots() {
        0 => {
            let said = "the system has no root certificates; Mozilla's are taken, as they were when abridge was built";
            findings.warn("roots", said, "install ca-certificates, or name a file in upstream.ca_file");
        }
        n => findings.ok("roots", format!("{n} root certificates of the system")),
    }
}

fn clock(findings: &mut Findings, date: Option<&str>) {
    let Some(theirs) = date.and_then(seconds) else {
        return findings.ok("clock", "not compared: the upstream tells no date");
    };
    let ours = Clock::system().now().0;
    let apart = ours.abs_diff(theirs);
    if apart <= APART {
        return findings.ok("clock", format!("within {APART} s of the upstream's"));
    }
    let way = if ours > theirs { "ahead of" } else { "behind" };
    let said =
        format!("{apart} s {way} the upstream's: certificates may seem invalid, and store.keep_for goes by this clock");
    findings.warn("clock", said, "set the clock, such as with `timedatectl set-ntp true`");
}

async fn windows(findings: &mut Findings, config: &Config, probed: Probe) {
    let was_listed = probed.outcome == ProbeOutcome::Reachable(http::StatusCode::OK);
    let is_known = probed.url.host() == Some("api.openai.com");
    let told = probed.windows(PATIENCE).await;
    let of_settings = config.models.iter().filter(|model| model.context_window.is_some()).count();
    let mut said = format!("{of_settings} of [[models]], well-known models by name");
    if !told.is_empty() {
        let shown: Vec<_> = told.iter().take(SHOWN).map(|(model, tokens)| format!("{model} = {tokens}")).collect();
        let more = if told.len() > SHOWN { ", …" } else { "" };
        said = format!("{said}, {} as the upstream says: {}{more}", told.len(), shown.join(", "));
    }
    if !was_listed || is_known || !told.is_empty() || of_settings > 0 {
        return findings.ok("windows", said);
    }
    let fix = "for models of your own add [[models]] with match = \"NAME\" and context_window = TOKENS";
    findings.warn("windows", format!("{said}; the upstream tells none"), fix);
}

/// `Sun, 06 Nov 1994 08:49:37 GMT` in seconds since 1970, which is the one form that servers write.
fn seconds(date: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (_, date) = date.split_once(", ")?;
    let mut words = date.strip_suffix(" GMT")?.split([' ', ':']);
    let number = |words: &mut dyn Iterator<Item = &str>| words.next()?.parse::<u64>().ok();
    let day = number(&mut words)?;
    let name = words.next()?;
    let month = MONTHS.iter().position(|month| *month == name)?;
    let [year, hour, minute, second] = [(); 4].map(|()| number(&mut words));
    let (year, month) = (year?, u64::try_from(month).ok()?);
    // Years that begin in March have their leap day at the end.
    let (year, month) = if month < 2 { (year.checked_sub(1)?, month + 10) } else { (year, month - 2) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 306 + 5) / 10 + day.checked_sub(1)?;
    Some(days.checked_sub(719_468)? * 86_400 + hour? * 3600 + minute? * 60 + second?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_dates() {
        for (date, expected) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777)),
            ("Tue, 29 Feb 2000 23:59:59 GMT", Some(951_868_799)),
            ("Wed, 01 Mar 2000 00:00:00 GMT", Some(951_868_800)),
            ("Sat, 21 Nov 2026 16:00:00 GMT", Some(1_795_276_800)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:49:37", None),
            ("", None),
        ] {
            assert_eq!(seconds(date), expected, "{date}");
        }
    }
}
