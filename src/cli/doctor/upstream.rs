//! Checks of the upstream: connection, certificates, clock and context windows.

use std::time::Duration;

use anyhow::Context;

use super::Findings;
use crate::config::{Config, Environment};
use crate::store::Clock;
use crate::upstream::Upstream;
use crate::upstream::connect::n_system_roots;
use crate::upstream::probe::{Probe, ProbeOutcome};

/// The timeout of each step.
pub(in crate::cli) const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// The largest accepted difference between two clocks, in seconds.
const MAX_CLOCK_SKEW_SECONDS: u64 = 60;

/// The maximum number of windows that are printed.
const MAX_WINDOWS_SHOWN: usize = 3;

pub(super) async fn check(findings: &mut Findings, config: &Config, environment: &Environment) {
    check_roots(findings, config);
    let upstream = match build_client(config, environment) {
        Ok(upstream) => upstream,
        Err(error) => {
            let fix = "name a PEM file with certificates in upstream.ca_file, and an http:// or socks5:// proxy in HTTPS_PROXY";
            return findings.fault("upstream", format!("{error:#}"), fix);
        }
    };
    let probed = Probe::run(&upstream, STEP_TIMEOUT.min(config.upstream.connect_timeout.0)).await;
    let said = probed.outcome.describe(&probed.url, &upstream);
    match probed.outcome.advice(&config.upstream) {
        None => findings.ok("upstream", said),
        Some(fix) => findings.fault("upstream", said, fix),
    }
    check_clock(findings, probed.date());
    check_windows(findings, config, probed).await;
}

/// Builds the upstream's client from these settings, with abridge's own key if there is one.
pub(in crate::cli) fn build_client(config: &Config, environment: &Environment) -> anyhow::Result<Upstream> {
    let key = environment.api_key.as_ref().map(|key| key.bearer().context("upstream.api_key_env"));
    Ok(Upstream::new(&config.upstream, &environment.proxies, key.transpose()?)?)
}

fn check_roots(findings: &mut Findings, config: &Config) {
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

fn check_clock(findings: &mut Findings, date: Option<&str>) {
    let Some(theirs) = date.and_then(parse_http_date) else {
        return findings.ok("clock", "not compared: the upstream sends no date");
    };
    let ours = Clock::system().now().0;
    let apart = ours.abs_diff(theirs);
    if apart <= MAX_CLOCK_SKEW_SECONDS {
        return findings.ok("clock", format!("within {MAX_CLOCK_SKEW_SECONDS} s of the upstream's"));
    }
    let way = if ours > theirs { "ahead of" } else { "behind" };
    let said =
        format!("{apart} s {way} the upstream's: certificates may seem invalid, and store.keep_for goes by this clock");
    findings.warn("clock", said, "set the clock, such as with `timedatectl set-ntp true`");
}

async fn check_windows(findings: &mut Findings, config: &Config, probed: Probe) {
    let was_listed = probed.outcome == ProbeOutcome::Reachable(http::StatusCode::OK);
    let is_known = probed.url.host() == Some("api.openai.com");
    let reported = probed.windows(STEP_TIMEOUT).await;
    let of_settings = config.models.iter().filter(|model| model.context_window.is_some()).count();
    let mut said = format!("{of_settings} of [[models]], well-known models by name");
    if !reported.is_empty() {
        let shown: Vec<_> =
            reported.iter().take(MAX_WINDOWS_SHOWN).map(|(model, tokens)| format!("{model} = {tokens}")).collect();
        let more = if reported.len() > MAX_WINDOWS_SHOWN { ", …" } else { "" };
        said = format!("{said}, {} as the upstream says: {}{more}", reported.len(), shown.join(", "));
    }
    if !was_listed || is_known || !reported.is_empty() || of_settings > 0 {
        return findings.ok("windows", said);
    }
    let fix = "for models of your own add [[models]] with match = \"NAME\" and context_window = TOKENS";
    findings.warn("windows", format!("{said}; the upstream reports none"), fix);
}

/// Parses an HTTP date such as `Sun, 06 Nov 1994 08:49:37 GMT` into seconds since 1970. Only this form is supported:
/// servers send no other.
fn parse_http_date(date: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (_, date) = date.split_once(", ")?;
    let mut words = date.strip_suffix(" GMT")?.split([' ', ':']);
    let number = |words: &mut dyn Iterator<Item = &str>| words.next()?.parse::<u64>().ok();
    let day = number(&mut words)?;
    let name = words.next()?;
    let month = MONTHS.iter().position(|month| *month == name)?;
    let [year, hour, minute, second] = [(); 4].map(|()| number(&mut words));
    let (year, month) = (year?, u64::try_from(month).ok()?);
    // In years that begin in March, the leap day is the last day.
    let (year, month) = if month < 2 { (year.checked_sub(1)?, month + 10) } else { (year, month - 2) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 306 + 5) / 10 + day.checked_sub(1)?;
    Some(days.checked_sub(719_468)? * 86_400 + hour? * 3600 + minute? * 60 + second?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_imf_fixdate_is_parsed() {
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
            assert_eq!(parse_http_date(date), expected, "{date}");
        }
    }
}
