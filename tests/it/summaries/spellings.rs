//! Clients that send the same beginning in another spelling each time, and one that changes it.

use super::*;

/// The messages of a conversation of `n` short turns behind fourteen long ones.
fn conversation(n: usize) -> Vec<String> {
    let mut all = messages(talk("a", 14).as_bytes());
    for n in 0..n {
        all.push(format!(r#"{{"role":"assistant","content":"done {n}"}}"#));
        all.push(format!(r#"{{"role":"user","content":"go on {n}"}}"#));
    }
    all
}

fn body(messages: &[String]) -> String {
    format!(r#"{{"model":"some-model","messages":[{}]}}"#, messages.join(","))
}

/// The same with the content of messages of one role in an array, and a mark in it: of the last two.
fn marked(n: usize) -> String {
    let mut all = conversation(n);
    let users = all.iter_mut().rev().filter(|message| message.starts_with(r#"{"role":"user""#));
    for message in users.take(2) {
        let text = message.strip_prefix(r#"{"role":"user","content":"#).unwrap().strip_suffix('}').unwrap();
        let part = format!(r#"{{"type":"text","text":{text},"cache_control":{{"type":"ephemeral"}}}}"#);
        *message = format!(r#"{{"role":"user","content":[{part}]}}"#);
    }
    body(&all)
}

/// The same where the last two answers of the model have what it thought with them.
fn with_thoughts(n: usize) -> String {
    let mut all = conversation(n);
    let answers = all.iter_mut().rev().filter(|message| message.starts_with(r#"{"role":"assistant""#));
    for message in answers.take(2) {
        *message = message.replacen('{', r#"{"reasoning_content":"Let me think.","#, 1);
    }
    body(&all)
}

/// The same where the first message of the user says how often it was sent.
fn with_a_clock(n: usize) -> String {
    body(&conversation(n)).replacen("a question 0", &format!("a question 0 at {n} o'clock"), 1)
}

fn setup_of_turns(upstream: &Summarizer) -> Setup {
    setup_within(upstream, "20s").with("summarize.trigger = { tokens = 4000 }")
}

#[tokio::test]
async fn a_mark_that_moves_and_thoughts_that_are_dropped_make_no_other_summary() {
    for conversation in [marked, with_thoughts] {
        let upstream = Summarizer::playing([]).await;
        let abridge = setup_of_turns(&upstream).start().await;
        for n in 0..11 {
            let reply = ask(&abridge, conversation(n)).await;
            assert_eq!(reply.head.get("x-abridge-edits"), Some("summary=1"), "{n}");
            let (sent, came) = (upstream.chats().pop().unwrap().messages(), messages(conversation(n).as_bytes()));
            let tail = &sent[2..];
            assert_eq!(tail, &came[came.len() - tail.len()..], "what is behind the summary is what came");
        }
        assert_eq!(upstream.summaries().len(), 1);
    }
}

#[tokio::test]
async fn a_summary_is_found_after_a_restart_by_another_spelling() {
    let folder = tempfile::tempdir().unwrap();
    let store =
        format!("store.path = {:?}\nrecall.public_url = \"http://abridge.test\"", folder.path().join("store.redb"));
    let upstream = Summarizer::playing([]).await;
    for (n, conversation) in [marked, with_thoughts, |n| body(&conversation(n))].into_iter().enumerate() {
        let abridge = setup_of_turns(&upstream).with(&store).start().await;
        assert_eq!(ask(&abridge, conversation(n)).await.head.get("x-abridge-edits"), Some("summary=1"));
        assert_eq!(upstream.summaries().len(), 1, "{n}");
        abridge.signal("TERM");
        abridge.exit().await;
    }
}

#[tokio::test]
async fn a_message_that_changes_with_each_request_costs_one_summary_and_the_log_names_it() {
    let upstream = Summarizer::playing([]).await;
    let abridge = setup_of_turns(&upstream).start().await;
    for n in 1..12 {
        let reply = ask(&abridge, with_a_clock(n)).await;
        let edits = if n == 1 { Some("summary=1") } else { None };
        assert_eq!((reply.head.status(), reply.head.get("x-abridge-edits")), (200, edits), "{n}");
        if n > 1 {
            assert_eq!(upstream.chats().pop().unwrap().body, with_a_clock(n), "it goes on as it came");
        }
    }
    assert_eq!(upstream.summaries().len(), 1);
    let warned = abridge.says("no summary is made", 0).await;
    let lines: Vec<_> = abridge.stderr().into_iter().filter(|line| line.contains("no summary is made")).collect();
    assert_eq!(lines.len(), 1, "{warned:?}");
    assert!(lines[0].contains("WARN") && lines[0].contains("index=1"), "{lines:?}");
    assert!(!lines[0].contains("clock"), "{lines:?}");
    // Everything that comes after it is summarised once it is a tenth of the whole.
    let more = with_a_clock(12).replace("done 9", &"done 9. ".repeat(400));
    assert_eq!(ask(&abridge, more).await.head.get("x-abridge-edits"), Some("summary=1"));
    assert_eq!(upstream.summaries().len(), 2);
}
