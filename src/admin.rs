//! The paths below `/abridge/`, which abridge answers itself: who may use them, recalls, events, the MCP server and the page.

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::Full;

pub mod access;
pub mod clients;
pub mod events;
pub mod mcp;
pub mod page;
mod recall;

pub(crate) use recall::{RETRY_SECONDS, RecallError, Recalled, parse_query, percent_decoded};
pub use recall::{Reader, RecallHandler, Requester};

/// The path for manual summaries. The proxy answers it, because it needs a call to the upstream.
pub const SUMMARIZE: &str = "/abridge/summarize";

/// The path that reloads the settings. The proxy answers it, because the settings are read by the app.
pub const RELOAD: &str = "/abridge/reload";

/// The path that rewrites a body. The proxy answers it, because it edits as for an upstream.
pub const REWRITE: &str = "/abridge/rewrite";

/// Whether abridge answers a path itself and never forwards it.
pub fn is_admin_path(path: &str) -> bool {
    path == "/abridge" || path.starts_with("/abridge/")
}

/// The refusal of a request that would change something at a path that is only read.
pub(crate) fn only_get() -> Response<Full<Bytes>> {
    with(text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n"), ALLOW, "GET, HEAD")
}

/// The answer with this field, too.
pub(crate) fn with<B>(mut answer: Response<B>, name: HeaderName, value: &'static str) -> Response<B> {
    answer.headers_mut().insert(name, HeaderValue::from_static(value));
    answer
}

/// Sets the fields that have a value.
pub(crate) fn set_fields<const N: usize>(headers: &mut HeaderMap, fields: [(HeaderName, Option<String>); N]) {
    for (name, value) in fields {
        if let Some(Ok(value)) = value.map(HeaderValue::try_from) {
            headers.insert(name, value);
        }
    }
}

/// An answer of JSON, which is not cached.
pub(crate) fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    with(text(status, body), CONTENT_TYPE, "application/json")
}

/// An answer of plain text, which is not cached.
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let body = body.into();
    // Set here, because hyper omits a length of 0 in the answer to HEAD.
    let length = HeaderValue::from(body.len());
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, length);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_abridge_folder_is_an_admin_path() {
        assert!(is_admin_path("/abridge") && is_admin_path("/abridge/x"));
        assert!(!is_admin_path("/abridged") && !is_admin_path("/v1/abridge/x"));
    }
}
