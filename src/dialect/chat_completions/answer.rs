//! Reads a chat completion, or one chunk of a streamed one.

use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use crate::dialect::answer::{Answer, InvalidAnswer, Stop, Usage, has_value};

/// The report of a chunk of a stream, or of the whole answer.
#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow)]
    choices: Option<Vec<Choice<'a>>>,
    usage: Option<WireUsage>,
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    index: Option<&'a RawValue>,
    finish_reason: Option<String>,
}

/// The model's words in it.
#[derive(Deserialize)]
struct Said<'a> {
    #[serde(borrow)]
    choices: Option<Vec<SaidChoice<'a>>>,
}

#[derive(Deserialize)]
struct SaidChoice<'a> {
    #[serde(borrow)]
    index: Option<&'a RawValue>,
    #[serde(borrow)]
    delta: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct MessageDelta<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<&'a RawValue>,
    #[serde(borrow)]
    function_call: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Part {
    text: Option<String>,
}

#[derive(Deserialize)]
struct WireUsage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
    abridge_all_rounds: Option<Box<WireUsage>>,
}

#[derive(Default, Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
    cache_write_tokens: Option<u64>,
}

/// Whether a chunk may hold usage or the reason why the model stopped. Many servers write `"finish_reason":null` and
/// `"usage":null` into every chunk, so the first byte of the value decides.
pub(super) fn reports(json: &[u8]) -> bool {
    has_value(json, b"\"usage\"", b'{') || has_value(json, b"\"finish_reason\"", b'"')
}

/// Adds one chunk to an answer. `[DONE]` follows the last one of a stream.
pub(super) fn read(json: &[u8], answer: &mut Answer) -> Result<(), InvalidAnswer> {
    if json.trim_ascii() == b"[DONE]" {
        answer.is_complete = true;
        return Ok(());
    }
    let chunk: Chunk<'_> = serde_json::from_slice(json).map_err(|_| InvalidAnswer)?;
    answer.is_error |= chunk.error.is_some();
    if let Some(billed) = chunk.usage {
        answer.is_joined |= billed.abridge_all_rounds.is_some();
        let billed = match billed.abridge_all_rounds {
            Some(all) => *all,
            None => billed,
        };
        let input = billed.prompt_tokens.unwrap_or_default();
        let details = billed.prompt_tokens_details.unwrap_or_default();
        let cached = details.cached_tokens.unwrap_or_default();
        answer.usage = Some(Usage {
            input,
            cached,
            // Some gateways count what was served as written, too.
            written: details.cache_write_tokens.unwrap_or_default().min(input.saturating_sub(cached)),
            written_hour: 0,
            output: billed.completion_tokens.unwrap_or_default(),
        });
    }
    let first = chunk.choices.into_iter().flatten().find(|choice| is_first(choice.index));
    let reason = first.and_then(|choice| choice.finish_reason);
    answer.stop_reason = reason.or(answer.stop_reason.take());
    if answer.text.is_some() { read_said(json, answer) } else { Ok(()) }
}

/// Adds what the model says in a chunk: text and calls of the first choice.
fn read_said(json: &[u8], answer: &mut Answer) -> Result<(), InvalidAnswer> {
    let said: Said<'_> = serde_json::from_slice(json).map_err(|_| InvalidAnswer)?;
    let mut choices = said.choices.into_iter().flatten();
    let first = choices.find(|choice| is_first(choice.index));
    let Some(message) = first.and_then(|choice| choice.delta.or(choice.message)) else { return Ok(()) };
    let said: MessageDelta<'_> = serde_json::from_str(message.get()).map_err(|_| InvalidAnswer)?;
    answer.calls_tool |= said.tool_calls.is_some_and(|calls| !is_empty_array(calls)) || said.function_call.is_some();
    if let (Some(text), Some(content)) = (&mut answer.text, said.content) {
        text.push_str(&text_of(content).ok_or(InvalidAnswer)?);
    }
    Ok(())
}

/// Whether a choice with this index is the first one.
fn is_first(index: Option<&RawValue>) -> bool {
    index.is_none_or(|index| matches!(index.get(), "0" | "null"))
}

fn is_empty_array(json: &RawValue) -> bool {
    json.get().strip_prefix('[').is_some_and(|rest| rest.trim_ascii_start() == "]")
}

/// The text of a content, which is a string or an array of parts.
fn text_of(content: &RawValue) -> Option<String> {
    let json = content.get();
    if json.starts_with('[') {
        let parts: Vec<Part> = serde_json::from_str(json).ok()?;
        return Some(parts.into_iter().filter_map(|part| part.text).collect());
    }
    serde_json::from_str(json).ok()
}

/// Returns what a finish reason means.
pub(super) fn stop(reason: &str) -> Stop {
    match reason {
        "tool_calls" | "function_call" => Stop::ToolCall,
        "length" | "max_tokens" => Stop::Length,
        "content_filter" => Stop::ContentFilter,
        "error" => Stop::Error,
        _ => Stop::Done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(chunks: &[&str]) -> Result<Answer, InvalidAnswer> {
        let mut answer = Answer::with_text();
        chunks.iter().try_for_each(|chunk| read(chunk.as_bytes(), &mut answer))?;
        Ok(answer)
    }

    #[test]
    fn chunks_of_a_stream_add_up_to_one_answer() {
        let all = answer(&[
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":null}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"a\n"},"finish_reason":null}],"usage":null}"#,
            r#"{"choices":[{"index":1,"delta":{"content":"other"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":[{"type":"text","text":"é"}]},"finish_reason":"stop"}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}"#,
        ]);
        let expected = Answer {
            text: Some("a\né".to_owned()),
            stop_reason: Some("stop".to_owned()),
            usage: Some(Usage { input: 9, cached: 8, output: 3, ..Usage::default() }),
            ..Answer::default()
        };
        assert_eq!(all, Ok(expected));
    }

    #[test]
    fn of_several_choices_the_first_says_why_it_stopped() {
        let stop = |chunks: &[&str]| answer(chunks).unwrap().stop_reason;
        let ends =
            |index: &str, reason: &str| format!(r#"{{"choices":[{{"index":{index},"finish_reason":"{reason}"}}]}}"#);
        let (first, second) = (ends("0", "stop"), ends("1", "length"));
        assert_eq!(stop(&[&first, &second]).as_deref(), Some("stop"));
        assert_eq!(stop(&[&second, &first]).as_deref(), Some("stop"));
        assert_eq!(stop(&[&second]), None);
        let both = r#"{"choices":[{"index":1,"finish_reason":"length"},{"index":0,"finish_reason":"stop"}]}"#;
        assert_eq!(stop(&[both]).as_deref(), Some("stop"));
    }

    #[test]
    fn tool_calls_and_errors_are_recognised() {
        assert!(answer(&[r#"{"choices":[{"delta":{"tool_calls":[{}]}}]}"#]).unwrap().calls_tool);
        assert!(answer(&[r#"{"choices":[{"message":{"content":"","function_call":{}}}]}"#]).unwrap().calls_tool);
        assert!(!answer(&[r#"{"choices":[{"message":{"content":"","tool_calls":[ ]}}]}"#]).unwrap().calls_tool);
        assert!(answer(&[r#"{"error":{"message":"no"}}"#]).unwrap().is_error);
        assert!(!answer(&[r#"{"choices":null,"error":null}"#]).unwrap().is_error);
        assert_eq!(answer(&["<html>"]), Err(InvalidAnswer));
        assert_eq!(answer(&[r#"{"choices":[{"delta":{"content":7}}]}"#]), Err(InvalidAnswer));
    }

    #[test]
    fn text_that_nobody_wants_is_not_read() {
        let mut answer = Answer::default();
        read(br#"{"choices":[{"delta":7,"finish_reason":"stop"}]}"#, &mut answer).unwrap();
        assert_eq!(answer, Answer { stop_reason: Some("stop".to_owned()), ..Answer::default() });
    }

    #[test]
    fn finish_reasons_have_a_meaning() {
        for (reason, expected) in [
            ("length", Stop::Length),
            ("max_tokens", Stop::Length),
            ("content_filter", Stop::ContentFilter),
            ("tool_calls", Stop::ToolCall),
            ("function_call", Stop::ToolCall),
            ("error", Stop::Error),
            ("stop", Stop::Done),
            ("end_turn", Stop::Done),
            ("", Stop::Done),
        ] {
            assert_eq!(stop(reason), expected, "{reason}");
        }
    }

    #[test]
    fn only_reported_values_are_worth_parsing() {
        assert!(reports(br#"{"usage" : {"prompt_tokens":1}}"#) && reports(br#"{"finish_reason":"stop"}"#));
        assert!(!reports(br#"{"usage":null,"finish_reason": null,"x":"\"usage\""}"#));
    }
}
