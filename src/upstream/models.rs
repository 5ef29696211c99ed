//! The upstream's list of models: the requests for its pages, and the context windows in the answers.

use std::time::Duration;

use http::header::{ACCEPT, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;

use super::{Upstream, UpstreamError};
use crate::body::{self, Budget, Limits, Pace, PacedBody, ReadError, RequestBody, pool::Pool};
use crate::tokens::models::{next_page_after, windows_in};

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

    /// Reads the names of models and their context windows from the first page and from those behind it, each of which
    /// may pause for `pause`.
    pub async fn read_windows(
        &self,
        upstream: &Upstream,
        first: Response<Incoming>,
        pause: Duration,
    ) -> Result<Vec<(String, usize)>, ListingError> {
        // A separate budget, so that this takes nothing from requests.
        let budget = Budget::new(2 * MAX_LISTING);
        let mut limits = Limits { max_body: MAX_LISTING, budget, pool: Pool::default() };
        let (mut page, mut windows) = (first, Vec::new());
        for n in 1..=MAX_PAGES {
            if page.status() != StatusCode::OK {
                return Err(ListingError::Status(page.status()));
            }
            let listing =
                body::read_up_to(PacedBody::new(page.into_body(), Pace::without_minimum(pause)), &limits).await?;
            limits.max_body -= listing.len();
            windows.append(&mut windows_in(&listing));
            let next = next_page_after(&listing).filter(|_| n < MAX_PAGES).and_then(|last| self.url_after(&last));
            let Some(next) = next else { break };
            page = self.send_to(upstream, next).await?;
        }
        Ok(windows)
    }

    async fn send_to(&self, upstream: &Upstream, url: Uri) -> Result<Response<Incoming>, UpstreamError> {
        let mut request = Request::new(RequestBody::buffered(&[]));
        *request.method_mut() = Method::GET;
        *request.uri_mut() = url;
        *request.headers_mut() = self.headers.clone();
        upstream.send(request).await
    }

    /// The URL of the page behind the model with this name.
    fn url_after(&self, last: &str) -> Option<Uri> {
        let separator = if self.url.query().is_some() { '&' } else { '?' };
        format!("{}{separator}after_id={last}", self.url).parse().ok()
    }
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
        let windows = request.read_windows(&upstream, answer, Duration::from_secs(10)).await;
        (heads.try_iter().collect(), windows)
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
    async fn no_more_than_so_many_pages_are_read() {
        let (heads, windows) = ask(&[(PAGE, 0); MAX_PAGES + 1]).await;
        assert_eq!((heads.len(), windows.unwrap().len()), (MAX_PAGES, MAX_PAGES));
    }
}
