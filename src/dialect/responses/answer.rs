//! Reads a response, or one event of a streamed one.
//!
//! A stream says how it ended in its last event alone, which holds the whole response once more.

use memchr::memmem;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    dialect::answer::{Answer, InvalidAnswer, Stop, Usage},
    raw,
};

/// An event of a stream, or the whole response.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow)]
    r#type: Option<&'a RawValue>,
    #[serde(borrow)]
    response: Option<&'a RawValue>,
    #[serde(borrow)]
    delta: Option<&'a RawValue>,
    #[serde(borrow)]
    item: Option<&'a RawValue>,
    #[serde(borrow)]
    object: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    detail: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Response<'a> {
    status: Option<String>,
    incomplete_details: Option<Incomplete>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    usage: Option<WireUsage>,
    #[serde(borrow)]
    output: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Incomplete {
    reason: Option<String>,
}

#[derive(Deserialize)]
struct WireUsage {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    input_tokens_details: Option<Details>,
    abridge_all_rounds: Option<Box<WireUsage>>,
}

#[derive(Default, Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
    cache_write_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Output<'a> {
    r#type: Option<String>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Part {
    r#type: Option<String>,
    text: Option<String>,
}

/// The types of the last event of a stream.
const LAST: [&[u8]; 3] = [b"\"response.completed\"", b"\"response.incomplete\"", b"\"response.failed\""];

/// Whether an event may hold usage or how the response ended. The words may also be in a text; then the event is
/// parsed in vain.
pub(super) fn reports(json: &[u8]) -> bool {
    LAST.iter().any(|kind| memmem::find(json, kind).is_some())
}

/// Whether an event says nothing that is new: it repeats the request, or what pieces of the answer have said.
pub(super) fn repeats(json: &[u8]) -> bool {
    let event: Option<Event<'_>> = serde_json::from_slice(json).ok();
    let kind = event.and_then(|event| raw::string(event.r#type?.get()));
    kind.is_some_and(|kind| !kind.ends_with(".delta"))
}

/// Adds one event to an answer, or a whole response. Few servers write `[DONE]`.
pub(super) fn read(json: &[u8], answer: &mut Answer) -> Result<(), InvalidAnswer> {
    if json.trim_ascii() == b"[DONE]" {
        answer.is_complete = true;
        return Ok(());
    }
    let event: Event<'_> = serde_json::from_slice(json).map_err(|_| InvalidAnswer)?;
    let kind = event.r#type.and_then(|kind| raw::string(kind.get()));
    match kind.as_deref() {
        Some("response.completed" | "response.incomplete" | "response.failed") => {
            answer.is_complete = true;
            answer.is_error |= kind.as_deref() == Some("response.failed");
            read_response(event.response.ok_or(InvalidAnswer)?.get(), answer)
        }
        Some("response.output_text.delta") => match (&mut answer.text, event.delta) {
            (Some(text), Some(delta)) => {
                text.push_str(&raw::string(delta.get()).ok_or(InvalidAnswer)?);
                Ok(())
            }
            _ => Ok(()),
        },
        Some("response.output_item.done") => {
            let item = event.item.filter(|_| answer.text.is_some());
            let item: Option<Output<'_>> = item.and_then(|item| serde_json::from_str(item.get()).ok());
            answer.calls_tool |= item.is_some_and(|item| item.calls());
            Ok(())
        }
        Some("error") => {
            answer.is_error = true;
            Ok(())
        }
        Some(_) => Ok(()),
        None if event.object.is_some() => read_response(str::from_utf8(json).map_err(|_| InvalidAnswer)?, answer),
        None => {
            answer.is_error |= event.error.or(event.detail).is_some();
            Ok(())
        }
    }
}

/// Adds how a response ended, and what it said, which takes the place of what its events said. One backend leaves that out.
fn read_response(json: &str, answer: &mut Answer) -> Result<(), InvalidAnswer> {
    let response: Response<'_> = serde_json::from_str(json).map_err(|_| InvalidAnswer)?;
    answer.is_error |= response.error.is_some();
    if let Some(billed) = response.usage {
        answer.is_joined |= billed.abridge_all_rounds.is_some();
        let billed = match billed.abridge_all_rounds {
            Some(all) => *all,
            None => billed,
        };
        let input = billed.input_tokens.unwrap_or_default();
        let details = billed.input_tokens_details.unwrap_or_default();
        let cached = details.cached_tokens.unwrap_or_default();
        answer.usage = Some(Usage {
            input,
            cached,
            // Some gateways count what was served as written, too.
            written: details.cache_write_tokens.unwrap_or_default().min(input.saturating_sub(cached)),
            written_hour: 0,
            output: billed.output_tokens.unwrap_or_default(),
        });
    }
    let reason = response.incomplete_details.and_then(|details| details.reason);
    answer.stop_reason = reason.or(response.status).or(answer.stop_reason.take());
    match (&mut answer.text, response.output) {
        (Some(text), Some(output)) => {
            let items: Vec<Output<'_>> = serde_json::from_str(output.get()).map_err(|_| InvalidAnswer)?;
            answer.calls_tool |= items.iter().any(Output::calls);
            let said: String = items.iter().filter_map(Output::text).collect();
            if !said.is_empty() {
                *text = said;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

impl Output<'_> {
    /// Whether it waits for the client.
    fn calls(&self) -> bool {
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
        self.r#type.as_deref().is_some_and(|kind| CALLS.contains(&kind))
    }

    /// Returns what the model says in it.
    fn text(&self) -> Option<String> {
        let content = self.content.filter(|_| self.r#type.as_deref() == Some("message"))?;
        let parts: Vec<Part> = serde_json::from_str(content.get()).ok()?;
        let texts = parts.into_iter().filter(|part| part.r#type.as_deref() == Some("output_text"));
        Some(texts.filter_map(|part| part.text).collect())
    }
}

/// Returns what a state of a response, or the reason why it is incomplete, means.
pub(super) fn stop(reason: &str) -> Stop {
    match reason {
        "max_output_tokens" | "max_tokens" | "length" | "incomplete" => Stop::Length,
        "content_filter" => Stop::ContentFilter,
        "failed" | "cancelled" | "queued" | "in_progress" => Stop::Error,
        _ => Stop::Done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(events: &[&str]) -> Result<Answer, InvalidAnswer> {
        let mut answer = Answer::with_text();
        events.iter().try_for_each(|event| read(event.as_bytes(), &mut answer))?;
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
    }

    #[test]
    fn an_answer_that_broke_off_says_why() {
        let incomplete = answer(&[
            r#"{"type":"response.incomplete","response":{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"output":[]}}"#,
        ]);
        assert_eq!(stop(incomplete.unwrap().stop_reason.as_deref().unwrap()), Stop::Length);
        let failed = answer(&[
            r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"context_length_exceeded","message":"no"},"usage":null}}"#,
        ])
        .unwrap();
        assert!(failed.is_error && failed.is_complete && failed.usage.is_none());
        assert_eq!(stop(failed.stop_reason.as_deref().unwrap()), Stop::Error);
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
    fn only_events_that_say_nothing_new_may_be_outlined() {
        for kind in ["response.created", "response.completed", "response.failed", "response.output_text.done"] {
            assert!(repeats(format!(r#" {{"type":"{kind}","response":{{}}}}"#).as_bytes()), "{kind}");
        }
        for event in [r#"{"type":"response.output_text.delta","delta":""}"#, r#"{"delta":""}"#, "", "[DONE]"] {
            assert!(!repeats(event.as_bytes()), "{event}");
        }
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
            assert_eq!(stop(reason), expected, "{reason}");
        }
    }

    #[test]
    fn only_the_last_event_is_worth_parsing() {
        for event in [r#"{"type":"response.completed","#, r#" {"sequence_number":3,"type" : "response.failed"}"#] {
            assert!(reports(event.as_bytes()), "{event}");
        }
        for event in [
            r#"{"type":"response.created","response":{"usage":null}}"#,
            r#"{"type":"response.output_text.delta","delta":"\"response.completed\""}"#,
        ] {
            assert!(!reports(event.as_bytes()), "{event}");
        }
    }
}
