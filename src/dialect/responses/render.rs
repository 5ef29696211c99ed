//! Results that are written, by the kind of call that they answer.
//!
//! A result has no id: that is optional, and one that is made up could be refused.

use bytes::Bytes;

use super::items::kind;
use crate::{conversation::CallId, dialect::strings};

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
    let text = strings::render(text);
    [br#"{"type":""#, name.as_bytes(), br#"","call_id":"#, id, before, &*text, behind].concat().into()
}
