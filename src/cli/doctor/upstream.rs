//! Checks of the upstream: connection, certificates, clock and context windows.

use std::time::{Duration, UNIX_EPOCH};

use httpdate::parse_http_date;

use super::Findings;
use crate::config::clients::{self, Client};
use crate::config::{Config, Environment};
use crate::roots;
use crate::store::Clock;
use crate::upstream::Upstream;
use crate::upstream::probe::{Probe, ProbeOutcome};

/// The timeout of each step.
pub(in crate::cli) const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// The largest accepted difference between two clocks, in seconds.
const MAX_CLOCK_SKEW_SECONDS: u64 = 60;

/// The maximum number of windows that are printed.
const MAX_WINDOWS_SHOWN: usize = 3;

pub(super) async fn check(findings: &mut Findings, config: &Config, environment: &Environment) {
    let clients = clients::all(config, environment);
    check_roots(findings, &clients);
    for Client { settings, name, upstream } in clients {
        let named = |said: String| if name.is_route() { format!("{name}: {said}") } else { said };
        let upstream = match upstream {
            Ok(upstream) => upstream,
            Err(error) => {
                let fix = format!(
                    "name a PEM file with certificates in {}, and an http:// or socks5:// proxy in HTTPS_PROXY",
                    name.setting("ca_file")
                );
                findings.fault("upstream", format!("{error:#}"), fix);
                continue;
            }
        };
        let probed = Probe::run(&upstream, STEP_TIMEOUT.min(settings.connect_timeout.0)).await;
        let said = named(probed.outcome.describe(&probed.url, &upstream));
        match probed.outcome.advice(&settings, &name) {
            None => findings.ok("upstream", said),
            Some(fix) => findings.fault("upstream", said, fix),
        }
        check_clock(findings, probed.date(), &named);
        check_windows(findings, config, (&upstream, probed), &named).await;
    }
}

fn check_roots(findings: &mut Findings, clients: &[Client]) {
    if clients.iter().all(|client| client.settings.url.uri().scheme_str() != Some("https")) {
        return findings.ok("roots", "not needed: the upstream is asked without TLS");
    }
    match roots::of_system().len() {
        0 => {
            let said = "the system has no root certificates; Mozilla's are taken, as they were when abridge was built";
            findings.warn("roots", said, "install ca-certificates, or name a file in upstream.ca_file");
        }
        n => findings.ok("roots", format!("{n} root certificates of the system")),
    }
}

fn check_clock(findings: &mut Findings, date: Option<&str>, named: &dyn Fn(String) -> String) {
    let seconds = |date| Some(parse_http_date(date).ok()?.duration_since(UNIX_EPOCH).ok()?.as_secs());
    let Some(theirs) = date.and_then(seconds) else {
        return findings.ok("clock", named("not compared: the upstream sends no date".to_owned()));
    };
    let ours = Clock::system().now().0;
    let apart = ours.abs_diff(theirs);
    if apart <= MAX_CLOCK_SKEW_SECONDS {
        return findings.ok("clock", named(format!("within {MAX_CLOCK_SKEW_SECONDS} s of the upstream's")));
    }
    let way = if ours > theirs { "ahead of" } else { "behind" };
    let said =
        format!("{apart} s {way} the upstream's: certificates may seem invalid, and store.keep_for goes by this clock");
    findings.warn("clock", named(said), "set the clock, such as with `timedatectl set-ntp true`");
}

async fn check_windows(
    findings: &mut Findings,
    config: &Config,
    (upstream, probed): (&Upstream, Probe),
    named: &dyn Fn(String) -> String,
) {
    let was_listed = probed.outcome == ProbeOutcome::Reachable(http::StatusCode::OK);
    let is_known = probed.url.host() == Some("api.openai.com");
    let reported = probed.windows(upstream, STEP_TIMEOUT).await;
    let of_settings = config.models.iter().filter(|model| model.context_window.is_some()).count();
    let mut said = format!("{of_settings} of [[models]], well-known models by name");
    if !reported.is_empty() {
        let shown: Vec<_> =
            reported.iter().take(MAX_WINDOWS_SHOWN).map(|(model, tokens)| format!("{model} = {tokens}")).collect();
        let more = if reported.len() > MAX_WINDOWS_SHOWN { ", …" } else { "" };
        said = format!("{said}, {} as the upstream says: {}{more}", reported.len(), shown.join(", "));
    }
    if !was_listed || is_known || !reported.is_empty() || of_settings > 0 {
        return findings.ok("windows", named(said));
    }
    let fix = "for models of your own add [[models]] with match = \"NAME\" and context_window = TOKENS";
    findings.warn("windows", named(format!("{said}; the upstream reports none")), fix);
}
