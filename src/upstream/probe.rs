//! The probe of the upstream: one `GET` of its models, and what the answer means.
//!
//! It is sent like any request, with the header fields and the key that the settings give this upstream, and never with a
//! client's key.

use std::error::Error;
use std::io::ErrorKind;
use std::time::Duration;

use http::header::{DATE, HeaderName, HeaderValue, LOCATION};
use http::{Response, StatusCode, Uri};
use hyper::body::Incoming;
use rustls::CertificateError;
use tokio::time::timeout;

use super::models::ModelsRequest;
use super::{KeyHeader, Settings, Upstream, UpstreamError, UpstreamErrorKind, UpstreamName, chain};
use crate::platform::DescriptorLimit;

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
    OutOfDescriptors(DescriptorLimit),
    /// The answer cannot be read.
    Unreadable,
    /// The server closed the connection.
    Closed,
    /// No answer within this time.
    Timeout(Duration),
}

/// What to do where a proxy answers 407.
pub const PROXY_ADVICE: &str = "put them into the proxy's URL in HTTPS_PROXY, HTTP_PROXY or ALL_PROXY (http://user:password@host:port), or the upstream's host into NO_PROXY";

/// Anthropic refuses a key without it.
const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");

impl Probe {
    /// Sends the request and waits at most `within` for the head of the answer.
    pub async fn run(upstream: &Upstream, within: Duration) -> Self {
        let url = upstream.join(&Uri::from_static("/v1/models")).unwrap_or_default();
        let mut request = ModelsRequest::new(url.clone());
        if upstream.key_header == Some(KeyHeader::XApiKey) {
            request.headers.insert(ANTHROPIC_VERSION, HeaderValue::from_static("2023-06-01"));
        }
        let (outcome, answer) = match timeout(within, request.send(upstream)).await {
            Err(_) => (ProbeOutcome::Timeout(within), None),
            Ok(Err(error)) => (ProbeOutcome::of_error(&error), None),
            Ok(Ok(answer)) => (ProbeOutcome::of_answer(&answer, upstream.has_key()), Some(answer)),
        };
        Self { url, outcome, request, answer }
    }

    /// The upstream's `date`, as received: `Sun, 06 Nov 1994 08:49:37 GMT`.
    pub fn date(&self) -> Option<&str> {
        self.answer.as_ref()?.headers().get(DATE)?.to_str().ok()
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
            UpstreamErrorKind::Descriptors(limit) => Self::OutOfDescriptors(limit),
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
            Self::OutOfDescriptors(limit) => format!("{limit} has no file descriptor for a connection to {place}"),
            Self::Unreadable => format!("what {place} answers cannot be read as HTTP"),
            Self::Closed => format!("{place} closed the connection without an answer"),
            Self::Timeout(within) => format!("no answer from {place} within {} s", within.as_secs_f32()),
        }
    }

    /// What to do about it; `None` if nothing is wrong.
    pub fn advice(&self, settings: &Settings, name: &UpstreamName) -> Option<String> {
        let base = settings.url.to_string();
        let base = base.trim_end_matches('/');
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
            Self::PathNotFound if settings.url.uri().path().trim_end_matches('/').ends_with("/v1") => {
                format!("look up the path of the server's API, and write it into {}, which is {base}", setting("url"))
            }
            Self::PathNotFound => format!("the URL probably needs /v1: {flag}{base}/v1"),
            Self::Redirected(to) => format!("write the URL that it leads to into {} ({to})", setting("url")),
            Self::ServerError(_) => "look at the server's own log; abridge passes its errors on".to_owned(),
            Self::UnknownHost => {
                format!("correct the host in {}, or the DNS of this machine or container", setting("url"))
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
            Self::OutOfDescriptors(_) => {
                "raise the limit: ulimit -n, LimitNOFILE= of a systemd unit, fs.file-max".to_owned()
            }
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
pub(super) fn is_dns_error(error: &(dyn Error + 'static)) -> bool {
    chain(error).any(|cause| cause.to_string().starts_with("dns error"))
}
