//! Answers to summary calls whose lines are long: OpenAI Responses repeats the whole request in the events of a stream.

use crate::support::upstream::whole;
use crate::support::wire::Reply;
use crate::support::{Scene, post};

const PATH: &str = "/abridge/summarize/v1/responses";

/// A conversation in OpenAI Responses.
fn body() -> String {
    let talk = |n: usize| {
        let answer = format!("answer {n}. ").repeat(60);
        format!(r#"{{"role":"user","content":"question {n}"}},{{"role":"assistant","content":"{answer}"}},"#)
    };
    let turns: String = (0..6).map(talk).collect();
    format!(r#"{{"model":"some-model","input":[{turns}{{"role":"user","content":"the last"}}]}}"#)
}

/// Asks for a summary, which the model answers like this.
async fn summarised(kind: &str, answer: &str) -> Reply {
    let mut scene = Scene::with("summarize.retry.max_retries = 0").await;
    let mut client = scene.abridge.connect().await;
    client.send(post(PATH, &[], body())).await;
    let mut call = scene.upstream.request().await;
    call.bytes().await;
    // Of a stream that is too long, abridge does not read the end.
    let _cut_off = call.try_send(whole("200 OK", &[kind, "connection: close"], answer)).await;
    client.reply().await
}

/// A stream that says `text`, whose lines about the whole response have so many bytes more.
fn stream(text: &str, n_bytes: usize) -> String {
    let tools = format!(r#"[{{"type":"function","name":"f","description":"{}"}}]"#, "x".repeat(n_bytes));
    let event = |kind: &str, rest: &str| format!("event: {kind}\ndata: {{\"type\":\"{kind}\",{rest}}}\n\n");
    let whole = |status: &str, output: &str, usage: &str| {
        format!(
            r#""response":{{"object":"response","status":"{status}","error":null,"tools":{tools},"output":[{output}],"usage":{usage}}}"#
        )
    };
    let message =
        format!(r#"{{"type":"message","role":"assistant","content":[{{"type":"output_text","text":"{text}"}}]}}"#);
    [
        event("response.created", &whole("in_progress", "", "null")),
        event("response.output_text.delta", &format!(r#""delta":"{text}""#)),
        event("response.output_text.done", &format!(r#""text":"{text}""#)),
        event("response.completed", &whole("completed", &message, r#"{"input_tokens":9,"output_tokens":3}"#)),
    ]
    .concat()
}

const EVENTS: &str = "content-type: text/event-stream";
const JSON: &str = "content-type: application/json";

#[tokio::test]
async fn a_summary_is_read_out_of_a_stream_whose_events_repeat_the_request_in_megabytes() {
    for n_bytes in [100, 300 << 10, 3 << 20] {
        let reply = summarised(EVENTS, &stream("<summary>They talked.</summary>", n_bytes)).await;
        assert_eq!((reply.head.status(), reply.head.get("x-abridge-summary")), (200, Some("made")), "{n_bytes}");
        assert!(String::from_utf8_lossy(&reply.body).contains("They talked."), "{n_bytes}");
    }
}

#[tokio::test]
async fn a_stream_that_is_too_long_or_says_too_much_makes_no_summary() {
    let long = format!("<summary>{}</summary>", "word ".repeat(300_000));
    for answer in [stream("<summary>They talked.</summary>", 9 << 20), stream(&long, 100)] {
        let reply = summarised(EVENTS, &answer).await;
        assert_eq!((reply.head.status(), reply.head.get("x-abridge-error")), (502, Some("not_summarized")));
        assert!(String::from_utf8_lossy(&reply.body).contains("the answer is too long"), "{reply:?}");
    }
}

#[tokio::test]
async fn an_answer_that_is_no_stream_may_be_one_line_of_four_mebibytes() {
    let answer = |n_bytes: usize| {
        let text = r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":"<summary>They talked.</summary>"}]}"#;
        let answer = format!(r#"{{"object":"response","status":"completed","output":[{text}],"instructions":""}}"#);
        answer.replace(r#""""#, &format!("{:?}", "x".repeat(n_bytes - answer.len())))
    };
    let reply = summarised(JSON, &answer(4 << 20)).await;
    assert_eq!((reply.head.status(), reply.head.get("x-abridge-summary")), (200, Some("made")));
    let reply = summarised(JSON, &answer((4 << 20) + 1)).await;
    assert_eq!((reply.head.status(), reply.head.get("x-abridge-error")), (502, Some("not_summarized")));
}
