//! Helpers for the tests of all dialects.

pub(super) mod by_serde;
mod registry;

use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq};

use super::{Dialect, ErrorFields, ParseError, messages, strings};
use crate::conversation::Conversation;
use crate::span::Span;

/// All of a text.
pub(super) fn whole(text: &str) -> Span {
    Span { start: 0, end: text.len() }
}

/// The texts of a content are these, as they are written.
pub(super) fn check_texts(dialect: &dyn Dialect, content: &str, expected: &[&str]) {
    let found = dialect.texts(content.as_bytes(), whole(content));
    let found: Vec<_> = found.iter().map(|span| str::from_utf8(span.of(content.as_bytes())).unwrap()).collect();
    assert_eq!(found, expected, "{content}");
}

/// The arguments of a call are these, as they are written, and mean none in this form.
pub(super) fn check_input(dialect: &dyn Dialect, call: &str, expected: Option<(&str, &str)>) {
    let found = dialect.input(call.as_bytes(), whole(call));
    let found = found.map(|input| (str::from_utf8(input.span.of(call.as_bytes())).unwrap(), input.emptied));
    assert_eq!(found, expected, "{call}");
}

/// The tools have these names, and what is not an array has none.
pub(super) fn check_tool_names(dialect: &dyn Dialect, tools: &str, expected: &[&str]) {
    assert_eq!(dialect.tool_names(tools.as_bytes(), whole(tools)), expected);
    assert!(dialect.tool_names(b"{}", whole("{}")).is_empty());
}

/// What holds for any bytes: a body whose strings are valid is read as `serde_json` reads it, or refused by both; one whose
/// strings are not is not valid JSON.
pub(super) fn agrees(
    read: Result<Conversation<'_>, ParseError>,
    by_serde: Result<Conversation<'_>, ParseError>,
    body: &[u8],
) -> Result<(), TestCaseError> {
    match (read, by_serde) {
        (Ok(read), Ok(expected)) => {
            prop_assert_eq!(read, expected);
            prop_assert!(strings::verify(body).is_ok());
        }
        (Ok(_), Err(_)) => prop_assert!(strings::verify(body).is_err()),
        (Err(error), Ok(_)) => prop_assert!(false, "{} {}", error, String::from_utf8_lossy(body)),
        (Err(_), Err(_)) => {}
    }
    Ok(())
}

#[test]
fn errors_have_the_types_of_the_api() {
    for (code, is_client_error, r#type) in [
        ("body_too_large", true, "request_too_large"),
        ("body_broken", true, "invalid_request_error"),
        ("overloaded", false, "overloaded_error"),
        ("upstream_timeout", false, "timeout_error"),
        ("upstream_connect", false, "api_error"),
    ] {
        let body = messages::Messages.error_body(&ErrorFields { message: "a \"b\"", is_client_error, code });
        let expected = format!(r#"{{"type":"error","error":{{"type":"{type}","message":"a \"b\""}}}}"#);
        assert_eq!(body, expected.as_bytes());
    }
}
