//! Questions to the upstream, apart from the requests of clients: the list of its models, with its pages and the context windows in
//! them; and the probe, one `GET` of that list, and what the answer means.
//!
//! The probe is sent like any request, with the header fields and the key that the settings give this upstream, and never with a
//! client's key.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::ErrorKind;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HeaderMap, HeaderValue, LOCATION};
use http::{Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use rustls::CertificateError;
use tokio::time::timeout;

use super::post::json_post_with;
use super::routes::ANTHROPIC_VERSION;
use super::{KeyHeader, Settings, Upstream, UpstreamError, UpstreamErrorKind, UpstreamName, chain};
use crate::body::{self, Budget, Limits, Pace, PacedBody, Pool, ReadError, RequestBody};
use crate::dialect;
use crate::tokens::models::{LocalServer, next_page_after, num_ctx, windows_in};

/// A finished probe.
#[derive(Debug)]
pub struct Probe {
    /// The URL of the request.
    pub url: Uri,
    /// The result of the probe.
    pub outcome: ProbeOutcome,
    request: ModelsRequest,
    answer: Option<Response<Incoming>>,
}

/// The outcome of a probe.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ProbeOutcome {
    /// An answer without a fault.
    Reachable(StatusCode),
    /// The upstream requires a key, and abridge has none: clients send theirs.
    KeyRequired(StatusCode),
    /// The upstream rejects abridge's key.
    KeyRejected(StatusCode),
    /// The path does not exist.
    PathNotFound,
    /// The upstream redirects to this URL.
    Redirected(String),
    /// The upstream answers with a server error.
    ServerError(StatusCode),
    /// The host name is unknown.
    UnknownHost,
    /// The connection was refused.
    ConnectionRefused,
    /// The host cannot be reached, for this reason.
    Unreachable(String),
    /// The certificate is not trusted, for this reason.
    Untrusted(String),
    /// The server does not speak TLS.
    NoTls,
    /// The proxy answers 407.
    ProxyRefusal,
    /// No file descriptor was left for a connection.
    OutOfDescriptors,
    /// The answer cannot be read.
    Unreadable,
    /// The server closed the connection.
    Closed,
    /// No answer within this time.
    Timeout(Duration),
}

/// What to do where a proxy answers 407.
pub const PROXY_ADVICE: &str = "put them into the proxy's URL in HTTPS_PROXY, HTTP_PROXY or ALL_PROXY (http://user:password@host:port), or the upstream's host into NO_PROXY";

impl Probe {
    /// Sends the request and waits at most `within` for the head of the answer.
    pub async fn run(upstream: &Upstream, within: Duration) -> Self {
        let url = upstream.join(&Uri::from_static("/v1/models")).unwrap_or_default();
        let mut request = ModelsRequest::new(url.clone());
        if upstream.key_header == Some(KeyHeader::XApiKey) {
            // Anthropic refuses a key without it.
            request.headers.insert(ANTHROPIC_VERSION, HeaderValue::from_static("2023-06-01"));
        }
        let (outcome, answer) = match timeout(within, request.send(upstream)).await {
            Err(_) => (ProbeOutcome::Timeout(within), None),
            Ok(Err(error)) => (ProbeOutcome::of_error(&error), None),
            Ok(Ok(answer)) => (ProbeOutcome::of_answer(&answer, upstream.has_key()), Some(answer)),
        };
        Self { url, outcome, request, answer }
    }

    /// The context windows of the upstream's models, as far as its answers have them.
    pub async fn windows(self, upstream: &Upstream, within: Duration) -> Vec<(String, usize)> {
        let Some(answer) = self.answer else { return Vec::new() };
        let windows = timeout(within, self.request.read_windows(upstream, answer, within)).await;
        windows.ok().and_then(Result::ok).map(|listing| listing.windows).unwrap_or_default()
    }
}

impl ProbeOutcome {
    fn of_answer<B>(answer: &Response<B>, has_key: bool) -> Self {
        match answer.status() {
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) if has_key => Self::KeyRejected(status),
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => Self::KeyRequired(status),
            StatusCode::NOT_FOUND => Self::PathNotFound,
            status if status.is_redirection() => {
                let to = answer.headers().get(LOCATION).and_then(|to| to.to_str().ok());
                Self::Redirected(to.unwrap_or("another URL").to_owned())
            }
            status if status.is_server_error() => Self::ServerError(status),
            status => Self::Reachable(status),
        }
    }

    fn of_error(error: &UpstreamError) -> Self {
        let mut causes = chain(error);
        let last = || chain(error).last().map(ToString::to_string).unwrap_or_default();
        match error.kind {
            UpstreamErrorKind::ConnectTimeout(within) | UpstreamErrorKind::FirstByteTimeout(within) => {
                Self::Timeout(within)
            }
            UpstreamErrorKind::Tls => match causes.find_map(|cause| cause.downcast_ref::<rustls::Error>()) {
                Some(rustls::Error::InvalidCertificate(
                    CertificateError::UnknownIssuer | CertificateError::BadSignature,
                )) => Self::Untrusted("its issuer is unknown".to_owned()),
                Some(rustls::Error::InvalidMessage(_)) => Self::NoTls,
                _ => Self::Untrusted(last()),
            },
            UpstreamErrorKind::Connect if is_dns_error(error) => Self::UnknownHost,
            UpstreamErrorKind::Connect => {
                let kind =
                    |cause: &(dyn Error + 'static)| cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
                if causes.any(|cause| kind(cause) == Some(ErrorKind::ConnectionRefused)) {
                    Self::ConnectionRefused
                } else {
                    Self::Unreachable(last())
                }
            }
            UpstreamErrorKind::ProxyRefusal => Self::ProxyRefusal,
            UpstreamErrorKind::Descriptors => Self::OutOfDescriptors,
            UpstreamErrorKind::HeadTooLong | UpstreamErrorKind::Malformed => Self::Unreadable,
            UpstreamErrorKind::SlowClient | UpstreamErrorKind::Closed => Self::Closed,
        }
    }

    /// Describes the outcome in a few words.
    pub fn describe(&self, url: &Uri, upstream: &Upstream) -> String {
        let host = url.authority().map(ToString::to_string).unwrap_or_default();
        let place = upstream.proxy_address.as_ref().map_or_else(|| host.clone(), |proxy| format!("the proxy {proxy}"));
        match self {
            Self::Reachable(status) | Self::ServerError(status) => format!("GET {url} answers {}", status.as_u16()),
            Self::KeyRequired(status) => format!("GET {url} answers {}: clients bring their key", status.as_u16()),
            Self::KeyRejected(status) => format!("GET {url} answers {} to abridge's key", status.as_u16()),
            Self::PathNotFound => format!("GET {url} answers 404"),
            Self::Redirected(to) => format!("GET {url} is answered with a redirect to {to}"),
            Self::UnknownHost => {
                format!(
                    "the name {} is not known",
                    upstream.proxy_address.as_deref().or(url.host()).unwrap_or_default()
                )
            }
            Self::ConnectionRefused => format!("nothing listens at {place}"),
            Self::Unreachable(why) => format!("{place} cannot be reached: {why}"),
            Self::Untrusted(why) => format!("the certificate of {host} is not trusted: {why}"),
            Self::NoTls => format!("{host} does not speak TLS"),
            Self::ProxyRefusal => {
                format!("{place} wants a user and a password, or does not accept those that it got (407)")
            }
            Self::OutOfDescriptors => format!("abridge has no file descriptor for a connection to {place}"),
            Self::Unreadable => format!("what {place} answers cannot be read as HTTP"),
            Self::Closed => format!("{place} closed the connection without an answer"),
            Self::Timeout(within) => format!("no answer from {place} within {} s", within.as_secs_f32()),
        }
    }

    /// What to do about it; `None` if nothing is wrong.
    pub fn advice(&self, settings: &Settings, name: &UpstreamName) -> Option<String> {
        let base = settings.url.to_string();
        let base = base.trim_end_matches('/');
        let path = settings.url.uri().path().trim_end_matches('/');
        let flag = if name.is_route() { format!("--upstream {name}=") } else { "--upstream ".to_owned() };
        let setting = |key| name.setting(key);
        let key = settings.api_key_env.as_deref();
        Some(match self {
            Self::Reachable(_) | Self::KeyRequired(_) => return None,
            Self::KeyRejected(_) => match key {
                Some(name) => format!(
                    "put a key that it takes into {name}, or take {} out, and clients bring theirs",
                    setting("api_key_env")
                ),
                None => format!("correct the key in {}", setting("headers")),
            },
            Self::PathNotFound => match dialect::for_path(path).and_then(|dialect| dialect.base_path(path)) {
                Some(before) => format!("leave out the requests' path: {flag}{}{before}", base.trim_end_matches(path)),
                None if path.ends_with("/v1") => {
                    format!("look up the path of the server's API for {}, which is {base}", setting("url"))
                }
                None => format!("the URL probably needs /v1: {flag}{base}/v1"),
            },
            Self::Redirected(to) => format!("write the URL that it leads to into {} ({to})", setting("url")),
            Self::ServerError(_) => "look at the server's own log; abridge passes its errors on".to_owned(),
            Self::UnknownHost => {
                format!("correct the host in {}, or the network or DNS of this machine or container", setting("url"))
            }
            Self::ConnectionRefused => format!("start the server there, or say where it is: {flag}URL"),
            Self::Unreachable(_) => "check the network, and HTTPS_PROXY and NO_PROXY if there is a proxy".to_owned(),
            Self::ProxyRefusal => PROXY_ADVICE.to_owned(),
            Self::Untrusted(_) => {
                format!("put the certificate of its authority into a file, and name it in {}", setting("ca_file"))
            }
            Self::NoTls => {
                format!("write http:// in {}: {flag}{}", setting("url"), base.replacen("https://", "http://", 1))
            }
            Self::OutOfDescriptors => "raise the limit: ulimit -n, or LimitNOFILE= of a systemd unit".to_owned(),
            Self::Unreadable | Self::Closed => {
                format!("check the port, and whether {} should begin with https://", setting("url"))
            }
            Self::Timeout(_) => {
                "check the host, the port and firewalls between; HTTPS_PROXY, if there has to be a proxy".to_owned()
            }
        })
    }
}

/// Whether a DNS look-up has failed. hyper-util's error for that has no public type, so its text decides.
fn is_dns_error(error: &(dyn Error + 'static)) -> bool {
    chain(error).any(|cause| cause.to_string().starts_with("dns error"))
}

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
    /// All of it took too long.
    #[error("it took longer than {} s", .0.as_secs())]
    Timeout(Duration),
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
        let request = json_post_with(url, self.headers.clone(), asked.into());
        num_ctx(&read(upstream.send(request.into()).await.ok()?, &limits(), pause).await.ok()?)
    }

    async fn send_to(&self, upstream: &Upstream, url: Uri) -> Result<Response<Incoming>, UpstreamError> {
        let mut request = Request::new(RequestBody::buffered(&[]));
        *request.method_mut() = Method::GET;
        *request.uri_mut() = url;
        *request.headers_mut() = self.headers.clone();
        upstream.send(request.into()).await
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
