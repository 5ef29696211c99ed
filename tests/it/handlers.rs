//! Handlers: asked once for a text, used from then on; and one that fails is never in the way.
#![expect(clippy::disallowed_types, reason = "what handlers are asked and answer is made and read here")]

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::handler::{Handler, Play};
use crate::support::offloads::{recalls, with_results};
use crate::support::summarizer::Summarizer;
use crate::support::wire::Reply;
use crate::support::{Abridge, Setup, chat, post, request};

mod example;
mod faults;
mod others;

/// Clears all results that the model has read but the newest, from 600 tokens on.
fn clearing(upstream: &Summarizer, handler: &Handler) -> Setup {
    setup(upstream, handler)
        .with("clear_tool_results.handler = \"digests\"")
        .with("clear_tool_results.when = \"any\"")
        .with("clear_tool_results.trigger = { tokens = 600 }")
        .with("clear_tool_results.keep = { results = 2 }")
}

fn setup(upstream: &Summarizer, handler: &Handler) -> Setup {
    Setup::to(upstream.url())
        .with(format!("handlers.digests.url = {:?}", handler.url()))
        .with("policy.edits = [\"patch_tool_calls\", \"truncate_tool_results\", \"clear_tool_results\"]")
        .with("recall.via = \"http\"")
        .with("tokens.counter = \"estimate\"")
        .with("tokens.ask_upstream = false")
}

/// A conversation of so many calls of `bash`, each with a result of some 1,500 bytes.
fn session(n: usize) -> String {
    let text = |n: usize| lines(60, |line| format!("result {n}, line {line}: ok"));
    with_results(&(0..n).map(text).collect::<Vec<String>>())
}

/// So many lines.
fn lines(n: usize, line: impl Fn(usize) -> String) -> String {
    (0..n).map(line).collect::<Vec<_>>().join("\n") + "\n"
}

async fn ask(abridge: &Abridge, body: impl AsRef<[u8]>) -> Reply {
    let mut client = abridge.connect().await;
    client.send(chat(body)).await;
    client.reply().await
}

/// Sends a conversation; what its results say upstream.
async fn results(abridge: &Abridge, upstream: &Summarizer, body: impl AsRef<[u8]>) -> Vec<String> {
    assert_eq!(ask(abridge, body).await.head.status(), 200);
    texts(&upstream.chats().pop().unwrap().body)
}

fn texts(body: &[u8]) -> Vec<String> {
    let body: Value = serde_json::from_slice(body).unwrap();
    let messages = body["messages"].as_array().unwrap().iter();
    messages
        .filter(|message| message["role"] == "tool")
        .map(|message| message["content"].as_str().unwrap().to_owned())
        .collect()
}

/// The first line of the text, and how many it has.
fn digest(question: &Value) -> Play {
    let text = question["text"].as_str().unwrap();
    Play::Replace(format!("{} and {} more lines", text.lines().next().unwrap(), text.lines().count() - 1))
}

#[tokio::test]
async fn an_answer_stands_in_place_of_a_cleared_result_is_asked_for_once_and_stays() {
    let (upstream, handler) = (Summarizer::playing([]).await, Handler::playing(digest).await);
    let abridge = clearing(&upstream, &handler).start().await;
    let before = texts(session(5).as_bytes());
    let after = results(&abridge, &upstream, session(5)).await;
    for (n, text) in after[..3].iter().enumerate() {
        let (answer, placeholder) = text.split_once('\n').unwrap();
        assert_eq!(answer, format!("result {n}, line 0: ok and 59 more lines"));
        assert!(placeholder.starts_with("[Cleared: ") && placeholder.contains("/abridge/recall/"), "{placeholder}");
    }
    assert_eq!(after[3..], before[3..], "one is kept, and one was not read");
    let asked = handler.asked();
    assert_eq!(asked.len(), 3);
    let first = asked.iter().find(|asked| asked["text"] == json!(before[0])).unwrap();
    assert_eq!(
        [&first["version"], &first["edit"], &first["tool"]],
        [&json!(1), &json!("clear_tool_results"), &json!("bash")]
    );
    assert_eq!([&first["arguments"], &first["bytes"]], [&json!("{\"n\":0}"), &json!(before[0].len())]);
    assert!(
        asked.iter().all(|other| other["conversation"] == first["conversation"] && first["conversation"].is_string())
    );

    // Everything that was taken out is not lost.
    let mut client = abridge.connect().await;
    let sent = upstream.chats().pop().unwrap().body;
    client.send(request("GET", &recalls(&sent)[0], &[])).await;
    assert_eq!(client.reply().await.body, before[0].as_bytes());

    for n in [5, 6, 7] {
        let now = results(&abridge, &upstream, session(n)).await;
        assert_eq!(now[..3], after[..3]);
    }
    let asked = handler.asked();
    let distinct: std::collections::BTreeSet<_> = asked.iter().map(|asked| asked["id"].to_string()).collect();
    assert_eq!(asked.len(), distinct.len(), "no text is asked about twice");
}

#[tokio::test]
async fn an_answer_stands_in_place_of_a_long_result_on_sight_within_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Summarizer::playing([]).await;
    let handler = Handler::at_socket(&folder.path().join("handler.sock"), digest);
    let abridge = setup(&upstream, &handler)
        .with("truncate_tool_results.handler = \"digests\"")
        .with("truncate_tool_results.max_bytes = 1000")
        .with("handlers.digests.key_env = \"HANDLER_KEY\"")
        .environment("HANDLER_KEY", "secret-of-the-handler")
        .start()
        .await;
    let after = results(&abridge, &upstream, session(2)).await;
    for (n, text) in after.iter().enumerate() {
        assert!(text.starts_with(&format!("result {n}, line 0: ok and 59 more lines\n[")), "{text}");
        assert!(text.contains("bytes left out here") && text.contains("/abridge/recall/") && text.len() <= 1000);
    }
    let asked = handler.asked();
    assert_eq!((asked.len(), &asked[0]["authorization"]), (2, &json!("Bearer secret-of-the-handler")));
    assert_eq!(asked[0]["edit"], "truncate_tool_results");
    assert!(asked[0]["max_bytes"].as_u64().unwrap() < 1000);
    assert_eq!(results(&abridge, &upstream, session(3)).await[..2], after[..]);
    assert_eq!(handler.asked().len(), 3);
}

#[tokio::test]
async fn a_handler_gets_the_two_ends_of_a_long_text_and_can_recall_the_rest() {
    let (upstream, handler) = (Summarizer::playing([]).await, Handler::playing(|_| Play::Action("leave")).await);
    let abridge = clearing(&upstream, &handler).with("tools.bash.truncate = false").start().await;
    let long = lines(20_000, |line| format!("\u{e9}\u{e9}\u{e9}, line {line}"));
    let after =
        results(&abridge, &upstream, with_results(&["long", "b", "c", "d"].map(|text| text.replace("long", &long))))
            .await;
    assert!(after[0] == long, "it is left as it is");
    let asked = handler.asked();
    let asked = asked.iter().find(|asked| asked["bytes"] == json!(long.len())).unwrap();
    let [head, tail, handle] = ["head", "tail", "handle"].map(|key| asked[key].as_str().unwrap());
    assert!(long.starts_with(head) && long.ends_with(tail) && asked.get("text").is_none());
    assert!([head, tail].iter().all(|end| (65_533..=65_536).contains(&end.len())), "{} {}", head.len(), tail.len());
    let mut client = abridge.connect().await;
    client.send(request("GET", &format!("/abridge/recall/{handle}"), &[])).await;
    assert!(client.reply().await.body == long.as_bytes(), "the whole text is stored although it is left");
}

#[tokio::test]
async fn a_tool_may_have_another_handler_or_none() {
    let (upstream, handler) = (Summarizer::playing([]).await, Handler::playing(digest).await);
    let other = Handler::playing(|_| Play::Replace("the other".to_owned())).await;
    for (table, expected) in [("others", "the other\n[Cleared: "), ("", "[Cleared: ")] {
        let abridge = clearing(&upstream, &handler)
            .with(format!("handlers.others.url = {:?}", other.url()))
            .with(format!("tools.\"ba*\".clear_handler = {table:?}"))
            .start()
            .await;
        let after = results(&abridge, &upstream, session(3)).await;
        assert!(after[0].starts_with(expected), "{after:?}");
    }
    assert_eq!(handler.asked().len(), 0);
}

#[tokio::test]
async fn a_handler_may_leave_a_text_or_the_choice() {
    let upstream = Summarizer::playing([]).await;
    let before = texts(session(5).as_bytes());
    let handler = Handler::playing(|question| {
        let is_first = question["text"].as_str().unwrap().starts_with("result 0");
        Play::Action(if is_first { "leave" } else { "default" })
    });
    let handler = handler.await;
    let abridge = clearing(&upstream, &handler).start().await;
    for n in [5, 5, 6] {
        let after = results(&abridge, &upstream, session(n)).await;
        assert_eq!(after[0], before[0]);
        assert!(after[1].starts_with("[Cleared: ") && after[2].starts_with("[Cleared: "));
    }
}

#[tokio::test]
async fn answers_are_there_after_a_restart_and_without_the_handler() {
    let folder = tempfile::tempdir().unwrap();
    let store =
        format!("store.path = {:?}\nrecall.public_url = \"http://abridge.test\"", folder.path().join("store.redb"));
    let upstream = Summarizer::playing([]).await;
    let mut sent = Vec::new();
    for play in [digest, |_: &Value| Play::Replace("another".to_owned())] {
        let handler = Handler::playing(play).await;
        let abridge = clearing(&upstream, &handler).with(&store).start().await;
        ask(&abridge, session(5)).await;
        sent.push((upstream.chats().pop().unwrap().body, handler.asked().len()));
        abridge.signal("TERM");
        abridge.exit().await;
    }
    assert_eq!((sent[0].1, sent[1].1), (3, 0));
    assert_eq!(sent[0].0, sent[1].0);
}

#[tokio::test]
async fn concurrent_requests_ask_once() {
    let upstream = Summarizer::playing([]).await;
    let handler = Handler::playing(digest).await;
    let abridge = clearing(&upstream, &handler).start().await;
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = abridge.connect().await;
        client.send(chat(session(5))).await;
        clients.push(client);
    }
    for client in &mut clients {
        assert_eq!(client.reply().await.head.status(), 200);
    }
    assert_eq!(handler.asked().len(), 3);
    let sent = upstream.chats();
    assert!(sent.iter().all(|asked| asked.body == sent[0].body));
}

#[tokio::test]
async fn a_dry_run_asks_no_handler_and_reports_with_the_answers_that_are_kept() {
    let (upstream, handler) = (Summarizer::playing([]).await, Handler::playing(digest).await);
    let abridge = clearing(&upstream, &handler).start().await;
    let dry = || post("/v1/chat/completions", &["x-abridge: dry-run"], session(5));
    let mut client = abridge.connect().await;
    client.send(dry()).await;
    assert_eq!(client.reply().await.head.get("x-abridge-edits"), Some("clear=3"));
    assert_eq!((handler.asked().len(), upstream.chats().pop().unwrap().body), (0, session(5).into()));
    ask(&abridge, session(5)).await;
    assert_eq!(handler.asked().len(), 3);
}

#[tokio::test]
async fn the_metrics_count_calls_by_handler_and_outcome() {
    let upstream = Summarizer::playing([]).await;
    let handler = Handler::playing(digest).await;
    let abridge = clearing(&upstream, &handler).start().await;
    ask(&abridge, session(5)).await;
    let mut client = abridge.connect().await;
    client.send(request("GET", "/abridge/metrics", &[])).await;
    let metrics = String::from_utf8(client.reply().await.body.to_vec()).unwrap();
    let line = "abridge_handler_calls_total{handler=\"digests\",outcome=\"replace\"} 3";
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
}

/// How long it takes.
async fn timed<F: Future>(doing: F) -> (F::Output, Duration) {
    let began = Instant::now();
    let output = doing.await;
    (output, began.elapsed())
}
