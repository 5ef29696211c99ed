//! What abridge answers itself, below `/abridge/`: whether it lives, whether it takes requests, numbers, payloads to recall, events,
//! and a page that shows it all.

use std::fmt;
use std::pin::Pin;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{Method, Response, StatusCode, Uri};
use http_body_util::Full;

use crate::history::History;
use crate::inspect;
use crate::metrics::CONTENT_TYPE as OPENMETRICS;
use crate::recall::PATH as RECALL;
use crate::store::Store;

pub mod access;
pub mod events;
mod look;
mod page;
mod recall;

pub use recall::{Reader, Recalls};

/// What the answers depend on besides the request.
#[derive(Clone, Copy, Debug)]
pub struct State<'a> {
    /// Who knows the numbers.
    pub numbers: &'a dyn Numbers,
    /// Whether abridge is stopping.
    pub draining: bool,
    /// Where payloads are.
    pub store: Option<&'a dyn Store>,
    /// What recalls may take.
    pub recalls: &'a Recalls,
    /// Who recalls.
    pub reader: Reader<'a>,
}

/// Knows the numbers about all requests.
pub trait Numbers: fmt::Debug + Sync {
    /// All of them, as OpenMetrics text.
    fn metrics(&self) -> Writing<'_>;

    /// How abridge does, as JSON.
    fn status(&self) -> Writing<'_>;

    /// What the last requests were.
    fn history(&self) -> &History;

    /// Of which requests the messages are kept.
    fn inspect(&self) -> inspect::Settings;
}

/// A text that is being written.
pub type Writing<'a> = Pin<Box<dyn Future<Output = String> + Send + 'a>>;

/// Where a body is posted to be summarised. It is the proxy that answers, for it takes a call to the upstream.
pub const SUMMARIZE: &str = "/abridge/summarize";

/// What there is.
const PATHS: &str = "there are /abridge/, /abridge/healthz, /abridge/readyz, /abridge/metrics, /abridge/status, /abridge/requests, /abridge/requests/ID, /abridge/payloads, /abridge/recall/HANDLE, /abridge/events and POST /abridge/summarize\n";

/// Whether a path is ours and never the upstream's.
pub fn owns(path: &str) -> bool {
    path == "/abridge" || path.starts_with("/abridge/")
}

/// The answer to a request for one of our own paths.
pub async fn answer(method: &Method, uri: &Uri, state: State<'_>) -> Response<Full<Bytes>> {
    let path = uri.path();
    let handle = path.strip_prefix(RECALL);
    let known = handle.is_some()
        || look::has(path)
        || page::has(path)
        || matches!(path, "/abridge/healthz" | "/abridge/metrics" | "/abridge/readyz");
    if known && method != Method::GET && method != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    if path == SUMMARIZE {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only POST\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return response;
    }
    if let Some(handle) = handle {
        return state.recalls.answer(handle, uri.query().unwrap_or_default(), state.store, state.reader).await;
    }
    if look::has(path) {
        return look::answer(path, uri.query().unwrap_or_default(), state).await;
    }
    if page::has(path) {
        return page::answer(path);
    }
    match path {
        "/abridge/healthz" => text(StatusCode::OK, "ok\n"),
        "/abridge/metrics" => {
            let mut response = text(StatusCode::OK, state.numbers.metrics().await);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(OPENMETRICS));
            response
        }
        "/abridge/readyz" if state.draining => text(StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
        "/abridge/readyz" => text(StatusCode::OK, "ready\n"),
        _ => text(StatusCode::NOT_FOUND, PATHS),
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let body = body.into();
    // Of nothing, the library would not say so to a HEAD.
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
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use super::*;
    use crate::body::Budget;

    #[derive(Debug)]
    struct Nothing(History);

    impl Numbers for Nothing {
        fn metrics(&self) -> Writing<'_> {
            Box::pin(async { "# EOF\n".to_owned() })
        }

        fn status(&self) -> Writing<'_> {
            Box::pin(async { "{}".to_owned() })
        }

        fn history(&self) -> &History {
            &self.0
        }

        fn inspect(&self) -> inspect::Settings {
            inspect::Settings::default()
        }
    }

    #[tokio::test]
    async fn tells_life_from_readiness() {
        let recalls = Recalls::new(Arc::new(Semaphore::new(0)), Budget::new(0), std::time::Duration::ZERO);
        let status = async |method: Method, path: &'static str, draining| {
            let numbers = &Nothing(History::new());
            let state = State { numbers, draining, store: None, recalls: &recalls, reader: Reader::Anybody };
            answer(&method, &Uri::from_static(path), state).await.status().as_u16()
        };
        assert_eq!(status(Method::GET, "/abridge/healthz", true).await, 200);
        assert_eq!(status(Method::GET, "/abridge/readyz", false).await, 200);
        assert_eq!(status(Method::GET, "/abridge/readyz", true).await, 503);
        assert_eq!(status(Method::GET, "/abridge/", false).await, 200);
        assert_eq!(status(Method::GET, "/abridge", false).await, 308);
        assert_eq!(status(Method::GET, "/abridge/else", false).await, 404);
        assert_eq!(status(Method::POST, "/abridge/healthz", false).await, 405);
    }

    #[test]
    fn owns_its_folder_alone() {
        assert!(owns("/abridge") && owns("/abridge/x"));
        assert!(!owns("/abridged") && !owns("/v1/abridge/x"));
    }
}
