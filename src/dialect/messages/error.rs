//! Errors by abridge itself, in the shape that the clients of Anthropic's API read.

use bytes::Bytes;
use serde::Serialize;

use crate::dialect::ErrorFields;

#[derive(Serialize)]
struct Body<'a> {
    r#type: &'a str,
    error: Fields<'a>,
}

#[derive(Serialize)]
struct Fields<'a> {
    r#type: &'a str,
    message: &'a str,
}

/// The body of such an answer.
pub(super) fn body(error: &ErrorFields<'_>) -> Bytes {
    let &ErrorFields { message, is_client_error, code } = error;
    let r#type = match code {
        "body_too_large" => "request_too_large",
        "overloaded" => "overloaded_error",
        "upstream_timeout" => "timeout_error",
        _ if is_client_error => "invalid_request_error",
        _ => "api_error",
    };
    let body = Body { r#type: "error", error: Fields { r#type, message } };
    serde_json::to_vec(&body).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_types_of_the_api() {
        for (code, is_client_error, r#type) in [
            ("body_too_large", true, "request_too_large"),
            ("body_broken", true, "invalid_request_error"),
            ("overloaded", false, "overloaded_error"),
            ("upstream_timeout", false, "timeout_error"),
            ("upstream_connect", false, "api_error"),
        ] {
            let body = body(&ErrorFields { message: "a \"b\"", is_client_error, code });
            let expected = format!(r#"{{"type":"error","error":{{"type":"{type}","message":"a \"b\""}}}}"#);
            assert_eq!(body, expected.as_bytes());
        }
    }
}
