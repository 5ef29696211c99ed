//! Results that are written, by the kind of call that they answer.
//!
//! A result has no id of its own: that is optional, and one that is made up could be refused.

use bytes::Bytes;

use super::items::kind;
use crate::{conversation::CallId, dialect::json::push_string};

/// A result that says `text`. That of a local shell is in the form of a function's, which names the call that it answers.
pub(super) fn tool_result(body: &[u8], id: &CallId<'_>, text: &str) -> Bytes {
    let (name, before, behind): (&str, &[u8], &[u8]) = match id.kind {
        kind::CUSTOM => ("custom_tool_call_output", br#","output":"#, b"}"),
        kind::SHELL => (
            "shell_call_output",
            br#","output":[{"stdout":"","stderr":"#,
            br#","outcome":{"type":"exit","exit_code":1}}]}"#,
        ),
        kind::APPLY_PATCH => ("apply_patch_call_output", br#","status":"failed","output":"#, b"}"),
        _ => ("function_call_output", br#","output":"#, b"}"),
    };
    let id = id.raw.map_or(b"\"\"".as_slice(), |raw| raw.of(body));
    let mut item = Vec::with_capacity(128 + id.len() + text.len());
    item.extend_from_slice(br#"{"type":""#);
    item.extend_from_slice(name.as_bytes());
    item.extend_from_slice(br#"","call_id":"#);
    item.extend_from_slice(id);
    item.extend_from_slice(before);
    push_string(&mut item, text);
    item.extend_from_slice(behind);
    item.into()
}
