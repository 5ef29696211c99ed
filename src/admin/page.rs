//! The page at `/abridge/`: one document with its style and script, which sends requests to this abridge only.
//!
//! It holds no data, and so no secret; it requests its data from the other paths, with the token that an operator enters.
//! The data was written by models and tools and is untrusted: the script inserts it as text nodes, and the policy of the page
//! runs only what has the nonce of this answer, lets no text become markup, and loads nothing.

use std::sync::LazyLock;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;

use super::{json, text, with};

/// The path of the page, and the path that redirects to it.
const PATH: &str = "/abridge/";
const SHORT_PATH: &str = "/abridge";

/// The path of the `OpenAPI` description of all paths.
const DESCRIPTION: &str = "/abridge/openapi.json";

/// The length of a nonce, in bytes.
const NONCE: usize = 16;

/// The content security policy. The nonce replaces each `{}`.
const POLICY: &str = "default-src 'none'; script-src 'nonce-{}'; style-src 'nonce-{}'; img-src data:; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

/// The document without the nonce.
static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    let script = [
        include_str!("page/base.js"),
        include_str!("page/requests.js"),
        include_str!("page/lanes.js"),
        include_str!("page/detail.js"),
        include_str!("page/costs.js"),
        include_str!("page/store.js"),
        include_str!("page/main.js"),
    ];
    include_str!("page/index.html")
        .replace("{{style}}", include_str!("page/style.css"))
        .replace("{{script}}", &script.join("\n"))
});

/// Whether this module serves a path.
pub(crate) fn is_path(path: &str) -> bool {
    [PATH, SHORT_PATH, DESCRIPTION].contains(&path)
}

/// Leads a browser that asks for `/` to the page; none for any other request.
pub fn for_browser<B>(request: &Request<B>) -> Option<Response<Full<Bytes>>> {
    let is_html = |value: &HeaderValue| value.as_bytes().starts_with(b"text/html");
    let asks = request.method() == Method::GET && request.uri().path() == "/";
    (asks && request.headers().get(ACCEPT).is_some_and(is_html)).then(|| redirect(StatusCode::FOUND))
}

/// Answers with the page, a redirect to it, or the description. [`super::access`] sets the headers that all answers have in
/// common.
pub(crate) fn answer(path: &str) -> Response<Full<Bytes>> {
    match path {
        PATH => page(),
        DESCRIPTION => json(StatusCode::OK, include_str!("../../assets/openapi.json")),
        _ => redirect(StatusCode::PERMANENT_REDIRECT),
    }
}

fn page() -> Response<Full<Bytes>> {
    let mut random = [0; NONCE];
    if getrandom::getrandom(&mut random).is_err() {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "the system gave no random bytes; try again\n");
    }
    let nonce = format!("{:032x}", u128::from_be_bytes(random));
    // It always is a value; if it were not, the page could do nothing.
    let policy = HeaderValue::try_from(POLICY.replace("{}", &nonce));
    let policy = policy.unwrap_or(HeaderValue::from_static("default-src 'none'"));
    let mut response = Response::new(Full::new(DOCUMENT.replace("{{nonce}}", &nonce).into()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, policy);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(OPENER_POLICY, HeaderValue::from_static("same-origin"));
    response
}

fn redirect(status: StatusCode) -> Response<Full<Bytes>> {
    with(text(status, "the page is at /abridge/\n"), LOCATION, PATH)
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn read() -> (String, String) {
        let response = answer(PATH);
        let policy = response.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
        let body = response.into_body().frame().await.unwrap().unwrap().into_data().unwrap();
        (policy, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn each_answer_has_a_nonce_of_its_own_and_nothing_else_may_run() {
        let ((policy, body), (other, _)) = (read().await, read().await);
        let nonce = policy.split("'nonce-").nth(1).and_then(|rest| rest.split('\'').next()).unwrap();
        assert_eq!(nonce.len(), 2 * NONCE);
        assert_ne!(policy, other);
        assert_eq!(body.matches("<script").count(), 1);
        assert_eq!(body.matches(&format!(" nonce=\"{nonce}\">")).count(), 2);
        assert!(!body.contains("{{"), "a placeholder was not replaced");
    }

    #[tokio::test]
    async fn nothing_is_loaded_from_elsewhere_and_no_text_becomes_markup() {
        let (_, body) = read().await;
        // A namespace is not an address that is loaded.
        let body = body.replace("http://www.w3.org/2000/svg", "");
        for found in ["http://", "https://", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("]
        {
            assert!(!body.contains(found), "the page has {found}");
        }
    }
}
