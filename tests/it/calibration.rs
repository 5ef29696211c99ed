//! Tokens as billed: what the answers of an upstream teach, and what conversations keep of it.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use tempfile::TempDir;

use crate::metrics::scrape;
use crate::support::{Abridge, OPERATOR, OPERATOR_TOKEN, Setup, Upstream, binary, chat, request, within};

/// A conversation with so many results of 4,000 bytes.
pub(crate) fn conversation(seed: &str, n_results: usize) -> String {
    let mut messages = format!(r#"{{"role":"user","content":"{seed}"}}"#);
    for n in 0..n_results {
        let text = format!("{n} ").repeat(2000);
        write!(
            messages,
            r#",{{"role":"assistant","tool_calls":[{{"id":"c{n}","type":"function","function":{{"name":"cat","arguments":"{{}}"}}}}]}},{{"role":"tool","tool_call_id":"c{n}","content":"{text}"}}"#
        )
        .unwrap();
    }
    format!(r#"{{"model":"m","messages":[{messages}]}}"#)
}

/// An upstream that bills 1.55 times as many tokens as a quarter of the bytes, and what is in front of it.
pub(crate) struct Scene {
    pub(crate) upstream: Upstream,
    store: TempDir,
}

impl Scene {
    pub(crate) async fn new() -> Self {
        Self { upstream: Upstream::start().await, store: tempfile::tempdir().unwrap() }
    }

    fn setup(&self) -> Setup {
        self.keeping(1)
    }

    /// Passes keep so many results.
    fn keeping(&self, n_results: usize) -> Setup {
        Setup::before(&self.upstream)
            .with("tokens = { counter = \"estimate\", ask_upstream = false }")
            .with("recall.public_url = \"http://abridge.test\"")
            .with(format!(
                "clear_tool_results = {{ trigger = {{ tokens = 5000 }}, clear_at_least = 0, when = \"any\", keep = {{ results = {n_results} }} }}"
            ))
            .with(format!("store.path = \"{}\"", self.store.path().join("store.redb").display()))
    }

    /// What the upstream gets, when its bill has been counted.
    pub(crate) async fn sent(&mut self, abridge: &Abridge, body: &str) -> Bytes {
        self.sent_with(abridge, body, 0).await
    }

    /// The same, where a prompt cache has served so many tokens.
    async fn sent_with(&mut self, abridge: &Abridge, body: &str, cached: usize) -> Bytes {
        self.sent_billing(abridge, body, cached, |sent| sent * 155 / 400).await
    }

    /// The same, where the upstream reports so many tokens for so many bytes.
    async fn sent_billing(
        &mut self,
        abridge: &Abridge,
        body: &str,
        cached: usize,
        billed: impl FnOnce(usize) -> usize,
    ) -> Bytes {
        let before = requests(abridge).await;
        let mut client = abridge.connect().await;
        client.send(chat(body)).await;
        let mut call = self.upstream.request().await;
        let sent = call.bytes().await;
        let billed = billed(sent.len());
        let details = format!(r#""prompt_tokens_details":{{"cached_tokens":{cached}}}"#);
        let usage = format!(r#"{{"prompt_tokens":{billed},"completion_tokens":1,{details}}}"#);
        let fields = ["content-type: application/json", "connection: close"];
        call.answer("200 OK", &fields, format!(r#"{{"choices":[],"usage":{usage}}}"#)).await;
        assert_eq!(client.reply().await.head.status(), 200);
        within("the bill", async { while requests(abridge).await == before {} }).await;
        sent
    }
}

async fn requests(abridge: &Abridge) -> u64 {
    scrape(abridge).await.sum("abridge_requests_total")
}

#[derive(Deserialize)]
struct Status {
    token_factors: Vec<Learnt>,
    caches: Vec<Cache>,
}

#[derive(Debug, Deserialize)]
struct Cache {
    requests: u64,
    smallest: Option<u64>,
    lost: Losses,
    cost: Losses,
}

#[derive(Debug, Deserialize)]
struct Losses {
    edits: u64,
    client: u64,
    expired: u64,
}

#[derive(Debug, Deserialize)]
struct Learnt {
    upstream: String,
    model: String,
    factor: f64,
}

async fn status(abridge: &Abridge) -> Status {
    let mut client = abridge.connect().await;
    client.send(request("GET", "/abridge/status", &[OPERATOR])).await;
    serde_json::from_slice(&client.reply().await.body).unwrap()
}

fn replays(folder: &Path, abridge: &Abridge) -> String {
    let mut replay = Command::new(binary());
    let output = replay.arg("replay").arg(folder).arg("--config").arg(abridge.config()).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn a_later_conversation_is_cleared_earlier_and_each_keeps_its_factor_across_reloads_and_restarts() {
    let mut scene = Scene::new().await;
    let recorded = tempfile::tempdir().unwrap();
    let abridge = scene.setup().argument("--record").argument(recorded.path()).start().await;
    // Five results are 5,000 tokens as they are counted, and 7,750 as billed.
    let [first, second] = ["first", "second"].map(|seed| conversation(seed, 4));
    assert_eq!(scene.sent(&abridge, &conversation("first", 2)).await, conversation("first", 2));
    assert_eq!(scene.sent(&abridge, &first).await, first, "the factor of the beginning is 1");
    let cleared = scene.sent(&abridge, &second).await;
    assert!(cleared.len() < second.len(), "more than 5,000 tokens are billed for it");

    let [Learnt { upstream, model, factor }] = &status(&abridge).await.token_factors[..] else { panic!("one model") };
    assert!((1.5..=1.65).contains(factor), "{factor}");
    assert_eq!((&**model, &**upstream), ("m", "default"));
    let labels = format!("abridge_token_factor{{upstream=\"default\",model=\"m\"}} {factor}");
    assert!(metrics(&abridge).await.contains(&labels), "{labels}");

    abridge.reload_with("log.level = \"info\"");
    abridge.says("settings reloaded", 0).await;
    assert_eq!(scene.sent(&abridge, &first).await, first);
    assert_eq!(scene.sent(&abridge, &second).await, cleared);
    abridge.says(&format!("token_factor={factor}"), 0).await;
    abridge.signal("TERM");
    abridge.exit().await;
    let replayed = replays(recorded.path(), &abridge);
    assert!(replayed.contains("5 replayed: 5 same"), "{replayed}");

    // Another process on the same store has learnt nothing.
    let later = scene.setup().start().await;
    let third = conversation("third", 4);
    assert_eq!(scene.sent(&later, &second).await, cleared);
    assert_eq!(scene.sent(&later, &first).await, first);
    assert!(scene.sent(&later, &third).await.len() < third.len(), "it has, from these answers");
}

async fn metrics(abridge: &Abridge) -> String {
    let mut client = abridge.connect().await;
    client.send(request("GET", "/abridge/metrics", &[])).await;
    String::from_utf8(client.reply().await.body.to_vec()).unwrap()
}

#[tokio::test]
async fn a_conversation_that_begins_while_nothing_can_be_stored_keeps_the_factor_that_it_had_then() {
    let mut scene = Scene::new().await;
    let abridge = scene.setup().survives_full_disks().start().await;
    let began = conversation("began", 4);
    scene.sent(&abridge, &conversation("other", 3)).await;
    abridge.limit_files(Some(1));
    assert_eq!(scene.sent(&abridge, &began).await, began);
    abridge.limit_files(None);
    // After a failure the store waits for some seconds before it writes again.
    within("the store to work again", async {
        for n in 0.. {
            let new = conversation(&format!("new {n}"), 4);
            if scene.sent(&abridge, &new).await.len() < new.len() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    assert_eq!(scene.sent(&abridge, &began).await, began);
}

#[tokio::test]
async fn the_status_says_what_a_prompt_cache_has_lost_to_edits_and_to_the_client() {
    let mut scene = Scene::new().await;
    let abridge = scene.keeping(3).with("prices = [{ read = 0.1, write = 1.1 }]").start().await;
    scene.sent(&abridge, &conversation("c", 3)).await;
    scene.sent_with(&abridge, &conversation("c", 4), 4600).await;
    let longer = conversation("c", 5);
    assert!(scene.sent(&abridge, &longer).await.len() < longer.len());
    let [Cache { requests, smallest, lost, cost }] = &status(&abridge).await.caches[..] else { panic!("one cache") };
    assert_eq!((*requests, *smallest, lost.client, lost.expired), (2, Some(4600), 0, 0));
    // Two of four results, the others' placeholders, and the calls, as billed.
    assert!((3000..4500).contains(&lost.edits), "{lost:?}");
    assert_eq!(cost.edits, lost.edits, "each costs one token more than a cached one");

    let changed = longer.replacen("0 0 0", "0 1 0", 1);
    scene.sent(&abridge, &changed).await;
    let caches = status(&abridge).await.caches;
    assert!(caches[0].lost.client > 1000 && caches[0].requests == 2, "{caches:?}");
    let mut command = Command::new(binary());
    let at = format!("http://{}", abridge.address());
    let printed = String::from_utf8(
        command.args(["status", "--at", &at]).env("ABRIDGE_ADMIN_TOKEN", OPERATOR_TOKEN).output().unwrap().stdout,
    )
    .unwrap();
    assert!(printed.contains("\ncache             m at default: tokens lost: "), "{printed}");
    assert!(printed.contains("\ntoken factor      m at default: 1."), "{printed}");
}

#[tokio::test]
async fn usage_that_is_no_count_of_the_request_moves_no_trigger() {
    type Report = fn(usize, &mut usize) -> usize;
    let lies: [(&str, Report); 3] = [
        ("what the cache did not have", |honest, before| honest.abs_diff(std::mem::replace(before, honest))),
        ("five internal calls", |honest, _| 5 * honest),
        ("the whole session", |honest, sum| {
            *sum += honest;
            *sum
        }),
    ];
    for (what, report) in lies {
        let mut scene = Scene::new().await;
        let abridge = scene.setup().start().await;
        let mut state = 0;
        for n_results in 2..6 {
            let body = conversation("first", n_results);
            scene.sent_billing(&abridge, &body, 0, |sent| report(sent / 4, &mut state)).await;
        }
        let learnt: Vec<_> = status(&abridge).await.token_factors.iter().map(|learnt| learnt.factor).collect();
        assert!(learnt.iter().all(|factor| (1.0..=1.05).contains(factor)), "{what}: {learnt:?}");
        // Four results are less than 5,000 tokens, and six are more.
        for (n_results, is_cleared) in [(4, false), (6, true)] {
            let body = conversation("second", n_results);
            let sent = scene.sent_billing(&abridge, &body, 0, |sent| report(sent / 4, &mut state)).await;
            assert_eq!(sent.len() < body.len(), is_cleared, "{what}: {n_results}");
        }
    }
}
