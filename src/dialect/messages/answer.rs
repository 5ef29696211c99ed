//! Reads a message of the model, or one event of a streamed one.

use super::Messages;
use crate::dialect::answer::{Answer, AnswerFormat, InvalidAnswer, Members, Usage, has_value};
use crate::raw::Fields;

impl AnswerFormat for Messages {
    /// Whether an event may hold usage or the reason why the model stopped. The first byte of the value decides, as both are
    /// `null` where there is nothing to say.
    fn reports(&self, json: &[u8]) -> bool {
        has_value(json, b"\"usage\"", b'{') || has_value(json, b"\"stop_reason\"", b'"')
    }

    /// Adds one event, or a whole message, to an answer. The `type` may stand anywhere in it.
    fn read_answer(&self, json: &[u8], answer: &mut Answer) -> Result<(), InvalidAnswer> {
        let event = Members::of(json)?;
        let kind = event.string("type")?.unwrap_or_default();
        let start = event.object("message")?;
        let ending = if kind == "message_delta" { event.object("delta")? } else { None };
        let reason = |of: Option<&Members<'_>>| of.map_or(Ok(None), |of| of.string("stop_reason"));
        let (ended, whole, started) = (reason(ending.as_ref())?, event.string("stop_reason")?, reason(start.as_ref())?);
        answer.is_error |= kind == "error" || event.get("error").is_some();
        answer.is_complete |= kind == "message_stop";
        answer.stop_reason = ended.or(whole).or(started).or(answer.stop_reason.take());
        for usage in start.iter().chain([&event]).filter_map(|of| of.object("usage").ok()?) {
            let _not_told = usage.enter_usage(answer, bill);
        }
        if answer.text.is_some() {
            let delta = if kind == "content_block_delta" { event.object("delta")? } else { None };
            for block in event.object("content_block")?.into_iter().chain(delta).chain(event.objects("content")?) {
                read_block(&block, answer)?;
            }
        }
        Ok(())
    }
}

/// Adds what the model says in a block, or in what is added to one: text and calls.
fn read_block(block: &Members<'_>, answer: &mut Answer) -> Result<(), InvalidAnswer> {
    let kind = block.string("type")?.unwrap_or_default();
    answer.calls_tool |= matches!(&*kind, "tool_use" | "server_tool_use" | "mcp_tool_use");
    let said = block.string("text")?.filter(|_| matches!(&*kind, "text" | "text_delta"));
    if let Some(text) = &mut answer.text {
        text.extend(said);
    }
    Ok(())
}

/// Usage comes at the beginning of a stream and again, corrected, at its end, where it may lack what it has said before:
/// the last value of each field is the one that counts. Tokens that the prompt cache served or took are not part of
/// `input_tokens`.
fn bill(billed: &Members<'_>, old: Usage) -> Result<Usage, InvalidAnswer> {
    let old_plain_input = old.input.saturating_sub(old.cached).saturating_sub(old.written);
    let plain_input = billed.number("input_tokens")?.unwrap_or(old_plain_input);
    let cached = billed.number("cache_read_input_tokens")?.unwrap_or(old.cached);
    let written = billed.number("cache_creation_input_tokens")?.unwrap_or(old.written);
    // The written tokens, by how long they are kept.
    let by_lifetime = billed.get("cache_creation").and_then(Fields::of);
    let hour = by_lifetime.and_then(|tokens| tokens.get("ephemeral_1h_input_tokens")?.parse().ok());
    let written_hour = hour.unwrap_or(old.written_hour).min(written);
    let output = billed.number("output_tokens")?.unwrap_or(old.output);
    let input = plain_input.saturating_add(written).saturating_add(cached);
    Ok(Usage { input, cached, written, written_hour, output })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Stop;

    fn answer(events: &[&str]) -> Result<Answer, InvalidAnswer> {
        let mut answer = Answer::with_text();
        events.iter().try_for_each(|event| Messages.read_answer(event.as_bytes(), &mut answer))?;
        Ok(answer)
    }

    const START: &str = r#"{"type":"message_start","message":{"type":"message","content":[],"stop_reason":null,"usage":{"input_tokens":3,"cache_creation_input_tokens":20,"cache_read_input_tokens":100,"output_tokens":1}}}"#;

    #[test]
    fn events_of_a_stream_add_up_to_one_answer() {
        let all = answer(&[
            START,
            r#"{"type":"ping"}"#,
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"so"}}"#,
            r#"{"index":1, "content_block":{"type":"text","text":""}, "type": "content_block_start"}"#,
            r#"{"delta": {"text": "a\n", "type": "text_delta"}, "index": 1, "type": "content_block_delta"}"#,
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"é"}        }"#,
            r#"{"type":"content_block_stop","index":1}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":9}}"#,
            r#"{"type":"message_stop"              }"#,
        ]);
        let expected = Answer {
            text: Some("a\né".to_owned()),
            stop_reason: Some("end_turn".to_owned()),
            usage: Some(Usage { input: 123, cached: 100, written: 20, written_hour: 0, output: 9 }),
            is_complete: true,
            ..Answer::default()
        };
        assert_eq!(all, Ok(expected));
    }

    #[test]
    fn the_last_value_of_each_field_counts() {
        let usage = |delta: &str| answer(&[START, delta]).unwrap().usage.unwrap();
        let check = |fields: &str, [input, cached, written, written_hour, output]: [u64; 5]| {
            let delta = format!(r#"{{"type":"message_delta","delta":{{}},"usage":{{{fields}}}}}"#);
            assert_eq!(usage(&delta), Usage { input, cached, written, written_hour, output }, "{fields}");
        };
        check(r#""output_tokens":7"#, [123, 100, 20, 0, 7]);
        check(r#""input_tokens":5,"output_tokens":7"#, [125, 100, 20, 0, 7]);
        check(r#""input_tokens":5,"cache_read_input_tokens":200,"output_tokens":7"#, [225, 200, 20, 0, 7]);
        check(
            r#""input_tokens":5,"cache_creation_input_tokens":0,"cache_read_input_tokens":null"#,
            [105, 100, 0, 0, 1],
        );
        check(
            r#""cache_creation_input_tokens":30,"cache_creation":{"ephemeral_5m_input_tokens":10,"ephemeral_1h_input_tokens":20}"#,
            [133, 100, 30, 20, 1],
        );
    }

    #[test]
    fn a_whole_message_is_an_answer() {
        let all = answer(&[
            r#"{"stop_reason":"tool_use","content":[{"type":"text","text":"a"},{"type":"tool_use","id":"1","name":"f","input":{"text":1}},{"type":"text","text":"b"}],"usage":{"input_tokens":9,"output_tokens":3},"type":"message"}"#,
        ]);
        let all = all.unwrap();
        assert_eq!(all.text.as_deref(), Some("ab"));
        assert!(all.calls_tool && !all.is_error);
        assert_eq!(all.usage, Some(Usage { input: 9, cached: 0, output: 3, ..Usage::default() }));
        assert_eq!(all.stop_reason.as_deref(), Some("tool_use"));
    }

    #[test]
    fn usage_that_cannot_be_read_is_none() {
        // Some gateways count twice what a cache has served (maximhq/bifrost#1872).
        for odd in [r#"{"input_tokens":-12}"#, r#"{"input_tokens":"12"}"#, "7"] {
            let delta = format!(r#"{{"type":"message_delta","delta":{{"stop_reason":"end_turn"}},"usage":{odd}}}"#);
            let read = answer(&[&delta]).unwrap();
            assert_eq!((read.stop_reason.as_deref(), read.usage), (Some("end_turn"), None), "{odd}");
        }
    }

    #[test]
    fn errors_are_recognised() {
        assert!(answer(&[r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#]).unwrap().is_error);
        assert!(!answer(&[r#"{"type":"ping","error":null}"#]).unwrap().is_error);
        assert_eq!(answer(&["<html>"]), Err(InvalidAnswer));
        assert_eq!(answer(&[r#"{"type":"message","content":7}"#]), Err(InvalidAnswer));
    }

    #[test]
    fn text_that_nobody_wants_is_not_read() {
        let mut answer = Answer::default();
        Messages.read_answer(br#"{"type":"message","content":7,"stop_reason":"end_turn"}"#, &mut answer).unwrap();
        assert_eq!(answer, Answer { stop_reason: Some("end_turn".to_owned()), ..Answer::default() });
    }

    #[test]
    fn stop_reasons_have_a_meaning() {
        for (reason, expected) in [
            ("end_turn", Stop::Done),
            ("stop_sequence", Stop::Done),
            ("max_tokens", Stop::Length),
            ("model_context_window_exceeded", Stop::Length),
            ("tool_use", Stop::ToolCall),
            ("refusal", Stop::ContentFilter),
            ("pause_turn", Stop::Error),
            ("compaction", Stop::Error),
        ] {
            assert_eq!(Messages.stop(reason), expected, "{reason}");
        }
    }

    #[test]
    fn only_reported_values_are_worth_parsing() {
        assert!(Messages.reports(START.as_bytes()));
        assert!(Messages.reports(br#"{"delta" : {"stop_reason" : "end_turn"}, "type":"message_delta"}"#));
        assert!(
            !Messages.reports(br#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"\"usage\":{"}}"#)
        );
        assert!(!Messages.reports(br#"{"usage":null,"stop_reason": null}"#));
    }
}
