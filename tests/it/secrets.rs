//! Keys and content must never be logged.

use crate::events::EventListener;
use crate::support::bodies::DANGLING;
use crate::support::summarizer::{INSTRUCTION, Play, Summarizer, talk};
use crate::support::{Setup, Upstream, chat, post};

const CANARIES: [&str; 8] = [
    "sk-canary-authorization",
    "canary-api-key",
    "canary-cookie",
    "canary-request",
    "canary-answer",
    "canary-stream",
    "canary-configured",
    "canary-query",
];

#[tokio::test]
async fn neither_keys_nor_content_are_in_the_log_at_its_most_talkative() {
    for format in ["text", "json"] {
        let mut upstream = Upstream::start().await;
        let setup = Setup::before(&upstream).with("log.level = \"trace\"").with(format!("log.format = {format:?}"));
        let setup = setup.with("upstream.headers = { x-gateway-key = \"canary-configured\" }");
        let abridge = setup.start().await;
        let fields = [
            "authorization: Bearer sk-canary-authorization",
            "api-key: canary-api-key",
            "cookie: session=canary-cookie",
            "content-type: application/json",
        ];
        let target = "/v1/chat/completions?key=canary-query";
        let edited = DANGLING.replace("and then?", "canary-request");
        let broken = "{\"messages\":[{\"role\":\"canary-request\",\"content\":\"canary-request\"}]}";

        let mut client = abridge.connect().await;
        for body in [&*edited, broken, "canary-request"] {
            client.send(post(target, &fields, body)).await;
            let mut call = upstream.request().await;
            call.bytes().await;
            call.answer(
                "400 Bad Request",
                &["x-a: canary-answer", "connection: close"],
                "{\"error\":\"canary-answer\"}",
            )
            .await;
            client.reply().await;
        }
        client.send(post(target, &fields, &edited)).await;
        let mut call = upstream.request().await;
        call.bytes().await;
        call.begin_stream().await;
        call.send_chunk(
            "data: {\"choices\":[{\"delta\":{\"content\":\"canary-stream\"}}],\"usage\":{\"canary-stream\":1}}\n\n",
        )
        .await;
        client.head().await;
        client.chunk().await;
        drop(call);
        client.rest().await;

        let mut client = abridge.connect().await;
        client.send(post(target, &fields, &edited)).await;
        drop(upstream.request().await);
        assert_eq!(client.reply().await.head.status(), 502);

        abridge.signal("TERM");
        abridge.exit().await;
        let log = abridge.stderr().join("\n");
        for canary in CANARIES {
            let line = log.lines().find(|line| line.contains(canary));
            assert_eq!(line, None, "{canary} is in the log");
        }
    }
}

#[tokio::test]
async fn a_key_from_the_environment_is_not_in_the_log() {
    let mut upstream = Upstream::start().await;
    let setup = Setup::before(&upstream).with("log.level = \"trace\"\nupstream.api_key_env = \"GATEWAY_KEY\"");
    let abridge = setup.environment("GATEWAY_KEY", "sk-canary-ours").start().await;
    let mut client = abridge.connect().await;
    client.send(chat(DANGLING)).await;
    let mut call = upstream.request().await;
    assert_eq!(call.head.get("authorization"), Some("Bearer sk-canary-ours"));
    call.bytes().await;
    call.json("{}").await;
    client.reply().await;
    abridge.signal("TERM");
    abridge.exit().await;
    assert!(!abridge.stderr().join("\n").contains("sk-canary-ours"));
}

#[tokio::test]
async fn the_text_of_a_summary_is_neither_logged_nor_in_events() {
    let said = r#"{"choices":[{"delta":{"content":"canary-answer"}}]}"#;
    // The upstream's own words of a refusal are logged, without what it repeats of the request.
    let refusal = r#"{"error":{"message":"no credits are left: canary-request","code":"canary-answer"}}"#;
    let plays = [
        Play::Status("400 canary-answer", &["x-why: canary-answer"], refusal),
        Play::Status("503 canary-answer", &["retry-after: canary-answer"], "canary-answer"),
        Play::Status("302 Found", &["location: http://canary-answer/"], ""),
        Play::Status("200 OK", &[], "canary-answer"),
        Play::chunks(&[refusal]),
        Play::chunks(&[said, "canary-answer"]),
        Play::Json("Error: canary-answer: status code 500".to_owned()),
        Play::chunks(&[said, r#"{"choices":[{"delta":{},"finish_reason":"canary-answer"}]}"#]),
    ];
    let upstream = Summarizer::playing([]).await;
    let abridge = Setup::to(upstream.url())
        .with("log.level = \"trace\"")
        .with("tokens.counter = \"estimate\"")
        .with(format!("summarize.instruction = {INSTRUCTION:?}"))
        .with("summarize.trigger = { tokens = 900 }")
        .with("summarize.retry.max_retries = 0")
        .start()
        .await;
    let mut listener = EventListener::of_operator(&abridge).await;
    let mut client = abridge.connect().await;
    for (n, play) in plays.into_iter().enumerate() {
        upstream.then(play).await;
        let fields = ["authorization: Bearer sk-canary-authorization", "cookie: session=canary-cookie"];
        let body = talk(&format!("{n} canary-request"), 3);
        client.send(post("/v1/chat/completions?key=canary-query", &fields, body)).await;
        assert_eq!(client.reply().await.head.status(), 200);
        let mut kinds = Vec::new();
        while kinds.last().is_none_or(|kind| kind != "summary.after") {
            let event = listener.next().await.expect("an event");
            assert!(!event.json.contains("canary"), "{}", event.json);
            kinds.push(event.kind);
        }
        assert!(kinds.contains(&"summary.attempt".to_owned()), "{kinds:?}");
    }
    assert_eq!(upstream.summaries().len(), 8);
    assert!(upstream.summaries().iter().all(|call| call.text().contains("canary-request")));
    abridge.says("a summary was not made", 0).await;
    let log = abridge.stderr().concat();
    assert!(log.contains("400 Bad Request: no credits are left:"), "{log}");
    for canary in CANARIES {
        assert!(!log.contains(canary), "{canary}: {log}");
    }
}

#[tokio::test]
async fn a_key_is_in_memory_once_and_is_overwritten_when_a_reload_replaces_it() {
    let upstream = Upstream::start().await;
    let (one, two) = ("sk-canary-6pXc1vQ0eZ", "sk-canary-u7Lk2mRw9T");
    let abridge = Setup::before(&upstream)
        .with("upstream.api_key_env = \"KEY_ONE\"")
        .environment("KEY_ONE", one)
        .environment("KEY_TWO", two)
        .start()
        .await;
    let copies = |key: &str| [key, &format!("Bearer {key}")].map(|text| abridge.copies_of(text.as_bytes()));
    // The value of the variable, for the next reload, and the header, however many connections there will be.
    assert_eq!([copies(one), copies(two)], [[2, 1], [1, 0]]);
    for (old, new, names) in [(one, two, ["KEY_ONE", "KEY_TWO"]), (two, one, ["KEY_TWO", "KEY_ONE"])] {
        let settings = std::fs::read_to_string(abridge.config()).unwrap();
        std::fs::write(abridge.config(), settings.replace(names[0], names[1])).unwrap();
        let from = abridge.stderr().len();
        abridge.signal("HUP");
        abridge.says("settings reloaded", from).await;
        assert_eq!([copies(old), copies(new)], [[1, 0], [2, 1]]);
    }
}
