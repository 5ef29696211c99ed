//! A message as its model reads it, whichever way a client spells it from one request to the next.

use super::super::Field;
use super::super::canonical::{self, Member, elements, member, members, object, text};
use super::super::json::{Cursor, ReadResult};

/// Members of a message, a part or a call that a model does not read as part of the conversation: marks for prompt caches,
/// and what it thought, which agents leave out of older messages where a provider asks for that.
const UNREAD: [&[u8]; 8] = [
    b"cache_control",
    b"reasoning",
    b"reasoning_content",
    b"reasoning_details",
    b"reasoning_opaque",
    b"reasoning_text",
    b"thinking",
    b"thinking_blocks",
];

/// The types of parts that hold thoughts.
const THOUGHTS: [&[u8]; 3] = [b"\"reasoning\"", b"\"redacted_thinking\"", b"\"thinking\""];

/// How a text begins.
const TEXT: &[u8] = br#"{"type":"text","text":"#;

/// The fields of a message that its model reads, by name.
pub(super) fn fields(message: &[u8]) -> ReadResult<Vec<Field<'_>>> {
    let mut read = Vec::new();
    for (name, value) in members(&mut Cursor::starting(message, 0), &UNREAD)? {
        let value = match (name, value.first()) {
            (b"content", Some(b'"' | b'[')) => canonical::content(value, &UNREAD, TEXT, part)?,
            (b"tool_calls", Some(b'[')) => elements(value, |call| Ok(object(members(call, &UNREAD)?)))?,
            _ => vec![value],
        };
        read.push((name, value));
    }
    canonical::fields(read)
}

fn part(members: Vec<Member<'_>>) -> Vec<&[u8]> {
    match (member(&members, b"type"), member(&members, b"text")) {
        (Some(b"\"text\""), Some(value @ [b'"', ..])) if members.len() == 2 => text(TEXT, value),
        (Some(kind), _) if THOUGHTS.contains(&kind) => Vec::new(),
        _ => object(members),
    }
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
            r#"{"role":"user","content":"x","cache_control":{"type":"ephemeral","ttl":"1h"}}"#,
            r#"{"role":"user","content":[{"type":"text","text":"x"}]}"#,
            r#"{"role":"user","content":[ {"text":"x", "type":"text", "cache_control":{"type":"ephemeral"}} ]}"#,
            r#"{"role":"user","name":null,"content":[{"type":"text","text":"x","cache_control":null}]}"#,
        ]);
        let image = r#"{"type":"image_url","image_url":{"url":"data:"}"#;
        let pictured = same(&[
            &format!(r#"{{"role":"user","content":[{{"type":"text","text":"x"}},{image}}}]}}"#),
            &format!(r#"{{"role":"user","content":[{{"type":"text","text":"x"}}, {image},"cache_control":{{}}}}]}}"#),
        ]);
        assert_ne!(user, pictured);
        let call = r#""id":"1","type":"function","function":{"name":"f","arguments":"{\"cache_control\":1}"}"#;
        same(&[
            &format!(r#"{{"role":"assistant","tool_calls":[{{{call}}}]}}"#),
            &format!(r#"{{"role":"assistant","tool_calls":[{{{call},"cache_control":{{}}}}]}}"#),
        ]);
    }

    #[test]
    fn thoughts_are_not_read() {
        same(&[
            r#"{"role":"assistant","content":"x"}"#,
            r#"{"role":"assistant","content":"x","reasoning_content":"so"}"#,
            r#"{"role":"assistant","reasoning":"so","reasoning_details":[{"type":"reasoning.text"}],"content":"x"}"#,
            r#"{"role":"assistant","thinking_blocks":[{}],"content":[{"type":"thinking","thinking":"so"},{"type":"text","text":"x"}]}"#,
        ]);
        same(&[
            r#"{"role":"assistant","tool_calls":[{"id":"1"}]}"#,
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}"#,
            r#"{"role":"assistant","content":"","tool_calls":[{"id":"1"}],"thinking":"so"}"#,
            r#"{"role":"assistant","content":[{"type":"text","text":""}],"tool_calls":[{"id":"1"}]}"#,
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
            r#"{"role":"user","content":[{"type":"text","text":"x","annotations":[]}]}"#,
            r#"{"role":"user","content":7}"#,
            r#"{"role":"user","content":"x","name":"cache_control"}"#,
            r#"{"role":"tool","content":"x","tool_call_id":"1"}"#,
            r#"{"role":"tool","content":"x","tool_call_id":"2"}"#,
            r#"{"role":"assistant","tool_calls":[{"id":"1"}]}"#,
            r#"{"role":"assistant","tool_calls":[{"id":"1"},{"id":"2"}]}"#,
            r#"{"role":"assistant","tool_calls":[{"id":"1","reason":"x"}]}"#,
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
