//! Refusals in the events of a stream, with the place where each was seen.

use super::*;

/// Events by which a stream fails because the conversation is too long: where they were seen, and their data.
const EVENTS: &[(&str, &str)] = &[
    (
        "OpenAI, the shape of a recording of vercel/ai with the code of openai/codex#4116",
        r#"{"type":"error","sequence_number":2,"error":{"type":"invalid_request_error","code":"context_length_exceeded","message":"Your input exceeds the context window of this model. Please adjust your input and try again.","param":"input"}}"#,
    ),
    (
        "OpenAI, the fields of its SDK",
        r#"{"type":"error","sequence_number":2,"code":"context_length_exceeded","message":"Your input exceeds the context window of this model.","param":"input"}"#,
    ),
    (
        "OpenAI, the whole answer; openai/codex, core/src/client.rs",
        r#"{"type":"response.failed","sequence_number":3,"response":{"id":"resp_1","object":"response","status":"failed","error":{"code":"context_length_exceeded","message":"Your input exceeds the context window of this model."},"instructions":"Too many requests?","metadata":{"message":"rate limit"},"usage":null}}"#,
    ),
    (
        "OpenRouter's words",
        r#"{"type":"error","code":"invalid_prompt","message":"This endpoint's maximum context length is 128000 tokens. However, you requested about 175410 tokens (174162 of text input, 1248 of tool input)."}"#,
    ),
];

/// Events by which a stream fails for another reason.
const OTHER_EVENTS: &[&str] = &[
    r#"{"type":"response.failed","response":{"error":{"code":"rate_limit_exceeded","message":"Rate limit reached. Please try again in 1.3s."},"instructions":"This model's maximum context length is 9 tokens"}}"#,
    r#"{"type":"response.failed","response":{"error":{"code":"server_is_overloaded","message":"Try again."},"metadata":{"message":"prompt is too long: 9 tokens > 5 maximum"}}}"#,
    r#"{"type":"error","error":{"type":"insufficient_quota","code":"insufficient_quota","message":"You exceeded your current quota."}}"#,
    r#"{"type":"response.failed","response":{"error":null}}"#,
    r#"{"type":"response.failed"}"#,
    "[DONE]",
];

#[test]
fn events_of_overflows_are_classified() {
    for (seen, event) in EVENTS {
        assert!(matches!(classify_event(event.as_bytes()), Some(Refusal::Overflow(_))), "{seen}: {event}");
    }
    for event in OTHER_EVENTS {
        assert_eq!(classify_event(event.as_bytes()), None, "{event}");
    }
}
