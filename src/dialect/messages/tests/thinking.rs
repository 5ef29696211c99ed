//! Which models sign their thinking together with all that precedes it, and what requests say of thinking.

use super::super::view::{drops_blocks, has_budget};
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
        assert!(Messages.binds_reasoning(model), "{model}");
    }
    for model in ["claude-opus-5", "claude-opus-5-50", "claude-opus-4-5", "claude-sonnet-5", "opus-5-5", "m", ""] {
        assert!(!Messages.binds_reasoning(model), "{model}");
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
