//! Errors by abridge itself, in the shapes that the clients of the APIs read.

use bytes::Bytes;
use serde::Serialize;

use super::ErrorFields;

#[derive(Serialize)]
struct Body<T> {
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    error: T,
}

#[derive(Serialize)]
struct OfOpenai<'a> {
    message: &'a str,
    r#type: &'a str,
    param: Option<&'a str>,
    code: &'a str,
}

#[derive(Serialize)]
struct OfAnthropic<'a> {
    r#type: &'a str,
    message: &'a str,
}

/// The body of such an answer for OpenAI's APIs.
pub(super) fn openai(&ErrorFields { message, is_client_error, code }: &ErrorFields<'_>) -> Bytes {
    let r#type = if is_client_error { "invalid_request_error" } else { "server_error" };
    let body = Body { r#type: None, error: OfOpenai { message, r#type, param: None, code } };
    serde_json::to_vec(&body).unwrap_or_default().into()
}

/// The body of such an answer for Anthropic's API.
pub(super) fn anthropic(&ErrorFields { message, is_client_error, code }: &ErrorFields<'_>) -> Bytes {
    let r#type = match code {
        "body_too_large" => "request_too_large",
        "overloaded" => "overloaded_error",
        "upstream_timeout" => "timeout_error",
        _ if is_client_error => "invalid_request_error",
        _ => "api_error",
    };
    let body = Body { r#type: Some("error"), error: OfAnthropic { r#type, message } };
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
            let body = anthropic(&ErrorFields { message: "a \"b\"", is_client_error, code });
            let expected = format!(r#"{{"type":"error","error":{{"type":"{type}","message":"a \"b\""}}}}"#);
            assert_eq!(body, expected.as_bytes());
        }
    }
}
