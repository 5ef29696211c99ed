//! A conversation as one text.

use bytes::Bytes;

use super::super::*;
use crate::{dialect::for_path, summary::InputElement};

fn source(elements: &[&str]) -> SummaryInput {
    let element = |json: &&str| InputElement {
        json: Bytes::from((*json).to_owned()),
        tokens: 100,
        opens: true,
        must_alternate: false,
    };
    let body = Bytes::from_static(br#"{"model":"m","input":[],"messages":[]}"#);
    SummaryInput { body, messages: elements.iter().map(element).collect(), n_leading: 0, base_tokens: 0 }
}

const TOLD: &str = "BEFORE\n\n### user\nhi\n\n### assistant\nI look.\n[calls read: {\"path\":\"x\"}]\n\n### tool result\nfound\n\nBEHIND";

#[test]
fn a_conversation_becomes_a_text_in_every_dialect() {
    let chat = source(&[
        r#"{"role":"user","content":"hi"}"#,
        r#"{"role":"assistant","content":"I look.","reasoning_content":"hm","tool_calls":[{"id":"a","type":"function","function":{"name":"read","arguments":"{\"path\":\"x\"}"}}]}"#,
        r#"{"role":"tool","tool_call_id":"a","content":[{"type":"text","text":"found"}]}"#,
        r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}"#,
    ]);
    let messages = source(&[
        r#"{"role":"user","content":"hi"}"#,
        r#"{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"I look."},{"type":"tool_use","id":"a","name":"read","input":{"path":"x"}}]}"#,
        r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"found"}]}"#,
        r#"{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]}"#,
    ]);
    for (path, source) in [("/v1/chat/completions", chat), ("/v1/messages", messages)] {
        let told = prompt(&source, for_path(path).unwrap(), &["BEFORE", "BEHIND"], usize::MAX);
        assert_eq!(told.as_deref(), Some(TOLD), "{path}");
    }
    // In Responses a call is an item by itself.
    let responses = source(&[
        r#"{"role":"user","content":"hi"}"#,
        r#"{"type":"reasoning","id":"rs_1","encrypted_content":"gAAA"}"#,
        r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":"I look."}]}"#,
        r#"{"type":"function_call","id":"fc_1","call_id":"a","name":"read","arguments":"{\"path\":\"x\"}"}"#,
        r#"{"type":"function_call_output","call_id":"a","output":"found"}"#,
        r#"{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,AAAA"}]}"#,
    ]);
    let told = prompt(&responses, for_path("/v1/responses").unwrap(), &["BEFORE", "BEHIND"], usize::MAX);
    assert_eq!(told.unwrap(), TOLD.replace("I look.\n[", "I look.\n\n### assistant\n["));
}

#[test]
fn the_middle_is_left_out_where_there_is_too_much() {
    let long = format!(r#"{{"role":"user","content":"A{}Z"}}"#, "é".repeat(4000));
    let source = source(&[&long]);
    let dialect = for_path("/v1/chat/completions").unwrap();
    for (most, expected) in [(100, 8000..9000), (50, 3900..4200), (10, 700..900)] {
        let told = prompt(&source, dialect, &["", ""], most).unwrap();
        assert!(expected.contains(&told.len()), "{most}: {}", told.len());
        assert!(told.contains("user\nAé") && told.contains("éZ"), "{most}");
        assert_eq!(told.contains(LEFT_OUT), most < 100, "{most}");
    }
}
