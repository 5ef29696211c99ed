//! Reads an answer of the model, one event of a streamed one, or an array of such events.

use super::Gemini;
use crate::dialect::answer::{Answer, AnswerFormat, InvalidAnswer, Members, Stop, Usage, has_value};
use crate::raw;

impl AnswerFormat for Gemini {
    fn reports(&self, json: &[u8]) -> bool {
        has_value(json, b"\"usageMetadata\"", b'{') || has_value(json, b"\"finishReason\"", b'"')
    }

    fn read_answer(&self, json: &[u8], answer: &mut Answer) -> Result<(), InvalidAnswer> {
        let text = raw::utf8(json).ok_or(InvalidAnswer)?.trim_start();
        if !text.starts_with('[') {
            return read_event(text.as_bytes(), answer);
        }
        let events = raw::elements(text).ok_or(InvalidAnswer)?;
        events.into_iter().try_for_each(|event| read_event(event.as_bytes(), answer))
    }

    /// Returns what a reason means. One of several says that the model was done, whether it calls or not.
    fn stop(&self, reason: &str) -> Stop {
        match reason {
            "MAX_TOKENS" => Stop::Length,
            "SAFETY" | "RECITATION" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII" | "IMAGE_SAFETY" => {
                Stop::ContentFilter
            }
            "OTHER" | "LANGUAGE" | "MALFORMED_FUNCTION_CALL" | "UNEXPECTED_TOOL_CALL" => Stop::Error,
            _ => Stop::Done,
        }
    }
}

fn read_event(json: &[u8], answer: &mut Answer) -> Result<(), InvalidAnswer> {
    let event = Members::of(json)?;
    answer.is_error |= event.get("error").is_some();
    if let Some(feedback) = event.object("promptFeedback")? {
        answer.stop_reason = feedback.string("blockReason")?.or(answer.stop_reason.take());
    }
    let first = event.objects("candidates")?.into_iter().next();
    if let Some(candidate) = first {
        answer.stop_reason = candidate.string("finishReason")?.or(answer.stop_reason.take());
        let content = if answer.text.is_some() { candidate.object("content")? } else { None };
        for part in content.map_or(Ok(Vec::new()), |content| content.objects("parts"))? {
            answer.calls_tool |= part.get("functionCall").is_some();
            let said = part.string("text")?.filter(|_| part.get("thought") != Some("true"));
            if let Some(text) = &mut answer.text {
                text.extend(said);
            }
        }
    }
    if let Some(usage) = event.object("usageMetadata")? {
        let number = |key| usage.number(key).map(Option::unwrap_or_default);
        let input = number("promptTokenCount")?.saturating_add(number("toolUsePromptTokenCount")?);
        let output = number("candidatesTokenCount")?.saturating_add(number("thoughtsTokenCount")?);
        let cached = number("cachedContentTokenCount")?.min(input);
        answer.usage = Some(Usage { input, cached, written: 0, written_hour: 0, output });
    }
    Ok(())
}
