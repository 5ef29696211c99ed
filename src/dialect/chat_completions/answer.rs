//! Reads a chat completion, or one chunk of a streamed one.

use std::borrow::Cow;

use super::ChatCompletions;
use crate::dialect::answer::{Answer, AnswerFormat, InvalidAnswer, Members, has_value};
use crate::dialect::json::{Cursor, ReadResult, fields};
use crate::raw::{elements, unescaped, utf8};
use crate::span::Span;
use crate::string_index::StringIndex;

impl AnswerFormat for ChatCompletions {
    /// Whether a chunk may hold usage or the reason why the model stopped. Many servers write `"finish_reason":null` and
    /// `"usage":null` into every chunk, so the first byte of the value decides.
    fn reports(&self, json: &[u8]) -> bool {
        has_value(json, b"\"usage\"", b'{') || has_value(json, b"\"finish_reason\"", b'"')
    }

    /// Adds one chunk to an answer. `[DONE]` follows the last one of a stream.
    fn read_answer(&self, json: &[u8], answer: &mut Answer) -> Result<(), InvalidAnswer> {
        if json.trim_ascii() == b"[DONE]" {
            answer.is_complete = true;
            return Ok(());
        }
        let json = utf8(json).ok_or(InvalidAnswer)?;
        let chunk = Chunk::of(json).map_err(|_| InvalidAnswer)?;
        let value =
            |span: Option<Span>| span.and_then(|span| json.get(span.start..span.end)).filter(|json| *json != "null");
        let reason = value(chunk.reason).map(|json| unescaped(json).ok_or(InvalidAnswer)).transpose()?;
        if let Some(usage) = value(chunk.usage) {
            let keys = ["prompt_tokens", "prompt_tokens_details", "completion_tokens"];
            let _not_told =
                Members::of_object(usage).and_then(|usage| usage.enter_usage(answer, |usage, _| usage.billed(keys)));
        }
        answer.is_error |= value(chunk.error).is_some();
        answer.stop_reason = reason.map(Cow::into_owned).or(answer.stop_reason.take());
        match value(chunk.first) {
            Some(first) if answer.text.is_some() => read_said(&Members::of_object(first)?, answer),
            _ => Ok(()),
        }
    }
}

/// The places of the values that are read, found in one pass over a chunk.
#[derive(Default)]
struct Chunk {
    /// The first choice, and why that stopped.
    first: Option<Span>,
    reason: Option<Span>,
    /// Moonshot has it in the choice (earendil-works/pi#2017), Groq in `x_groq` where it was not asked for.
    usage: Option<Span>,
    error: Option<Span>,
}

impl Chunk {
    fn of(json: &str) -> ReadResult<Self> {
        let (mut chunk, mut cursor) = (Self::default(), Cursor::indexed(json.as_bytes(), StringIndex::EMPTY));
        let mut usage = None;
        cursor.members(|cursor, key| {
            let is_there = cursor.peek() != Some(b'n');
            match &*key {
                b"choices" if is_there => _ = cursor.elements(|cursor| chunk.add_choice(cursor))?,
                b"x_groq" if cursor.peek() == Some(b'{') => [chunk.usage] = fields(cursor, [b"usage"])?,
                b"usage" if is_there => usage = Some(cursor.value()?),
                b"error" => chunk.error = Some(cursor.value()?),
                _ => _ = cursor.value()?,
            }
            Ok(())
        })?;
        chunk.usage = usage.or(chunk.usage);
        cursor.end().map(|()| chunk)
    }

    fn add_choice(&mut self, cursor: &mut Cursor<'_>) -> ReadResult {
        let start = cursor.at();
        let (mut index, mut reason) = (None, None);
        // Of two members with one name the last one counts, as for most readers.
        cursor.members(|cursor, key| {
            let value = cursor.value()?;
            match &*key {
                b"index" => index = Some(value),
                b"finish_reason" => reason = Some(value),
                b"usage" => self.usage = Some(value),
                _ => {}
            }
            Ok(())
        })?;
        let is_first = index.is_none_or(|index| matches!(cursor.bytes(index), b"0" | b"null"));
        if is_first && self.first.is_none() {
            (self.first, self.reason) = (Some(Span { start, end: cursor.at() }), reason);
        }
        Ok(())
    }
}

/// Adds what the model says in a choice: text and calls.
fn read_said(choice: &Members<'_>, answer: &mut Answer) -> Result<(), InvalidAnswer> {
    let key = if choice.get("delta").is_some() { "delta" } else { "message" };
    let Some(said) = choice.object(key)? else { return Ok(()) };
    let calls = said.get("tool_calls").is_some_and(|calls| elements(calls).is_none_or(|calls| !calls.is_empty()));
    answer.calls_tool |= calls || said.get("function_call").is_some();
    let Some(text) = &mut answer.text else { return Ok(()) };
    if said.get("content").is_some_and(|content| content.starts_with('[')) {
        let parts: Vec<_> =
            said.objects("content")?.iter().map(|part| part.string("text")).collect::<Result<_, _>>()?;
        text.extend(parts.into_iter().flatten());
    } else {
        text.extend(said.string("content")?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Stop;
    use crate::tokens::Usage;

    fn answer(chunks: &[&str]) -> Result<Answer, InvalidAnswer> {
        let mut answer = Answer::with_text();
        chunks.iter().try_for_each(|chunk| ChatCompletions.read_answer(chunk.as_bytes(), &mut answer))?;
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

    /// The tokens of an answer (of the prompt, served from the cache, written to it, of the answer), and its members that say so.
    const BILLS: &str = r#"
# Kimi (pi#8075), DeepSeek, and both names.
19 12 0 13 "usage":{"prompt_tokens":19,"completion_tokens":13,"total_tokens":32,"cached_tokens":12}
9 8 0 3 "usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_cache_hit_tokens":8,"prompt_cache_miss_tokens":1}
9 8 0 3 "usage":{"prompt_tokens":9,"completion_tokens":3,"cached_tokens":null,"prompt_tokens_details":{"cached_tokens":8}}
# Qwen (litellm#40090), LiteLLM.
1900 0 1889 3 "usage":{"prompt_tokens":1900,"completion_tokens":3,"prompt_tokens_details":{"cache_creation_input_tokens":1889,"cache_type":"ephemeral","cached_tokens":0}}
90 60 20 3 "usage":{"prompt_tokens":90,"completion_tokens":3,"total_tokens":93,"cache_creation_input_tokens":20,"cache_read_input_tokens":60,"prompt_tokens_details":{"cached_tokens":60,"cache_creation_tokens":20}}
# xAI (sub2api#5771), Google, Portkey (gateway#1754).
10120 128 0 4308 "usage":{"prompt_tokens":10120,"completion_tokens":1499,"total_tokens":14428,"prompt_tokens_details":{"cached_tokens":128},"completion_tokens_details":{"reasoning_tokens":2809}}
20 0 0 996 "usage":{"prompt_tokens":20,"completion_tokens":424,"total_tokens":1016}
90 60 20 3 "usage":{"prompt_tokens":10,"completion_tokens":3,"total_tokens":93,"cache_creation_input_tokens":20,"cache_read_input_tokens":60}
# Numbers that cannot be read.
9 0 0 3 "usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":"12","prompt_tokens_details":[],"cached_tokens":-1}
# Moonshot in a stream, Groq that was not asked, OpenAI that was.
9 0 0 3 "choices":[{"index":0,"delta":{},"finish_reason":"stop","usage":{"prompt_tokens":9,"completion_tokens":3}}]
9 0 0 3 "choices":[],"x_groq":{"id":"req","usage":{"prompt_tokens":9,"completion_tokens":3}},"usage":null
9 0 0 3 "usage":{"prompt_tokens":9,"completion_tokens":3},"choices":[{"usage":{"prompt_tokens":1}}],"x_groq":null
"#;

    #[test]
    fn a_bill_is_read_wherever_and_however_a_provider_writes_it() {
        for line in BILLS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut words = line.splitn(5, ' ');
            let [input, cached, written, output] = [(); 4].map(|()| words.next().unwrap().parse().unwrap());
            let usage = Usage { input, cached, written, written_hour: 0, output };
            assert_eq!(answer(&[&format!("{{{}}}", words.next().unwrap())]).unwrap().usage, Some(usage), "{line}");
        }
        for none in ["null", "7", r#"{"prompt_tokens":-12}"#, r#"{"prompt_tokens":"12"}"#] {
            let chunk = format!(r#"{{"x_groq":{{"id":"req"}},"choices":[{{"finish_reason":"stop","usage":{none}}}]}}"#);
            let read = answer(&[&chunk]).unwrap();
            assert_eq!((read.stop_reason.as_deref(), read.usage), (Some("stop"), None), "{none}");
        }
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
    fn a_bill_beside_a_name_that_comes_twice_is_read() {
        let chunk = r#"{"choices":[{"index":0,"index":0,"finish_reason":null,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":3.0}}"#;
        let answer = answer(&[chunk]).unwrap();
        let usage = Usage { input: 9, output: 3, ..Usage::default() };
        assert_eq!((answer.stop_reason.as_deref(), answer.usage), (Some("stop"), Some(usage)));
    }

    #[test]
    fn text_that_nobody_wants_is_not_read() {
        let mut answer = Answer::default();
        ChatCompletions.read_answer(br#"{"choices":[{"delta":7,"finish_reason":"stop"}]}"#, &mut answer).unwrap();
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
            assert_eq!(ChatCompletions.stop(reason), expected, "{reason}");
        }
    }

    #[test]
    fn only_reported_values_are_worth_parsing() {
        assert!(
            ChatCompletions.reports(br#"{"usage" : {"prompt_tokens":1}}"#)
                && ChatCompletions.reports(br#"{"finish_reason":"stop"}"#)
        );
        assert!(!ChatCompletions.reports(br#"{"usage":null,"finish_reason": null,"x":"\"usage\""}"#));
    }
}
