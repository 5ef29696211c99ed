//! The paths below `/abridge/`, which abridge answers itself: health, readiness, metrics, status, recalls, events and the page.

use std::fmt;
use std::path::PathBuf;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Response, StatusCode, Uri};
use http_body_util::Full;

use crate::history::History;
use crate::inspect;
use crate::ledger::By;
use crate::metrics::TextFormat;
use crate::recall::PATH as RECALL;
use crate::store::Store;

pub mod access;
pub mod clients;
pub mod events;
mod introspection;
pub mod mcp;
pub mod page;
mod recall;

pub use recall::{RecallHandler, Requester};
pub(crate) use recall::{SIZE, percent_decoded};

/// The state that the answers depend on besides the request.
#[derive(Clone, Debug)]
pub struct State<'a> {
    /// The source of metrics, status and history.
    pub introspection: &'a dyn Introspection,
    /// Whether abridge is stopping.
    pub draining: bool,
    /// The store of the payloads; `None` if it is off.
    pub store: Option<&'a dyn Store>,
    /// Answers recalls within their limits.
    pub recalls: &'a RecallHandler,
    /// The rights of the request in a recall.
    pub requester: Requester,
}

/// Reports the state of the proxy.
#[async_trait]
pub trait Introspection: fmt::Debug + Sync {
    /// The metrics as text.
    async fn metrics(&self, format: TextFormat) -> String;

    /// The status as JSON.
    async fn status(&self) -> String;

    /// The last days of the ledger as JSON, or their sums by something; or why it cannot be read.
    async fn ledger(&self, _n_days: u32, _by: Option<By>) -> Result<String, String> {
        Ok("[]".to_owned())
    }

    /// One sentence for operators about the store, with the fix.
    fn store_notice(&self) -> Option<String> {
        None
    }

    /// The history of the last requests.
    fn history(&self) -> &History;

    /// The settings for keeping messages of requests.
    fn inspect(&self) -> inspect::Settings;
}

/// The path for manual summaries. The proxy answers it, because it needs a call to the upstream.
pub const SUMMARIZE: &str = "/abridge/summarize";

/// The path that reloads the settings. The proxy answers it, because the settings are read by the app.
pub const RELOAD: &str = "/abridge/reload";

/// The path that has the file of the store copied, to `file=PATH` of its query.
const BACKUP: &str = "/abridge/backup";

/// The path that rewrites a body. The proxy answers it, because it edits as for an upstream.
pub const REWRITE: &str = "/abridge/rewrite";

/// The paths for health, metrics and readiness.
const HEALTH: &str = "/abridge/healthz";
const METRICS: &str = "/abridge/metrics";
const READY: &str = "/abridge/readyz";

/// The list of paths, for unknown ones.
const PATHS: &str = "there are /abridge/, /abridge/openapi.json, /abridge/healthz, /abridge/readyz, /abridge/metrics, /abridge/status, /abridge/ledger, /abridge/requests, /abridge/requests/ID, /abridge/payloads, /abridge/recall/HANDLE, /abridge/events, POST /abridge/summarize, POST /abridge/rewrite, POST /abridge/backup, POST /abridge/reload and POST /abridge/mcp\n";

/// Whether abridge answers a path itself and never forwards it.
pub fn is_admin_path(path: &str) -> bool {
    path == "/abridge" || path.starts_with("/abridge/")
}

/// Answers a request for one of abridge's own paths.
pub async fn answer(method: &Method, uri: &Uri, headers: &HeaderMap, state: State<'_>) -> Response<Full<Bytes>> {
    let (path, query) = (uri.path(), uri.query().unwrap_or_default());
    let handle = path.strip_prefix(RECALL);
    let is_read = || {
        handle.is_some()
            || introspection::is_path(path)
            || page::is_path(path)
            || matches!(path, HEALTH | METRICS | READY)
    };
    match path {
        BACKUP if method == Method::POST => backup(query, state.store).await,
        SUMMARIZE | RELOAD | REWRITE | BACKUP => {
            with(text(StatusCode::METHOD_NOT_ALLOWED, "only POST\n"), ALLOW, "POST")
        }
        _ if !matches!(*method, Method::GET | Method::HEAD) && is_read() => only_get(),
        HEALTH => text(StatusCode::OK, "ok\n"),
        METRICS => {
            let format = TextFormat::of_scrape(headers);
            with(text(StatusCode::OK, state.introspection.metrics(format).await), CONTENT_TYPE, format.content_type())
        }
        READY if state.draining => text(StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
        // Requests go on without the store, so a fleet whose engine is away stays ready.
        READY => match state.introspection.store_notice() {
            Some(notice) => text(StatusCode::OK, format!("ready, degraded: store: {notice}\n")),
            None if state.store.is_some_and(Store::is_failing) => text(StatusCode::OK, "ready, degraded: store\n"),
            None => text(StatusCode::OK, "ready\n"),
        },
        _ if page::is_path(path) => page::answer(path),
        _ if introspection::is_path(path) => introspection::answer(path, query, &state).await,
        _ => match handle {
            Some(handle) => state.recalls.answer(handle, query, state.store, state.requester).await,
            None => text(StatusCode::NOT_FOUND, PATHS),
        },
    }
}

/// The refusal of a request that would change something at a path that is only read.
fn only_get() -> Response<Full<Bytes>> {
    with(text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n"), ALLOW, "GET, HEAD")
}

/// Copies the store. The path is an operator's, and of this machine; no file is overwritten.
async fn backup(query: &str, store: Option<&dyn Store>) -> Response<Full<Bytes>> {
    let path = query.strip_prefix("file=").and_then(|path| String::from_utf8(percent_decoded(path)).ok());
    let Some(path) = path.map(PathBuf::from).filter(|path| path.is_absolute()) else {
        return text(StatusCode::BAD_REQUEST, "name a new file: file=/ABSOLUTE/PATH\n");
    };
    let Some(store) = store else { return text(StatusCode::CONFLICT, "nothing is stored: the store is off\n") };
    match store.backup(&path).await {
        Ok(()) => text(StatusCode::OK, format!("copied the store to {}\n", path.display())),
        Err(error) => text(StatusCode::UNPROCESSABLE_ENTITY, format!("{error}: {}\n", error.source)),
    }
}

/// The answer with this field, too.
fn with<B>(mut answer: Response<B>, name: HeaderName, value: &'static str) -> Response<B> {
    answer.headers_mut().insert(name, HeaderValue::from_static(value));
    answer
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
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use super::*;
    use crate::body::Budget;

    #[derive(Debug)]
    struct Nothing(History);

    #[async_trait]
    impl Introspection for Nothing {
        async fn metrics(&self, _: TextFormat) -> String {
            "# EOF\n".to_owned()
        }

        async fn status(&self) -> String {
            "{}".to_owned()
        }

        fn history(&self) -> &History {
            &self.0
        }

        fn inspect(&self) -> inspect::Settings {
            inspect::Settings::default()
        }
    }

    #[tokio::test]
    async fn draining_fails_readiness_and_not_health() {
        let recalls = RecallHandler::new(Arc::new(Semaphore::new(0)), Budget::new(0), 0, std::time::Duration::ZERO);
        let status = async |method: Method, path: &'static str, draining| {
            let introspection = &Nothing(History::new());
            let state =
                State { introspection, draining, store: None, recalls: &recalls, requester: Requester::Unrestricted };
            answer(&method, &Uri::from_static(path), &HeaderMap::new(), state).await.status().as_u16()
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
    fn only_the_abridge_folder_is_an_admin_path() {
        assert!(is_admin_path("/abridge") && is_admin_path("/abridge/x"));
        assert!(!is_admin_path("/abridged") && !is_admin_path("/v1/abridge/x"));
    }
}
