//! `[keep_alive]`: calls that abridge makes itself to keep a prompt cache while a tool of the client runs.

use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use crate::metrics::scrape;
use crate::support::{Abridge, Exchange, Setup, Upstream, Wire, post};

const FIELDS: [&str; 2] = ["x-api-key: sk-ant-of-client", "anthropic-version: 2023-06-01"];
const JSON: [&str; 1] = ["content-type: application/json"];

/// What no call comes within.
const QUIET: Duration = Duration::from_millis(900);

async fn started(upstream: &Upstream) -> Abridge {
    started_with(upstream, "keep_alive = { enabled = true, after = \"250ms\" }").await
}

async fn started_with(upstream: &Upstream, settings: &str) -> Abridge {
    let setup = Setup::before(upstream).with("policy.edits = []").with("tokens.ask_upstream = false");
    setup.with(settings).start().await
}

/// A request whose user says this.
fn body(said: &str, beside: &str) -> String {
    format!(
        r#"{{"model":"claude-sonnet-4-5","max_tokens":4000,"stream":false{beside},"messages":[{{"role":"user","content":[{{"type":"text","text":"{said}","cache_control":{{"type":"ephemeral"}}}}]}}]}}"#
    )
}

fn answer(stop: &str, usage: &str) -> String {
    format!(
        r#"{{"type":"message","role":"assistant","content":[],"stop_reason":"{stop}","usage":{{"input_tokens":3,{usage},"output_tokens":9}}}}"#
    )
}

const WRITTEN: &str = r#""cache_creation_input_tokens":25000"#;
const READ: &str = r#""cache_read_input_tokens":25000"#;

/// Has a request answered.
async fn asks(client: &mut Wire, upstream: &mut Upstream, body: &str, answer: &str) {
    client.send(post("/v1/messages", &FIELDS, body)).await;
    let mut call = upstream.request().await;
    assert_eq!(call.bytes().await, body.as_bytes());
    call.answer("200 OK", &JSON, answer).await;
    assert_eq!(client.reply().await.head.status(), 200);
}

/// The next call that abridge makes itself, if one comes.
async fn call(upstream: &mut Upstream) -> Option<Exchange> {
    timeout(QUIET, upstream.request()).await.ok()
}

#[tokio::test]
async fn a_cache_is_kept_four_times_with_the_clients_key_while_its_tool_runs() {
    let mut upstream = Upstream::start().await;
    let abridge = started(&upstream).await;
    let mut client = abridge.connect().await;
    let sent = body("go", "");
    asks(&mut client, &mut upstream, &sent, &answer("tool_use", WRITTEN)).await;
    for n in 1..=4 {
        let mut kept = call(&mut upstream).await.unwrap_or_else(|| panic!("call {n}"));
        assert_eq!(kept.head.get("x-api-key"), Some("sk-ant-of-client"));
        let expected = sent.replace("4000", "1").replace(r#","stream":false"#, "");
        assert_eq!(String::from_utf8(kept.bytes().await.to_vec()).unwrap(), expected);
        kept.answer("200 OK", &JSON, answer("max_tokens", READ)).await;
    }
    assert!(call(&mut upstream).await.is_none(), "four are the most");
    let metrics = scrape(&abridge).await;
    assert_eq!(metrics.sum("abridge_keep_alives_total"), 4);
    // $3 a million input tokens, five quarters of it to write, a tenth to read; $15 of the answer; in millionths.
    let own = 4 * (3 * 3 + 25_000 * 3 / 10 + 9 * 15);
    assert_eq!(metrics.sum("abridge_cost_microdollars_total"), own + 3 * 3 + 25_000 * 15 / 4 + 9 * 15);
}

#[tokio::test]
async fn the_next_request_and_the_end_of_the_connection_end_the_calls() {
    let mut upstream = Upstream::start().await;
    let abridge = started(&upstream).await;
    let mut client = abridge.connect().await;
    asks(&mut client, &mut upstream, &body("go", ""), &answer("tool_use", WRITTEN)).await;
    call(&mut upstream).await.unwrap().answer("200 OK", &JSON, answer("max_tokens", READ)).await;
    asks(&mut client, &mut upstream, &body("go", ""), &answer("end_turn", READ)).await;
    assert!(call(&mut upstream).await.is_none(), "the conversation went on");

    // A call under way is given up.
    asks(&mut client, &mut upstream, &body("slow", ""), &answer("tool_use", WRITTEN)).await;
    let mut under_way = call(&mut upstream).await.unwrap();
    assert!(!under_way.bytes().await.is_empty());
    asks(&mut client, &mut upstream, &body("slow", ""), &answer("end_turn", READ)).await;
    let _cut = under_way.into_wire().gone().await;
    assert!(call(&mut upstream).await.is_none(), "the conversation went on");
    assert_eq!(scrape(&abridge).await.sum("abridge_keep_alives_total"), 1);

    // A request that is not read may be of any conversation of its connection.
    asks(&mut client, &mut upstream, &body("other", ""), &answer("tool_use", WRITTEN)).await;
    client.send(post("/v1/messages", &[&FIELDS[..], &["x-abridge: off"]].concat(), body("other", ""))).await;
    let mut passed = upstream.request().await;
    passed.bytes().await;
    passed.answer("200 OK", &JSON, answer("tool_use", READ)).await;
    drop(passed);
    assert_eq!(client.reply().await.head.status(), 200);
    assert!(call(&mut upstream).await.is_none(), "the conversation went on");

    asks(&mut client, &mut upstream, &body("again", ""), &answer("tool_use", WRITTEN)).await;
    drop(client);
    assert!(call(&mut upstream).await.is_none(), "the client is gone");
}

#[tokio::test]
async fn a_connection_stays_open_while_its_cache_is_kept_and_no_longer() {
    let mut upstream = Upstream::start().await;
    let kept = "server.header_timeout = \"200ms\"\nkeep_alive = { enabled = true, after = \"700ms\" }";
    let abridge = started_with(&upstream, kept).await;
    let (mut client, mut idle) = (abridge.connect().await, abridge.connect().await);
    asks(&mut client, &mut upstream, &body("go", ""), &answer("tool_use", WRITTEN)).await;
    for n in 1..=2 {
        let mut call = call(&mut upstream).await.unwrap_or_else(|| panic!("call {n}"));
        call.answer("200 OK", &JSON, answer("max_tokens", READ)).await;
    }
    timeout(QUIET, idle.gone()).await.expect("a connection without a request is closed");
    asks(&mut client, &mut upstream, &body("go", ""), &answer("end_turn", READ)).await;
    timeout(QUIET, client.gone()).await.expect("nothing is kept any more");
}

#[tokio::test]
async fn a_reload_ends_the_calls() {
    let mut upstream = Upstream::start().await;
    let abridge = started(&upstream).await;
    let mut client = abridge.connect().await;
    asks(&mut client, &mut upstream, &body("go", ""), &answer("tool_use", WRITTEN)).await;
    call(&mut upstream).await.unwrap().answer("200 OK", &JSON, answer("max_tokens", READ)).await;
    let written = std::fs::read_to_string(abridge.config()).unwrap();
    std::fs::write(abridge.config(), written.replace("enabled = true", "enabled = false")).unwrap();
    abridge.signal("HUP");
    abridge.says("settings reloaded", 0).await;
    let mut n = 0;
    while let Some(mut kept) = call(&mut upstream).await {
        kept.answer("200 OK", &JSON, answer("max_tokens", READ)).await;
        n += 1;
    }
    assert!(n <= 1, "one may have been under way: {n}");
}

#[tokio::test]
async fn what_the_client_has_signed_is_not_sent_in_another_form() {
    let mut upstream = Upstream::start().await;
    let abridge = started(&upstream).await;
    let mut client = abridge.connect().await;
    let path = "/model/anthropic.claude-sonnet-4-5-20250929-v1:0/invoke";
    let fields = [
        "authorization: AWS4-HMAC-SHA256 Credential=AKIA/20261129/us-east-1/bedrock/aws4_request, SignedHeaders=host, Signature=00",
    ];
    client.send(post(path, &fields, body("go", "").replace("\"model\":\"claude-sonnet-4-5\",", ""))).await;
    upstream.request().await.answer("200 OK", &JSON, answer("tool_use", WRITTEN)).await;
    assert_eq!(client.reply().await.head.status(), 200);
    assert!(call(&mut upstream).await.is_none());
}

#[tokio::test]
async fn an_hour_is_one_of_a_mark() {
    let mut upstream = Upstream::start().await;
    let abridge = started(&upstream).await;
    let mut client = abridge.connect().await;
    let beside = r#","metadata":{"since":"1h"}"#;
    asks(&mut client, &mut upstream, &body("go", beside), &answer("tool_use", WRITTEN)).await;
    assert!(call(&mut upstream).await.is_some());
}

#[tokio::test]
async fn what_need_not_or_cannot_be_kept_is_not() {
    let mut upstream = Upstream::start().await;
    let abridge = started(&upstream).await;
    let mut client = abridge.connect().await;
    let short = r#""cache_creation_input_tokens":19000"#;
    let budget = r#","thinking":{"type":"enabled","budget_tokens":2000}"#;
    let hour = r#","system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral","ttl":"1h"}}]"#;
    for (beside, stop, usage) in
        [("", "end_turn", WRITTEN), ("", "tool_use", short), (budget, "tool_use", WRITTEN), (hour, "tool_use", WRITTEN)]
    {
        let sent = body(&format!("{beside:?} {stop} {}", usage.len()).replace(['"', '\\'], ""), beside);
        asks(&mut client, &mut upstream, &sent, &answer(stop, usage)).await;
        assert!(call(&mut upstream).await.is_none(), "{beside} {stop} {usage}");
    }
}

#[tokio::test]
async fn a_refusal_and_a_cache_that_was_not_there_end_all_calls() {
    let refused = ("400 Bad Request", r#"{"type":"error"}"#.to_owned(), "failed");
    let lost = ("200 OK", answer("max_tokens", WRITTEN), "lost");
    for (status, said, outcome) in [refused, lost] {
        let mut upstream = Upstream::start().await;
        let abridge = started(&upstream).await;
        let mut client = abridge.connect().await;
        asks(&mut client, &mut upstream, &body("go", ""), &answer("tool_use", WRITTEN)).await;
        call(&mut upstream).await.unwrap().answer(status, &JSON, said).await;
        abridge.says("keep_alive keeps no prompt cache here any more", 0).await;
        asks(&mut client, &mut upstream, &body("other", ""), &answer("tool_use", WRITTEN)).await;
        assert!(call(&mut upstream).await.is_none(), "{outcome}");
        let metrics = scrape(&abridge).await;
        assert!(metrics.samples[&format!("abridge_keep_alives_total{{outcome=\"{outcome}\"}}")] > 0.0, "{outcome}");
    }
}

#[tokio::test]
async fn a_cache_counts_from_the_request_and_not_from_the_end_of_its_answer() {
    let mut upstream = Upstream::start().await;
    let abridge = started_with(&upstream, "keep_alive = { enabled = true, after = \"2s\" }").await;
    let mut client = abridge.connect().await;
    client.send(post("/v1/messages", &FIELDS, body("go", ""))).await;
    let sent = Instant::now();
    let mut first = upstream.request().await;
    first.bytes().await;
    sleep(Duration::from_millis(1500)).await;
    first.answer("200 OK", &JSON, answer("tool_use", WRITTEN)).await;
    drop(first);
    assert_eq!(client.reply().await.head.status(), 200);
    for n in 1..=2 {
        let mut kept = timeout(Duration::from_secs(3), upstream.request()).await.unwrap();
        let after = sent.elapsed().as_millis();
        assert!((n * 2000 - 100..n * 2000 + 1000).contains(&after), "call {n} after {after} ms");
        kept.bytes().await;
        sleep(Duration::from_millis(800)).await;
        kept.answer("200 OK", &JSON, answer("max_tokens", READ)).await;
    }
}
