//! A call for a summary that is refused, and made once more in a form that every upstream takes.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::*;
use crate::support::offloads::with_results;
use crate::support::post;
use crate::support::summarizer::Asked;

/// A conversation with calls, the fields `fields` beside its messages, and a result as the last message that is summarised.
fn body(fields: &str) -> String {
    let texts: Vec<_> = (0..6).map(|n| format!("result {n} ").repeat(100)).collect();
    with_results(&texts).replacen('{', &format!("{{{fields}"), 1)
}

/// The keys of a call, in order.
fn keys(call: &Asked) -> Vec<String> {
    let body: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(&call.body).unwrap();
    body.into_keys().collect()
}

/// Has a call refused in this way, and looks at what is sent then.
async fn refused(fields: &str, play: Play) -> (Asked, Abridge, Summarizer) {
    let upstream = Summarizer::playing([play]).await;
    let abridge = setup(&upstream).start().await;
    assert_eq!(ask(&abridge, body(fields)).await.head.get("x-abridge-edits"), Some("summary=1"), "{fields}");
    let mut calls = upstream.summaries();
    assert_eq!(calls.len(), 2, "once more, and no third time");
    (calls.pop().unwrap(), abridge, upstream)
}

fn status(refusal: &'static str) -> Play {
    Play::Status("400 Bad Request", &[], refusal)
}

#[tokio::test]
async fn a_refused_call_is_made_once_more_as_one_message_with_keys_of_the_client() {
    let order =
        r#"{"object":"error","message":"Unexpected role 'user' after role 'tool'","type":"invalid_request_error"}"#;
    let key = r#"{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.","param":"max_tokens","code":"unsupported_parameter"}}"#;
    let budget = r#"{"error":{"message":"max_tokens must be greater than thinking.budget_tokens"}}"#;
    let unasked = r#"{"object":"error","message":{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs are not permitted"}]}}"#;
    let event = Play::chunks(&[
        r#"{"error":{"message":"Conversation roles must alternate user/assistant/user/assistant","code":400}}"#,
    ]);
    for (fields, play, expected) in [
        ("", status(order), vec!["messages", "model"]),
        (r#""stream":true,"#, status(key), vec!["messages", "model", "stream"]),
        (
            r#""max_completion_tokens":9000,"reasoning_effort":"high","#,
            status(key),
            vec!["max_completion_tokens", "messages", "model"],
        ),
        (
            r#""max_tokens":64000,"reasoning":{"max_tokens":16000},"#,
            status(budget),
            vec!["max_tokens", "messages", "model"],
        ),
        (
            r#""user":"u","stream":true,"stream_options":{},"temperature":0,"#,
            status(unasked),
            vec!["messages", "model", "stream", "user"],
        ),
        ("", event, vec!["messages", "model"]),
    ] {
        let (call, ..) = refused(fields, play).await;
        assert_eq!(keys(&call), expected, "{}", call.text());
        let messages = call.messages();
        assert!(messages.len() == 1 && messages[0].starts_with(r#"{"role":"user","content":""#), "{messages:?}");
        for part in ["result 0 result 0", "[calls bash:", "### tool result", INSTRUCTION] {
            assert!(messages[0].contains(part), "{part}");
        }
    }
}

#[tokio::test]
async fn an_upstream_that_took_the_plain_form_gets_it_first_from_then_on() {
    let refusal = r#"{"message":"Unexpected role 'user' after role 'tool'"}"#;
    let (_, abridge, upstream) = refused("", status(refusal)).await;
    abridge.says("refused a call for a summary", 0).await;
    assert!(abridge.stderr().concat().contains("Unexpected role"), "the upstream's own words");
    ask(&abridge, body("").replace("result 0", "result A")).await;
    let calls = upstream.summaries();
    assert_eq!((calls.len(), calls[2].messages().len()), (3, 1));
}

#[tokio::test]
async fn what_is_refused_in_the_plain_form_is_not_sent_a_third_time() {
    let refusal = r#"{"error":{"message":"no such thing","type":"invalid_request_error"}}"#;
    let upstream = Summarizer::playing([status(refusal), status(refusal)]).await;
    let abridge = setup(&upstream).start().await;
    assert_eq!(ask(&abridge, body("")).await.head.get("x-abridge-edits"), None);
    assert_eq!(upstream.summaries().len(), 2);
    abridge.says("the upstream answered 400 Bad Request: no such thing", 0).await;
}

#[tokio::test]
async fn the_limit_of_a_call_is_above_what_the_model_may_think() {
    let upstream = Summarizer::playing([]).await;
    let abridge = setup(&upstream).with("summarize.max_tokens = 500").start().await;
    for (n, budget) in [
        r#""max_tokens":64000,"reasoning":{"max_tokens":16000},"#,
        r#""max_tokens":64000,"thinking":{"type":"enabled","budget_tokens":16000},"#,
        r#""max_tokens":64000,"enable_thinking":true,"thinking_budget":16000,"#,
    ]
    .into_iter()
    .enumerate()
    {
        ask(&abridge, body(budget).replace("result 0", &format!("result {n}{n}"))).await;
        assert!(upstream.summaries().pop().unwrap().text().contains(r#""max_tokens":16500"#), "{budget}");
    }
}

#[tokio::test]
async fn in_messages_the_plain_form_has_what_an_oauth_token_needs() {
    let refusal =
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages: roles must alternate"}}"#;
    let upstream = Summarizer::playing([status(refusal)]).await;
    let abridge = setup(&upstream).with("summarize.retry.max_retries = 0").start().await;
    let named = r#"{"type":"text","text":"You are Claude Code, Anthropic's official CLI for Claude."}"#;
    let turn = |n: usize| {
        let said = format!("answer {n} ").repeat(150);
        format!(
            r#"{{"role":"user","content":"question {n}"}},{{"role":"assistant","content":[{{"type":"text","text":"{said}"}}]}},"#
        )
    };
    let turns = (0..4).map(turn).collect::<Vec<_>>().concat();
    let body = format!(
        r#"{{"model":"claude-opus-5","max_tokens":32000,"thinking":{{"type":"enabled","budget_tokens":9000}},"system":[{named},{{"type":"text","text":"Be brief."}}],"tools":[],"messages":[{turns}{{"role":"user","content":"go on"}}]}}"#
    );
    let mut client = abridge.connect().await;
    client.send(post("/v1/messages", &["anthropic-version: 2023-06-01"], body)).await;
    client.reply().await;
    let calls = upstream.summaries();
    assert_eq!(keys(&calls[1]), ["max_tokens", "messages", "model", "system"]);
    assert!(calls[1].text().contains(&format!(r#""system":[{named}]"#)), "{}", calls[1].text());
    assert_eq!(calls[1].messages().len(), 1);
}

#[tokio::test]
async fn a_summary_that_is_too_short_for_what_it_stands_for_is_refused() {
    let short = || Play::Stream("<summary>I have written the summary.</summary>".to_owned());
    let upstream = Summarizer::playing([short(), short()]).await;
    let abridge = setup(&upstream).with("summarize.retry.max_retries = 0").start().await;
    assert_eq!(ask(&abridge, talk("a", 45)).await.head.get("x-abridge-edits"), None);
    abridge.says("which is too short for", 0).await;
    assert_eq!(ask(&abridge, talk("b", 3)).await.head.get("x-abridge-edits"), Some("summary=1"));
}
