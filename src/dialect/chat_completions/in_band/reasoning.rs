//! Reasoning in entries, which come in pieces: each goes back to the model as one, and is numbered on for the client.
#![expect(clippy::disallowed_types, reason = "answers of a model that calls abridge, of which another answer is made")]

use serde_json::Value;

use crate::dialect::in_band::{Object, append, number};

/// The members of a message that have reasoning in entries, which come in pieces.
pub(super) const REASONING: [&str; 2] = ["reasoning_details", "thinking_blocks"];

/// Adds a piece to the entry of the same number; without numbers, to the last one, up to its signature.
pub(super) fn add_reasoning(entries: &mut Vec<Value>, piece: &Value) {
    let is_same = |entry: &Value| match (entry.get("index"), piece.get("index")) {
        (None | Some(Value::Null), None | Some(Value::Null)) => {
            entry.get("type") == piece.get("type")
                && entry.get("signature").is_none_or(|signed| signed.as_str() < Some("\0"))
        }
        (old, new) => old == new,
    };
    match (entries.iter_mut().rfind(|entry| is_same(entry)), piece) {
        (Some(Value::Object(entry)), Value::Object(piece)) => {
            for (key, value) in piece.iter().filter(|(_, value)| !value.is_null()) {
                match value {
                    Value::String(more)
                        if matches!(key.as_str(), "text" | "summary" | "data" | "thinking" | "signature") =>
                    {
                        append(entry, key, more);
                    }
                    _ => drop(entry.insert(key.clone(), value.clone())),
                }
            }
        }
        _ => entries.push(piece.clone()),
    }
}

/// Lets the numbers of entries go on behind those of the rounds before.
pub(super) fn number_on(delta: &mut Object, key: &str, n_before: u64) {
    let entries = delta.get_mut(key).and_then(Value::as_array_mut);
    for entry in entries.into_iter().flatten().filter_map(Value::as_object_mut) {
        if let Some(index) = number(entry, "index") {
            entry.insert("index".to_owned(), (n_before + index).into());
        }
    }
}
