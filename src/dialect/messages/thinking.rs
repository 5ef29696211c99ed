//! Which models sign their thinking together with all that precedes it.

use bytes::Bytes;

use crate::dialect::json::{Cursor, beginning, field, fields, fields_of, text_of};
use crate::dialect::{BytesAt, Switch};
use crate::span::Span;

/// The models whose API refuses thinking, or drops it, where what precedes it has changed, as the maker's
/// documentation of October 2026 lists them. Later releases of a model are different, and have their own lines.
const BINDING: [&str; 6] = ["fable-5-1", "fable-5-2", "haiku-5-5", "mythos-5-2", "opus-5-5", "sonnet-5-5"];

/// Whether thinking of a model is bound to its prefix, whichever way a gateway spells the name.
pub(super) fn is_bound(model: &str) -> bool {
    let name = model.to_ascii_lowercase().replace(['.', '_'], "-");
    let ends_there = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_digit());
    let known = BINDING.iter().filter_map(|known| name.split_once("claude-")?.1.strip_prefix(known));
    known.into_iter().any(|rest| ends_there(rest) || rest.starts_with('-'))
}

/// Whether a request asks the API to drop thinking that does not fit, so that none has to be left out before it is sent.
pub(super) fn drops_blocks(body: &[u8], thinking: Span) -> bool {
    let binding = field(body, thinking, b"block_binding");
    let behavior = binding.and_then(|binding| field(body, binding, b"prefix_mismatch_behavior"));
    text_of(body, behavior).is_some_and(|behavior| behavior == "drop_block")
}

/// Whether a request has the model think within a budget: then the API refuses calls of the running turn without thinking.
pub(super) fn has_budget(body: &[u8], thinking: Span) -> bool {
    field(body, thinking, b"type").is_some_and(|kind| kind.of(body) == br#""enabled""#)
}

/// What has the API drop thinking that does not fit. None for a request that says itself what becomes of it, or that has no
/// settings of thinking to add that to.
pub(super) fn drop_mismatches(request: &[u8]) -> Option<Switch> {
    let [thinking] = fields(&mut Cursor::new(request), [b"thinking"]).ok()?;
    let thinking = beginning(request, thinking, b'{')?;
    let [binding, kind] = fields_of(request, thinking, [b"block_binding", b"type"])?;
    let at = thinking.end.checked_sub(1).filter(|_| binding.is_none() && kind.is_some())?;
    Some(Switch {
        insertion: BytesAt { at, bytes: Bytes::from_static(DROP) },
        beta: "thinking-binding-controls-2026-08-01",
    })
}

const DROP: &[u8] = br#","block_binding":{"prefix_mismatch_behavior":"drop_block"}"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_by_any_spelling_of_their_names() {
        for model in [
            "claude-opus-5-5",
            "claude-opus-5.5",
            "anthropic/claude-opus-5.5:thinking",
            "us.anthropic.claude-fable-5-1-20260826-v1:0",
            "claude-haiku-5-5@20260901",
        ] {
            assert!(is_bound(model), "{model}");
        }
        for model in ["claude-opus-5", "claude-opus-5-50", "claude-opus-4-5", "claude-sonnet-5", "opus-5-5", "m", ""] {
            assert!(!is_bound(model), "{model}");
        }
    }

    #[test]
    fn enabled_thinking_has_a_budget() {
        let has = |thinking: &str| has_budget(thinking.as_bytes(), Span { start: 0, end: thinking.len() });
        assert!(has(r#"{"budget_tokens":2000,"type":"enabled"}"#));
        for thinking in [r#"{"type":"adaptive"}"#, r#"{"type":"disabled"}"#, "{}", "null", r#""enabled""#] {
            assert!(!has(thinking), "{thinking}");
        }
    }

    #[test]
    fn what_the_request_asks_the_api_to_drop_itself() {
        let asks = |thinking: &str| drops_blocks(thinking.as_bytes(), Span { start: 0, end: thinking.len() });
        assert!(asks(r#"{"type":"adaptive","block_binding":{"prefix_mismatch_behavior":"drop_block"}}"#));
        for thinking in [
            r#"{"block_binding":{"prefix_mismatch_behavior":"error"}}"#,
            r#"{"block_binding":"drop_block"}"#,
            r#"{"type":"adaptive"}"#,
            r#""drop_block""#,
        ] {
            assert!(!asks(thinking), "{thinking}");
        }
    }
}
