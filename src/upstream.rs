//! The upstream: one pooled client, its time-outs, and how a client's path becomes the upstream's.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use http::header::{AUTHORIZATION, CONNECTION, HOST, TE, UPGRADE};
use http::{Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::body::Outgoing;
use crate::units::Period;

pub mod connect;
pub mod framing;
pub mod probe;
pub mod progress;
pub mod refusal;
pub mod target;

use connect::{ConnectTimeout, Connector, ConnectorError, Proxies};
use progress::{Progress, Watched};
use target::{BaseUrl, NoPath};

/// `[upstream]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where requests go. A client's path is joined to it.
    pub url: BaseUrl,
    /// The version of HTTP that is spoken to the upstream.
    pub http: HttpVersion,
    /// How long opening a connection may take, TLS included. Allowed: 1ms to 365d.
    pub connect_timeout: Period,
    /// How long the head of the answer may take, from the end of the request on. An answer that is not streamed must be
    /// finished by then, because its head comes last. Allowed: 1ms to 365d.
    pub first_byte_timeout: Period,
    /// How long the upstream may pause in the middle of an answer. Allowed: 1ms to 365d.
    pub idle_timeout: Period,
    /// How long an unused connection is kept for the next request. Allowed: 0ms to 365d.
    pub pool_idle_timeout: Period,
    /// PEM file with roots to trust besides the system's.
    ///
    /// Not set: the system's roots, or Mozilla's where there are none.
    ///
    /// Example: `"ca.pem"`
    pub ca_file: Option<PathBuf>,
    /// The name of the environment variable with the key to send as `authorization: Bearer …` in place of what the
    /// client sends.
    ///
    /// Not set: the client's own key is passed on.
    ///
    /// Example: `"OPENAI_API_KEY"`
    pub api_key_env: Option<String>,
    /// Asks the upstream at start, once and beside the requests, for its models, and logs whether it is reachable. The
    /// question has `headers` and the key of `api_key_env` if they are set, and never a client's key.
    pub probe: bool,
    /// Header fields that are set on every request, in place of the client's fields of those names, such as a gateway's
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

pub use target::{HeaderName, HeaderValue};

impl Default for Settings {
    fn default() -> Self {
        Self {
            url: BaseUrl::default(),
            http: HttpVersion::default(),
            connect_timeout: Period::secs(10),
            first_byte_timeout: Period::secs(900),
            idle_timeout: Period::secs(600),
            pool_idle_timeout: Period::secs(20),
            ca_file: None,
            api_key_env: None,
            probe: true,
            headers: BTreeMap::new(),
        }
    }
}

/// The upstream, and the connections that are open to it.
#[derive(Clone, Debug)]
pub struct Upstream {
    base: BaseUrl,
    client: Client<Connector, Watched<Outgoing>>,
    http: HttpVersion,
    headers: http::HeaderMap,
    // The proxy before it, without its password.
    through: Option<String>,
    first_byte: Duration,
    idle: Duration,
}

/// Why the upstream gave no answer.
#[derive(Debug, thiserror::Error)]
#[error("{kind}")]
pub struct UpstreamError {
    /// What went wrong.
    pub kind: UpstreamErrorKind,
    #[source]
    source: Option<legacy::Error>,
}

/// What went wrong with the upstream.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum UpstreamErrorKind {
    /// No connection: refused, unreachable, or its name is not known.
    #[error("no connection to the upstream")]
    Connect,
    /// No connection, because this process or this machine may open no more files and sockets.
    #[error("no connection to the upstream, because {0} has run out of file descriptors")]
    Descriptors(Whose),
    /// No TLS on the connection: a certificate that is not trusted, most of all.
    #[error("no TLS with the upstream")]
    Tls,
    /// No connection in time.
    #[error("no connection to the upstream within {} s", .0.as_secs())]
    ConnectTimeout(Duration),
    /// No response head in time.
    #[error("the upstream sent no response head within {} s", .0.as_secs())]
    FirstByteTimeout(Duration),
    /// The head of the answer is longer than we take.
    #[error(
        "the head of the upstream's answer has more than {} fields, or more than {} KiB",
        MOST_FIELDS,
        LONGEST_HEAD >> 10
    )]
    HeadTooLong,
    /// The answer is no HTTP, or could be read in more than one way.
    #[error("the upstream's answer cannot be read, or could be read in more than one way")]
    Malformed,
    /// The upstream closed the connection, or broke the protocol.
    #[error("the upstream closed the connection without an answer")]
    Closed,
}

/// Whose limit of descriptors is reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Whose {
    /// That of this process.
    Ours,
    /// That of the machine.
    Machine,
}

/// The header fields that one head of HTTP/1.1 has at most, of requests and of answers. With one more, hyper reads heads on
/// the heap, and each open stream takes 4 KiB more (of 41; measured with 512, `cargo bench --bench load -- --parts streams`).
pub const MOST_FIELDS: usize = 100;

/// The bytes that one head has at most, of requests and of answers. In HTTP/2 each field counts 32 bytes more.
pub const LONGEST_HEAD: u32 = 400 << 10;

// === impl Upstream ===

impl Upstream {
    /// An upstream without open connections.
    ///
    /// `authorization`, if given, replaces what the client sends.
    ///
    /// # Errors
    ///
    /// As [`Connector::new`].
    pub fn new(
        settings: &Settings,
        proxies: &Proxies,
        authorization: Option<http::HeaderValue>,
    ) -> Result<Self, ConnectorError> {
        let base = settings.url.uri();
        let within = settings.connect_timeout.0;
        let (connector, proxy) = Connector::new(base, settings.http, within, settings.ca_file.as_deref(), proxies)?;
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(settings.pool_idle_timeout.0)
            .http1_preserve_header_case(true)
            .http1_max_headers(MOST_FIELDS)
            .http1_max_buf_size(LONGEST_HEAD as usize)
            .http2_max_header_list_size(LONGEST_HEAD)
            .http2_only(settings.http == HttpVersion::Http2)
            .http2_adaptive_window(true)
            .build(connector);
        let mut headers = http::HeaderMap::new();
        for (name, value) in &settings.headers {
            headers.insert(name.to_http(), value.to_http());
        }
        if let Some(value) = authorization {
            headers.insert(AUTHORIZATION, value);
        }
        // A forwarding proxy is asked in the clear, so its password goes with each request; a tunnel was given it before.
        if let (Some("http"), Some(auth)) = (base.scheme_str(), proxy.as_ref().and_then(|proxy| proxy.basic_auth())) {
            headers.insert(http::header::PROXY_AUTHORIZATION, auth.clone());
        }
        Ok(Self {
            base: settings.url.clone(),
            client,
            http: settings.http,
            headers,
            through: proxy.as_ref().and_then(|proxy| proxy.uri().authority()).map(host_of),
            first_byte: settings.first_byte_timeout.0,
            idle: settings.idle_timeout.0,
        })
    }

    /// Where a request for `target` goes.
    pub fn join(&self, target: &Uri) -> Result<Uri, NoPath> {
        self.base.join(target)
    }

    /// Where it is.
    pub fn base(&self) -> &BaseUrl {
        &self.base
    }

    /// Whether the settings give a key that goes with each request.
    pub fn has_key(&self) -> bool {
        ["authorization", "api-key", "x-api-key"].iter().any(|name| self.headers.contains_key(*name))
    }

    /// How long the upstream may pause in the middle of a body.
    pub fn idle(&self) -> Duration {
        self.idle
    }

    /// Sends a request whose URI comes from [`Self::join`], and waits for the head of the answer.
    ///
    /// Sent again only by the pool, and only if a connection that lay in it was closed before a byte of the request was written.
    /// Dropping the future cancels the request.
    pub async fn send(&self, mut request: Request<Outgoing>) -> Result<Response<Incoming>, UpstreamError> {
        let headers = request.headers_mut();
        headers.remove(HOST);
        for (name, value) in &self.headers {
            headers.insert(name.clone(), value.clone());
        }
        let may_switch = headers.contains_key(UPGRADE);
        if self.http == HttpVersion::Http11 {
            // RFC 9110, section 10.1.4: it belongs to this connection, and says so. HTTP/2 has `te` alone.
            if headers.contains_key(TE) {
                headers.append(CONNECTION, http::HeaderValue::from_static("te"));
            }
            framing::announce(&mut request);
        }
        let progress = Progress::begin();
        let request = request.map(|body| progress.watch(body));
        tokio::select! {
            answer = self.client.request(request) => match answer {
                // Nobody would speak another protocol with it.
                Ok(answer) if answer.status() == StatusCode::SWITCHING_PROTOCOLS && !may_switch => {
                    Err(UpstreamError { kind: UpstreamErrorKind::Closed, source: None })
                }
                Ok(mut answer) => match framing::settle(answer.headers_mut()) {
                    Ok(()) => Ok(answer),
                    Err(framing::Ambiguous) => {
                        Err(UpstreamError { kind: UpstreamErrorKind::Malformed, source: None })
                    }
                },
                Err(error) => Err(error.into()),
            },
            () = progress.stands_still(self.first_byte) => {
                Err(UpstreamError { kind: UpstreamErrorKind::FirstByteTimeout(self.first_byte), source: None })
            }
        }
    }
}

// === impl UpstreamError ===

impl From<legacy::Error> for UpstreamError {
    fn from(source: legacy::Error) -> Self {
        let kind = if let Some(ConnectTimeout(within)) = cause(&source) {
            UpstreamErrorKind::ConnectTimeout(*within)
        } else if cause::<rustls::Error>(&source).is_some() {
            UpstreamErrorKind::Tls
        } else if source.is_connect() {
            exhausted(&source).map_or(UpstreamErrorKind::Connect, UpstreamErrorKind::Descriptors)
        } else {
            match cause::<hyper::Error>(&source) {
                Some(error) if error.is_parse_too_large() => UpstreamErrorKind::HeadTooLong,
                Some(error) if error.is_parse() => UpstreamErrorKind::Malformed,
                _ => UpstreamErrorKind::Closed,
            }
        };
        Self { kind, source: Some(source) }
    }
}

/// Whose descriptors have run out, if it is that.
fn exhausted(error: &(dyn StdError + 'static)) -> Option<Whose> {
    let whose = |error: &io::Error| match Errno::from_io_error(error)? {
        Errno::MFILE => Some(Whose::Ours),
        Errno::NFILE => Some(Whose::Machine),
        _ => None,
    };
    let told = chain(error).find_map(|error| whose(error.downcast_ref()?));
    // A look-up of a name opens files too, and where it cannot it says that nobody knows the name.
    let tried = || File::open("/dev/null").err().and_then(|error| whose(&error));
    told.or_else(|| probe::is_of_names(error).then(tried).flatten())
}

/// The first error of a type in a chain.
fn cause<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    chain(error).find_map(|error| error.downcast_ref())
}

/// An error and what it comes from. An `io::Error` hides its content from `source()`, so it is looked into.
fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| {
        let inside = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        inside.map(|inside| inside as &(dyn StdError + 'static)).or_else(|| error.source())
    })
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ours => "abridge",
            Self::Machine => "the machine",
        })
    }
}

/// Host and port, without a user.
fn host_of(authority: &http::uri::Authority) -> String {
    let host = authority.host();
    authority.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}
