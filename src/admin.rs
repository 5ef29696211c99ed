//! What abridge answers itself, below `/abridge/`: whether it lives, and whether it takes requests.

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;

/// Whether a path is ours and never the upstream's.
pub fn owns(path: &str) -> bool {
    path == "/abridge" || path.starts_with("/abridge/")
}

/// The answer to a request for one of our own paths.
pub fn answer<B>(request: &Request<B>, draining: bool) -> Response<Full<Bytes>> {
    let (status, text) = match (request.uri().path(), request.method()) {
        ("/abridge/healthz" | "/abridge/readyz", method) if method != Method::GET && method != Method::HEAD => {
            (StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n")
        }
        ("/abridge/healthz", _) => (StatusCode::OK, "ok\n"),
        ("/abridge/readyz", _) if draining => (StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
        ("/abridge/readyz", _) => (StatusCode::OK, "ready\n"),
        _ => (StatusCode::NOT_FOUND, "there are /abridge/healthz and /abridge/readyz\n"),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_life_from_readiness() {
        let status = |path: &str, draining| answer(&Request::get(path).body(()).unwrap(), draining).status().as_u16();
        assert_eq!(status("/abridge/healthz", true), 200);
        assert_eq!(status("/abridge/readyz", false), 200);
        assert_eq!(status("/abridge/readyz", true), 503);
        assert_eq!(status("/abridge/else", false), 404);
        let post = Request::post("/abridge/healthz").body(()).unwrap();
        assert_eq!(answer(&post, false).status(), 405);
    }

    #[test]
    fn owns_its_folder_alone() {
        assert!(owns("/abridge") && owns("/abridge/x"));
        assert!(!owns("/abridged") && !owns("/v1/abridge/x"));
    }
}
