//! Summaries: made once, kept, used without a call; and a summariser that fails is never in the way.

use std::time::{Duration, Instant};

use crate::support::summarizer::{INSTRUCTION, Play, Summarizer, messages, talk};
use crate::support::wire::Reply;
use crate::support::{Abridge, Setup, binary, chat};

mod branches;
mod calls;
mod endpoints;
mod failures;
mod long_lines;
mod names;
mod plain;
mod slow;
mod spellings;

/// Summaries of conversations of three turns, and of longer ones.
fn setup(upstream: &Summarizer) -> Setup {
    setup_within(upstream, "20s").with("summarize.trigger = { tokens = 900 }")
}

/// The same in the background: it begins at six turns, and a request of seven waits.
fn setup_in_background(upstream: &Summarizer) -> Setup {
    setup_within(upstream, "20s").with("summarize.mode = \"background\"").with("summarize.trigger = { tokens = 2000 }")
}

fn setup_within(upstream: &Summarizer, timeout: &str) -> Setup {
    Setup::to(upstream.url())
        .with(format!("summarize.instruction = {INSTRUCTION:?}"))
        .with(format!("summarize.timeout = {timeout:?}"))
        .with("tokens.counter = \"estimate\"")
        .with("tokens.ask_upstream = false")
}

/// Sends a request on its own connection.
async fn ask(abridge: &Abridge, body: impl AsRef<[u8]>) -> Reply {
    let mut client = abridge.connect().await;
    client.send(chat(body)).await;
    client.reply().await
}

#[tokio::test]
async fn a_summary_is_made_once_and_used_from_then_on() {
    for (input, play) in [
        ("cached", Play::good()),
        ("fresh", Play::good()),
        ("cached", Play::Untyped("They talked.".to_owned())),
        // JSON, whatever its type says.
        (
            "cached",
            Play::Raw(
                br#"{"choices":[{"index":0,"message":{"content":"They talked."},"finish_reason":"stop"}]}"#.into(),
            ),
        ),
        ("cached", Play::Json("They talked.".to_owned())),
        ("fresh", Play::Json("They talked.".to_owned())),
    ] {
        let upstream = Summarizer::playing([play]).await;
        let abridge = setup(&upstream).with(format!("summarize.input = {input:?}")).start().await;
        let short = talk("a", 1);
        let reply = ask(&abridge, &short).await;
        assert_eq!((reply.head.status(), reply.head.get("x-abridge-edits")), (200, None));
        assert_eq!(upstream.chats()[0].body, short);

        let mut sent = Vec::new();
        for _ in 0..3 {
            let reply = ask(&abridge, talk("a", 3)).await;
            assert_eq!((reply.head.status(), reply.head.get("x-abridge-edits")), (200, Some("summary=1")));
            sent.push(upstream.chats().pop().unwrap());
        }
        assert_eq!(upstream.summaries().len(), 1, "{input}");
        assert!(sent.iter().all(|asked| asked.body == sent[0].body));
        let (before, after) = (messages(talk("a", 3).as_bytes()), sent[0].messages());
        assert_eq!(after[0], before[0], "instructions at the beginning stay");
        assert!(after[1].starts_with(r#"{"role":"user""#) && after[1].contains("They talked."), "{}", after[1]);
        assert!(!after[1].contains("Let me see") && !after[1].contains("answer 0"), "{}", after[1]);
        assert!(after[1].contains("a question 0") && after[1].contains("a question 1"), "{}", after[1]);
        assert_eq!(after.last(), before.last());
        assert!(sent[0].text().ends_with(r#","temperature":0.5}"#) && sent[0].body.len() < talk("a", 3).len() * 3 / 4);

        // A conversation that goes on keeps its prefix, and needs no call.
        ask(&abridge, talk("a", 4)).await;
        let longer = upstream.chats().pop().unwrap().messages();
        assert_eq!(longer[..after.len() - 1], after[..after.len() - 1]);
        assert_eq!(upstream.summaries().len(), 1, "{input}");
    }
}

#[tokio::test]
async fn a_summary_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let store =
        format!("store.path = {:?}\nrecall.public_url = \"http://abridge.test\"", folder.path().join("store.redb"));
    let upstream = Summarizer::playing([]).await;
    let mut sent = Vec::new();
    for _ in 0..2 {
        let abridge = setup(&upstream).with(&store).start().await;
        ask(&abridge, talk("a", 3)).await;
        sent.push(upstream.chats().pop().unwrap().body);
        abridge.signal("TERM");
        abridge.exit().await;
    }
    assert_eq!(upstream.summaries().len(), 1);
    assert_eq!(sent[0], sent[1]);
    assert!(sent[0].len() < talk("a", 3).len() * 3 / 4);

    let stats = std::process::Command::new(binary())
        .args(["store", "stats"])
        .env("ABRIDGE__STORE__PATH", folder.path().join("store.redb"))
        .current_dir(folder.path())
        .output()
        .unwrap();
    let stats = String::from_utf8(stats.stdout).unwrap();
    let line = stats.lines().find(|line| line.starts_with("summaries")).unwrap();
    // The summary, and the token factor of the conversation.
    assert_eq!(line.split_whitespace().last(), Some("2"), "{stats}");
}

#[tokio::test]
async fn concurrent_requests_share_one_summary_call() {
    let upstream = Summarizer::playing([Play::good().held()]).await;
    let abridge = setup(&upstream).start().await;
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = abridge.connect().await;
        client.send(chat(talk("a", 3))).await;
        clients.push(client);
    }
    upstream.asked_for(1).await;
    upstream.go_on();
    for client in &mut clients {
        assert_eq!(client.reply().await.head.get("x-abridge-edits"), Some("summary=1"));
    }
    assert_eq!(upstream.summaries().len(), 1);
    let sent = upstream.chats();
    assert!(sent.len() == 8 && sent.iter().all(|asked| asked.body == sent[0].body));
}

#[tokio::test]
async fn a_summary_call_continues_after_its_client_disconnects() {
    let upstream = Summarizer::playing([Play::good().held()]).await;
    let abridge = setup(&upstream).start().await;
    let mut client = abridge.connect().await;
    client.send(chat(talk("a", 3))).await;
    upstream.asked_for(1).await;
    drop(client);
    upstream.go_on();
    abridge.says("a summary was made", 0).await;
    assert_eq!(upstream.chats().len(), 0, "who has left is not sent for");
    ask(&abridge, talk("a", 3)).await;
    assert_eq!((upstream.summaries().len(), upstream.chats().len()), (1, 1));
}

#[tokio::test]
async fn no_further_attempt_is_made_after_every_client_has_disconnected() {
    let failure = Play::Status("500 Internal Server Error", &["retry-after: 0"], "{}");
    let upstream = Summarizer::playing([failure.held()]).await;
    let abridge = setup(&upstream).start().await;
    let mut client = abridge.connect().await;
    client.send(chat(talk("a", 3))).await;
    upstream.asked_for(1).await;
    drop(client);
    // The client's going is known when the next request has been answered after it.
    ask(&abridge, talk("b", 1)).await;
    upstream.go_on();
    abridge.says("a summary was not made", 0).await;
    assert_eq!(upstream.summaries().len(), 1);
}

#[tokio::test]
async fn a_dry_run_makes_no_summary_call_and_uses_stored_summaries() {
    let upstream = Summarizer::playing([]).await;
    let abridge = setup(&upstream).start().await;
    let dry = |body: String| crate::support::post("/v1/chat/completions", &["x-abridge: dry-run"], body);
    let mut client = abridge.connect().await;
    client.send(dry(talk("a", 3))).await;
    let reply = client.reply().await;
    assert_eq!((reply.head.get("x-abridge-edits"), upstream.summaries().len()), (None, 0));
    ask(&abridge, talk("a", 3)).await;
    client.send(dry(talk("a", 3))).await;
    let reply = client.reply().await;
    assert_eq!((reply.head.get("x-abridge-edits"), upstream.summaries().len()), (Some("summary=1"), 1));
    assert_eq!(upstream.chats().pop().unwrap().body, talk("a", 3));
    let off = crate::support::post("/v1/chat/completions", &["x-abridge: off"], talk("b", 3));
    client.send(off).await;
    client.reply().await;
    assert_eq!(upstream.summaries().len(), 1);
}

#[tokio::test]
async fn without_a_store_summaries_are_kept_in_memory_or_refused() {
    let upstream = Summarizer::playing([]).await;
    let setup = || setup(&upstream).with("store.enabled = false");
    let abridge = setup().start().await;
    assert_eq!(ask(&abridge, talk("a", 3)).await.head.get("x-abridge-edits"), None);
    assert_eq!(upstream.summaries().len(), 0, "there is no place for the transcript");
    drop(abridge);
    let abridge = setup().with("summarize.transcript = false").start().await;
    for _ in 0..2 {
        assert_eq!(ask(&abridge, talk("a", 3)).await.head.get("x-abridge-edits"), Some("summary=1"));
    }
    assert_eq!(upstream.summaries().len(), 1);
}

#[tokio::test]
async fn the_transcript_of_a_summary_can_be_recalled() {
    let upstream = Summarizer::playing([]).await;
    let abridge = setup(&upstream).start().await;
    ask(&abridge, talk("a", 3)).await;
    let sent = upstream.chats().pop().unwrap();
    let handle = sent.text().split(|c: char| !c.is_ascii_alphanumeric()).find(|word| word.len() == 26).unwrap();
    let mut client = abridge.connect().await;
    client.send(crate::support::request("GET", &format!("/abridge/recall/{handle}"), &[])).await;
    let reply = client.reply().await;
    let transcript = std::str::from_utf8(&reply.body).unwrap();
    let lines: Vec<_> = transcript.lines().collect();
    let all = messages(talk("a", 3).as_bytes());
    assert_eq!(
        (reply.head.status(), &lines[..]),
        (200, &all[1..=lines.len()].iter().map(String::as_str).collect::<Vec<_>>()[..])
    );
    assert!(lines.len() >= 4);
}

#[tokio::test]
async fn the_startup_output_says_that_summaries_make_calls() {
    let upstream = Summarizer::playing([]).await;
    setup(&upstream).start().await.says("by calls to the upstream with the client's key", 0).await;
    let abridge = setup(&upstream).with("policy.edits = [\"patch_tool_calls\"]").start().await;
    abridge.says("abridge: clients", 0).await;
    ask(&abridge, talk("a", 3)).await;
    assert!(!abridge.stderr().concat().contains("makes calls"));
    assert_eq!(upstream.summaries().len(), 0);
}

/// How long it takes.
async fn timed<F: Future>(doing: F) -> (F::Output, Duration) {
    let began = Instant::now();
    let output = doing.await;
    (output, began.elapsed())
}
