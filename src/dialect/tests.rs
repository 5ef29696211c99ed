//! Helpers for the tests of all dialects.

pub(super) mod by_serde;
mod registry;

use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq};

use super::{Dialect, ErrorFields, ParseError, messages, strings};
use crate::conversation::Conversation;

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
