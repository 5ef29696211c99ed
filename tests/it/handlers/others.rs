//! Handlers of `patch_tool_calls` and of `[summarize]`, and the mistakes in settings that name handlers.

use super::*;
use crate::support::summarizer::{INSTRUCTION, talk};

const DANGLING: &str = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"go"},{"role":"assistant","tool_calls":[{"id":"c0","type":"function","function":{"name":"bash","arguments":"{}"}}]},{"role":"user","content":"and?"}]}"#;

#[tokio::test]
async fn a_handler_says_what_stands_for_a_missing_result_once() {
    let upstream = Summarizer::playing([]).await;
    let handler =
        Handler::playing(|question| Play::Replace(format!("{} was stopped", question["tool"].as_str().unwrap())));
    let handler = handler.await;
    let abridge = setup(&upstream, &handler).with("patch_tool_calls.handler = \"digests\"").start().await;
    for _ in 0..2 {
        assert_eq!(results(&abridge, &upstream, DANGLING).await, ["bash was stopped"]);
    }
    let asked = handler.asked();
    assert_eq!((asked.len(), &asked[0]["edit"]), (1, &json!("patch_tool_calls")));
    assert!(asked[0]["text"].as_str().unwrap().contains("has no result"));
}

#[tokio::test]
async fn a_handler_of_missing_results_that_fails_leaves_the_template() {
    let upstream = Summarizer::playing([]).await;
    let handler = Handler::playing(|_| Play::Reset).await;
    let abridge = setup(&upstream, &handler).with("patch_tool_calls.handler = \"digests\"").start().await;
    for _ in 0..2 {
        assert!(results(&abridge, &upstream, DANGLING).await[0].contains("has no result"));
    }
}

fn summarising(upstream: &Summarizer, handler: &Handler) -> Setup {
    Setup::to(upstream.url())
        .with(format!("handlers.digests.url = {:?}", handler.url()))
        .with(format!("summarize.instruction = {INSTRUCTION:?}"))
        .with("summarize.trigger = { tokens = 900 }")
        .with("summarize.input_handler = \"digests\"")
        .with("summarize.finalize_handler = \"digests\"")
        .with("tokens.counter = \"estimate\"")
        .with("tokens.ask_upstream = false")
}

#[tokio::test]
async fn handlers_rewrite_what_is_summarised_and_the_summary() {
    let upstream = Summarizer::playing([]).await;
    let handler = Handler::playing(|question| {
        Play::Replace(match question["edit"].as_str().unwrap() {
            "summarize_input" => "what was said, in short".to_owned(),
            _ => question["text"].as_str().unwrap().replace("talked", "conversed"),
        })
    });
    let handler = handler.await;
    let abridge = summarising(&upstream, &handler).start().await;
    for _ in 0..2 {
        assert_eq!(ask(&abridge, talk("a", 3)).await.head.get("x-abridge-edits"), Some("summary=1"));
        assert!(upstream.chats().pop().unwrap().text().contains("They conversed."));
    }
    let (asked, summaries) = (handler.asked(), upstream.summaries());
    assert_eq!((asked.len(), summaries.len()), (2, 1));
    assert!(asked[0]["text"].as_str().unwrap().contains("a question 0"));
    assert!(summaries[0].text().contains("what was said, in short") && !summaries[0].text().contains("a question 0"));
}

#[tokio::test]
async fn a_summary_is_made_without_a_handler_that_fails() {
    let upstream = Summarizer::playing([]).await;
    let handler = Handler::playing(|_| Play::Body("500 Internal Server Error", Vec::new())).await;
    let abridge = summarising(&upstream, &handler).start().await;
    assert_eq!(ask(&abridge, talk("a", 3)).await.head.get("x-abridge-edits"), Some("summary=1"));
    assert!(upstream.chats().pop().unwrap().text().contains("They talked."));
}

/// A conversation that begins with the seed, and has five results of some 250 tokens.
fn counted(seed: &str) -> String {
    let texts: Vec<_> = (0..5).map(|n| format!("{seed} {n} ").repeat(1000 / (seed.len() + 3))).collect();
    with_results(&texts).replacen("\"go\"", &format!("\"{seed}\""), 1)
}

#[tokio::test]
async fn a_handler_counts_a_conversation_once_and_its_count_stays() {
    let upstream = Summarizer::playing([]).await;
    let handler = Handler::playing(|question| match question["text"].as_str().unwrap() {
        text if text.contains("lie") => Play::Replace("many".to_owned()),
        // Three times as many as the estimate has.
        text => Play::Replace((3 * text.len() / 4).to_string()),
    });
    let handler = handler.await;
    let store = tempfile::tempdir().unwrap();
    let setup = || {
        Setup::to(upstream.url())
            .with(format!("handlers.digests.url = {:?}", handler.url()))
            .with("tokens = { counter = \"estimate\", ask_upstream = false, calibrate = false, handler = \"digests\" }")
            .with("clear_tool_results = { when = \"any\", trigger = { tokens = 2500 }, clear_at_least = 0, keep = { results = 1 }, keep_reads = 0 }")
            .with("recall.public_url = \"http://abridge.test\"")
            .with(format!("store.path = \"{}\"", store.path().join("store.redb").display()))
    };
    for n in 1..=2 {
        let abridge = setup().start().await;
        for _ in 0..2 {
            assert_eq!(ask(&abridge, counted("honest")).await.head.get("x-abridge-edits"), Some("clear=3"));
            assert_eq!(ask(&abridge, counted("lie")).await.head.get("x-abridge-edits"), None, "not counted so high");
        }
        assert_eq!(handler.asked().len(), 2, "start {n}: once for each conversation");
        abridge.signal("TERM");
        abridge.exit().await;
    }
    let asked = handler.asked();
    assert_eq!((&asked[0]["edit"], &asked[0]["arguments"]), (&json!("count_tokens"), &json!("{\"model\":\"gpt-4o\"}")));
}

#[tokio::test]
async fn settings_that_name_no_handler_or_a_wrong_one_are_refused_with_what_to_do() {
    let with = |lines: &[&str]| lines.iter().fold(Setup::to("http://127.0.0.1:9/v1"), Setup::with);
    let known = "handlers.digests.url = \"http://127.0.0.1:9/\"";
    for (lines, expected) in [
        (
            &["clear_tool_results.handler = \"digest\""][..],
            "there is no handlers.digest; allowed: none, as [handlers] is empty",
        ),
        (&["tokens.handler = \"digest\""], "there is no handlers.digest"),
        (&[known, "tools.bash.truncate_handler = \"diffs\""], "there is no handlers.diffs; allowed: digests"),
        (
            &["handlers.x.url = \"ftp://h/\""],
            "not the address of a handler; allowed: an http:// or https:// URL without user, or unix:/path",
        ),
        (&["handlers.x.url = \"unix:socket\""], "not the address of a handler"),
        (&["handlers.\"a b\".url = \"http://h/\""], "not a name of a handler"),
        (&[known, "handlers.digests.timeout = \"0ms\""], "0ms is out of range"),
        (&[known, "handlers.digests.key_env = \"a-b\""], "not the name of an environment variable"),
        (
            &[known, "patch_tool_calls.handler = \"digests\"", "store.enabled = false"],
            "kept in the store, and there is none",
        ),
        (&[known, "handlers.digests.key_env = \"NOT_SET\""], "NOT_SET"),
    ] {
        let failed = with(lines).fail().await;
        assert!(failed.stderr.contains(expected), "{lines:?}\n{}", failed.stderr);
    }
}
