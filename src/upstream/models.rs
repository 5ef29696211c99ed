//! The upstream's list of models: the requests for its pages, and the context windows in the answers.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;

use super::{Upstream, UpstreamError};
use crate::body::{self, Budget, Limits, Pace, PacedBody, ReadError, RequestBody, pool::Pool};
use crate::tokens::models::{LocalServer, next_page_after, num_ctx, windows_in};

/// The longest list that is read, all pages together, in bytes. Those of large gateways are a tenth of it.
const MAX_LISTING: usize = 8 << 20;

/// The most pages that are read.
const MAX_PAGES: usize = 10;

/// The request for a list of models.
#[derive(Clone, Debug)]
pub struct ModelsRequest {
    url: Uri,
    /// Its header fields.
    pub headers: HeaderMap,
}

/// The content of a list.
#[derive(Debug)]
pub struct Listing {
    /// The names of models and their context windows. Of a name that is there twice, the last one holds.
    pub windows: Vec<(String, usize)>,
    /// The local server that has written it.
    pub server: Option<LocalServer>,
}

/// Why a list was not read.
#[derive(Debug, thiserror::Error)]
pub enum ListingError {
    /// The status of a page is not 200.
    #[error("the upstream answered {0}")]
    Status(StatusCode),
    /// A page was not sent.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// A page broke off, or the list is too long.
    #[error(transparent)]
    Body(#[from] ReadError),
}

impl ModelsRequest {
    /// A `GET` of the list at this URL, without a credential.
    pub fn new(url: Uri) -> Self {
        Self { url, headers: HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/json"))]) }
    }

    /// Sends it for the first page.
    pub async fn send(&self, upstream: &Upstream) -> Result<Response<Incoming>, UpstreamError> {
        self.send_to(upstream, self.url.clone()).await
    }

    /// Reads the names of models and their context windows from the first page and from those after it, each of which
    /// may pause for `pause`. A local server is then asked for the contexts that it has loaded models with.
    pub async fn read_windows(
        &self,
        upstream: &Upstream,
        first: Response<Incoming>,
        pause: Duration,
    ) -> Result<Listing, ListingError> {
        let mut limits = limits();
        let (mut page, mut windows, mut server) = (first, Vec::new(), None);
        for n in 1..=MAX_PAGES {
            let listing = read(page, &limits, pause).await?;
            limits.max_body -= listing.len();
            windows.append(&mut windows_in(&listing));
            server = server.or_else(|| LocalServer::of_listing(&listing));
            let next = next_page_after(&listing).filter(|_| n < MAX_PAGES).and_then(|last| self.url_after(&last));
            let Some(next) = next else { break };
            page = self.send_to(upstream, next).await?;
        }
        if let Some(server) = &server
            && let Some(url) = self.url_of(server.path())
            && let Ok(answer) = read(self.send_to(upstream, url).await?, &limits, pause).await
        {
            windows.append(&mut server.windows_in(&answer));
        }
        Ok(Listing { windows, server })
    }

    /// Asks a local server for the context of a model that it has not loaded, where there is a path for that.
    pub async fn window_of(
        &self,
        upstream: &Upstream,
        server: &LocalServer,
        model: &str,
        pause: Duration,
    ) -> Option<usize> {
        let url = server.path_of_one().and_then(|path| self.url_of(path))?;
        let asked = serde_json::to_vec(&BTreeMap::from([("model", model)])).ok()?;
        let mut request = Request::post(url).body(RequestBody::buffered(&[asked.clone().into()])).ok()?;
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(asked.len()));
        num_ctx(&read(upstream.send(request).await.ok()?, &limits(), pause).await.ok()?)
    }

    async fn send_to(&self, upstream: &Upstream, url: Uri) -> Result<Response<Incoming>, UpstreamError> {
        let mut request = Request::new(RequestBody::buffered(&[]));
        *request.method_mut() = Method::GET;
        *request.uri_mut() = url;
        *request.headers_mut() = self.headers.clone();
        upstream.send(request).await
    }

    /// The URL of a path below the server's root, which is where `/v1/models` begins.
    fn url_of(&self, path: &str) -> Option<Uri> {
        let folder = self.url.path().strip_suffix("/models")?;
        let root = folder.strip_suffix("/v1").unwrap_or(folder);
        let mut parts = self.url.clone().into_parts();
        parts.path_and_query = Some(format!("{root}{path}").parse().ok()?);
        Uri::from_parts(parts).ok()
    }

    /// The URL of the page after the model with this name.
    fn url_after(&self, last: &str) -> Option<Uri> {
        let separator = if self.url.query().is_some() { '&' } else { '?' };
        format!("{}{separator}after_id={last}", self.url).parse().ok()
    }
}

/// Limits with a separate budget, so that a list takes nothing from requests.
fn limits() -> Limits {
    Limits { max_body: MAX_LISTING, budget: Budget::new(2 * MAX_LISTING), pool: Pool::default() }
}

/// Reads an answer, if its status is 200.
async fn read(answer: Response<Incoming>, limits: &Limits, pause: Duration) -> Result<Bytes, ListingError> {
    if answer.status() != StatusCode::OK {
        return Err(ListingError::Status(answer.status()));
    }
    let pace = Pace { pause, ..Pace::default() };
    Ok(body::read_up_to(PacedBody::new(answer.into_body(), pace, None), limits).await?)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::upstream::Settings;
    use crate::upstream::connect::Proxies;

    const LISTING: &str = r#"{"data":[{"id":"house-model","max_model_len":16000},{"id":"other"}]}"#;
    const PAGE: &str = r#"{"data":[{"id":"a/b-1","max_input_tokens":200000}],"has_more":true,"last_id":"a/b-1"}"#;

    /// Asks an upstream for a list with these pages, each filled up to so many bytes. Returns the lines of the requests'
    /// heads, and what was read.
    async fn ask(pages: &[(&'static str, usize)]) -> (Vec<Vec<String>>, Result<Vec<(String, usize)>, ListingError>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let (sender, heads) = mpsc::channel();
        let pages = pages.to_vec();
        thread::spawn(move || {
            for (page, length) in pages {
                let (mut socket, _) = listener.accept().unwrap();
                let lines = BufReader::new(&socket).lines().map(Result::unwrap);
                sender.send(lines.take_while(|line| !line.is_empty()).collect()).unwrap();
                let mut page = page.as_bytes().to_vec();
                page.resize(length.max(page.len()), b' ');
                let length = page.len();
                write!(socket, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n").unwrap();
                // A list that is too long is not read: this then fails when the runtime closes the connection.
                let _sent = socket.write_all(&page);
            }
        });
        let settings = Settings { url: url.parse().unwrap(), ..Settings::default() };
        let upstream = Upstream::new(&settings, &Proxies::default(), None).unwrap();
        let url = upstream.join(&Uri::from_static("/v1/models?limit=1")).unwrap();
        let request = ModelsRequest::new(url);
        let answer = request.send(&upstream).await.unwrap();
        let listing = request.read_windows(&upstream, answer, Duration::from_secs(10)).await;
        (heads.try_iter().collect(), listing.map(|listing| listing.windows))
    }

    #[tokio::test]
    async fn a_list_of_the_limit_is_read_and_one_byte_more_is_not() {
        let (heads, windows) = ask(&[(LISTING, MAX_LISTING)]).await;
        assert_eq!(heads[0][0], "GET /v1/models?limit=1 HTTP/1.1");
        assert!(heads[0].contains(&"accept: application/json".to_owned()), "{heads:?}");
        assert_eq!(windows.unwrap(), [("house-model".to_owned(), 16000)]);

        let (_, windows) = ask(&[(LISTING, MAX_LISTING + 1)]).await;
        assert!(matches!(windows, Err(ListingError::Body(ReadError::TooLong { .. }))), "{windows:?}");
    }

    #[tokio::test]
    async fn the_limit_is_that_of_all_pages_together() {
        let (heads, windows) = ask(&[(PAGE, 0), (LISTING, MAX_LISTING - PAGE.len())]).await;
        assert_eq!(heads[1][0], "GET /v1/models?limit=1&after_id=a/b-1 HTTP/1.1");
        assert_eq!(windows.unwrap(), [("a/b-1".to_owned(), 200_000), ("house-model".to_owned(), 16000)]);

        let (_, windows) = ask(&[(PAGE, 0), (LISTING, MAX_LISTING - PAGE.len() + 1)]).await;
        assert!(matches!(windows, Err(ListingError::Body(ReadError::TooLong { .. }))), "{windows:?}");
    }

    #[tokio::test]
    async fn a_local_server_is_asked_once_for_what_it_has_loaded() {
        let listing = r#"{"data":[{"id":"m","owned_by":"llamacpp","meta":{"n_ctx_train":131072}}]}"#;
        for (props, expected) in [(r#"{"default_generation_settings":{"n_ctx":8192}}"#, Some(8192)), ("no", None)] {
            let (heads, windows) = ask(&[(listing, 0), (props, 0)]).await;
            assert_eq!((heads.len(), &*heads[1][0]), (2, "GET /props HTTP/1.1"));
            let expected: Vec<_> = expected.into_iter().map(|n| ("m".to_owned(), n)).collect();
            assert_eq!(windows.unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn no_more_than_so_many_pages_are_read() {
        let (heads, windows) = ask(&[(PAGE, 0); MAX_PAGES + 1]).await;
        assert_eq!((heads.len(), windows.unwrap().len()), (MAX_PAGES, MAX_PAGES));
    }
}
