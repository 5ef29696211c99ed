//! The call itself: what is in it, and what is tried when it is refused.

use super::*;
use crate::support::offloads::with_results;
use crate::support::post;

const CHAT: &str = "/v1/chat/completions";

/// Results of calls, each of some 250 tokens.
fn with_tools(n: usize) -> String {
    let texts: Vec<_> = (0..n).map(|n| format!("result {n} ").repeat(100)).collect();
    with_results(&texts)
}

#[tokio::test]
async fn the_cached_shape_is_the_request_as_it_would_have_been_sent() {
    let upstream = Summarizer::playing([Play::Status("400 Bad Request", &[], "{}")]).await;
    let abridge = setup_within(&upstream, "20s")
        .with("clear_tool_results = { trigger = { tokens = 500 }, keep = { results = 4 } }")
        .with("summarize.trigger = { tokens = 1000 }")
        .start()
        .await;
    let reply = ask(&abridge, with_tools(9)).await;
    let edits = reply.head.get("x-abridge-edits").unwrap();
    assert!(edits.starts_with("clear="), "{edits}");
    let (call, sent) = (upstream.summaries().pop().unwrap(), upstream.chats().pop().unwrap());
    let (asked, would) = (call.messages(), sent.messages());
    let (instruction, source) = asked.split_last().unwrap();
    assert!(instruction.contains(INSTRUCTION) && source.len() > 4);
    assert_eq!(source, &would[..source.len()], "every byte of them");
    assert!(
        source.iter().any(|message| message.contains("/abridge/recall/")
            || message.contains("Cleared")
            || message.contains("cleared")),
        "{source:?}"
    );
    for part in [
        r#""tools":[{"type":"function","function":{"name":"bash"}}]"#,
        r#""tool_choice":"none""#,
        r#""model":"gpt-4o""#,
        r#""stream":true"#,
    ] {
        assert!(call.text().contains(part), "{part}: {}", call.text());
    }
}

#[tokio::test]
async fn a_call_is_made_in_the_client_s_name() {
    let upstream = Summarizer::playing([]).await;
    let abridge = setup(&upstream).start().await;
    let mut client = abridge.connect().await;
    let fields = [
        "content-type: application/json; charset=utf-8",
        "authorization: Bearer sk-client",
        "openai-organization: org",
        "x-tenant: one",
        "x-tenant: two",
        "accept-encoding: gzip, br",
        "idempotency-key: once",
        "connection: x-hop",
        "x-hop: 1",
        "x-abridge: on",
        "content-md5: abc",
    ];
    client.send(post(&format!("{CHAT}?api-version=1&x=%20"), &fields, talk("a", 3))).await;
    client.reply().await;
    let call = upstream.summaries().pop().unwrap().head;
    assert_eq!(call.start, "POST /v1/chat/completions?api-version=1&x=%20 HTTP/1.1");
    assert_eq!(call.get("authorization"), Some("Bearer sk-client"));
    assert_eq!(call.get("openai-organization"), Some("org"));
    assert_eq!(call.all("x-tenant"), ["one", "two"]);
    assert_eq!(call.get("content-type"), Some("application/json"));
    for name in
        ["accept-encoding", "idempotency-key", "x-hop", "x-abridge", "content-md5", "content-encoding", "expect"]
    {
        assert_eq!(call.get(name), None);
    }
    // What the request itself takes along is another matter.
    assert_eq!(upstream.chats().pop().unwrap().head.get("idempotency-key"), Some("once"));

    // Another caller's is another conversation.
    for (key, n) in [("sk-client", 1), ("sk-other", 2), ("sk-other", 2)] {
        client.send(post(CHAT, &[&format!("authorization: Bearer {key}")], talk("a", 3))).await;
        client.reply().await;
        assert_eq!(upstream.summaries().len(), n, "{key}");
    }
}

#[tokio::test]
async fn who_refuses_tools_is_asked_without_from_then_on() {
    let refusal = r#"{"error":{"message":"tool_choice is not supported by this model","param":"tool_choice"}}"#;
    let upstream = Summarizer::playing([Play::Status("400 Bad Request", &[], refusal)]).await;
    let abridge = setup(&upstream).start().await;
    let edits = ask(&abridge, with_tools(6)).await;
    assert_eq!(edits.head.get("x-abridge-edits"), Some("summary=1"));
    let calls = upstream.summaries();
    assert_eq!(calls.iter().map(|call| call.text().contains("\"tools\":")).collect::<Vec<_>>(), [true, false]);

    // Of the same model: a conversation of its own.
    ask(&abridge, with_tools(7).replace("result 0", "result A")).await;
    assert_eq!(upstream.summaries().len(), 3);
    assert!(!upstream.summaries()[2].text().contains("\"tools\":"));
    // Of another model.
    ask(&abridge, with_tools(6).replace("gpt-4o", "gpt-4o-mini")).await;
    assert!(upstream.summaries()[3].text().contains("\"tools\":"));
}

#[tokio::test]
async fn what_is_too_long_is_halved_twice_at_most() {
    let refusal = r#"{"error":{"message":"too long","code":"context_length_exceeded"}}"#;
    let too_long = Play::Status("400 Bad Request", &[], refusal);
    let upstream = Summarizer::playing(vec![too_long.clone(); 2]).await;
    let abridge = setup(&upstream).start().await;
    let reply = ask(&abridge, talk("a", 30)).await;
    assert_eq!(reply.head.get("x-abridge-edits"), Some("summary=1"));
    let lengths: Vec<_> = upstream.summaries().iter().map(|call| call.body.len()).collect();
    assert!(lengths.len() == 3 && lengths[1] < lengths[0] * 6 / 10 && lengths[2] < lengths[1] * 6 / 10, "{lengths:?}");
    let calls = upstream.summaries();
    // The first and the last of it stay.
    assert!(calls.iter().all(|call| call.text().contains("a question 0") && call.text().contains("a answer 28.")));

    for _ in 0..3 {
        upstream.then(too_long.clone()).await;
    }
    assert_eq!(ask(&abridge, talk("b", 30)).await.head.get("x-abridge-edits"), None);
    assert_eq!(upstream.summaries().len(), 6);
}

#[tokio::test]
async fn what_is_asked_for_fits_the_window() {
    let upstream = Summarizer::playing([]).await;
    let abridge = setup(&upstream)
        .with("models = [{ match = \"some-model\", context_window = 3000 }]")
        .with("summarize.max_tokens = 500")
        .start()
        .await;
    let reply = ask(&abridge, talk("a", 30)).await;
    assert_eq!(reply.head.get("x-abridge-edits"), Some("summary=1"));
    let call = upstream.summaries().pop().unwrap();
    assert!(call.text().contains("tokens\":500"), "{}", call.text());
    assert!((4 * 1_500..4 * 2_500).contains(&call.body.len()), "{}", call.body.len());
}

#[tokio::test]
async fn streams_are_read_however_they_are_written() {
    let upstream = Summarizer::playing([]).await;
    let abridge = setup(&upstream).start().await;
    let text = "é😀 ".repeat(20);
    let pieces: Vec<_> = text.chars().map(|c| format!(r#"{{"choices":[{{"delta":{{"content":"{c}"}}}}]}}"#)).collect();
    let stop = r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#;
    let lines = |end: &str| {
        let all = pieces.iter().map(String::as_str).chain([stop]);
        all.map(|piece| format!(": a remark{end}data:{piece}{end}{end}")).collect::<Vec<_>>().concat()
    };
    for (n, stream) in [
        format!("\u{feff}{}", lines("\n")),
        lines("\r\n"),
        lines("\r"),
        format!("{}data: [DONE]\n\ndata: never read", lines("\n")),
    ]
    .into_iter()
    .enumerate()
    {
        upstream.then(Play::Raw(stream.into_bytes())).await;
        let reply = ask(&abridge, talk(&format!("s{n}"), 3)).await;
        assert_eq!(reply.head.get("x-abridge-edits"), Some("summary=1"), "stream {n}");
        assert!(upstream.chats().pop().unwrap().text().contains(text.trim()), "stream {n}");
    }
}
