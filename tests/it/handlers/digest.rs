//! `clear_tool_results.digest`: a model makes digests of cleared results, once.

use super::*;

/// What each request for a digest has.
const DIGEST: &str = "Write a digest of the tool output above";

fn digesting(upstream: &Summarizer) -> Setup {
    Setup::to(upstream.url())
        .with("clear_tool_results.digest = { max_tokens = 100 }")
        .with("clear_tool_results.when = \"any\"")
        .with("clear_tool_results.trigger = { tokens = 600 }")
        .with("clear_tool_results.keep = { results = 2 }")
        .with("policy.edits = [\"patch_tool_calls\", \"clear_tool_results\"]")
        .with("tokens.counter = \"estimate\"")
        .with("tokens.ask_upstream = false")
}

/// The requests for digests, and the others.
fn parted(upstream: &Summarizer) -> (Vec<String>, Vec<String>) {
    let all = upstream.chats().into_iter().map(|asked| asked.text().to_owned());
    all.partition(|text| text.contains(DIGEST))
}

#[tokio::test]
async fn old_results_are_replaced_by_digests_that_are_made_once() {
    let upstream = Summarizer::playing([]).await;
    let abridge = digesting(&upstream).start().await;
    for n in [5, 5, 6] {
        ask(&abridge, session(n)).await;
    }
    let (digests, sent) = parted(&upstream);
    assert!((3..=4).contains(&digests.len()), "one for each cleared result: {}", digests.len());
    for text in &sent {
        let after = texts(text.as_bytes());
        assert!(after[..3].iter().all(|text| text.starts_with("hello\n[Cleared: ")), "{after:?}");
    }
    assert_eq!(sent[0], sent[1]);
    let first = digests.iter().find(|text| text.contains("result 0, line 59: ok")).unwrap();
    assert!(first.contains("\"max_tokens\":100") && first.contains("\"model\":\"gpt-4o\""), "{first}");
    assert!(!first.contains("\"tools\"") && !first.contains("result 1"), "{first}");
}

#[tokio::test]
async fn a_digest_has_the_model_retry_and_failover_of_summaries_and_no_key_crosses() {
    let upstream = Summarizer::playing([]).await;
    let failover = Summarizer::playing([]).await;
    let abridge = digesting(&upstream)
        .with("summarize.retry.max_retries = 0")
        .with("summarize.model = { base_url = \"http://127.0.0.1:9/v1\", model = \"down\", api_key_env = \"FIRST\" }")
        .with(format!(
            "summarize.failover = [{{ base_url = {:?}, model = \"second\", api_key_env = \"SECOND\" }}]",
            failover.url()
        ))
        .environment("FIRST", "first-key")
        .environment("SECOND", "second-key")
        .start()
        .await;
    let mut client = abridge.connect().await;
    client.send(post("/v1/chat/completions", &["authorization: Bearer client-key"], session(5))).await;
    client.reply().await;
    assert_eq!(parted(&upstream).0.len(), 0);
    let asked = failover.chats();
    assert_eq!(asked.len(), 3);
    for asked in asked {
        assert_eq!(asked.head.get("authorization"), Some("Bearer second-key"));
        assert!(asked.text().contains("\"model\":\"second\""));
    }
    let after = texts(parted(&upstream).1.last().unwrap().as_bytes());
    assert!(after[0].starts_with("hello\n[Cleared: "), "{after:?}");
}

#[tokio::test]
async fn where_no_model_makes_a_digest_the_placeholder_stands_alone_and_stays() {
    let upstream = Summarizer::playing([]).await;
    let abridge = digesting(&upstream)
        .with("summarize.model = { base_url = \"http://127.0.0.1:9/v1\", model = \"down\" }")
        .with("summarize.retry.max_retries = 0")
        .start()
        .await;
    for _ in 0..2 {
        let after = results(&abridge, &upstream, session(5)).await;
        assert!(after[..3].iter().all(|text| text.starts_with("[Cleared: ")), "{after:?}");
    }
}
