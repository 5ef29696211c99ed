//! Whether the upstream is there: one `GET` of its models, and what the answer means.
//!
//! It is sent as any request is, with `upstream.headers` and the key that `upstream.api_key_env` names, if there are any, and
//! never with a client's key.

use std::error::Error;
use std::io::ErrorKind;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, DATE, HeaderValue, LOCATION};
use http::{Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use rustls::CertificateError;
use tokio::time::timeout;

use super::{Settings, Upstream, UpstreamError, UpstreamErrorKind, Whose, chain};
use crate::body::{self, Budget, Lease, Limits, Outgoing, pool::Pool};
use crate::tokens::models::windows_in;

/// What was found.
#[derive(Debug)]
pub struct Probed {
    /// What was asked for.
    pub url: Uri,
    /// What came of it.
    pub found: Found,
    answer: Option<Response<Incoming>>,
}

/// What came of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Found {
    /// An answer that speaks of no fault.
    Reachable(StatusCode),
    /// It wants a key, and abridge has none: clients bring theirs.
    KeyWanted(StatusCode),
    /// It does not take the key that abridge has.
    KeyRefused(StatusCode),
    /// There is no such path.
    NoPath,
    /// It is elsewhere.
    Moved(String),
    /// It has a fault of its own.
    Unwell(StatusCode),
    /// Nobody knows the name.
    NoName,
    /// Nothing listens there.
    Refused,
    /// The machine cannot be reached.
    Unreachable(String),
    /// The certificate is not one to trust.
    Untrusted(String),
    /// It does not speak TLS.
    NoTls,
    /// No connection was opened, for want of descriptors.
    NoDescriptor(Whose),
    /// Its answer cannot be read.
    Unreadable,
    /// It broke off.
    Closed,
    /// It took longer than that.
    Slow(Duration),
}

/// The longest listing that is read, in bytes.
const LONGEST: usize = 8 << 20;

impl Probed {
    /// Asks, and waits so long for the head of the answer.
    pub async fn ask(upstream: &Upstream, within: Duration) -> Self {
        let url = upstream.join(&Uri::from_static("/v1/models")).unwrap_or_default();
        let mut request = Request::new(Outgoing::held(&[], Lease::default()));
        *request.method_mut() = Method::GET;
        *request.uri_mut() = url.clone();
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        match timeout(within, upstream.send(request)).await {
            Err(_) => Self { url, found: Found::Slow(within), answer: None },
            Ok(Err(error)) => Self { url, found: Found::of_error(&error), answer: None },
            Ok(Ok(answer)) => {
                let has_key = upstream.headers.contains_key(AUTHORIZATION);
                Self { url, found: Found::of_answer(&answer, has_key), answer: Some(answer) }
            }
        }
    }

    /// What the upstream's clock shows, as it writes it: `Sun, 06 Nov 1994 08:49:37 GMT`.
    pub fn date(&self) -> Option<&str> {
        self.answer.as_ref()?.headers().get(DATE)?.to_str().ok()
    }

    /// The windows of its models, where the answer tells them.
    pub async fn windows(self, within: Duration) -> Vec<(String, usize)> {
        let Some(answer) = self.answer.filter(|answer| answer.status() == StatusCode::OK) else { return Vec::new() };
        let limits =
            Limits { max_body: LONGEST, pause: within, budget: Budget::new(2 * LONGEST), pool: Pool::default() };
        let reading = body::read_up_to(answer.into_body(), &limits);
        let listing = timeout(within, reading).await;
        listing.ok().and_then(Result::ok).map(|listing| windows_in(&listing.bytes)).unwrap_or_default()
    }
}

impl Found {
    fn of_answer<B>(answer: &Response<B>, has_key: bool) -> Self {
        match answer.status() {
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) if has_key => Self::KeyRefused(status),
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => Self::KeyWanted(status),
            StatusCode::NOT_FOUND => Self::NoPath,
            status if status.is_redirection() => {
                let to = answer.headers().get(LOCATION).and_then(|to| to.to_str().ok());
                Self::Moved(to.unwrap_or("another URL").to_owned())
            }
            status if status.is_server_error() => Self::Unwell(status),
            status => Self::Reachable(status),
        }
    }

    fn of_error(error: &UpstreamError) -> Self {
        let mut causes = chain(error);
        let last = || chain(error).last().map(ToString::to_string).unwrap_or_default();
        match error.kind {
            UpstreamErrorKind::ConnectTimeout(within) | UpstreamErrorKind::FirstByteTimeout(within) => {
                Self::Slow(within)
            }
            UpstreamErrorKind::Tls => match causes.find_map(|cause| cause.downcast_ref::<rustls::Error>()) {
                Some(rustls::Error::InvalidCertificate(
                    CertificateError::UnknownIssuer | CertificateError::BadSignature,
                )) => Self::Untrusted("who signed it is not known".to_owned()),
                Some(rustls::Error::InvalidMessage(_)) => Self::NoTls,
                _ => Self::Untrusted(last()),
            },
            UpstreamErrorKind::Connect if is_of_names(error) => Self::NoName,
            UpstreamErrorKind::Connect => {
                let kind =
                    |cause: &(dyn Error + 'static)| cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
                if causes.any(|cause| kind(cause) == Some(ErrorKind::ConnectionRefused)) {
                    Self::Refused
                } else {
                    Self::Unreachable(last())
                }
            }
            UpstreamErrorKind::Descriptors(whose) => Self::NoDescriptor(whose),
            UpstreamErrorKind::HeadTooLong | UpstreamErrorKind::Malformed => Self::Unreadable,
            UpstreamErrorKind::Closed => Self::Closed,
        }
    }

    /// What was found, in a few words.
    pub fn sentence(&self, url: &Uri, upstream: &Upstream) -> String {
        let host = url.authority().map(ToString::to_string).unwrap_or_default();
        let place = upstream.through.as_ref().map_or_else(|| host.clone(), |proxy| format!("the proxy {proxy}"));
        match self {
            Self::Reachable(status) | Self::Unwell(status) => format!("GET {url} answers {}", status.as_u16()),
            Self::KeyWanted(status) => format!("GET {url} answers {}: clients bring their key", status.as_u16()),
            Self::KeyRefused(status) => format!("GET {url} answers {} to abridge's own key", status.as_u16()),
            Self::NoPath => format!("GET {url} answers 404"),
            Self::Moved(to) => format!("GET {url} is answered with a redirect to {to}"),
            Self::NoName => {
                format!("the name {} is not known", upstream.through.as_deref().or(url.host()).unwrap_or_default())
            }
            Self::Refused => format!("nothing listens at {place}"),
            Self::Unreachable(why) => format!("{place} cannot be reached: {why}"),
            Self::Untrusted(why) => format!("the certificate of {host} is not trusted: {why}"),
            Self::NoTls => format!("{host} does not speak TLS"),
            Self::NoDescriptor(whose) => format!("{whose} has no file descriptor for a connection to {place}"),
            Self::Unreadable => format!("what {place} answers cannot be read as HTTP"),
            Self::Closed => format!("{place} closed the connection without an answer"),
            Self::Slow(within) => format!("no answer from {place} within {} s", within.as_secs_f32()),
        }
    }

    /// What to do about it, if there is anything.
    pub fn fix(&self, settings: &Settings) -> Option<String> {
        let base = settings.url.to_string();
        let base = base.trim_end_matches('/');
        let key = settings.api_key_env.as_deref();
        Some(match self {
            Self::Reachable(_) | Self::KeyWanted(_) => return None,
            Self::KeyRefused(_) => match key {
                Some(name) => format!(
                    "put a key that it takes into {name}, or take upstream.api_key_env out, and clients bring theirs"
                ),
                None => "correct the key in upstream.headers".to_owned(),
            },
            Self::NoPath if settings.url.uri().path().trim_end_matches('/').ends_with("/v1") => {
                format!("look up the path of the server's API, and write it into upstream.url, which is {base}")
            }
            Self::NoPath => format!("the URL probably needs /v1: --upstream {base}/v1"),
            Self::Moved(to) => format!("write the URL that it leads to into upstream.url ({to})"),
            Self::Unwell(_) => "look at the server's own log; abridge passes its errors on".to_owned(),
            Self::NoName => "correct the host in upstream.url, or the DNS of this machine or container".to_owned(),
            Self::Refused => "start the server there, or say where it is: --upstream URL".to_owned(),
            Self::Unreachable(_) => "check the network, and HTTPS_PROXY and NO_PROXY if there is a proxy".to_owned(),
            Self::Untrusted(_) => {
                "put the certificate of its authority into a file, and name it in upstream.ca_file".to_owned()
            }
            Self::NoTls => {
                format!("write http:// in upstream.url: --upstream {}", base.replacen("https://", "http://", 1))
            }
            Self::NoDescriptor(_) => {
                "raise the limit: ulimit -n, LimitNOFILE= of a systemd unit, fs.file-max".to_owned()
            }
            Self::Unreadable | Self::Closed => {
                "check the port, and whether upstream.url should begin with https://".to_owned()
            }
            Self::Slow(_) => {
                "check the host, the port and firewalls between; HTTPS_PROXY, if there has to be a proxy".to_owned()
            }
        })
    }
}

/// Whether a look-up of a name has failed. Its error has no type of its own that could be asked for.
pub(super) fn is_of_names(error: &(dyn Error + 'static)) -> bool {
    chain(error).any(|cause| cause.to_string().starts_with("dns error"))
}
