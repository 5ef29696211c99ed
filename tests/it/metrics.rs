//! `GET /abridge/metrics`: after requests that are known, exactly these numbers.

use std::collections::BTreeSet;
use std::path::Path;

use crate::support::bodies::{DANGLING, PLAIN};
use crate::support::offloads::{long_text, recalls, with_results};
use crate::support::openmetrics::Scrape;
use crate::support::promlint;
use crate::support::summarizer::{INSTRUCTION, Play, Summarizer, talk};
use crate::support::{Abridge, Scene, Setup, chat, post, request, within};

const CHAT: &str = "/v1/chat/completions";

/// What abridge says now.
pub(crate) async fn scrape(abridge: &Abridge) -> Scrape {
    let (kind, text) = text(abridge, &["accept: application/openmetrics-text"]).await;
    assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    Scrape::read(&text)
}

/// The media type and the text of the metrics.
async fn text(abridge: &Abridge, fields: &[&str]) -> (String, String) {
    let mut client = abridge.connect().await;
    client.send(request("GET", "/abridge/metrics", &[fields, &["connection: close"]].concat())).await;
    let reply = client.reply().await;
    assert_eq!(reply.head.status(), 200, "{:?}", reply.head);
    assert_eq!(reply.head.get("cache-control"), Some("no-store"));
    let kind = reply.head.get("content-type").unwrap().to_owned();
    (kind, String::from_utf8(reply.body.to_vec()).unwrap())
}

/// Returns what it says as soon as this holds: everything that has ended is counted a moment later.
pub(crate) async fn scraped(abridge: &Abridge, holds: impl Fn(&Scrape) -> bool) -> Scrape {
    let asking = async {
        loop {
            let scrape = scrape(abridge).await;
            if holds(&scrape) {
                return scrape;
            }
        }
    };
    within("the numbers", asking).await
}

/// Returns what it says when so many requests have ended.
pub(crate) async fn after(abridge: &Abridge, n_requests: u64) -> Scrape {
    let scrape = scraped(abridge, |scrape| scrape.sum("abridge_requests_total") >= n_requests).await;
    assert_eq!(scrape.sum("abridge_requests_total"), n_requests, "{scrape:?}");
    scrape
}

fn usage(prompt: u64, cached: u64, completion: u64) -> String {
    format!(
        "{{\"choices\":[{{\"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{completion},\
         \"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}}}}}"
    )
}

/// Sends a request on its own connection, and answers it.
async fn asked(scene: &mut Scene, request: impl AsRef<[u8]>, status: &str, answer: impl AsRef<[u8]>) -> Vec<u8> {
    let mut client = scene.abridge.connect().await;
    client.send(request).await;
    let mut call = scene.upstream.request().await;
    let body = call.bytes().await.to_vec();
    call.answer(status, &["content-type: application/json", "connection: close"], answer).await;
    client.reply().await;
    body
}

const OK: &str = "200 OK";

#[tokio::test]
async fn each_request_is_counted_as_what_became_of_it() {
    let mut scene = Scene::with("tokens.ask_upstream = false").await;
    asked(&mut scene, chat(DANGLING), OK, "{}").await;
    asked(&mut scene, chat(PLAIN), OK, "{}").await;
    asked(&mut scene, chat("{\"messages\":1}"), "400 Bad Request", "{}").await;
    asked(&mut scene, post(CHAT, &["content-encoding: gzip"], "no"), "400 Bad Request", "{}").await;
    asked(&mut scene, post(CHAT, &["x-abridge: dry-run"], DANGLING), OK, "{}").await;
    asked(&mut scene, post(CHAT, &["x-abridge: off"], DANGLING), OK, "{}").await;
    asked(&mut scene, request("GET", "/v1/models", &[]), OK, "{}").await;
    // The upstream goes without an answer.
    let mut client = scene.abridge.connect().await;
    client.send(chat(DANGLING)).await;
    drop(scene.upstream.request().await);
    assert_eq!(client.reply().await.head.status(), 502);

    let scrape = after(&scene.abridge, 8).await;
    let outcome = |name: &str| scrape.get(&format!("abridge_requests_total{{outcome=\"{name}\"}}"));
    let outcomes = ["edited", "unedited", "not_understood", "would_be_edited", "passed"].map(outcome);
    assert_eq!(outcomes, [2, 1, 2, 1, 2]);
    for (sample, n) in [
        ("abridge_unanswered_total{reason=\"failed\"}", 1),
        ("abridge_unanswered_total{reason=\"shed\"}", 0),
        ("abridge_errors_total{code=\"upstream_closed\"}", 1),
        ("abridge_fail_open_total{reason=\"not_understood\"}", 1),
        ("abridge_fail_open_total{reason=\"broken_encoding\"}", 1),
        ("abridge_fail_open_total{reason=\"bug\"}", 0),
        ("abridge_changes_total{edit=\"patch\",action=\"insert\"}", 2),
        ("abridge_added_seconds_count{way=\"edit\"}", 6),
        ("abridge_added_seconds_count{way=\"pass\"}", 2),
        ("abridge_chunk_seconds_count", 7),
        ("abridge_streams", 0),
        ("abridge_in_flight", 0),
    ] {
        assert_eq!(scrape.get(sample), n, "{sample}: {scrape:?}");
    }
    assert_eq!(scrape.sum("abridge_changes_total"), 2, "a dry run changes nothing");
    assert!(scrape.samples["abridge_added_seconds_sum{way=\"edit\"}"] < 3.0, "half a second each is not ours");
    assert!(scrape.samples.contains_key("process_resident_memory_bytes"));
    assert!(scrape.get("process_resident_memory_bytes") > 1_000_000);
    let before = scrape.get("abridge_edit_bytes_total{edit=\"patch\",side=\"before\"}");
    assert!(scrape.get("abridge_edit_bytes_total{edit=\"patch\",side=\"after\"}") > before, "a result is put in");
}

#[tokio::test]
async fn tokens_are_counted_as_billed_and_what_a_cache_can_serve_beside_what_it_has() {
    let mut scene =
        Scene::with("tokens.ask_upstream = false\nclear_tool_results = { when = 'any', trigger = { tokens = 1 } }")
            .await;
    // The first one began with nothing that was there; all of the second was.
    asked(&mut scene, chat(DANGLING), OK, usage(1000, 0, 7)).await;
    after(&scene.abridge, 1).await;
    asked(&mut scene, chat(DANGLING), OK, usage(1000, 600, 9)).await;
    // Another caller's cache is different.
    asked(&mut scene, post(CHAT, &["authorization: Bearer other"], DANGLING), OK, usage(1000, 0, 1)).await;
    // Everything that is refused is not billed.
    asked(&mut scene, chat(DANGLING), "429 Too Many Requests", "{}").await;
    let scrape = after(&scene.abridge, 4).await;
    let model = "gen_ai_operation_name=\"chat\",gen_ai_request_model=\"m\"";
    for (name, label, n) in [
        ("abridge_billed_tokens_total", "type=\"input\"", 3000),
        ("abridge_billed_tokens_total", "type=\"cached\"", 600),
        ("abridge_billed_tokens_total", "type=\"output\"", 17),
        ("abridge_cached_tokens_total", "source=\"predicted\"", 1000),
        ("abridge_cached_tokens_total", "source=\"reported\"", 600),
        ("gen_ai_client_token_usage_sum", "gen_ai_token_type=\"input\"", 3000),
        ("gen_ai_client_token_usage_sum", "gen_ai_token_type=\"output\"", 17),
        ("gen_ai_client_token_usage_count", "gen_ai_token_type=\"output\"", 3),
    ] {
        let sample = format!("{name}{{{model},{label}}}");
        assert_eq!(scrape.get(&sample), n, "{sample}: {scrape:?}");
    }
    assert_eq!(scrape.get(&format!("gen_ai_client_operation_duration_seconds_count{{{model}}}")), 3);
}

#[tokio::test]
async fn only_so_many_models_have_numbers_of_their_own() {
    let mut scene = Scene::with("tokens.ask_upstream = false").await;
    let named = |name: &str| {
        DANGLING.replace("\"model\":\"m\"", &format!("\"model\":{}", serde_json::to_string(name).unwrap()))
    };
    // What no upstream has answered for is not a model.
    asked(&mut scene, chat(named("refused")), "404 Not Found", "{}").await;
    let hostile = "a\"b\\c\nd";
    asked(&mut scene, chat(named(hostile)), OK, usage(1, 0, 1)).await;
    for n in 0..60 {
        asked(&mut scene, chat(named(&format!("{n}{}", "x".repeat(500)))), OK, usage(10, 1, 1)).await;
    }
    let scrape = after(&scene.abridge, 62).await;
    let prompts: Vec<_> = scrape
        .samples
        .keys()
        .filter(|sample| sample.starts_with("abridge_billed_tokens_total") && sample.contains("\"input\""))
        .collect();
    assert_eq!(prompts.len(), 51, "{prompts:?}");
    assert!(prompts.iter().all(|sample| sample.len() < 200 && !sample.contains("refused")), "{prompts:?}");
    assert!(prompts.iter().any(|sample| sample.contains("a\\\"b\\\\c\u{fffd}d")), "{prompts:?}");
    let other =
        "abridge_billed_tokens_total{gen_ai_operation_name=\"chat\",gen_ai_request_model=\"other\",type=\"input\"}";
    assert_eq!(scrape.get(other), 110);
    assert_eq!(scrape.sum("abridge_billed_tokens_total"), 2 + 60 * 12);
}

#[tokio::test]
async fn what_is_stored_and_recalled_is_counted() {
    let mut scene = Scene::with("policy.edits = [\"truncate_tool_results\"]").await;
    let long = long_text(1);
    let len = long.len() as u64;
    let body = chat(with_results(std::slice::from_ref(&long)));
    let sent = asked(&mut scene, &body, OK, "{}").await;
    asked(&mut scene, &body, OK, "{}").await;
    let [target] = &recalls(&sent)[..] else { panic!("one handle") };
    for (target, status) in [
        (&**target, 200),
        ("/abridge/recall/00000000000000000000000000", 404),
        ("/abridge/recall/00000000000000000000000000?regex=x", 400),
    ] {
        scene.client.send(format!("GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await;
        assert_eq!(scene.client.reply().await.head.status(), status);
    }
    let scrape = after(&scene.abridge, 2).await;
    for (sample, n) in [
        ("abridge_store_written_total", 1),
        ("abridge_store_written_bytes_total", len),
        ("abridge_store_known_total", 1),
        // The text, and the token factor of the conversation.
        ("abridge_store_commits_total", 2),
        ("abridge_store_errors_total", 0),
        ("abridge_store_wait_seconds_count", 1),
        ("abridge_store_payloads", 1),
        ("abridge_store_payload_bytes", len),
        ("abridge_changes_total{edit=\"truncate\",action=\"truncate\"}", 2),
        ("abridge_recalls_total{outcome=\"found\"}", 1),
        ("abridge_recalls_total{outcome=\"unknown\"}", 1),
        ("abridge_recalls_total{outcome=\"refused\"}", 1),
        ("abridge_recalls_total{outcome=\"swept\"}", 0),
    ] {
        assert_eq!(scrape.get(sample), n, "{sample}: {scrape:?}");
    }
}

#[tokio::test]
async fn a_shed_request_is_counted() {
    let mut scene = Scene::with("server.max_in_flight = 1").await;
    let mut call = scene.ask(chat(PLAIN)).await;
    let mut second = scene.abridge.connect().await;
    second.send(chat(PLAIN)).await;
    assert_eq!(second.reply().await.head.status(), 503);
    let during = scrape(&scene.abridge).await;
    assert_eq!((during.get("abridge_in_flight"), during.get("abridge_streams")), (1, 0));
    assert_eq!(during.get("abridge_unanswered_total{reason=\"shed\"}"), 1);
    assert_eq!(during.get("abridge_shed_total{reason=\"in_flight\"}"), 1);
    assert_eq!(during.get("abridge_errors_total{code=\"overloaded\"}"), 1);
    call.json("{}").await;
    scene.client.reply().await;
    let scrape = after(&scene.abridge, 1).await;
    assert_eq!((scrape.get("abridge_in_flight"), scrape.get("abridge_buffered_bytes")), (0, 0));
}

#[tokio::test]
async fn concurrent_streams_are_counted_exactly() {
    let mut scene = Scene::with("tokens.ask_upstream = false").await;
    let tasks = scrape(&scene.abridge).await.get("abridge_tasks");
    let mut pairs = Vec::new();
    for _ in 0..50 {
        let mut client = scene.abridge.connect().await;
        client.send(chat(PLAIN)).await;
        let mut call = scene.upstream.request().await;
        call.bytes().await;
        call.begin_stream().await;
        call.send_chunk("data: {}\n\n").await;
        client.head().await;
        client.chunk().await;
        pairs.push((client, call));
    }
    let during = scrape(&scene.abridge).await;
    assert_eq!((during.get("abridge_streams"), during.get("abridge_in_flight")), (50, 50));
    assert_eq!(during.sum("abridge_requests_total"), 0, "none has ended");
    // A connection on each side.
    assert!(during.get("abridge_tasks") >= tasks + 100, "{tasks} -> {}", during.get("abridge_tasks"));
    // A client that goes ends its stream as well as an upstream that is done.
    for (n, (mut client, mut call)) in pairs.into_iter().enumerate() {
        if n % 2 == 0 {
            call.end_stream().await;
            while client.chunk().await.is_some() {}
        } else {
            drop(client);
            call.gone().await;
        }
    }
    let scrape = after(&scene.abridge, 50).await;
    assert_eq!((scrape.get("abridge_streams"), scrape.get("abridge_in_flight")), (0, 0));
    assert!(scrape.get("abridge_tasks") < during.get("abridge_tasks"));
}

#[tokio::test]
async fn summaries_and_their_cost_are_counted() {
    let chunk = "{\"choices\":[{\"delta\":{\"content\":\"<summary>They talked.</summary>\"},\"finish_reason\":\"stop\"}],\
        \"usage\":{\"prompt_tokens\":900,\"completion_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":800}}}";
    let upstream = Summarizer::playing([Play::chunks(&[chunk, "[DONE]"])]).await;
    let setup = Setup::to(upstream.url()).with(format!("summarize.instruction = {INSTRUCTION:?}"));
    let setup = setup.with("tokens = { counter = \"estimate\", ask_upstream = false }");
    let abridge = setup.with("summarize.trigger = { tokens = 900 }").start().await;
    let mut client = abridge.connect().await;
    client.send(chat(talk("a", 3))).await;
    assert_eq!(client.reply().await.head.get("x-abridge-edits"), Some("summary=1"));
    let scrape = after(&abridge, 1).await;
    for (sample, n) in [
        ("abridge_summaries_total{outcome=\"made\"}", 1),
        ("abridge_summaries_total{outcome=\"failed\"}", 0),
        ("abridge_summarize_calls_total", 1),
        ("abridge_summarize_tokens_total{type=\"input\"}", 900),
        ("abridge_summarize_tokens_total{type=\"cached\"}", 800),
        ("abridge_summarize_tokens_total{type=\"output\"}", 5),
        // The summary, and the token factor of the conversation.
        ("abridge_store_summaries", 2),
    ] {
        assert_eq!(scrape.get(sample), n, "{sample}: {scrape:?}");
    }
    let [before, after] = ["before", "after"].map(|side| scrape.get(&format!("abridge_tokens_{side}_total")));
    assert!(after > 0 && after < before, "{before} -> {after}");
}

#[tokio::test]
async fn the_log_says_in_a_sentence_what_was_done() {
    let mut scene =
        Scene::with("clear_tool_results = { when = 'any', trigger = { tokens = 1000 }, keep = { results = 1 } }").await;
    let from = scene.abridge.stderr().len();
    let texts: Vec<_> = (0..4).map(|n| format!("{n} ").repeat(2000)).collect();
    let body = with_results(&texts);
    asked(&mut scene, chat(&body), OK, "{}").await;
    let line = scene.abridge.says(" tok  ", from).await;
    let sentence = line.split("INFO ").nth(1).unwrap();
    let id = line.split("request_id=req_").nth(1).unwrap().get(..4).unwrap();
    assert!(sentence.starts_with(&format!("chat {id}  ")), "{line}");
    for part in [
        "→",
        "  cleared 3 results (offloaded 12 kB)  ",
        " ms  prefix kept 0 %",
        " outcome=\"edited\"",
        " edits=\"clear=3\"",
    ] {
        assert!(line.contains(part), "{part} is missing: {line}");
    }
    // The same again: all of it was there.
    let from = scene.abridge.stderr().len();
    asked(&mut scene, chat(&body), OK, "{}").await;
    let line = scene.abridge.says(" tok  ", from).await;
    assert!(line.contains(" ms  prefix kept 100 %"), "{line}");
}

#[tokio::test]
async fn promtool_has_nothing_to_say_of_the_text_that_others_than_prometheus_get() {
    let mut scene = Scene::with("tokens.ask_upstream = false").await;
    let body = with_results(&[long_text(1)]);
    asked(&mut scene, chat(&body), "200 OK", usage(100, 50, 3)).await;
    let found = after(&scene.abridge, 1).await;
    for accept in [&[][..], &["accept: */*"], &["accept: text/plain;version=0.0.4, application/openmetrics-text;q=0.1"]]
    {
        let (kind, text) = text(&scene.abridge, accept).await;
        assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8", "{accept:?}");
        assert_eq!(promlint::problems(&text), [""; 0], "{text}");
        let samples = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(samples, found.samples.len(), "the same samples: {text}");
        assert!(text.contains("\n# TYPE abridge_info gauge\nabridge_info{version="), "{text}");
    }
    let openmetrics = text(&scene.abridge, &["accept: application/openmetrics-text"]).await.1;
    assert_ne!(promlint::problems(&openmetrics), [""; 0], "the check finds what is in OpenMetrics alone");
}

#[tokio::test]
async fn dashboard_and_alerts_query_existing_metrics_only() {
    let scene = Scene::with("tokens.ask_upstream = false").await;
    let names = scrape(&scene.abridge).await.names();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/grafana/abridge.json");
    let json = std::fs::read_to_string(path).unwrap();
    let dashboard: Dashboard = serde_json::from_str(&json).unwrap();
    let targets = dashboard.panels.iter().flat_map(|panel| &panel.targets);
    let mut asked_for = BTreeSet::new();
    for target in targets {
        let words = target.expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let of_ours =
            words.filter(|word| ["abridge_", "gen_ai_client_", "process_"].iter().any(|start| word.starts_with(start)));
        let before = asked_for.len();
        asked_for.extend(of_ours.map(str::to_owned));
        assert!(
            asked_for.len() > before || target.expr.contains("abridge_") || target.expr.contains("gen_ai_"),
            "{}",
            target.expr
        );
    }
    let missing: Vec<_> = asked_for.difference(&names).collect();
    assert!(missing.is_empty() && asked_for.len() > 15, "{missing:?} of {asked_for:?}");

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/prometheus/alerts.yaml");
    let alerts = std::fs::read_to_string(path).unwrap();
    let words = alerts.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let asked_for: BTreeSet<_> = words.filter(|word| word.starts_with("abridge_")).map(str::to_owned).collect();
    let missing: Vec<_> = asked_for.difference(&names).collect();
    // A database alone has it.
    assert!(missing == ["abridge_store_up"] && asked_for.len() > 10, "{missing:?} of {asked_for:?}");
}

#[derive(serde::Deserialize)]
struct Dashboard {
    panels: Vec<Panel>,
}

#[derive(serde::Deserialize)]
struct Panel {
    #[serde(default)]
    targets: Vec<Target>,
}

#[derive(serde::Deserialize)]
struct Target {
    expr: String,
}
