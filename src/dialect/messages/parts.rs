//! Where in a message or a block the values are that an edit may replace or cut out. Asked for only where an edit does:
//! the view of the whole request leaves them out.
//!
//! This gives up on anything odd. Then there is nothing to replace, and the message stays.

use std::borrow::Cow;

use crate::dialect::json::{Cursor, ReadResult, decode, each_element, fields, fields_of, objects};
use crate::dialect::{CallInput, Emptied, Entries};
use crate::span::Span;

/// A string as the whole content, or the texts of its text blocks, of its search results and of its documents.
pub(super) fn texts(body: &[u8], content: Span) -> ReadResult<Vec<Span>> {
    let mut inside = Vec::new();
    let mut found = texts_in(body, content, Some(&mut inside))?;
    for content in inside {
        found.extend(texts_in(body, content, None)?);
    }
    found.sort_by_key(|text| text.start);
    Ok(found)
}

/// The texts of a content, without those that are deeper. The contents of search results and documents go to `inside`.
fn texts_in(body: &[u8], content: Span, mut inside: Option<&mut Vec<Span>>) -> ReadResult<Vec<Span>> {
    if Cursor::starting(body, content.start).peek() == Some(b'"') {
        return Ok(vec![content]);
    }
    objects(body, content, [b"type", b"text", b"content", b"source"], |_, [kind, text, content, source]| {
        let kind = kind.and_then(|kind| decode(kind.of(body)));
        let deeper = match kind.as_deref() {
            Some("search_result") => content,
            Some("document") => source.and_then(|source| fields_of(body, source, [b"content"]).ok()?[0]),
            _ => None,
        };
        let deeper = deeper.filter(|content| matches!(content.of(body), [b'[' | b'"', ..]));
        if let Some(inside) = &mut inside {
            inside.extend(deeper);
        }
        Ok(text.filter(|text| kind.as_deref() == Some("text") && text.of(body).starts_with(b"\"")))
    })
}

/// The arguments of a call, which are to be an object.
pub(super) fn input(body: &[u8], call: Span) -> ReadResult<Option<CallInput>> {
    let [input] = fields_of(body, call, [b"input"])?;
    let input = input.filter(|input| input.of(body) != b"null");
    Ok(input.map(|span| CallInput { span, emptied: "{}" }))
}

/// The entries of a content that is an array.
pub(super) fn entries(body: &[u8], message: Span) -> ReadResult<Option<Entries>> {
    let [content] = fields_of(body, message, [b"content"])?;
    let Some(content) = content.filter(|content| content.of(body).starts_with(b"[")) else { return Ok(None) };
    let (mut spans, mut reasoning) = (Vec::new(), Vec::new());
    each_element(body, content, |cursor| {
        let start = cursor.at();
        let kind = if cursor.peek() == Some(b'{') {
            let [kind] = fields(cursor, [b"type"])?;
            kind.and_then(|kind| decode(kind.of(body)))
        } else {
            cursor.value()?;
            None
        };
        let span = Span { start, end: cursor.at() };
        spans.push(span);
        reasoning.extend(kind.filter(|kind| matches!(kind.as_ref(), "thinking" | "redacted_thinking")).map(|_| span));
        Ok(())
    })?;
    Ok(Some(Entries { spans, reasoning, emptied: Emptied::Leaves }))
}

/// The names of tools.
pub(super) fn tool_names(body: &[u8], tools: Span) -> ReadResult<Vec<Cow<'_, str>>> {
    objects(body, tools, [b"name"], |_, [name]| Ok(name.and_then(|name| decode(name.of(body)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> Span {
        Span { start: 0, end: text.len() }
    }

    fn check_texts(content: &str, expected: &[&str]) {
        let found = texts(content.as_bytes(), whole(content)).unwrap_or_default();
        let found: Vec<_> = found.iter().map(|span| str::from_utf8(span.of(content.as_bytes())).unwrap()).collect();
        assert_eq!(found, expected, "{content}");
    }

    #[test]
    fn texts_of_a_content() {
        check_texts(r#""a\"b""#, &[r#""a\"b""#]);
        check_texts("[]", &[]);
        check_texts(
            r#"[ {"type":"text", "text" : "a"} , {"type":"image","source":{"text":"x"}},{"text":"b","type":"t\u0065xt","cache_control":{}} ]"#,
            &["\"a\"", "\"b\""],
        );
        check_texts(
            r#"[{"type":"text","text":1},{"type":"text"},{"text":"a"},{"type":"tool_reference","text":"a"},{"type":7,"text":"a"},7,"a",["a"]]"#,
            &[],
        );
        check_texts(r#"[{"type":"text","text":"a"},{"type":"text","text":"b","text":"c"}]"#, &[]);
        check_texts("7", &[]);
    }

    #[test]
    fn the_arguments_of_a_call() {
        let check = |call: &str, expected: Option<(&str, &str)>| {
            let found = input(call.as_bytes(), whole(call)).ok().flatten();
            let found = found.map(|input| (str::from_utf8(input.span.of(call.as_bytes())).unwrap(), input.emptied));
            assert_eq!(found, expected, "{call}");
        };
        check(r#"{"type":"tool_use","id":"1","name":"f","input":{"a":1}}"#, Some((r#"{"a":1}"#, "{}")));
        check(r#"{"input":{},"type":"tool_use"}"#, Some(("{}", "{}")));
        check(r#"{"input":"{"}"#, Some((r#""{""#, "{}")));
        check(r#"{"input":null}"#, None);
        check(r#"{"type":"tool_use"}"#, None);
        check(r#"{"input":{},"input":{}}"#, None);
    }

    #[test]
    fn the_entries_of_a_content() {
        let message = r#"{"role":"user","content":[ {"type":"text"} , 7,[8] ]}"#;
        let found = entries(message.as_bytes(), whole(message)).unwrap().unwrap();
        let entries: Vec<_> =
            found.spans.iter().map(|span| str::from_utf8(span.of(message.as_bytes())).unwrap()).collect();
        assert_eq!((entries, found.emptied), (vec![r#"{"type":"text"}"#, "7", "[8]"], Emptied::Leaves));
        for message in [r#"{"content":"x"}"#, "{}", r#"{"content":[],"content":[]}"#] {
            assert_eq!(super::entries(message.as_bytes(), whole(message)).ok().flatten(), None, "{message}");
        }
    }

    #[test]
    fn the_names_of_tools() {
        let tools = r#"[{"name":"b\u0061sh","input_schema":{}},{"type":"web_search_20250305","name":"web_search"},{"type":"mcp_toolset"},7]"#;
        assert_eq!(tool_names(tools.as_bytes(), whole(tools)).unwrap(), ["bash", "web_search"]);
        assert!(tool_names(b"{}", Span { start: 0, end: 2 }).is_err());
    }
}
