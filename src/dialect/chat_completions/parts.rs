//! Where in a message or a call the values are that an edit may replace or cut out. Asked for only where an edit does:
//! the view of the whole request leaves them out.
//!
//! Like the quick reader, this gives up on anything odd. Then there is nothing to replace, and the message stays.

use std::borrow::Cow;

use super::tokens::is_text_part;
use crate::{
    dialect::{
        CallInput, Emptied, Entries,
        json::{Cursor, Unsupported, decode, each_element, each_object, fields, fields_of},
    },
    span::Span,
};

/// A string as the whole content, or the texts of its parts: strings, and those of objects that are text parts.
pub(super) fn texts(body: &[u8], content: Span) -> Result<Vec<Span>, Unsupported> {
    if Cursor::starting(body, content.start).peek() == Some(b'"') {
        return Ok(vec![content]);
    }
    let mut texts = Vec::new();
    each_element(body, content, |cursor| {
        let text = if cursor.peek() == Some(b'{') {
            let [kind, text] = fields(cursor, [b"type", b"text"])?;
            let kind = kind.filter(|kind| kind.of(body) != b"null");
            // A type that is no string is none that is known.
            let kind = kind.map(|kind| decode(kind.of(body)).unwrap_or_default());
            text.filter(|_| is_text_part(kind.as_deref()))
        } else {
            Some(cursor.value()?)
        };
        texts.extend(text.filter(|text| text.of(body).starts_with(b"\"")));
        Ok(())
    })?;
    Ok(texts)
}

/// The arguments of a function. What is put into a custom tool is no JSON, so nothing is known to stand for none.
pub(super) fn input(body: &[u8], call: Span) -> Result<Option<CallInput>, Unsupported> {
    let [function] = fields_of(body, call, [b"function"])?;
    let [arguments] = fields_of(body, function.ok_or(Unsupported)?, [b"arguments"])?;
    Ok(arguments.and_then(|span| match span.of(body).first() {
        Some(b'"') => Some(CallInput { span, emptied: "\"{}\"" }),
        Some(b'{') => Some(CallInput { span, emptied: "{}" }),
        _ => None,
    }))
}

/// The key `tool_calls` with its value and one of the commas around it.
fn calls_key(body: &[u8], message: Span) -> Result<Option<Span>, Unsupported> {
    let mut cursor = Cursor::starting(body, message.start);
    let (mut before, mut cut) = (None, None);
    let mut key = cursor.first_key()?;
    while let Some(name) = key {
        let start = name.as_ptr().addr().saturating_sub(body.as_ptr().addr()).saturating_sub(1);
        let value = cursor.value()?;
        match cut {
            // It was the first key, which takes along what stands behind it.
            Some(Span { start: first, end }) => {
                debug_assert!(end <= start, "keys are in order");
                return Ok(Some(Span { start: first, end: start }));
            }
            None if name == b"tool_calls" => cut = Some(Span { start: before.unwrap_or(start), end: value.end }),
            _ => {}
        }
        if cut.is_none() {
            before = Some(value.end);
        } else if before.is_some() {
            return Ok(cut);
        }
        key = cursor.next_key()?;
    }
    Ok(cut)
}

/// The entries of `tool_calls`.
pub(super) fn entries(body: &[u8], message: Span) -> Result<Option<Entries>, Unsupported> {
    let (Some(key), [Some(calls)]) = (calls_key(body, message)?, fields_of(body, message, [b"tool_calls"])?) else {
        return Ok(None);
    };
    let mut spans = Vec::new();
    each_element(body, calls, |cursor| {
        spans.push(cursor.value()?);
        Ok(())
    })?;
    Ok(Some(Entries { spans, reasoning: Vec::new(), emptied: Emptied::CutKey(key) }))
}

/// The names of functions and custom tools.
pub(super) fn tool_names(body: &[u8], tools: Span) -> Result<Vec<Cow<'_, str>>, Unsupported> {
    let mut names = Vec::new();
    each_object(body, tools, [b"function", b"custom"], |_, [function, custom]| {
        if let Some(tool) = function.or(custom).filter(|tool| tool.of(body).starts_with(b"{")) {
            let [name] = fields_of(body, tool, [b"name"])?;
            names.extend(name.and_then(|name| decode(name.of(body))));
        }
        Ok(())
    })?;
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> Span {
        Span { start: 0, end: text.len() }
    }

    fn check_texts(content: &str, expected: &[&str]) {
        let found = texts(content.as_bytes(), whole(content)).unwrap_or_default();
        let found: Vec<_> =
            found.iter().map(|span| std::str::from_utf8(span.of(content.as_bytes())).unwrap()).collect();
        assert_eq!(found, expected, "{content}");
    }

    #[test]
    fn texts_of_a_content() {
        check_texts(r#""a\"b""#, &[r#""a\"b""#]);
        check_texts("[]", &[]);
        check_texts(
            r#"[ {"type":"text", "text" : "a"} , {"type":"image_url","image_url":{"url":"x"}},{"text":"b","type":"text","z":[]} ]"#,
            &["\"a\"", "\"b\""],
        );
        check_texts(
            r#"["a",{"text":"b"},{"type":"input_text","text":"c"},{"type":"output_text","text":"d","annotations":[]},{"text":"e","type":null},{"type":"te\u0078t","text":"f"}]"#,
            &[r#""a""#, r#""b""#, r#""c""#, r#""d""#, r#""e""#, r#""f""#],
        );
        check_texts(
            r#"[{"type":"text","text":1},{"type":"text"},{"text":null},{"type":"refusal","text":"a"},{"type":7,"text":"a"},{"type":"texts","text":"a"},7,["a"]]"#,
            &[],
        );
        check_texts(r#"[{"type":"text","text":"a"},{"type":"text","text":"b","text":"c"}]"#, &[]);
        check_texts("7", &[]);
    }

    #[test]
    fn the_arguments_of_a_call() {
        let check = |call: &str, expected: Option<(&str, &str)>| {
            let found = input(call.as_bytes(), whole(call)).ok().flatten();
            let found =
                found.map(|input| (std::str::from_utf8(input.span.of(call.as_bytes())).unwrap(), input.emptied));
            assert_eq!(found, expected, "{call}");
        };
        check(r#"{"id":"1","function":{"name":"f","arguments":"{\"a\":1}"}}"#, Some((r#""{\"a\":1}""#, "\"{}\"")));
        check(r#"{"function":{"arguments":{"a":1},"name":"f"}}"#, Some((r#"{"a":1}"#, "{}")));
        check(r#"{"function":{"arguments":null}}"#, None);
        check(r#"{"function":{}}"#, None);
        check(r#"{"custom":{"input":"x"}}"#, None);
        check(r#"{"function":7}"#, None);
    }

    #[test]
    fn the_key_with_calls_takes_one_comma_along() {
        let check = |message: &str, expected: Option<&str>| {
            let cut = calls_key(message.as_bytes(), whole(message)).ok().flatten();
            let rest = cut.map(|cut| message.get(..cut.start).unwrap().to_owned() + message.get(cut.end..).unwrap());
            assert_eq!(rest.as_deref(), expected, "{message}");
        };
        check(
            r#"{ "role":"assistant" , "tool_calls" : [{}] , "content":"" }"#,
            Some(r#"{ "role":"assistant" , "content":"" }"#),
        );
        check(r#"{"role":"assistant","tool_calls":[{}]}"#, Some(r#"{"role":"assistant"}"#));
        check(r#"{ "tool_calls":[{}] , "role":"assistant","x":1}"#, Some(r#"{ "role":"assistant","x":1}"#));
        check(r#"{"tool_calls":[]}"#, Some("{}"));
        check(r#"{"role":"assistant"}"#, None);
        check(r#"{"role":"assistant","tool\u005fcalls":[]}"#, None);
    }

    #[test]
    fn the_names_of_tools() {
        let tools = r#"[{"type":"function","function":{"name":"b\u0061sh","parameters":{}}},{"type":"custom","custom":{"name":"sql"}},{"type":"web_search"},7]"#;
        assert_eq!(tool_names(tools.as_bytes(), whole(tools)).unwrap(), ["bash", "sql"]);
        assert!(tool_names(b"{}", Span { start: 0, end: 2 }).is_err());
    }
}
