//! `abridge simulate --policy URL`: what arrives behind a proxy of recorded sessions.

use std::fs;

use serde::Deserialize;
use tempfile::TempDir;

use crate::simulate::{EAGER, Figures, LINE, Regret, Run, json, place, simulate, write_session};
use crate::support::{ClosedPort, Setup, Upstream, Wire, post};

/// The judge's view of a proxy.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub(crate) struct Sightings {
    requests: usize,
    lost: usize,
    reason: Option<String>,
    refused: usize,
    words_changed: usize,
    bytes_rewritten: usize,
    further: usize,
}

/// Plays the sessions under a policy and through a proxy at this address, which sends to `judge`.
fn judged(place: &TempDir, judge: &str, at: &str) -> [Run; 2] {
    let sessions = ["sessions", "session.json", "--judge-upstream", judge];
    let policies = ["--policy", "present", "--policy", at];
    let mut totals = json(place, &[sessions, policies].concat()).totals;
    let proxy = totals.pop().unwrap();
    [totals.pop().unwrap(), proxy]
}

fn place_with_policy() -> TempDir {
    let place = place();
    write_session(&place, "session.json", LINE);
    let policy = format!(
        "{EAGER}keep_reads = 0\n[tokens]\ncounter = \"estimate\"\nask_upstream = false\n[recall]\nvia = \"http\"\npublic_url = \"http://127.0.0.1:8787\"\n"
    );
    fs::write(place.path().join("proxy.toml"), policy).unwrap();
    place
}

#[tokio::test(flavor = "multi_thread")]
async fn abridge_through_its_address_is_judged_as_its_policy_is_by_name() {
    let place = place_with_policy();
    let judge = ClosedPort::new();
    let policy = fs::read_to_string(place.path().join("proxy.toml")).unwrap();
    let abridge = Setup::to(judge.url()).with(policy).start().await;
    let authority = judge.url().trim_start_matches("http://").trim_end_matches("/v1").to_owned();
    drop(judge);
    let [by_name, by_url] = judged(&place, &authority, &format!("http://{}/v1", abridge.address()));
    assert_eq!(by_name.sightings, None);
    let requests = by_url.figures.requests;
    let sightings = by_url.sightings.unwrap();
    assert!(sightings.requests >= requests, "{sightings:?}");
    assert_eq!(sightings, Sightings { requests: sightings.requests, ..Sightings::default() });
    let columns =
        |run: &Figures| (run.requests, run.tokens_sent, run.largest_request, run.tokens_cached, run.frontier_moves);
    assert_eq!(columns(&by_url.figures), columns(&by_name.figures));
    let columns = |of: &Regret| (of.answers, of.faults, of.hard, of.cost_unedited, of.cost_with_recalls);
    assert_eq!(columns(&by_url.regret), columns(&by_name.regret));
    assert!(by_name.regret.faults > 0 && by_name.figures.results_cleared > 5, "{by_name:?}");
}

#[test]
fn a_proxy_that_loses_every_request_is_unavailable() {
    let (place, judge) = (place_with_policy(), ClosedPort::new());
    let authority = judge.url().trim_start_matches("http://").trim_end_matches("/v1").to_owned();
    let nowhere = ClosedPort::new();
    drop(judge);
    let (code, out, _) =
        simulate(&place, &["session.json", "--judge-upstream", &authority, "--policy", &nowhere.url(), "--json"]);
    assert!(code == 69 && out.contains("nothing listens there"), "{code}: {out}");
}

/// A proxy that counts: it refuses its second request, and says something else for the user in all others.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_proxy_loses_and_changes_is_seen() {
    let place = place_with_policy();
    let judge = ClosedPort::new();
    let authority = judge.url().trim_start_matches("http://").trim_end_matches("/v1").to_owned();
    drop(judge);
    let mut proxy = Upstream::start().await;
    let (at, to) = (proxy.origin(), authority.clone());
    let serving = tokio::spawn(async move {
        for n in 0.. {
            let mut call = proxy.request().await;
            let body = String::from_utf8(call.bytes().await.to_vec()).unwrap();
            if n == 1 {
                call.answer("503 Service Unavailable", &["connection: close"], "not now").await;
                continue;
            }
            let mut on = Wire::connect(to.parse().unwrap()).await;
            on.send(post("/v1/chat/completions", &[], body.replace("Do it.", "Do it well."))).await;
            let _answered = on.next_head().await;
            call.answer("200 OK", &["connection: close"], "{}").await;
        }
    });
    let sessions = ["session.json", "--judge-upstream", &authority, "--policy", &at];
    let total = json(&place, &sessions).totals.pop().unwrap();
    let expected = Sightings {
        requests: 6,
        lost: 1,
        reason: Some("503: not now".to_owned()),
        words_changed: 5,
        ..Sightings::default()
    };
    assert_eq!(total.sightings.unwrap(), expected);
    serving.abort();
}
