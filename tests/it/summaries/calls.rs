//! The call itself: its content, and the retries when it is refused.

use super::*;
use crate::edits::ENCODINGS;
use crate::support::offloads::with_results;
use crate::support::post;
use crate::support::summarizer::Asked;

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
        .with("clear_tool_results = { when = 'any', trigger = { tokens = 500 }, keep = { results = 4 } }")
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
    // The request's own fields are not meant here.
    assert_eq!(upstream.chats().pop().unwrap().head.get("idempotency-key"), Some("once"));

    // Another caller's is not the same conversation.
    for (key, n) in [("sk-client", 1), ("sk-other", 2), ("sk-other", 2)] {
        client.send(post(CHAT, &[&format!("authorization: Bearer {key}")], talk("a", 3))).await;
        client.reply().await;
        assert_eq!(upstream.summaries().len(), n, "{key}");
    }
}

#[tokio::test]
async fn an_endpoint_that_refuses_tools_is_called_without_them() {
    let refusal = r#"{"error":{"message":"tool_choice is not supported by this model","param":"tool_choice"}}"#;
    let upstream = Summarizer::playing([Play::Status("400 Bad Request", &[], refusal)]).await;
    let abridge = setup(&upstream).start().await;
    let edits = ask(&abridge, with_tools(6)).await;
    assert_eq!(edits.head.get("x-abridge-edits"), Some("summary=1"));
    let calls = upstream.summaries();
    assert_eq!(calls.iter().map(|call| call.text().contains("\"tools\":")).collect::<Vec<_>>(), [true, false]);
}

#[tokio::test]
async fn a_summary_input_that_is_too_long_is_halved_at_most_twice() {
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
    assert_eq!(calls.iter().map(tells_of_a_gap).collect::<Vec<_>>(), [0, 1, 1]);

    for _ in 0..3 {
        upstream.then(too_long.clone()).await;
    }
    assert_eq!(ask(&abridge, talk("b", 30)).await.head.get("x-abridge-edits"), None);
    assert_eq!(upstream.summaries().len(), 6);
}

#[tokio::test]
async fn a_summary_input_fits_the_window_of_its_model() {
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
    assert_eq!(tells_of_a_gap(&call), 1);
}

/// How often the instruction says that something is missing.
fn tells_of_a_gap(call: &Asked) -> usize {
    let messages = call.messages();
    let (instruction, others) = messages.split_last().unwrap();
    assert!(instruction.contains(INSTRUCTION) && !others.concat().contains("from its middle"));
    instruction.matches("from its middle is missing above").count()
}

#[tokio::test]
async fn a_summary_input_of_long_messages_is_cut_in_the_middle_of_its_text() {
    let refusal = r#"{"error":{"message":"too long","code":"context_length_exceeded"}}"#;
    let html = Play::Status("413 Request Entity Too Large", &[], "<html><body>413</body></html>");
    for refusal in [Play::Status("400 Bad Request", &[], refusal), html] {
        let upstream = Summarizer::playing([refusal]).await;
        let abridge = setup(&upstream).start().await;
        // The last message of what is summarised is more than half of it.
        let talk = talk("a", 3).replace("a question 2", &"a long question ".repeat(500));
        assert_eq!(ask(&abridge, talk).await.head.get("x-abridge-edits"), Some("summary=1"));
        let calls = upstream.summaries();
        assert!(calls.len() == 2 && calls[1].body.len() < calls[0].body.len() * 6 / 10, "{}", calls.len());
        assert_eq!(calls.iter().map(tells_of_a_gap).collect::<Vec<_>>(), [0, 1]);
    }
}

#[tokio::test]
async fn a_call_is_made_with_the_key_and_the_headers_of_the_settings() {
    let upstream = Summarizer::playing([]).await;
    let abridge = setup(&upstream)
        .with("upstream.headers = { x-tenant = \"ours\" }")
        .with("upstream.api_key_env = \"UPSTREAM_KEY\"")
        .environment("UPSTREAM_KEY", "sk-upstream")
        .start()
        .await;
    let mut client = abridge.connect().await;
    let fields = ["authorization: Bearer sk-client", "x-tenant: theirs", "cookie: c=1"];
    client.send(post(CHAT, &fields, talk("a", 3))).await;
    assert_eq!(client.reply().await.head.get("x-abridge-edits"), Some("summary=1"));
    let (call, sent) = (upstream.summaries().pop().unwrap().head, upstream.chats().pop().unwrap().head);
    for head in [call, sent] {
        assert_eq!(head.all("authorization"), ["Bearer sk-upstream"]);
        assert_eq!(head.all("x-tenant"), ["ours"]);
        assert_eq!(head.get("cookie"), Some("c=1"));
    }
}

#[tokio::test]
async fn a_call_for_a_coded_request_is_not_coded() {
    let upstream = Summarizer::playing([]).await;
    let abridge = setup(&upstream).start().await;
    let mut client = abridge.connect().await;
    for (coding, encode) in ENCODINGS {
        let talk = talk(coding, 3);
        let fields = [&*format!("content-encoding: {coding}")];
        client.send(post(CHAT, &fields, encode(talk.as_bytes()))).await;
        assert_eq!(client.reply().await.head.get("x-abridge-edits"), Some("summary=1"), "{coding}");
        let call = upstream.summaries().pop().unwrap();
        assert_eq!(call.head.get("content-encoding"), None);
        assert_eq!(call.head.get("content-length"), Some(&*call.body.len().to_string()));
        let (asked, said) = (call.messages(), messages(talk.as_bytes()));
        assert!(asked.len() > 3 && asked[..3] == said[..3], "{coding}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let other = Summarizer::playing([]).await;
    for status in ["302 Found", "307 Temporary Redirect", "308 Permanent Redirect"] {
        let location: &str = Box::leak(format!("location: {}/v1/chat/completions", other.url()).into_boxed_str());
        let upstream = Summarizer::playing([Play::Status(status, Box::leak(Box::new([location])), "{}")]).await;
        let abridge = setup(&upstream).start().await;
        assert_eq!(ask(&abridge, talk("a", 3)).await.head.get("x-abridge-edits"), None);
        assert_eq!([&upstream, &other].map(|all| all.summaries().len()), [1, 0], "{status}");
    }
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
