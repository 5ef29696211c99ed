//! The upstream: one pooled HTTP client, its timeouts and its errors.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, HOST, TE, UPGRADE};
use http::uri::Authority;
use http::{Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::{Deserialize, Serialize};

use crate::body::{BodyError, RequestBody, UploadProgress};
use crate::platform::{process, since_1970};
use crate::setup_error::SetupError;
use crate::units::Period;

pub mod connect;
pub mod framing;
pub mod post;
pub mod probe;
pub mod refusal;
pub mod routes;
mod sigv4;
pub mod target;

use connect::{ConnectTimeout, Connector, Proxies, TunnelError};
use sigv4::Signer;
use smart_default::SmartDefault;
use target::{BaseUrl, TargetError};

/// `[upstream]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where requests go. A client's path is joined to it.
    pub url: BaseUrl,
    /// The version of HTTP that is spoken to the upstream.
    pub http: HttpVersion,
    /// How long opening a connection may take, TLS included. Allowed: 1ms to 365d.
    #[default(Period::secs(10))]
    pub connect_timeout: Period,
    /// How long the head of the answer may take, from the end of the request on. An answer that is not streamed must be
    /// finished by then, because its head comes last. Allowed: 1ms to 365d.
    #[default(Period::secs(900))]
    pub first_byte_timeout: Period,
    /// How long the upstream may pause in the middle of an answer. Allowed: 1ms to 365d.
    #[default(Period::secs(600))]
    pub idle_timeout: Period,
    /// PEM file with roots to trust besides the system's.
    ///
    /// Not set: the system's roots, or Mozilla's where there are none.
    ///
    /// Example: `"ca.pem"`
    pub ca_file: Option<PathBuf>,
    /// The name of the environment variable with the key to send in place of what the client sends, in the header field
    /// of `api_key_header`.
    ///
    /// Not set: the client's own key is passed on.
    ///
    /// Example: `"OPENAI_API_KEY"`
    pub api_key_env: Option<String>,
    /// The header field in which the key of `api_key_env` is sent. Other keys of the client are then left out.
    pub api_key_header: KeyHeader,
    /// Asks the upstream at start, once and beside the requests, for its models, and logs whether it is reachable. The
    /// question has `headers` and the key of `api_key_env` if they are set, and never a client's key.
    #[default(true)]
    pub probe: bool,
    /// Header fields that are set on every request, in place of the client's fields of the same names, such as a gateway's
    /// key. Fields that belong to the connection or the body, such as `host` and `content-length`, are refused.
    ///
    /// Example: `x-gateway-key = "KEY"`
    pub headers: BTreeMap<HeaderName, HeaderValue>,
}

/// The version of HTTP that is spoken to the upstream.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum HttpVersion {
    /// HTTP/1.1, which uploads two to three times faster than HTTP/2.
    #[default]
    #[serde(rename = "1.1")]
    Http11,
    /// HTTP/2: over TLS by ALPN, in the clear by prior knowledge.
    #[serde(rename = "2")]
    Http2,
}

/// The name of an upstream: that of a `[[upstreams]]` table, or none for `[upstream]`.
#[derive(Clone, Debug, Default, derive_more::Display, Eq, PartialEq)]
#[display("{}", self.as_str())]
pub struct UpstreamName(Option<Arc<str>>);

pub use target::{HeaderName, HeaderValue, KeyHeader};

/// The upstream, and the connections that are open to it.
#[derive(Clone, Debug)]
pub struct Upstream {
    name: UpstreamName,
    /// The URL that targets are joined to.
    pub base: BaseUrl,
    // Taken off a client's path before it is joined.
    strip_path: Option<String>,
    // The body is boxed: each connection has room for 32 requests.
    client: Client<Connector, Box<RequestBody>>,
    // The host in the keys of the pool, short because each of its bytes is hashed; none where the upstream reads the host.
    pool_key: Option<Authority>,
    http: HttpVersion,
    // Of HTTP/1.1; HTTP/2 has it in the URI.
    host: Option<http::HeaderValue>,
    headers: http::HeaderMap,
    // The field with its own key in the settings.
    key_header: Option<KeyHeader>,
    signer: Option<Arc<Signer>>,
    // Host and port of the proxy before the upstream, without its password.
    proxy_address: Option<String>,
    // Whether that answers requests itself, and does not just carry a connection.
    is_forwarded: bool,
    first_byte: Duration,
    /// How long the upstream may pause in the middle of an answer.
    pub idle: Duration,
}

/// Why the upstream gave no answer.
#[derive(Debug, thiserror::Error)]
#[error("{}{kind}", .upstream.prefix())]
pub struct UpstreamError {
    /// The upstream that gave no answer.
    pub upstream: UpstreamName,
    /// What went wrong.
    pub kind: UpstreamErrorKind,
    #[source]
    source: Option<legacy::Error>,
}

/// What went wrong with the upstream.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum UpstreamErrorKind {
    /// No connection: refused, unreachable, or the name is unknown.
    #[error("no connection to the upstream")]
    Connect,
    /// No connection, because this process or the system is out of file descriptors.
    #[error("no connection to the upstream, because abridge has run out of file descriptors")]
    Descriptors,
    /// The TLS handshake failed, mostly because the certificate is not trusted.
    #[error("the TLS handshake with the upstream failed")]
    Tls,
    /// No connection in time.
    #[error("no connection to the upstream within {} s", .0.as_secs())]
    ConnectTimeout(Duration),
    /// No response head in time.
    #[error("the upstream sent no response head within {} s", .0.as_secs())]
    FirstByteTimeout(Duration),
    /// The proxy before the upstream answers 407.
    #[error("the proxy before the upstream wants a user and a password, or does not accept those that it got (407)")]
    ProxyRefusal,
    /// The head of the answer exceeds the limits.
    #[error("the head of the answer has more than {MAX_HEADER_FIELDS} fields, or more than {} KiB", MAX_HEAD_BYTES >> 10)]
    HeadTooLong,
    /// The answer is not valid HTTP, or its framing is ambiguous.
    #[error("the answer cannot be read as HTTP, or could be read in more than one way")]
    Malformed,
    /// The client sent a body that is passed on too slowly.
    #[error("the request body did not come in time")]
    SlowClient,
    /// The upstream closed the connection, or broke the protocol.
    #[error("the upstream closed the connection without an answer")]
    Closed,
}

/// The most header fields in one head of HTTP/1.1, in requests and answers. It is hyper's own limit: where a limit is set,
/// even this one, hyper fills a table of so many entries for each head. With one more, an open stream takes 4 KiB more (of 41;
/// measured with 512, `cargo bench --bench load -- --parts streams`).
pub const MAX_HEADER_FIELDS: usize = 100;

/// The most bytes in the head of an answer, that hyper reads at a time, and that it holds of a request which the upstream does
/// not take. In HTTP/2 each field of a head counts 32 bytes more.
const MAX_HEAD_BYTES: u32 = 64 << 10;

/// How long an unused connection is kept for the next request.
const POOL_IDLE: Duration = Duration::from_secs(20);

/// The most bytes of an answer over HTTP/2 that wait for their client. All answers have no limit here: one client could use it up.
const STREAM_WINDOW: u32 = 256 << 10;

// === impl Upstream ===

impl Upstream {
    /// An upstream without open connections.
    ///
    /// `key`, if given, is the value of the field `settings.api_key_header`, in place of every key that the client sends.
    ///
    /// # Errors
    ///
    /// As [`Connector::new`].
    pub fn new(settings: &Settings, proxies: &Proxies, key: Option<http::HeaderValue>) -> Result<Self, SetupError> {
        let base = settings.url.uri();
        let within = settings.connect_timeout.0;
        let (connector, proxy) = Connector::new(base, settings.http, within, settings.ca_file.as_deref(), proxies)?;
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE)
            .http1_preserve_header_case(true)
            .http1_max_buf_size(MAX_HEAD_BYTES as usize)
            .http2_max_header_list_size(MAX_HEAD_BYTES)
            .http2_only(settings.http == HttpVersion::Http2)
            .http2_initial_stream_window_size(STREAM_WINDOW)
            .http2_initial_connection_window_size((1 << 31) - 1)
            .http2_max_send_buf_size(MAX_HEAD_BYTES as usize)
            .build(connector);
        let fields = settings.headers.iter().filter_map(|(name, value)| Some((name.0.parse().ok()?, value.0.clone())));
        let mut headers: http::HeaderMap = fields.collect();
        let (key_header, mut signer) = (key.as_ref().map(|_| settings.api_key_header), None);
        match (key, settings.api_key_header) {
            (Some(key), KeyHeader::AwsSigV4) => {
                signer = Some(Arc::new(Signer::new(&key, settings.url.host_field())?));
            }
            (Some(key), field) => drop(headers.insert(field.name(), key)),
            (None, _) => {}
        }
        // A forwarding proxy reads each request, so each has its password; a tunnel needs it only for CONNECT.
        if let (Some("http"), Some(auth)) = (base.scheme_str(), proxy.as_ref().and_then(|proxy| proxy.basic_auth())) {
            headers.insert(http::header::PROXY_AUTHORIZATION, auth.clone());
        }
        let is_forwarded = base.scheme_str() == Some("http")
            && proxy.as_ref().is_some_and(|proxy| proxy.uri().scheme_str() == Some("http"));
        let reads_host = is_forwarded || settings.http == HttpVersion::Http2;
        Ok(Self {
            name: UpstreamName::default(),
            base: settings.url.clone(),
            strip_path: None,
            client,
            pool_key: (!reads_host).then(|| Authority::from_static("u")),
            http: settings.http,
            host: settings.url.host_field().filter(|_| settings.http == HttpVersion::Http11),
            headers,
            key_header,
            signer,
            proxy_address: proxy.as_ref().and_then(|proxy| proxy.uri().authority()).map(without_user),
            is_forwarded,
            first_byte: settings.first_byte_timeout.0,
            idle: settings.idle_timeout.0,
        })
    }

    /// The same under this name, and for paths below `strip_path`, which is taken off.
    #[must_use]
    pub fn named(self, name: &str, strip_path: Option<String>) -> Self {
        Self { name: UpstreamName::of_a_route(name), strip_path, ..self }
    }

    /// Its name.
    pub fn name(&self) -> &UpstreamName {
        &self.name
    }

    /// The upstream's URI for a request target.
    pub fn join(&self, target: &Uri) -> Result<Uri, TargetError> {
        match self.strip_path.as_deref().and_then(|path| target::without_beginning(target, path)) {
            Some(rest) => self.base.join(&rest),
            None => self.base.join(target),
        }
    }

    /// Whether the settings add a key to each request.
    pub fn has_key(&self) -> bool {
        self.signer.is_some() || KeyHeader::ALL.iter().any(|key| self.headers.contains_key(key.name()))
    }

    /// Sends a request whose URI comes from [`Self::join`], and waits for the head of the answer.
    ///
    /// Only the pool retries, and only if an idle connection was closed before a byte of the request was written.
    /// Dropping the future cancels the request.
    pub async fn send(&self, mut request: Box<Request<RequestBody>>) -> Result<Response<Incoming>, UpstreamError> {
        let headers = request.headers_mut();
        match &self.host {
            Some(host) => drop(headers.insert(HOST, host.clone())),
            None => drop(headers.remove(HOST)),
        }
        if self.key_header.is_some() {
            for key in KeyHeader::ALL {
                headers.remove(key.name());
            }
        }
        for (name, value) in &self.headers {
            headers.insert(name.clone(), value.clone());
        }
        let may_switch = headers.contains_key(UPGRADE);
        if let Some(signer) = &self.signer {
            signer.sign(&mut request, since_1970().as_secs());
        }
        let headers = request.headers_mut();
        if self.http == HttpVersion::Http11 {
            // RFC 9110, section 10.1.4: `te` is listed in `connection`. HTTP/2 has `te` alone.
            if headers.contains_key(TE) {
                headers.append(CONNECTION, http::HeaderValue::from_static("te"));
            }
            framing::set_chunked(&mut request);
        }
        if let Some(pool_key) = &self.pool_key {
            *request.uri_mut() = target::with_authority(std::mem::take(request.uri_mut()), pool_key);
        }
        let progress = UploadProgress::start();
        request.body_mut().progress = Some(progress.clone());
        let request = request.map(Box::new); // as hyper moves it many times
        let answer = tokio::select! {
            biased; // polls the answer first; a random order would draw a number each time
            answer = self.client.request(request) => match answer {
                // The request asked for no upgrade.
                Ok(answer) if answer.status() == StatusCode::SWITCHING_PROTOCOLS && !may_switch => {
                    Err(UpstreamErrorKind::Closed.into())
                }
                Ok(answer) if answer.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED && self.is_forwarded => {
                    Err(UpstreamErrorKind::ProxyRefusal.into())
                }
                Ok(mut answer) => framing::normalize(answer.headers_mut()).map(|()| answer).map_err(Into::into),
                Err(error) => Err(error.into()),
            },
            () = progress.stalled(self.first_byte) => {
                Err(UpstreamErrorKind::FirstByteTimeout(self.first_byte).into())
            }
        };
        answer.map_err(|error| UpstreamError { upstream: self.name.clone(), ..error })
    }
}

// === impl UpstreamError ===

impl From<legacy::Error> for UpstreamError {
    fn from(source: legacy::Error) -> Self {
        let kind = if let Some(ConnectTimeout(within)) = cause(&source) {
            UpstreamErrorKind::ConnectTimeout(*within)
        } else if let Some(TunnelError::ProxyAuthRequired) = cause(&source) {
            UpstreamErrorKind::ProxyRefusal
        } else if cause(&source).is_some_and(BodyError::is_slow) {
            UpstreamErrorKind::SlowClient
        } else if cause::<rustls::Error>(&source).is_some() {
            UpstreamErrorKind::Tls
        } else if source.is_connect() {
            let mut causes = chain(&source).filter_map(|error| error.downcast_ref());
            let is_out = causes.any(process::is_out_of_descriptors);
            if is_out { UpstreamErrorKind::Descriptors } else { UpstreamErrorKind::Connect }
        } else {
            match cause::<hyper::Error>(&source) {
                Some(error) if error.is_parse_too_large() => UpstreamErrorKind::HeadTooLong,
                Some(error) if error.is_parse() => UpstreamErrorKind::Malformed,
                _ => UpstreamErrorKind::Closed,
            }
        };
        Self { source: Some(source), ..kind.into() }
    }
}

impl From<UpstreamErrorKind> for UpstreamError {
    fn from(kind: UpstreamErrorKind) -> Self {
        Self { upstream: UpstreamName::default(), kind, source: None }
    }
}

/// Names a feature of Anthropic's API in the header of a request, unless it is named there.
pub fn add_beta(headers: &mut http::HeaderMap, beta: &'static str) {
    let values = headers.get_all(ANTHROPIC_BETA).iter();
    let names = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    let mut names: Vec<_> = names.filter(|name| !name.is_empty()).collect();
    if !names.contains(&beta.as_bytes()) {
        names.push(beta.as_bytes());
        if let Ok(all) = http::HeaderValue::from_bytes(&names.join(&b',')) {
            headers.insert(ANTHROPIC_BETA, all);
        }
    }
}

/// The header that names features of Anthropic's API.
pub const ANTHROPIC_BETA: http::HeaderName = http::HeaderName::from_static("anthropic-beta");

// === impl UpstreamName ===

impl UpstreamName {
    /// The name of `[upstream]` in reports and metrics. No other upstream has it.
    pub const DEFAULT: &'static str = "default";

    /// The name of a `[[upstreams]]` table.
    pub fn of_a_route(name: &str) -> Self {
        Self(Some(name.into()))
    }

    /// The name in reports and metrics.
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or(Self::DEFAULT)
    }

    /// Whether it is that of a `[[upstreams]]` table.
    pub fn is_route(&self) -> bool {
        self.0.is_some()
    }

    /// How a message calls one of its settings.
    pub fn setting(&self, key: &str) -> String {
        match &self.0 {
            None => format!("upstream.{key}"),
            Some(name) => format!("{key} of [[upstreams]] {name:?}"),
        }
    }

    /// The flag that sets this URL, for a message.
    pub fn url_flag(&self, url: &str) -> String {
        self.0.as_ref().map_or_else(|| format!("--upstream {url}"), |name| format!("--upstream {name}={url}"))
    }

    /// The beginning of a message about it; empty for `[upstream]`.
    fn prefix(&self) -> String {
        self.0.as_ref().map(|name| format!("upstream {name:?}: ")).unwrap_or_default()
    }
}

/// The first error of a type in a chain.
fn cause<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    chain(error).find_map(|error| error.downcast_ref())
}

/// An error and its sources. `source()` skips the inner error of an `io::Error`, which is included here.
fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| {
        let inside = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        inside.map(|inside| inside as &(dyn StdError + 'static)).or_else(|| error.source())
    })
}

/// Host and port, without user and password.
fn without_user(authority: &Authority) -> String {
    authority.as_str().rsplit('@').next().unwrap_or_default().to_owned()
}
