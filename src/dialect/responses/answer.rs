//! Reads a response, or one event of a streamed one.
//!
//! A stream says how it ended in its last event alone, which holds the whole response once more.

use memchr::memmem;

use super::Responses;
use crate::dialect::answer::{Answer, AnswerFormat, InvalidAnswer, Members};
use crate::raw;

/// The types of the last event of a stream.
const LAST: [&[u8]; 3] = [b"\"response.completed\"", b"\"response.incomplete\"", b"\"response.failed\""];
/// The types of items that wait for the client.
const CALLS: [&str; 8] = [
    "function_call",
    "custom_tool_call",
    "local_shell_call",
    "shell_call",
    "apply_patch_call",
    "computer_call",
    "tool_search_call",
    "mcp_approval_request",
];

impl AnswerFormat for Responses {
    /// Whether an event may hold usage or how the response ended. The words may also be in a text; then the event is
    /// parsed in vain.
    fn reports(&self, json: &[u8]) -> bool {
        LAST.iter().any(|kind| memmem::find(json, kind).is_some())
    }

    /// Adds one event to an answer, or a whole response. Few servers write `[DONE]`.
    fn read_answer(&self, json: &[u8], answer: &mut Answer) -> Result<(), InvalidAnswer> {
        if json.trim_ascii() == b"[DONE]" {
            answer.is_complete = true;
            return Ok(());
        }
        let event = Members::of(json)?;
        match event.get("type").and_then(raw::string).as_deref() {
            Some(kind @ ("response.completed" | "response.incomplete" | "response.failed")) => {
                answer.is_complete = true;
                answer.is_error |= kind == "response.failed";
                read_response(&event.object("response")?.ok_or(InvalidAnswer)?, answer)?;
            }
            Some("response.output_text.delta") => {
                if let (Some(text), Some(delta)) = (&mut answer.text, event.get("delta")) {
                    text.push_str(&raw::string(delta).ok_or(InvalidAnswer)?);
                }
            }
            Some("response.output_item.done") if answer.text.is_some() => {
                let item = event.object("item").ok().flatten();
                answer.calls_tool |= item.is_some_and(|item| calls(&item));
            }
            Some("error") => answer.is_error = true,
            Some(_) => {}
            None if event.get("object").is_some() => read_response(&event, answer)?,
            None => answer.is_error |= event.get("error").or(event.get("detail")).is_some(),
        }
        Ok(())
    }
}

/// Adds how a response ended, and what it said, which takes the place of what its events said. One backend leaves that out.
fn read_response(response: &Members<'_>, answer: &mut Answer) -> Result<(), InvalidAnswer> {
    let details = response.object("incomplete_details")?;
    let reason = details.map_or(Ok(None), |details| details.string("reason"))?;
    let status = response.string("status")?;
    if let Ok(Some(usage)) = response.object("usage") {
        let keys = ["input_tokens", "input_tokens_details", "output_tokens"];
        let _not_told = usage.enter_usage(answer, |usage, _| usage.billed(keys));
    }
    answer.is_error |= response.get("error").is_some();
    answer.stop_reason = reason.or(status).or(answer.stop_reason.take());
    if let Some(text) = &mut answer.text {
        let items = response.objects("output")?;
        answer.calls_tool |= items.iter().any(calls);
        let said: String = items.iter().flat_map(texts_of).collect();
        if !said.is_empty() {
            *text = said;
        }
    }
    Ok(())
}

/// Whether an item waits for the client.
fn calls(item: &Members<'_>) -> bool {
    item.get("type").and_then(raw::string).is_some_and(|kind| CALLS.contains(&&*kind))
}

/// The texts that the model says in an item.
fn texts_of<'a>(item: &Members<'a>) -> impl Iterator<Item = String> + use<'a> {
    let is_message = matches!(item.string("type"), Ok(Some(kind)) if kind == "message");
    let parts = if is_message { item.objects("content").unwrap_or_default() } else { Vec::new() };
    let said = parts.into_iter().filter(|part| part.get("type") == Some(r#""output_text""#));
    said.filter_map(|part| part.string("text").ok().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Stop;
    use crate::tokens::Usage;

    fn answer(events: &[&str]) -> Result<Answer, InvalidAnswer> {
        let mut answer = Answer::with_text();
        events.iter().try_for_each(|event| Responses.read_answer(event.as_bytes(), &mut answer))?;
        Ok(answer)
    }

    const USAGE: &str = r#"{"input_tokens":9,"input_tokens_details":{"cached_tokens":8},"output_tokens":3,"output_tokens_details":{"reasoning_tokens":1},"total_tokens":12}"#;

    fn expected() -> Answer {
        Answer {
            text: Some("a\né".to_owned()),
            stop_reason: Some("completed".to_owned()),
            usage: Some(Usage { input: 9, cached: 8, output: 3, ..Usage::default() }),
            is_complete: true,
            ..Answer::default()
        }
    }

    #[test]
    fn events_of_a_stream_add_up_to_one_answer() {
        let deltas = [
            r#"{"type":"response.created","response":{"status":"in_progress","usage":null,"output":[]}}"#,
            r#"{"type":"response.output_text.delta","delta":"a\n","obfuscation":"xyz"}"#,
            r#"{"type":"response.reasoning_text.delta","delta":"hm"}"#,
            r#"{"type":"response.output_text.delta","delta":"é"}"#,
        ];
        let message = r#"{"type":"reasoning","summary":[]},{"type":"message","content":[{"type":"output_text","text":"a\n"},{"type":"output_text","text":"é"}]}"#;
        for output in ["", message] {
            let last = format!(
                r#"{{"type":"response.completed","response":{{"status":"completed","error":null,"incomplete_details":null,"output":[{output}],"usage":{USAGE}}}}}"#
            );
            assert_eq!(answer(&[&deltas[..], &[&last]].concat()), Ok(expected()));
        }
        let whole = format!(
            r#"{{"object":"response","status":"completed","error":null,"output":[{message}],"usage":{USAGE}}}"#
        );
        assert_eq!(answer(&[&whole]), Ok(Answer { is_complete: false, ..expected() }));
        for odd in ["7", r#"{"input_tokens":-1}"#] {
            let unread = Answer { is_complete: false, usage: None, ..expected() };
            assert_eq!(answer(&[&whole.replace(USAGE, odd)]), Ok(unread), "{odd}");
        }
    }

    #[test]
    fn an_answer_that_broke_off_says_why() {
        let incomplete = answer(&[
            r#"{"type":"response.incomplete","response":{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"output":[]}}"#,
        ]);
        assert_eq!(Responses.stop(incomplete.unwrap().stop_reason.as_deref().unwrap()), Stop::Length);
        let failed = answer(&[
            r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"context_length_exceeded","message":"no"},"usage":null}}"#,
        ])
        .unwrap();
        assert!(failed.is_error && failed.is_complete && failed.usage.is_none());
        assert_eq!(Responses.stop(failed.stop_reason.as_deref().unwrap()), Stop::Error);
    }

    #[test]
    fn tool_calls_and_errors_are_recognised() {
        let done = |kind: &str| format!(r#"{{"type":"response.output_item.done","item":{{"type":"{kind}"}}}}"#);
        assert!(answer(&[&done("function_call")]).unwrap().calls_tool);
        assert!(answer(&[&done("custom_tool_call")]).unwrap().calls_tool);
        assert!(!answer(&[&done("web_search_call")]).unwrap().calls_tool);
        assert!(
            answer(&[r#"{"object":"response","status":"completed","output":[{"type":"function_call"}]}"#])
                .unwrap()
                .calls_tool
        );
        for error in [
            r#"{"type":"error","sequence_number":2,"error":{"type":"invalid_request_error","code":"x","message":"no","param":null}}"#,
            r#"{"type":"error","code":"x","message":"no","param":null}"#,
            r#"{"error":{"message":"no"}}"#,
            r#"{"detail":"Store must be set to false"}"#,
            r#"{"object":"response","status":"failed","error":{"code":"server_error","message":"no"},"output":[]}"#,
        ] {
            assert!(answer(&[error]).unwrap().is_error, "{error}");
        }
        assert_eq!(answer(&["<html>"]), Err(InvalidAnswer));
        assert!(answer(&["[DONE]"]).unwrap().is_complete);
    }

    #[test]
    fn states_have_a_meaning() {
        for (reason, expected) in [
            ("completed", Stop::Done),
            ("", Stop::Done),
            ("max_output_tokens", Stop::Length),
            ("incomplete", Stop::Length),
            ("content_filter", Stop::ContentFilter),
            ("cancelled", Stop::Error),
            ("in_progress", Stop::Error),
        ] {
            assert_eq!(Responses.stop(reason), expected, "{reason}");
        }
    }

    #[test]
    fn only_the_last_event_is_worth_parsing() {
        for event in [r#"{"type":"response.completed","#, r#" {"sequence_number":3,"type" : "response.failed"}"#] {
            assert!(Responses.reports(event.as_bytes()), "{event}");
        }
        for event in [
            r#"{"type":"response.created","response":{"usage":null}}"#,
            r#"{"type":"response.output_text.delta","delta":"\"response.completed\""}"#,
        ] {
            assert!(!Responses.reports(event.as_bytes()), "{event}");
        }
    }
}
