//! Questions to the upstream, apart from the requests of clients: the list of its models, with the context windows in it; and the
//! probe, one `GET` of that list, and what the answer means.
//!
//! The probe is sent like any request, with the header fields and the key that the settings give this upstream, and never with a
//! client's key.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, ErrorKind};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{ACCEPT, DATE, HeaderMap, HeaderValue, LOCATION};
use http::{Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use rustls::CertificateError;
use tokio::time::timeout;

use super::post::json_post_with;
use super::routes::ANTHROPIC_VERSION;
use super::{KeyHeader, Upstream, UpstreamError, UpstreamErrorKind, cause, chain};
use crate::body::{self, Budget, Limits, Pace, PacedBody, Pool, ReadError, RequestBody};
use crate::dialect;
use crate::tokens::models::{LocalServer, num_ctx, windows_in};

/// A finished probe.
#[derive(Debug)]
pub struct Probe {
    /// The URL of the request.
    pub url: Uri,
    /// The result, in a few words.
    pub said: String,
    /// What to do about it; `None` if nothing is wrong.
    pub fix: Option<String>,
    request: ModelsRequest,
    answer: Option<Response<Incoming>>,
}

impl Probe {
    /// Sends the request and waits at most `within` for the head of the answer.
    pub async fn run(upstream: &Upstream, within: Duration) -> Self {
        let is_anthropic = upstream.key_header == Some(KeyHeader::XApiKey);
        let query = if is_anthropic { format!("?{ONE_PAGE}") } else { String::new() };
        let target = format!("/v1/models{query}").parse().unwrap_or_default();
        let url = upstream.join(&target).unwrap_or_default();
        let mut request = ModelsRequest::new(url.clone());
        if is_anthropic {
            // The API refuses a key without it.
            request.headers.insert(ANTHROPIC_VERSION, HeaderValue::from_static("2023-06-01"));
        }
        let answered = timeout(within, request.send(upstream)).await;
        match answered.unwrap_or_else(|_| Err(UpstreamErrorKind::ConnectTimeout(within).into())) {
            Ok(answer) => {
                let (said, fix) = read_answer(&answer, &url, upstream);
                Self { url, said, fix, request, answer: Some(answer) }
            }
            Err(error) => {
                let host = url.authority().map(ToString::to_string).unwrap_or_default();
                let proxy = upstream.proxy_address.as_ref().map(|proxy| format!(" through the proxy {proxy}"));
                let error = UpstreamError { upstream: upstream.name().clone(), ..error };
                let (said, fix) = explained(&error, &(host + &proxy.unwrap_or_default()));
                Self { url, said, fix: Some(fix), request, answer: None }
            }
        }
    }

    /// Whether the upstream has answered with a list.
    pub fn is_listed(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.status() == StatusCode::OK)
    }

    /// The time by the upstream's clock, if it has answered with one.
    pub fn date(&self) -> Option<SystemTime> {
        httpdate::parse_http_date(self.answer.as_ref()?.headers().get(DATE)?.to_str().ok()?).ok()
    }

    /// The context windows of the upstream's models, as far as its answers have them.
    pub async fn windows(self, upstream: &Upstream, within: Duration) -> Vec<(String, usize)> {
        let Some(answer) = self.answer else { return Vec::new() };
        let windows = timeout(within, self.request.read_windows(upstream, answer, within)).await;
        windows.ok().and_then(Result::ok).map(|listing| listing.windows).unwrap_or_default()
    }
}

/// Says what the head of an answer means, and what to do about it.
fn read_answer<B>(answer: &Response<B>, url: &Uri, upstream: &Upstream) -> (String, Option<String>) {
    let (status, name) = (answer.status(), upstream.name());
    let said = format!("GET {url} answers {}", status.as_u16());
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if !upstream.has_key() => {
            (said + ": clients bring their key", None)
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let [variable, headers] = ["api_key_env", "headers"].map(|key| name.setting(key));
            let fix = format!("put a key that it takes into the variable of {variable}, or into {headers}");
            (said + " to abridge's key", Some(fix))
        }
        StatusCode::NOT_FOUND => (said, Some(another_path(upstream))),
        _ if status.is_redirection() => {
            let to = answer.headers().get(LOCATION).and_then(|to| to.to_str().ok()).unwrap_or("another URL");
            let fix = format!("write the URL that it leads to into {}", name.setting("url"));
            (format!("GET {url} is answered with a redirect to {to}"), Some(fix))
        }
        _ if status.is_server_error() => {
            (said, Some("look at the server's own log; abridge passes its errors on".to_owned()))
        }
        _ => (said, None),
    }
}

/// What to do about a URL whose path the upstream does not have.
fn another_path(upstream: &Upstream) -> String {
    let (name, base) = (upstream.name(), upstream.base.to_string());
    let (base, path) = (base.trim_end_matches('/'), upstream.base.uri().path().trim_end_matches('/'));
    match dialect::for_path(path).and_then(|dialect| dialect.base_path(path)) {
        Some(before) => {
            let url = format!("{}{before}", base.trim_end_matches(path));
            format!("leave out the requests' path: {}", name.url_flag(&url))
        }
        None if path.ends_with("/v1") => {
            format!("look up the path of the server's API for {}, which is {base}", name.setting("url"))
        }
        None => format!("the URL probably needs /v1: {}", name.url_flag(&format!("{base}/v1"))),
    }
}

/// Says why the upstream at `place` has given no answer, and what to do about it.
pub fn explained(error: &UpstreamError, place: &str) -> (String, String) {
    let name = &error.upstream;
    let setting = |key| name.setting(key);
    let last = || chain(error).last().map(ToString::to_string).unwrap_or_default();
    let is_refusal = |cause: &io::Error| cause.kind() == ErrorKind::ConnectionRefused;
    let said = format!("{place}: {}", error.kind);
    match error.kind {
        UpstreamErrorKind::Tls if matches!(cause(error), Some(rustls::Error::InvalidMessage(_))) => {
            (format!("{place} does not speak TLS"), format!("write http:// in {}", setting("url")))
        }
        UpstreamErrorKind::Tls => {
            let why = match cause(error) {
                Some(rustls::Error::InvalidCertificate(
                    CertificateError::UnknownIssuer | CertificateError::BadSignature,
                )) => "its issuer is unknown".to_owned(),
                _ => last(),
            };
            let fix =
                format!("put the certificate of its authority into a file, and name it in {}", setting("ca_file"));
            (format!("the certificate of {place} is not trusted: {why}"), fix)
        }
        UpstreamErrorKind::Connect if is_dns_error(error) => {
            let fix = format!("correct the host in {}, or the network or DNS of this machine", setting("url"));
            (format!("the name {place} is not known"), fix)
        }
        UpstreamErrorKind::Connect if chain(error).filter_map(|cause| cause.downcast_ref()).any(is_refusal) => {
            let fix = format!("start the server there, or correct {} or {}", setting("url"), name.url_flag("URL"));
            (format!("nothing listens at {place}"), fix)
        }
        UpstreamErrorKind::Connect => {
            let fix = "check the network, and HTTPS_PROXY and NO_PROXY if there is a proxy";
            (format!("{place} cannot be reached: {}", last()), fix.to_owned())
        }
        UpstreamErrorKind::ConnectTimeout(within) => {
            let limit = setting("connect_timeout");
            let fix = format!(
                "check the host, the port, and firewalls and proxies between; {limit} in the settings is the limit"
            );
            (format!("no answer from {place} within {} s", within.as_secs_f32()), fix)
        }
        UpstreamErrorKind::FirstByteTimeout(_) => {
            (said, format!("{} in the settings is the limit", setting("first_byte_timeout")))
        }
        UpstreamErrorKind::ProxyRefusal => {
            let fix = "put them into the proxy's URL in HTTPS_PROXY, HTTP_PROXY or ALL_PROXY (http://user:password@host:port), or the upstream's host into NO_PROXY";
            (said, fix.to_owned())
        }
        UpstreamErrorKind::Descriptors => {
            let fix = "raise the limit (ulimit -n, LimitNOFILE= of a systemd unit, fs.file-max), or lower server.max_connections in the settings";
            (said, fix.to_owned())
        }
        UpstreamErrorKind::HeadTooLong => {
            (said, "configure the upstream, or a proxy before it, to send fewer or shorter ones".to_owned())
        }
        UpstreamErrorKind::SlowClient => {
            (said, "server.body_timeout and server.min_body_rate in the settings are the limits".to_owned())
        }
        UpstreamErrorKind::Malformed | UpstreamErrorKind::Closed => {
            (said, format!("check the port, and whether {} should begin with https://", setting("url")))
        }
    }
}

/// Whether a DNS look-up has failed. hyper-util's error for that has no public type, so its text decides.
fn is_dns_error(error: &(dyn Error + 'static)) -> bool {
    chain(error).any(|cause| cause.to_string().starts_with("dns error"))
}

/// The longest list that is read, in bytes. Those of large gateways are a tenth of it.
const MAX_LISTING: usize = 8 << 20;

/// The query that asks Anthropic's API for a list in one page.
pub const ONE_PAGE: &str = "limit=1000";

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
    /// The status is not 200.
    #[error("the upstream answered {0}")]
    Status(StatusCode),
    /// All of it took too long.
    #[error("it took longer than {} s", .0.as_secs())]
    Timeout(Duration),
    /// It was not sent.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// It broke off, or is too long.
    #[error(transparent)]
    Body(#[from] ReadError),
}

impl ModelsRequest {
    /// A `GET` of the list at this URL, without a credential.
    pub fn new(url: Uri) -> Self {
        Self { url, headers: HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/json"))]) }
    }

    /// Sends it.
    pub async fn send(&self, upstream: &Upstream) -> Result<Response<Incoming>, UpstreamError> {
        self.send_to(upstream, self.url.clone()).await
    }

    /// Reads the names of models and their context windows from the answer, which may pause for `pause`. A local server is then
    /// asked for the contexts that it has loaded models with.
    pub async fn read_windows(
        &self,
        upstream: &Upstream,
        answer: Response<Incoming>,
        pause: Duration,
    ) -> Result<Listing, ListingError> {
        let limits = limits();
        let listing = read(answer, &limits, pause).await?;
        let (mut windows, server) = (windows_in(&listing), LocalServer::of_listing(&listing));
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
    async fn a_local_server_is_asked_once_for_what_it_has_loaded() {
        let listing = r#"{"data":[{"id":"m","owned_by":"llamacpp","meta":{"n_ctx_train":131072}}]}"#;
        for (props, expected) in [(r#"{"default_generation_settings":{"n_ctx":8192}}"#, Some(8192)), ("no", None)] {
            let (heads, windows) = ask(&[(listing, 0), (props, 0)]).await;
            assert_eq!((heads.len(), &*heads[1][0]), (2, "GET /props HTTP/1.1"));
            let expected: Vec<_> = expected.into_iter().map(|n| ("m".to_owned(), n)).collect();
            assert_eq!(windows.unwrap(), expected);
        }
    }
}
