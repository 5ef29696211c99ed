//! Where in an item the values are that an edit may replace. Asked for only where an edit does.
//!
//! This gives up on anything odd. Then there is nothing to replace, and the item stays.

use std::borrow::Cow;

use memchr::memmem;

use crate::dialect::CallInput;
use crate::dialect::json::{Cursor, ReadResult, decode, fields_of, member, objects};
use crate::span::Span;

/// The `type` in the `caller` of a call that the model itself has made.
const DIRECT: &[u8] = br#""direct""#;

/// A string as the whole content; the texts of its parts; or what commands of a shell have written.
pub(super) fn texts(body: &[u8], content: Span) -> ReadResult<Vec<Span>> {
    if Cursor::starting(body, content.start).peek() == Some(b'"') {
        return Ok(vec![content]);
    }
    let keys = [b"type".as_slice(), b"text", b"refusal", b"stdout", b"stderr"];
    objects(body, content, keys, |_, [kind, text, refusal, out, err]| {
        let kind = kind.map(|kind| decode(kind.of(body)).unwrap_or_default());
        let mut of_part = match kind.as_deref() {
            Some("input_text" | "output_text" | "text") => [text, None],
            Some("refusal") => [refusal, None],
            None => [out, err],
            Some(_) => [None, None],
        };
        of_part.sort_by_key(|text| text.map(|text| text.start));
        Ok(of_part.into_iter().flatten().filter(|text| text.of(body).starts_with(b"\"")))
    })
}

/// The arguments of a call: of a function, a JSON string; of a custom tool, a text; of a shell or a patch, what it does.
pub(super) fn input(body: &[u8], call: Span) -> ReadResult<Option<CallInput>> {
    let [kind, arguments, input, action, operation] =
        fields_of(body, call, [b"type", b"arguments", b"input", b"action", b"operation"])?;
    let (value, emptied) = match name(body, kind).as_deref() {
        Some("function_call") => (arguments, r#""{}""#),
        Some("custom_tool_call") => (input, r#""""#),
        Some("local_shell_call" | "shell_call") => (action, "{}"),
        Some("apply_patch_call") => (operation, "{}"),
        _ => (None, ""),
    };
    Ok(value.filter(|value| value.of(body) != b"null").map(|span| CallInput { span, emptied }))
}

/// Whether the arguments of a call may be replaced: they are one, no server knows the item by its id, and the model has
/// called and not a program.
pub(super) fn may_empty_input(body: &[u8], call: Span) -> ReadResult<bool> {
    let [kind, id, arguments, input, caller] =
        fields_of(body, call, [b"type", b"id", b"arguments", b"input", b"caller"])?;
    let is_direct =
        caller.is_none_or(|caller| caller.of(body) == b"null" || memmem::find(caller.of(body), DIRECT).is_some());
    let value = match name(body, kind).as_deref() {
        Some("function_call") => arguments,
        Some("custom_tool_call") => input,
        _ => None,
    };
    let has_no_id = id.is_none_or(|id| id.of(body) == b"null");
    Ok(has_no_id && is_direct && value.is_some_and(|value| value.of(body).starts_with(b"\"")))
}

/// The names of tools; of those in a namespace, the name alone and the one after that of the namespace.
pub(super) fn tool_names(body: &[u8], tools: Span) -> ReadResult<Vec<Cow<'_, str>>> {
    let (mut namespaces, mut deeper) = (Vec::new(), Vec::new());
    let mut all = names(body, tools, &mut namespaces)?;
    for (namespace, tools) in namespaces {
        let inner = names(body, tools, &mut deeper)?;
        let namespace = namespace.trim_end_matches('.');
        let joined: Vec<_> = inner.iter().map(|name| format!("{namespace}.{name}").into()).collect();
        all.extend(inner.into_iter().chain(joined));
    }
    Ok(all)
}

/// The names in an array of tools. Its namespaces are added: the name and the array of each.
fn names<'a>(body: &'a [u8], tools: Span, namespaces: &mut Vec<(Cow<'a, str>, Span)>) -> ReadResult<Vec<Cow<'a, str>>> {
    objects(body, tools, [b"type", b"name", b"tools"], |_, [kind, name, tools]| {
        let name = self::name(body, name);
        if self::name(body, kind).as_deref() != Some("namespace") {
            return Ok(name);
        }
        let tools = tools.filter(|tools| tools.of(body).starts_with(b"["));
        namespaces.extend(tools.map(|tools| (name.unwrap_or_default(), tools)));
        Ok(None)
    })
}

/// The `id` of what the model has said or called, as a member with one comma.
pub(super) fn id_member(body: &[u8], item: Span) -> ReadResult<Option<Span>> {
    let [id] = fields_of(body, item, [b"id"])?;
    let Some(id) = id.filter(|id| id.of(body) != b"null") else { return Ok(None) };
    Ok(member(body, item, b"\"id\"", id))
}

/// The text of a value, if it is a string.
fn name(body: &[u8], value: Option<Span>) -> Option<Cow<'_, str>> {
    decode(value?.of(body))
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
            r#"[ {"type":"input_text", "text" : "a"} , {"type":"input_image","image_url":"data:"},{"text":"b","type":"output_text","annotations":[]},{"type":"text","text":"c"},{"type":"refusal","refusal":"d"}]"#,
            &[r#""a""#, r#""b""#, r#""c""#, r#""d""#],
        );
        check_texts(
            r#"[{"stderr":"b","stdout":"a","outcome":{"type":"exit","exit_code":0}},{"stdout":"c","outcome":{"type":"timeout"}}]"#,
            &[r#""b""#, r#""a""#, r#""c""#],
        );
        check_texts(
            r#"[{"type":"input_text","text":1},{"type":"input_file","text":"a"},{"text":"a"},{"type":7,"text":"a"},"a",7]"#,
            &[],
        );
        check_texts(r#"[{"type":"text","text":"a"},{"type":"text","text":"b","text":"c"}]"#, &[]);
        check_texts(r#"{"type":"computer_screenshot","image_url":"data:"}"#, &[]);
        check_texts("7", &[]);
    }

    #[test]
    fn the_arguments_of_a_call() {
        let check = |call: &str, expected: Option<(&str, &str)>, may_empty: bool| {
            let found = input(call.as_bytes(), whole(call)).ok().flatten();
            let found = found.map(|input| (str::from_utf8(input.span.of(call.as_bytes())).unwrap(), input.emptied));
            assert_eq!(found, expected, "{call}");
            assert_eq!(may_empty_input(call.as_bytes(), whole(call)), Ok(may_empty), "{call}");
        };
        let arguments = Some((r#""{\"a\":1}""#, "\"{}\""));
        check(r#"{"type":"function_call","name":"f","arguments":"{\"a\":1}"}"#, arguments, true);
        check(r#"{"type":"function_call","id":null,"arguments":"{\"a\":1}"}"#, arguments, true);
        check(r#"{"type":"function_call","id":"fc_1","arguments":"{\"a\":1}"}"#, arguments, false);
        check(r#"{"input":"x","type":"custom_tool_call"}"#, Some((r#""x""#, r#""""#)), true);
        check(r#"{"input":"x","id":"ctc_1","type":"custom_tool_call"}"#, Some((r#""x""#, r#""""#)), false);
        check(
            r#"{"type":"local_shell_call","action":{"command":["ls"]}}"#,
            Some((r#"{"command":["ls"]}"#, "{}")),
            false,
        );
        check(r#"{"type":"apply_patch_call","operation":{"diff":""}}"#, Some((r#"{"diff":""}"#, "{}")), false);
        check(r#"{"type":"function_call","arguments":null}"#, None, false);
        check(r#"{"type":"computer_call","action":{}}"#, None, false);
        check(r#"{"arguments":"{}"}"#, None, false);
    }

    #[test]
    fn the_names_of_tools() {
        let tools = r#"[{"type":"function","name":"b\u0061sh","parameters":{}},{"type":"custom","name":"sql"},{"type":"web_search"},7,
            {"type":"namespace","name":"crm","tools":[{"type":"function","name":"list"},{"type":"namespace","name":"x","tools":[{"name":"deep"}]}]}]"#;
        assert_eq!(tool_names(tools.as_bytes(), whole(tools)).unwrap(), ["bash", "sql", "list", "crm.list"]);
        assert!(tool_names(b"{}", Span { start: 0, end: 2 }).is_err());
    }
}
