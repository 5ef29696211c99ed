//! A message as its model reads it, whichever way a client spells it from one request to the next.

use super::super::Field;
use super::super::canonical::{Member, array, elements, members, object};
use super::super::json::{Cursor, Unsupported};

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

const EMPTY: &[u8] = b"\"\"";

/// The fields of a message that its model reads, by name.
pub(super) fn fields(message: &[u8]) -> Result<Vec<Field<'_>>, Unsupported> {
    let mut fields = Vec::new();
    for (name, value) in members(&mut Cursor::starting(message, 0), &UNREAD)? {
        let value = match (name, value.first()) {
            (b"content", Some(b'"' | b'[')) => content(value)?,
            (b"tool_calls", Some(b'[')) => elements(value, |call| Ok(object(members(call, &UNREAD)?)))?,
            _ => vec![value],
        };
        if !value.is_empty() {
            fields.push(Field { name: str::from_utf8(name).map_err(|_| Unsupported)?, value });
        }
    }
    fields.sort_by_key(|field| field.name); // stable
    Ok(fields)
}

/// A string is the same as an array of one text, and no text is the same as none.
fn content(value: &[u8]) -> Result<Vec<&[u8]>, Unsupported> {
    if !value.starts_with(b"\"") {
        return elements(value, |cursor| Ok(part(members(cursor, &UNREAD)?)));
    }
    let text = text(value);
    Ok(if text.is_empty() { text } else { array([text]) })
}

fn part(members: Vec<Member<'_>>) -> Vec<&[u8]> {
    let of = |name: &[u8]| members.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
    match (of(b"type"), of(b"text")) {
        (Some(b"\"text\""), Some(value @ [b'"', ..])) if members.len() == 2 => text(value),
        (Some(kind), _) if THOUGHTS.contains(&kind) => Vec::new(),
        _ => object(members),
    }
}

fn text(value: &[u8]) -> Vec<&[u8]> {
    if value == EMPTY { Vec::new() } else { vec![br#"{"type":"text","text":"#, value, b"}"] }
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
