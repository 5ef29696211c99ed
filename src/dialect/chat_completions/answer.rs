//! Reads a chat completion, or one chunk of a streamed one.

use super::ChatCompletions;
use crate::dialect::answer::{Answer, AnswerFormat, InvalidAnswer, Members, has_value};
use crate::raw::elements;

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
        let chunk = Members::of(json)?;
        let choices = chunk.objects("choices")?;
        let first = choices.iter().find(|choice| matches!(choice.get("index"), None | Some("0")));
        // Moonshot has it in the choice (earendil-works/pi#2017), Groq in `x_groq` where it was not asked for.
        let of_choice = || choices.iter().find_map(|choice| choice.get("usage"));
        let of_groq = || chunk.object("x_groq").ok().flatten()?.get("usage");
        if let Some(usage) = chunk.get("usage").or_else(of_choice).or_else(of_groq) {
            let keys = ["prompt_tokens", "prompt_tokens_details", "completion_tokens"];
            let _not_told =
                Members::of_object(usage).and_then(|usage| usage.enter_usage(answer, |usage, _| usage.billed(keys)));
        }
        answer.is_error |= chunk.get("error").is_some();
        let Some(first) = first else { return Ok(()) };
        answer.stop_reason = first.string("finish_reason")?.or(answer.stop_reason.take());
        if answer.text.is_some() { read_said(first, answer) } else { Ok(()) }
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
