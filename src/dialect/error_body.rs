//! Errors by abridge itself, in the shape that the clients of OpenAI's APIs read.

use bytes::Bytes;
use serde::Serialize;

use super::ErrorFields;

#[derive(Serialize)]
struct Body<'a> {
    error: Fields<'a>,
}

#[derive(Serialize)]
struct Fields<'a> {
    message: &'a str,
    r#type: &'a str,
    param: Option<&'a str>,
    code: &'a str,
}

/// The body of such an answer.
pub(super) fn openai(error: &ErrorFields<'_>) -> Bytes {
    let &ErrorFields { message, is_client_error, code } = error;
    let r#type = if is_client_error { "invalid_request_error" } else { "server_error" };
    let body = Body { error: Fields { message, r#type, param: None, code } };
    serde_json::to_vec(&body).unwrap_or_default().into()
}
