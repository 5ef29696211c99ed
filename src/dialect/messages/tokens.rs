//! The tokens of one message or one block, read where it lies.
//!
//! Anthropic publishes no tokenizer for Claude 3 and later. What stands here was measured on sessions of Claude Code, of which
//! each step was billed (2026-11): a step has 55 to 80 tokens beside its texts, and a signature of thinking is a token for
//! 3.5 to 4.6 bytes, by the model. How many tokens a text has is the gauge's matter, which knows the model.
//!
//! | what | tokens |
//! |---|---|
//! | a message | [`MESSAGE`] |
//! | a call | [`CALL`], its name, the JSON of its arguments; none of a program |
//! | a result | [`RESULT`], its texts |
//! | thinking | its signature, or its text where it has none |
//! | an image | by its size, [`Dimensions::by_area`]; [`MOST_BY_AREA`] if that is not known |
//! | a document | its text; one token for 64 bytes of data in base64; [`DOCUMENT`] where it is only named |
//! | what the server did, and blocks that no one knows | their texts; encrypted parts like a signature |
//! | ids, marks for the cache | none: the model does not read them |

use super::Messages;
use crate::dialect::chat_completions::tokens::{any, data, each, sum};
use crate::dialect::json::element_fields;
use crate::dialect::tokens::{TokenRules, usual};
use crate::raw::{Fields, compact, leaves};
use crate::tokens::image::{Dimensions, MOST_BY_AREA};
use crate::tokens::{Countable, Gauge};

/// What begins and ends a message.
const MESSAGE: usize = 3;
/// The tokens around a call.
const CALL: usize = 40;
/// The tokens around a result.
const RESULT: usize = 25;
/// A document that is not in the request: a page or two.
const DOCUMENT: usize = 3000;
/// How deep results are looked into; everything that is deeper is counted as JSON.
const DEPTH: usize = 8;

/// Keys whose values the model does not read as text.
const UNREAD: [&str; 6] = ["type", "id", "tool_use_id", "cache_control", "media_type", "caller"];

impl TokenRules for Messages {
    fn count(&self, gauge: &Gauge, what: Countable, json: &str) -> usize {
        match what {
            Countable::Element => element(gauge, json),
            Countable::Part | Countable::Call => one(gauge, json, DEPTH),
            Countable::Tools => each(gauge, json, tool),
            Countable::Instructions => content(gauge, json, DEPTH),
            _ => usual(gauge, what, json),
        }
    }
}

/// A message, or an entry of a user message.
fn element(gauge: &Gauge, json: &str) -> usize {
    let Some(fields) = element_fields(json) else { return gauge.text(json) };
    match (fields.get("role"), fields.get("content")) {
        (Some(_), json) => MESSAGE + json.map_or(0, |json| content(gauge, json, DEPTH)),
        (None, _) => block(gauge, &fields, DEPTH),
    }
}

/// The rule for tools is not published; their JSON is counted, without marks for the cache.
fn tool(gauge: &Gauge, json: &str) -> usize {
    let Some(fields) = Fields::of(json) else { return gauge.text(&compact(json)) };
    let read = fields.iter().filter(|(key, _)| *key != "cache_control");
    let members: Vec<_> = read.map(|(key, value)| format!("\"{key}\":{}", compact(value))).collect();
    gauge.text(&members.join(","))
}

/// The tokens of a block.
fn one(gauge: &Gauge, json: &str, depth: usize) -> usize {
    Fields::of(json).map_or_else(|| any(gauge, json), |fields| block(gauge, &fields, depth))
}

/// The tokens of a content: a string, or an array of blocks.
fn content(gauge: &Gauge, json: &str, depth: usize) -> usize {
    let Some(depth) = depth.checked_sub(1) else { return any(gauge, json) };
    each(gauge, json, |gauge, json| one(gauge, json, depth))
}

fn block(gauge: &Gauge, fields: &Fields<'_>, depth: usize) -> usize {
    let text = |key| fields.get(key).map_or(0, |value| any(gauge, value));
    match fields.string("type").as_deref() {
        Some("text") => text("text"),
        // The model does not read what its program calls.
        Some("tool_use")
            if fields.object("caller").is_some_and(|by| by.string("type").as_deref() != Some("direct")) =>
        {
            0
        }
        Some("tool_use" | "server_tool_use" | "mcp_tool_use") => {
            CALL + text("name") + fields.get("input").map_or(0, |input| gauge.text(&compact(input)))
        }
        Some("tool_result") => RESULT + fields.get("content").map_or(0, |json| content(gauge, json, depth)),
        Some("thinking") => sealed(gauge, fields.get("signature")).unwrap_or_else(|| text("thinking")),
        Some("redacted_thinking") => sealed(gauge, fields.get("data")).unwrap_or_default(),
        Some("image") => image(fields),
        Some("document") => text("title") + text("context") + document(gauge, fields, depth),
        _ => opaque(gauge, fields),
    }
}

/// The tokens of a value that only its maker can read. None if it is empty, or no string.
fn sealed(gauge: &Gauge, json: Option<&str>) -> Option<usize> {
    let length = json.filter(|json| json.starts_with('"'))?.len().saturating_sub(2);
    (length > 0).then(|| gauge.sealed(length))
}

fn image(fields: &Fields<'_>) -> usize {
    let data = fields.object("source").and_then(|source| source.get("data"));
    data.and_then(Dimensions::in_string).map_or(MOST_BY_AREA, Dimensions::by_area)
}

fn document(gauge: &Gauge, fields: &Fields<'_>, depth: usize) -> usize {
    let Some(source) = fields.object("source") else { return DOCUMENT };
    let of_data = source.get("data").unwrap_or_default();
    match source.string("type").as_deref() {
        Some("text") => any(gauge, of_data),
        Some("content") => source.get("content").map_or(0, |json| content(gauge, json, depth)),
        Some("base64") => data(of_data),
        _ => DOCUMENT,
    }
}

/// All texts that are in a block of another kind.
fn opaque(gauge: &Gauge, fields: &Fields<'_>) -> usize {
    let read = fields.iter().filter(|(key, _)| !UNREAD.contains(key));
    let texts = read.flat_map(|(key, json)| {
        let leaves = leaves(json).into_iter();
        leaves.map(move |leaf| (if leaf.key.is_empty() { key.to_owned() } else { leaf.key }, leaf.text))
    });
    sum(texts, |(key, text)| match key.as_str() {
        key if UNREAD.contains(&key) => 0,
        key if key.starts_with("encrypted_") || matches!(key, "signature" | "data") => gauge.sealed(text.len()),
        _ => gauge.text(&text),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::{Meter, Settings};

    fn gauge() -> Gauge {
        Meter::new(&Settings::default(), &[]).for_model(Some("claude-opus-4-6"))
    }

    fn check(json: &str, expected: usize) {
        assert_eq!(Messages.count(&gauge(), Countable::Element, json), expected, "{json}");
    }

    #[test]
    fn texts_are_counted_in_a_string_and_in_blocks() {
        let words = gauge().text("nine words of text, and some more of it");
        check(r#"{"role":"user","content":"nine words of text, and some more of it"}"#, MESSAGE + words);
        let block =
            r#"{"type":"text","text":"nine words of text, and some more of it","cache_control":{"type":"ephemeral"}}"#;
        check(block, words);
        check(&format!(r#"{{"role":"user","content":[{block},{block}]}}"#), MESSAGE + 2 * words);
        check(r#"{"role":"user"}"#, MESSAGE);
        check(r#"{"role":"user","content":[]}"#, MESSAGE);
    }

    #[test]
    fn calls_and_results_have_something_around_them() {
        let input = gauge().text(r#"{"command":"ls -l"}"#) + gauge().text("Bash");
        check(
            r#"{"role":"assistant","content":[{"type":"tool_use","id":"toolu_1","name":"Bash","input":{ "command" : "ls -l"}}]}"#,
            MESSAGE + CALL + input,
        );
        let words = gauge().text("total 0");
        check(r#"{"type":"tool_result","tool_use_id":"toolu_1","content":"total 0"}"#, RESULT + words);
        check(r#"{"type":"tool_result","tool_use_id":"toolu_1","is_error":true}"#, RESULT);
        check(
            r#"{"type":"tool_result","tool_use_id":"x","content":[{"type":"text","text":"total 0"},{"type":"image","source":{"type":"base64","data":"AAAA"}}]}"#,
            RESULT + words + MOST_BY_AREA,
        );
    }

    #[test]
    fn what_is_sealed_is_counted_by_its_length() {
        let signature = "A".repeat(460);
        check(&format!(r#"{{"type":"thinking","thinking":"a long thought","signature":"{signature}"}}"#), 100);
        check(&format!(r#"{{"type":"redacted_thinking","data":"{signature}"}}"#), 100);
        check(r#"{"type":"thinking","thinking":"so","signature":""}"#, gauge().text("so"));
        let found = format!(
            r#"{{"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[{{"type":"web_search_result","title":"A title","encrypted_content":"{signature}"}}]}}"#
        );
        check(&found, 100 + gauge().text("A title"));
    }

    #[test]
    fn documents_are_counted_by_what_is_there() {
        let data = "A".repeat(64 * 4);
        check(
            &format!(
                r#"{{"type":"document","source":{{"type":"base64","media_type":"application/pdf","data":"{data}"}}}}"#
            ),
            3,
        );
        check(
            r#"{"type":"document","source":{"type":"text","data":"some words"},"title":"One"}"#,
            gauge().text("some words") + gauge().text("One"),
        );
        check(r#"{"type":"document","source":{"type":"url","url":"https://x.org/a.pdf"}}"#, DOCUMENT);
    }

    #[test]
    fn tools_are_counted_without_marks() {
        let count = |json: &str| Messages.count(&gauge(), Countable::Tools, json);
        let plain = count(r#"[{"name":"f","description":"does it","input_schema":{"type":"object"}}]"#);
        assert!(plain > 10);
        assert_eq!(
            plain,
            count(
                r#"[ {"name":"f", "description":"does it","input_schema":{"type" : "object"},"cache_control":{"type":"ephemeral"}}]"#
            )
        );
    }

    #[test]
    fn great_depth_is_counted_as_text() {
        let nested = format!(
            r#"{{"type":"tool_result","content":{}{}}}"#,
            r#"[{"type":"tool_result","content":"#.repeat(50_000),
            "}]".repeat(50_000).replacen('}', "1}", 1)
        );
        assert!(Messages.count(&gauge(), Countable::Element, &nested) > 0);
        let deep =
            format!(r#"{{"type":"x","y":{}{}}}"#, r#"{"y":"#.repeat(50_000), "1".to_owned() + &"}".repeat(50_000));
        assert!(Messages.count(&gauge(), Countable::Element, &deep) > 0);
    }
}
