//! The tokens of one item, read where it lies.
//!
//! | what | tokens |
//! |---|---|
//! | an item | [`ITEM`], then what it says |
//! | a message | its role and its content; parts as in Chat Completions |
//! | a call | its name and its arguments |
//! | what is encrypted | a quarter of its bytes, see [`opaque`]; the summary beside it none |
//! | an image that a tool has made or taken | as one in a message |
//! | tools in the array | as those beside it |
//! | ids, states, marks for the cache | none: the model does not read them |
//! | all else | its text, or its JSON if it is none |
//!
//! Reasoning is counted wherever it stands. Most models are not billed for what is before the last message of the user,
//! but a count that depends on what comes after it would have edits of earlier requests come out otherwise later.
//!
//! Data in base64 is never counted as text.

use memchr::memmem;

use super::Responses;
use crate::dialect::chat_completions::tokens::{any, count_function, count_tools, each_part, image, part, sum};
use crate::dialect::json::element_fields;
use crate::dialect::tokens::{TokenRules, usual};
use crate::raw::{Fields, compact, elements, string};
use crate::tokens::image::USUAL_IN_TILES as IMAGE;
use crate::tokens::{Countable, Gauge};

/// What begins and ends an item.
const ITEM: usize = 3;

/// What encrypted content has beside the reasoning in it, in bytes.
const ENVELOPE: usize = 650;
const BYTES_PER_TOKEN: usize = 4;

/// Keys whose values no model reads.
const UNREAD: [&str; 11] = [
    "type",
    "id",
    "call_id",
    "status",
    "phase",
    "caller",
    "execution",
    "environment",
    "fingerprint",
    "approval_request_id",
    "prompt_cache_breakpoint",
];

impl TokenRules for Responses {
    fn count(&self, gauge: &Gauge, what: Countable, json: &str) -> usize {
        match what {
            Countable::Element | Countable::Call => item(gauge, json),
            Countable::Part => part(gauge, json),
            Countable::Tools => count_tools(gauge, json, count_tool),
            Countable::Instructions => ITEM + any(gauge, json),
            _ => usual(gauge, what, json),
        }
    }
}

/// An item, or an `input` that is a string.
fn item(gauge: &Gauge, json: &str) -> usize {
    let Some(fields) = element_fields(json) else { return ITEM + any(gauge, json) };
    ITEM + match fields.string("type").as_deref() {
        Some("computer_call_output") => fields.object("output").map_or(IMAGE, |screenshot| image(&screenshot)),
        Some("image_generation_call") if has(&fields, "result") => IMAGE,
        Some("reasoning") if has(&fields, "encrypted_content") => field(gauge, &fields, "encrypted_content"),
        _ => sum(fields.iter(), |(key, value)| value_of(gauge, key, value)),
    }
}

/// A function, a custom or built-in tool, or what is in a namespace.
fn count_tool(gauge: &Gauge, json: &str) -> usize {
    let Some(tool) = Fields::of(json) else { return gauge.text(&compact(json)) };
    match tool.string("type").as_deref() {
        Some("function") => count_function(gauge, &tool),
        Some("namespace") => tool.get("tools").and_then(elements).map(|tools| {
            let named = sum(["name", "description"], |key| field(gauge, &tool, key));
            named + sum(tools, |tool| gauge.text(&compact(tool)))
        }),
        _ => None,
    }
    .unwrap_or_else(|| gauge.text(&compact(json)))
}

fn has(fields: &Fields<'_>, key: &str) -> bool {
    fields.get(key).is_some_and(|value| value != "null")
}

fn field(gauge: &Gauge, fields: &Fields<'_>, key: &str) -> usize {
    fields.get(key).map_or(0, |value| value_of(gauge, key, value))
}

fn value_of(gauge: &Gauge, key: &str, value: &str) -> usize {
    match key {
        key if UNREAD.contains(&key) => 0,
        "encrypted_content" => string(value).map_or(0, |text| opaque(text.len())),
        "content" | "output" | "outputs" | "summary" if value.starts_with('[') => parts(gauge, value),
        "tools" if value.starts_with('[') => count_tools(gauge, value, count_tool),
        "output" | "content" | "arguments" | "input" if value.starts_with('"') => any(gauge, value),
        _ if memmem::find(value.as_bytes(), b";base64,").is_some() => IMAGE,
        _ => any(gauge, value),
    }
}

/// The parts of a content, those that are encrypted by their length.
fn parts(gauge: &Gauge, value: &str) -> usize {
    let Some(parts) = elements(value).filter(|_| value.contains("\"encrypted_content\"")) else {
        return each_part(gauge, value);
    };
    let encrypted =
        |part| Fields::of(part)?.get("encrypted_content").map(|text| value_of(gauge, "encrypted_content", text));
    sum(parts, |json| encrypted(json).unwrap_or_else(|| part(gauge, json)))
}

/// Tokens behind so many bytes of encrypted text in base64.
fn opaque(len: usize) -> usize {
    (len / 4 * 3).saturating_sub(ENVELOPE) / BYTES_PER_TOKEN
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::chat_completions::tokens::TOOLS;
    use crate::tokens::{Meter, Settings};

    fn gauge() -> Gauge {
        Meter::new(&Settings::default(), &[]).for_model(Some("gpt-5"))
    }

    fn count(item: &str) -> usize {
        Responses.count(&gauge(), Countable::Element, item)
    }

    #[test]
    fn what_is_said_is_counted_in_any_spelling() {
        let text = "one two three four";
        let words = gauge().text(text);
        assert_eq!(count(&format!("{text:?}")), ITEM + words);
        for message in [
            format!(r#"{{"role":"user","content":{text:?}}}"#),
            format!(r#"{{"type":"message","id":"msg_1","status":"completed","role":"user","content":{text:?}}}"#),
            format!(r#"{{"role":"user","content":[{{"type":"input_text","text":{text:?}}}]}}"#),
        ] {
            assert_eq!(count(&message), ITEM + 1 + words, "{message}");
        }
        for result in [
            format!(r#"{{"type":"function_call_output","call_id":"call_abcdef","output":{text:?}}}"#),
            format!(
                r#"{{"type":"custom_tool_call_output","call_id":"c","output":[{{"type":"input_text","text":{text:?}}}]}}"#
            ),
        ] {
            assert_eq!(count(&result), ITEM + words, "{result}");
        }
        let call = format!(r#"{{"type":"function_call","id":"fc_1","call_id":"c","name":"two","arguments":{text:?}}}"#);
        assert_eq!(count(&call), ITEM + 1 + words);
    }

    #[test]
    fn what_is_encrypted_is_counted_by_its_length() {
        let of = |kind: &str, len: usize| {
            count(&format!(
                r#"{{"type":"{kind}","id":"x","summary":[{{"type":"summary_text","text":"long and unread"}}],"encrypted_content":"{}"}}"#,
                "g".repeat(len)
            ))
        };
        assert_eq!(of("reasoning", 9420), ITEM + 1603);
        assert_eq!(of("reasoning", 6200), ITEM + 1000);
        assert_eq!(of("reasoning", 100), ITEM);
        assert!(of("compaction", 6200) >= ITEM + 1000);
        assert!(
            count(r#"{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"so it is"}]}"#)
                > ITEM
        );
    }

    #[test]
    fn data_in_base64_is_no_text() {
        let data = "iVBOR".repeat(50_000);
        for item in [
            format!(
                r#"{{"type":"computer_call_output","call_id":"c","output":{{"type":"computer_screenshot","image_url":"data:image/png;base64,{data}"}}}}"#
            ),
            format!(r#"{{"type":"image_generation_call","id":"ig_1","result":"{data}"}}"#),
            format!(
                r#"{{"role":"user","content":[{{"type":"input_image","image_url":"data:image/png;base64,{data}"}}]}}"#
            ),
            format!(r#"{{"type":"future_call","shot":"data:image/png;base64,{data}"}}"#),
        ] {
            assert!(count(&item) < 800, "{}", count(&item));
        }
        assert_eq!(count(r#"{"type":"item_reference","id":"msg_123456789"}"#), ITEM);
    }

    #[test]
    fn tools_are_counted_where_they_stand() {
        let gauge = gauge();
        let function = r#"{"type":"function","name":"f","description":"Does it.","parameters":{"type":"object","properties":{"a":{"type":"string"}}},"strict":true}"#;
        let one = Responses.count(&gauge, Countable::Tools, &format!("[{function}]"));
        let two = Responses.count(&gauge, Countable::Tools, &format!("[{function},{function}]"));
        assert!(one > TOOLS && two - one == one - TOOLS);
        let spaced = Responses.count(
            &gauge,
            Countable::Tools,
            &format!(r#"[{{"type":"namespace","name":"n","tools":[{function}]}}]"#),
        );
        assert!(spaced > TOOLS && spaced < 2 * two);
        assert_eq!(Responses.count(&gauge, Countable::Tools, "[]"), 0);
        let item = format!(r#"{{"type":"additional_tools","role":"developer","tools":[{function}]}}"#);
        assert_eq!(count(&item), ITEM + 1 + one);
    }
}
