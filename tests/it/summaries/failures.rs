//! A summariser that fails: the request goes on without, and waits no longer than it may.

use super::*;

/// Returns what comes of failures, each with what is wrong about it.
fn failures() -> Vec<(&'static str, Play)> {
    let stream = |text: &str| Play::Stream(text.to_owned());
    let said = r#"{"choices":[{"index":0,"delta":{"content":"They talked."},"finish_reason":null}]}"#;
    let call = r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}"#;
    let cut_off = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}"#;
    vec![
        ("empty", stream("")),
        ("a call as text", stream("<minimax:tool_call>\n<invoke name=\"f\">")),
        ("a call as text behind a remark", stream("I look first.\n<function_calls>\n<invoke name=\"f\">")),
        ("a channel", stream("<|channel|>commentary to=functions.f<|message|>{}<|call|>")),
        ("thoughts alone", stream("<analysis>Let me see.</analysis>")),
        ("the text of an error", Play::Json("Internal Server Error".to_owned())),
        ("an error in the stream", Play::chunks(&[said, r#"{"error":{"message":"overloaded"}}"#])),
        ("a call", Play::chunks(&[call, "[DONE]"])),
        ("cut off", Play::chunks(&[said, cut_off, "[DONE]"])),
        ("not finished", Play::chunks(&[said])),
        ("longer than what it stands for", stream(&"They talked. ".repeat(1000))),
        ("no text", Play::Raw(b"data: {\"choices\":[{\"delta\":{\"content\":\"\xff\"}}]}\n\n".to_vec())),
        ("a line without an end", Play::Raw(vec![b'x'; 3 << 20])),
        ("no completion", Play::Status("200 OK", &[], "<html>")),
        ("reset", Play::Reset),
        ("reset in the midst", Play::ResetLater),
        ("a bad request", Play::Status("400 Bad Request", &[], "{}")),
        ("overload", Play::Status("503 Service Unavailable", &[], "{}")),
    ]
}

#[tokio::test]
async fn a_failure_costs_one_call_and_no_request() {
    for input in ["cached", "fresh"] {
        let upstream = Summarizer::playing([]).await;
        let abridge = setup(&upstream)
            .with(format!("summarize.input = {input:?}"))
            .with("summarize.retry.max_retries = 0")
            .start()
            .await;
        for (n, (what, play)) in failures().into_iter().enumerate() {
            upstream.then(play).await;
            // The same again, and a longer one with the same beginning, are not tried: it was a moment ago.
            for turns in [3, 3, 4] {
                let body = talk(&format!("s{n}"), turns);
                let reply = ask(&abridge, &body).await;
                assert_eq!((reply.head.status(), reply.head.get("x-abridge-edits")), (200, None), "{what}");
                assert_eq!(upstream.chats().pop().unwrap().body, body, "{what}");
            }
            assert_eq!(upstream.summaries().len(), n + 1, "{input}: {what}");
        }
        assert_eq!(ask(&abridge, talk("good", 3)).await.head.get("x-abridge-edits"), Some("summary=1"));
    }
}

#[tokio::test]
async fn a_failed_background_summary_affects_no_request() {
    let upstream = Summarizer::playing([]).await;
    let abridge = setup_in_background(&upstream).with("summarize.retry.max_retries = 0").start().await;
    for (n, (what, play)) in failures().into_iter().enumerate() {
        let (seed, lines) = (char::from(b'a' + u8::try_from(n).unwrap()).to_string(), abridge.stderr().len());
        upstream.then(play.held()).await;
        let body = talk(&seed, 6);
        assert_eq!(ask(&abridge, &body).await.head.status(), 200, "{what}");
        upstream.asked_for(n + 1).await;
        upstream.go_on();
        abridge.says("a summary was not made", lines).await;
        let body = talk(&seed, 7);
        assert_eq!(ask(&abridge, &body).await.head.get("x-abridge-edits"), None, "{what}");
        assert_eq!(upstream.chats().pop().unwrap().body, body, "{what}");
        assert_eq!(upstream.summaries().len(), n + 1, "{what}");
    }
}

#[tokio::test]
async fn a_summariser_that_hangs_costs_its_time_once() {
    for play in [Play::Hang, Play::Stall] {
        let upstream = Summarizer::playing([play]).await;
        let abridge = setup_within(&upstream, "4s").with("summarize.trigger = { tokens = 900 }").start().await;
        let (reply, took) = timed(ask(&abridge, talk("a", 3))).await;
        assert_eq!((reply.head.status(), reply.head.get("x-abridge-edits")), (200, None));
        assert!(took >= Duration::from_secs(4), "{took:?}");
        for turns in [3, 4, 5] {
            let (reply, took) = timed(ask(&abridge, talk("a", turns))).await;
            assert_eq!(reply.head.status(), 200);
            assert!(took < Duration::from_secs(4), "{took:?}");
        }
        assert_eq!(upstream.summaries().len(), 1);
    }
}

#[tokio::test]
async fn a_summary_is_tried_again_when_the_cooldown_is_over() {
    let bad = Play::Status("400 Bad Request", &[], "{}");
    let upstream = Summarizer::playing([bad.clone(), bad]).await;
    let abridge = setup(&upstream).with("summarize.cooldown = \"0s\"").start().await;
    for (n, edits) in [None, None, Some("summary=1"), Some("summary=1")].into_iter().enumerate() {
        assert_eq!(ask(&abridge, talk("a", 3)).await.head.get("x-abridge-edits"), edits, "request {n}");
    }
    assert_eq!(upstream.summaries().len(), 3);
}

#[tokio::test]
async fn a_transient_failure_is_retried() {
    let failure = Play::Status("500 Internal Server Error", &["retry-after-ms: 10"], "{}");
    let upstream = Summarizer::playing(vec![failure.clone(); 3]).await;
    let abridge = setup(&upstream).start().await;
    assert_eq!(ask(&abridge, talk("a", 3)).await.head.get("x-abridge-edits"), Some("summary=1"));
    assert_eq!(upstream.summaries().len(), 4);
    assert!(upstream.summaries().iter().all(|asked| asked.body == upstream.summaries()[0].body));

    for _ in 0..4 {
        upstream.then(failure.clone()).await;
    }
    assert_eq!(ask(&abridge, talk("b", 3)).await.head.get("x-abridge-edits"), None);
    assert_eq!(upstream.summaries().len(), 8, "three times again, and no more");
}

#[tokio::test]
async fn pauses_before_retries_are_kept_and_too_long_ones_end_the_call() {
    for play in [Play::Status("429 Too Many Requests", &["retry-after: 1"], "{}"), Play::Reset] {
        let upstream = Summarizer::playing([play]).await;
        let abridge = setup(&upstream).start().await;
        let (reply, took) = timed(ask(&abridge, talk("a", 3))).await;
        assert_eq!(reply.head.get("x-abridge-edits"), Some("summary=1"));
        assert!(took >= Duration::from_secs(1), "{took:?}");
        assert_eq!(upstream.summaries().len(), 2);
    }
    // One that would take too long is not begun.
    for wait in ["retry-after: 31", "retry-after: 25"] {
        let upstream =
            Summarizer::playing([Play::Status("429 Too Many Requests", Box::leak(Box::new([wait])), "{}")]).await;
        let abridge = setup(&upstream).start().await;
        let (reply, took) = timed(ask(&abridge, talk("a", 3))).await;
        assert_eq!(reply.head.get("x-abridge-edits"), None);
        assert!(took < Duration::from_secs(20), "{took:?}");
        assert_eq!(upstream.summaries().len(), 1);
    }
}

#[tokio::test]
async fn a_transcript_that_cannot_be_kept_means_no_summary() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Summarizer::playing([Play::good().held()]).await;
    // It is to be a file, too, and its folder is none.
    std::fs::write(folder.path().join("file"), "").unwrap();
    let dir = folder.path().join("file").join("exported");
    let abridge = setup(&upstream).with(format!("recall.export_dir = {dir:?}")).start().await;
    upstream.go_on();
    let body = talk("a", 3);
    assert_eq!(ask(&abridge, &body).await.head.get("x-abridge-edits"), None);
    assert_eq!(upstream.chats().pop().unwrap().body, body);
    abridge.says("could not be written to recall.export_dir", 0).await;
    ask(&abridge, &body).await;
    assert_eq!(upstream.summaries().len(), 1, "it is not paid for again at once");
}

#[tokio::test]
async fn a_summary_call_releases_its_memory() {
    let upstream = Summarizer::playing([]).await;
    // Of a summary's request, its body, what is summarised, and the transcript: each some four KiB.
    let abridge = setup(&upstream)
        .with("server.max_body = \"32KiB\"")
        .with("server.max_buffered = \"32KiB\"")
        .with("summarize.retry.max_retries = 0")
        .start()
        .await;
    let bad = Play::Status("400 Bad Request", &[], "{}");
    for round in 0..4 {
        for (n, play) in [bad.clone(), Play::Reset, Play::good()].into_iter().enumerate() {
            let edits = (n == 2).then_some("summary=1");
            upstream.then(play).await;
            let reply = ask(&abridge, talk(&format!("{round}{n}"), 3)).await;
            assert_eq!((reply.head.status(), reply.head.get("x-abridge-edits")), (200, edits), "{round} {n}");
        }
        let (n, lines) = (upstream.summaries().len(), abridge.stderr().len());
        upstream.then(Play::good().held()).await;
        let mut client = abridge.connect().await;
        client.send(chat(talk(&format!("{round} left"), 3))).await;
        upstream.asked_for(n + 1).await;
        drop(client);
        upstream.go_on();
        abridge.says("a summary was made", lines).await;
    }
    assert_eq!(upstream.summaries().len(), 16);
}
