//! Passes behind a pause in which the prompt cache has expired.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::metrics::scrape;
use crate::recording::replayed;
use crate::support::{Abridge, Setup, Upstream, chat, within};

/// The shortest pause that is told apart, and a second.
const PAUSE: Duration = Duration::from_secs(31);

/// A conversation of so many rounds, of 510 tokens each.
fn conversation(seed: &str, n_rounds: usize) -> String {
    let mut messages = format!(r#"{{"role":"user","content":"{seed}"}}"#);
    for n in 0..n_rounds {
        let text = format!("{n:04}").repeat(500);
        write!(
            messages,
            r#",{{"role":"assistant","tool_calls":[{{"id":"c{n}","type":"function","function":{{"name":"cat","arguments":"{{}}"}}}}]}},{{"role":"tool","tool_call_id":"c{n}","content":"{text}"}}"#
        )
        .unwrap();
    }
    format!(r#"{{"model":"m","messages":[{messages}]}}"#)
}

/// What the upstream gets, when its bill has been counted, which says that nothing was cached.
async fn sent(upstream: &mut Upstream, abridge: &Abridge, body: &str) -> Bytes {
    let counted = async || scrape(abridge).await.sum("abridge_requests_total");
    let before = counted().await;
    let mut client = abridge.connect().await;
    client.send(chat(body)).await;
    let mut call = upstream.request().await;
    let sent = call.bytes().await;
    let usage = format!(
        r#"{{"prompt_tokens":{},"completion_tokens":1,"prompt_tokens_details":{{"cached_tokens":0}}}}"#,
        sent.len() / 4
    );
    let fields = ["content-type: application/json", "connection: close"];
    call.answer("200 OK", &fields, format!(r#"{{"choices":[],"usage":{usage}}}"#)).await;
    assert_eq!(client.reply().await.head.status(), 200);
    within("the bill", async { while counted().await == before {} }).await;
    sent
}

#[tokio::test]
async fn behind_a_pause_that_caches_do_not_survive_a_pass_is_made_and_replayed() {
    let (recorded, store) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut upstream = Upstream::start().await;
    let setup = || {
        Setup::before(&upstream)
            .with("tokens = { counter = \"estimate\", ask_upstream = false, calibrate = false }")
            .with("prices = { read = 0.1, write = 1.0 }")
            .with("recall.public_url = \"http://abridge.test\"")
            .with("clear_tool_results = { trigger = { tokens = 8000 }, keep = { results = 1 }, keep_reads = 0 }")
            .with(format!("store.path = \"{}\"", store.path().join("store.redb").display()))
            .argument("--record")
            .argument(recorded.path())
    };
    let (first, second) = (setup().start().await, setup());
    let seeds = ["one", "another", "a third"];
    for n in [6, 7] {
        for seed in seeds {
            let body = conversation(seed, n);
            assert_eq!(sent(&mut upstream, &first, &body).await, body, "nothing is known of the cache");
        }
        sleep(PAUSE).await;
    }
    let cleared = sent(&mut upstream, &first, &conversation("one", 8)).await;
    assert!(cleared.len() < conversation("one", 3).len(), "seven of eight results are cleared");
    let untouched = conversation("a new one", 8);
    assert_eq!(sent(&mut upstream, &first, &untouched).await, untouched);
    first.signal("TERM");
    first.exit().await;
    let second = second.start().await;
    let later = sent(&mut upstream, &second, &conversation("one", 9)).await;
    let beginning = cleared.len() - "]}".len();
    assert_eq!(later[..beginning], cleared[..beginning], "the prompt cache has it now");
    second.signal("TERM");
    second.exit().await;
    let (code, table) = replayed(recorded.path(), &second, &[]);
    assert_eq!(code, Some(0), "{table}");
    assert!(table.matches("clear=7").count() == 2, "{table}");
}
