//! The answer to a request for a compaction: to `POST …/responses/compact` the items that the client goes on with.
//!
//! Clients read these as items of a response, whose messages have parts and are never strings.

use bytes::Bytes;

use crate::dialect::Compaction;
use crate::dialect::object::{ObjectWriter, fields};
use crate::raw::{Fields, elements};

/// The answer; none if the body has no items.
pub(super) fn answer(compaction: &Compaction<'_>) -> Option<Bytes> {
    let Compaction { body, id, made_at, .. } = *compaction;
    let request = fields(body)?;
    let input = request.get("input")?;
    let mut answer = ObjectWriter::default();
    answer.text("id", id);
    answer.text("object", "response.compaction");
    answer.json("created_at", &made_at.to_string());
    answer.key("output");
    answer.raw(b"[");
    match elements(input) {
        Some(items) => {
            for (n, item) in items.iter().enumerate() {
                answer.raw(if n > 0 { b"," } else { b"" });
                answer.raw(message(item).as_deref().unwrap_or(item.as_bytes()));
            }
        }
        None if input.starts_with('"') => answer.raw(&in_parts(&[("role", r#""user""#)], "input_text", input)),
        None => return None,
    }
    answer.raw(b"]");
    answer.json("usage", &usage(compaction));
    Some(answer.end())
}

/// The tokens before and after, as the API tells what an answer took.
pub(super) fn usage(compaction: &Compaction<'_>) -> String {
    let (before, after) = compaction.tokens;
    format!(
        r#"{{"input_tokens":{before},"input_tokens_details":{{"cached_tokens":0}},"output_tokens":{after},"output_tokens_details":{{"reasoning_tokens":0}},"total_tokens":{}}}"#,
        before.saturating_add(after)
    )
}

/// A message whose content is a string, in the form that has parts; none if an item is no such message.
pub(super) fn message(item: &str) -> Option<Bytes> {
    let fields = Fields::of(item)?;
    let role = fields.string("role")?;
    let is_message = fields.get("type").is_none() || fields.string("type").as_deref() == Some("message");
    let text = fields.get("content").filter(|content| is_message && content.starts_with('"'))?;
    let rest: Vec<_> = fields.iter().filter(|(key, _)| !matches!(*key, "type" | "content")).collect();
    Some(in_parts(&rest, if role == "assistant" { "output_text" } else { "input_text" }, text))
}

/// A message with one part, whose text is a JSON string.
fn in_parts(rest: &[(&str, &str)], kind: &str, text: &str) -> Bytes {
    let mut message = ObjectWriter::default();
    message.text("type", "message");
    for (key, value) in rest {
        message.json(key, value);
    }
    message.json("content", &format!(r#"[{{"type":"{kind}","text":{text}}}]"#));
    message.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(input: &str) -> Option<String> {
        let body = format!(r#"{{"model":"m","input":{input},"instructions":"x"}}"#);
        let made =
            answer(&Compaction { body: body.as_bytes(), id: "cmp", made_at: 7, tokens: (90, 9), trigger: None })?;
        let text = String::from_utf8(made.to_vec()).unwrap();
        let rest =
            text.strip_prefix(r#"{"id":"cmp","object":"response.compaction","created_at":7,"output":["#).unwrap();
        let (output, usage) = rest.split_once(r#"],"usage":"#).unwrap();
        assert_eq!(
            usage,
            r#"{"input_tokens":90,"input_tokens_details":{"cached_tokens":0},"output_tokens":9,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":99}}"#
        );
        Some(output.to_owned())
    }

    #[test]
    fn messages_have_parts_and_other_items_stay_as_they_are() {
        let part = |role: &str, kind: &str| {
            format!(r#"{{"type":"message","role":"{role}","content":[{{"type":"{kind}","text":"a\u00e9\n"}}]}}"#)
        };
        for (role, kind) in [("user", "input_text"), ("developer", "input_text"), ("assistant", "output_text")] {
            for head in ["", r#""type":"message","#] {
                let item = format!(r#"{{{head}"role":"{role}","content":"a\u00e9\n"}}"#);
                assert_eq!(output(&format!("[{item}]")).unwrap(), part(role, kind));
            }
        }
        assert_eq!(output(r#""a\u00e9\n""#).unwrap(), part("user", "input_text"));
        let others = [
            r#"{"role":"user","content":[{"type":"input_text","text":"x"}]}"#,
            r#"{ "type":"compaction", "encrypted_content":"gA==" }"#,
            r#"{"type":"function_call_output","call_id":"c","output":"x"}"#,
            r#"{"type":"other","role":"user","content":"x"}"#,
            "7",
        ]
        .join(",");
        assert_eq!(output(&format!("[{others}]")).unwrap(), others);
        assert_eq!(output("[]").unwrap(), "");
    }

    #[test]
    fn without_items_there_is_no_answer() {
        for input in ["{}", "7"] {
            assert_eq!(output(input), None, "{input}");
        }
        assert!(answer(&Compaction { body: b"[]", id: "cmp", made_at: 7, tokens: (0, 0), trigger: None }).is_none());
    }
}
