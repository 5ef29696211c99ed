//! A message of Anthropic's API, or a block of one, as its model reads it, whichever way a client spells it.
//!
//! Clients move their mark for the prompt cache with every request, and then write a content as an array that was a string.
//! An entry of a user message reads as a message of the user that holds it alone.

use super::super::Field;
use super::super::canonical::{self, Member, array, elements, member};
use super::super::json::{Cursor, ReadResult};

/// The member that a model does not read: a mark for the prompt cache.
const UNREAD: &[u8] = b"cache_control";

/// The types of blocks that hold thoughts.
const THOUGHTS: [&[u8]; 2] = [b"\"redacted_thinking\"", b"\"thinking\""];

const USER: &[u8] = b"\"user\"";

/// The fields of a message, or of an entry of one, that its model reads, by name.
pub(super) fn fields(message: &[u8]) -> ReadResult<Vec<Field<'_>>> {
    let members = members(&mut Cursor::starting(message, 0))?;
    if !members.iter().any(|(name, _)| *name == b"role") {
        let value = array(Some(block(members, inner)?).filter(|block| !block.is_empty()));
        return Ok(vec![Field { name: "content", value }, Field { name: "role", value: vec![USER] }]);
    }
    let mut read = Vec::new();
    for (name, value) in members {
        read.push((name, if name == b"content" { content(value)? } else { vec![value] }));
    }
    canonical::fields(read)
}

/// A string is the same as an array of one text, and no text is the same as none.
fn content(value: &[u8]) -> ReadResult<Vec<&[u8]>> {
    match value.first() {
        Some(b'"') if value == b"\"\"" => Ok(Vec::new()),
        Some(b'"') => Ok(array([text(value)])),
        Some(b'[') => blocks(value, inner),
        _ => Ok(vec![value]),
    }
}

/// The content of a block, such as a result. Blocks in that are not looked into any further.
fn inner(value: &[u8]) -> ReadResult<Vec<&[u8]>> {
    match value.first() {
        Some(b'[') => blocks(value, |value| Ok(vec![value])),
        _ => content(value),
    }
}

fn text(value: &[u8]) -> Vec<&[u8]> {
    vec![b"{\"text\":", value, b",\"type\":\"text\",}"]
}

/// How a content is put.
type Put = for<'a> fn(&'a [u8]) -> ReadResult<Vec<&'a [u8]>>;

/// One block, with its content as `of_content` puts it; nothing for a thought.
fn block(members: Vec<Member<'_>>, of_content: Put) -> ReadResult<Vec<&[u8]>> {
    if member(&members, b"type").is_some_and(|kind| THOUGHTS.contains(&kind)) {
        return Ok(Vec::new());
    }
    let mut pieces: Vec<&[u8]> = vec![b"{"];
    for (name, value) in members {
        let mut value = if name == b"content" { of_content(value)? } else { vec![value] };
        if !value.is_empty() {
            pieces.extend([b"\"", name, b"\":"]);
            pieces.append(&mut value);
            pieces.push(b",");
        }
    }
    pieces.push(b"}");
    Ok(pieces)
}

/// The blocks of an array except for thoughts; nothing if none is left.
fn blocks(value: &[u8], of_content: Put) -> ReadResult<Vec<&[u8]>> {
    elements(value, |cursor| block(members(cursor)?, of_content))
}

/// The members of an object that are read, by name.
fn members<'a>(cursor: &mut Cursor<'a>) -> ReadResult<Vec<Member<'a>>> {
    let mut members = canonical::members(cursor, &[UNREAD])?;
    members.sort_by_key(|(name, _)| *name); // stable
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(message: &str) -> String {
        let written = |field: Field<'_>| format!("{}={}", field.name, String::from_utf8(field.value.concat()).unwrap());
        fields(message.as_bytes()).unwrap().into_iter().map(written).collect::<Vec<_>>().join(" ")
    }

    fn same(messages: &[&str]) -> String {
        let all: Vec<_> = messages.iter().map(|message| canonical(message)).collect();
        assert!(all.iter().all(|one| *one == all[0]), "{all:#?}");
        all[0].clone()
    }

    #[test]
    fn marks_for_a_prompt_cache_are_not_read() {
        let user = same(&[
            r#"{"role":"user","content":"x"}"#,
            r#"{ "role" : "user" , "content" : "x" }"#,
            r#"{"content":"x","role":"user"}"#,
            r#"{"role":"user","content":[{"type":"text","text":"x"}]}"#,
            r#"{"role":"user","content":[ {"text":"x", "type":"text", "cache_control":{"type":"ephemeral","ttl":"1h"}} ]}"#,
            r#"{"type":"text","text":"x"}"#,
            r#"{"type":"text","text":"x","citations":null,"cache_control":{"type":"ephemeral"}}"#,
        ]);
        let result = same(&[
            r#"{"type":"tool_result","tool_use_id":"1","content":"x"}"#,
            r#"{"tool_use_id":"1","type":"tool_result","content":[{"type":"text","text":"x"}],"cache_control":{}}"#,
            r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"text":"x","type":"text","cache_control":{}}]}]}"#,
        ]);
        assert_ne!(user, result);
        same(&[
            r#"{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"cache_control":1}}]}"#,
            r#"{"role":"assistant","content":[{"input":{"cache_control":1},"type":"tool_use","id":"1","cache_control":{},"name":"f"}]}"#,
        ]);
    }

    #[test]
    fn thoughts_are_not_read() {
        same(&[
            r#"{"role":"assistant","content":"x"}"#,
            r#"{"role":"assistant","content":[{"type":"thinking","thinking":"so","signature":"s"},{"type":"text","text":"x"}]}"#,
            r#"{"role":"assistant","content":[{"type":"redacted_thinking","data":"s"},{"type":"text","text":"x"}]}"#,
        ]);
    }

    #[test]
    fn all_else_is() {
        let others = [
            r#"{"role":"user","content":"x"}"#,
            r#"{"role":"assistant","content":"x"}"#,
            r#"{"role":"user","content":"x "}"#,
            r#"{"role":"user","content":"\u0078"}"#,
            r#"{"role":"user","content":["x"]}"#,
            r#"{"role":"user","content":[{"type":"text","text":"x"},{"type":"text","text":"x"}]}"#,
            r#"{"role":"user","content":[{"type":"text","text":"x","citations":[]}]}"#,
            r#"{"role":"user","content":7}"#,
            r#"{"role":"user"}"#,
            r#"{"type":"tool_result","tool_use_id":"1","content":"x"}"#,
            r#"{"type":"tool_result","tool_use_id":"2","content":"x"}"#,
            r#"{"type":"tool_result","tool_use_id":"1","content":"x","is_error":true}"#,
            r#"{"type":"tool_result","tool_use_id":"1"}"#,
            r#"{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]}"#,
            r#"{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"a":1}}]}"#,
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
        let deep =
            format!(r#"{{"role":"user","content":{}{}}}"#, r#"[{"content":"#.repeat(50_000), "}]".repeat(50_000));
        assert!(fields(deep.as_bytes()).is_err());
    }
}
