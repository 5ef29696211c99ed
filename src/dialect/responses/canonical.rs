//! An item as its model reads it, whichever way a client spells it from one request to the next.

use super::super::Field;
use super::super::canonical::{self, Member, member, members, object, text};
use super::super::json::{Cursor, ReadResult};

/// Members of an item or a part that a model does not read: marks for prompt caches, and how far an item had come.
const UNREAD: [&[u8]; 2] = [b"status", b"prompt_cache_breakpoint"];

/// What reasoning holds. Whether a client sends all of it back depends on its settings.
const THOUGHTS: [&[u8]; 3] = [b"content", b"encrypted_content", b"summary"];

/// Members of a text part that say nothing where they are empty.
const NOTES: [&[u8]; 2] = [b"annotations", b"logprobs"];

/// How a text begins.
const TEXT: &[u8] = br#"{"text":"#;

/// The fields of an item that its model reads, by name.
pub(super) fn fields(item: &[u8]) -> ReadResult<Vec<Field<'_>>> {
    if item.starts_with(b"\"") {
        // An `input` that is a string.
        return canonical::fields(vec![(b"content", content(item)?), (b"role", vec![b"\"user\""])]);
    }
    let members = members(&mut Cursor::starting(item, 0), &UNREAD)?;
    let kind = member(&members, b"type");
    let is_message = kind.map_or(member(&members, b"role").is_some(), |kind| kind == b"\"message\"");
    let is_reasoning = kind == Some(b"\"reasoning\"");
    // The id of an item is not a part of what is read, unless the item is known by nothing else.
    let has_needless_id = is_message || is_reasoning || member(&members, b"call_id").is_some();
    let is_read = |name: &[u8]| match name {
        b"id" => !has_needless_id,
        b"type" => !is_message,
        name => !(is_reasoning && THOUGHTS.contains(&name)),
    };
    let mut read = Vec::new();
    for (name, value) in members.into_iter().filter(|(name, _)| is_read(name)) {
        let value = match (name, value.first()) {
            (b"content" | b"output", Some(b'"' | b'[')) => content(value)?,
            _ => vec![value],
        };
        read.push((name, value));
    }
    canonical::fields(read)
}

fn content(value: &[u8]) -> ReadResult<Vec<&[u8]>> {
    canonical::content(value, &UNREAD, TEXT, part)
}

fn part(members: Vec<Member<'_>>) -> Vec<&[u8]> {
    let is_plain = members
        .iter()
        .all(|(name, value)| matches!(*name, b"type" | b"text") || (NOTES.contains(name) && *value == b"[]"));
    match (member(&members, b"type"), member(&members, b"text")) {
        (Some(b"\"input_text\"" | b"\"output_text\"" | b"\"text\""), Some(value @ [b'"', ..])) if is_plain => {
            text(TEXT, value)
        }
        _ => object(members),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(item: &str) -> String {
        let written = |field: Field<'_>| format!("{}={}", field.name, String::from_utf8(field.value.concat()).unwrap());
        fields(item.as_bytes()).unwrap().into_iter().map(written).collect::<Vec<_>>().join(" ")
    }

    fn same(items: &[&str]) -> String {
        let all: Vec<_> = items.iter().map(|item| canonical(item)).collect();
        assert!(all.iter().all(|one| *one == all[0]), "{all:#?}");
        all[0].clone()
    }

    #[test]
    fn a_message_is_the_same_in_every_spelling() {
        same(&[
            r#""x""#,
            r#"{"role":"user","content":"x"}"#,
            r#"{ "content" : "x", "role":"user" , "type" : "message", "status":null,"id":"msg_1"}"#,
            r#"{"role":"user","content":[{"type":"input_text","text":"x"}]}"#,
            r#"{"role":"user","content":[{"text":"x","prompt_cache_breakpoint":{"mode":"explicit"},"type":"input_text"}]}"#,
        ]);
        same(&[
            r#"{"type":"message","role":"assistant","content":"x"}"#,
            r#"{"type":"message","id":"msg_1","status":"completed","role":"assistant","content":[{"type":"output_text","text":"x","annotations":[],"logprobs":[]}]}"#,
        ]);
    }

    #[test]
    fn ids_of_items_and_thoughts_are_not_read() {
        same(&[
            r#"{"type":"function_call","call_id":"1","name":"f","arguments":"{}"}"#,
            r#"{"type":"function_call","id":"fc_1","status":"completed","call_id":"1","name":"f","arguments":"{}"}"#,
        ]);
        same(&[
            r#"{"type":"reasoning","summary":[]}"#,
            r#"{"type":"reasoning","id":"rs_1","summary":[{}],"encrypted_content":"gAAA","content":[]}"#,
        ]);
        same(&[
            r#"{"type":"function_call_output","call_id":"1","output":"x"}"#,
            r#"{"type":"function_call_output","call_id":"1","id":"fco_1","output":[{"type":"input_text","text":"x"}]}"#,
        ]);
    }

    #[test]
    fn all_else_is() {
        let others = [
            r#"{"role":"user","content":"x"}"#,
            r#"{"role":"assistant","content":"x"}"#,
            r#"{"role":"user","content":"x "}"#,
            r#"{"role":"user","content":[{"type":"input_text","text":"x"},{"type":"input_text","text":"x"}]}"#,
            r#"{"role":"user","content":[{"type":"input_image","image_url":"x"}]}"#,
            r#"{"role":"assistant","content":[{"type":"output_text","text":"x","annotations":[{}]}]}"#,
            r#"{"type":"item_reference","id":"1"}"#,
            r#"{"type":"item_reference","id":"2"}"#,
            r#"{"type":"web_search_call","id":"1"}"#,
            r#"{"type":"compaction","encrypted_content":"a"}"#,
            r#"{"type":"compaction","encrypted_content":"b"}"#,
            r#"{"type":"function_call","call_id":"1","name":"f"}"#,
            r#"{"type":"custom_tool_call","call_id":"1","name":"f"}"#,
            r#"{"type":"function_call","call_id":"2","name":"f"}"#,
            r#"{"type":"function_call_output","call_id":"1","output":"x"}"#,
            r#"{"type":"reasoning"}"#,
        ];
        let mut all = others.map(canonical).to_vec();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), others.len(), "{all:#?}");
    }

    #[test]
    fn what_is_odd_is_left_as_it_is() {
        for odd in [r#"{"\u0072ole":"user"}"#, "[]", r#"{"role":"user""#] {
            assert!(fields(odd.as_bytes()).is_err(), "{odd}");
        }
    }
}
