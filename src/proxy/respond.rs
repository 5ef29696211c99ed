//! Error responses of abridge itself: each error has a status, a code and a message that says what to do.

use std::error::Error;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use http_body_util::Full;

use super::OwnAnswer;
use super::headers;
use crate::admin::access::AccessError;
use crate::body::BodyError;
use crate::dialect::{Dialect, ErrorFields, ParseError};
use crate::engine::manual_summary::ManualSummaryError;
use crate::units::ByteSize;
use crate::upstream::probe::explained;
use crate::upstream::target::TargetError;
use crate::upstream::{UpstreamError, UpstreamErrorKind};

/// Marks an error as abridge's and not the upstream's; the value is the error's code.
pub(super) const ERROR: HeaderName = HeaderName::from_static("x-abridge-error");

/// The `retry-after` of a 429 or 503, in seconds.
const RETRY_SECONDS: u32 = 1;

/// Why a request for the upstream or for a summary gets an error of abridge itself.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProxyError {
    /// The body is longer than the limit.
    #[error("the request body is too long")]
    BodyTooLarge {
        /// The limit, in bytes.
        limit: usize,
        /// The setting that it is from.
        setting: &'static str,
        /// The announced length, in bytes.
        announced: Option<u64>,
    },
    /// The client sent its body too slowly, or it broke off, or its framing is broken.
    #[error("the request body {}", if .0.is_slow() { "did not come in time" } else { "could not be read" })]
    Body(#[from] BodyError),
    /// `server.max_in_flight` requests are in flight.
    #[error("too many requests in flight")]
    TooManyRequests {
        /// The limit.
        limit: usize,
    },
    /// One of several callers has taken its share of the requests in flight or of the memory.
    #[error("{client} has taken its share of requests or memory (limits.caller_share)")]
    OverShare {
        /// Its name, or a short one made of its credential.
        client: String,
    },
    /// One of several callers has taken its share of the connections.
    #[error("{client} has taken its share of connections (limits.caller_share)")]
    TooManyConnections {
        /// As above.
        client: String,
    },
    /// The bytes in memory have reached `server.max_buffered`.
    #[error("too many bytes in memory")]
    TooManyBytes,
    /// The target has no path, or leads out of the upstream's.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A web page sent the request, and its host or origin is not allowed.
    #[error(transparent)]
    Page(AccessError),
    /// Only known clients may use abridge, and the request shows none of their tokens.
    #[error("an unknown client sent the request")]
    UnknownClient,
    /// The body comes in a transfer coding besides chunks.
    #[error("the transfer-encoding of the request body is not \"chunked\" alone")]
    BadTransfer,
    /// The body is not a request of a gateway.
    #[error("the request body is not a request: {0}")]
    InvalidRequest(String),
    /// The content coding of a body to summarise is unsupported or broken.
    #[error("the content-encoding of the request body cannot be decoded")]
    BadEncoding,
    /// The body to summarise is not a conversation.
    #[error("the request body is not a conversation that can be read")]
    NotUnderstood(#[source] ParseError),
    /// No summary could be made.
    #[error(transparent)]
    NoSummary(ManualSummaryError),
    /// A conversation could not be compacted.
    #[error(transparent)]
    NotCompacted(ManualSummaryError),
    /// The model has recalled something, and could not be asked again.
    #[error("the model could not be asked again after a recall")]
    RecallFailed,
    /// A WebSocket would carry turns past the edits.
    #[error("a websocket was refused")]
    SocketRefused,
    /// The upstream gave no answer.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
}

// === impl ProxyError ===

/// The messages that depend on the code alone. A line is a code, a blank, and a message.
const MESSAGES: &str = include_str!("respond/messages.txt");

impl ProxyError {
    /// The HTTP status, and the code, for programs: in the body, in `x-abridge-error`, in the log.
    fn status_and_code(&self) -> (StatusCode, &'static str) {
        use ManualSummaryError::{Disabled, NoStore, SkippedChange};
        use UpstreamErrorKind as Kind;
        match self {
            Self::BodyTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
            Self::Body(error) if error.is_slow() => (StatusCode::REQUEST_TIMEOUT, "body_timeout"),
            Self::Body(_) => (StatusCode::BAD_REQUEST, "body_broken"),
            Self::TooManyRequests { .. } | Self::TooManyBytes => (StatusCode::SERVICE_UNAVAILABLE, "overloaded"),
            Self::OverShare { .. } | Self::TooManyConnections { .. } => (StatusCode::TOO_MANY_REQUESTS, "over_share"),
            Self::Target(_) => (StatusCode::BAD_REQUEST, "bad_target"),
            Self::Page(_) => (StatusCode::FORBIDDEN, "foreign_page"),
            Self::UnknownClient => (StatusCode::UNAUTHORIZED, "unknown_client"),
            Self::BadTransfer => (StatusCode::BAD_REQUEST, "bad_transfer_encoding"),
            Self::BadEncoding => (StatusCode::BAD_REQUEST, "bad_encoding"),
            Self::InvalidRequest(_) => (StatusCode::BAD_REQUEST, "invalid_request"),
            Self::NotUnderstood(_) => (StatusCode::BAD_REQUEST, "not_understood"),
            Self::NoSummary(Disabled | NoStore) => (StatusCode::BAD_REQUEST, "summarize_off"),
            Self::NoSummary(_) => (StatusCode::BAD_GATEWAY, "not_summarized"),
            Self::NotCompacted(Disabled | NoStore | SkippedChange(_)) => (StatusCode::BAD_REQUEST, "not_compacted"),
            Self::NotCompacted(_) => (StatusCode::BAD_GATEWAY, "not_compacted"),
            Self::RecallFailed => (StatusCode::BAD_GATEWAY, "recall_failed"),
            Self::SocketRefused => (StatusCode::UPGRADE_REQUIRED, "websocket_refused"),
            Self::Upstream(error) => match error.kind {
                Kind::Connect | Kind::Descriptors => (StatusCode::BAD_GATEWAY, "upstream_connect"),
                Kind::Tls => (StatusCode::BAD_GATEWAY, "upstream_tls"),
                Kind::ProxyRefusal => (StatusCode::BAD_GATEWAY, "proxy_auth"),
                Kind::SlowClient => (StatusCode::REQUEST_TIMEOUT, "body_timeout"),
                Kind::ConnectTimeout(_) | Kind::FirstByteTimeout(_) => {
                    (StatusCode::GATEWAY_TIMEOUT, "upstream_timeout")
                }
                Kind::HeadTooLong | Kind::Malformed => (StatusCode::BAD_GATEWAY, "upstream_malformed"),
                Kind::Closed => (StatusCode::BAD_GATEWAY, "upstream_closed"),
            },
        }
    }

    /// The HTTP status.
    pub(super) fn status(&self) -> StatusCode {
        self.status_and_code().0
    }

    /// The code.
    pub(super) fn code(&self) -> &'static str {
        self.status_and_code().1
    }

    /// The message for the client: what is wrong, where, and what to do.
    pub(super) fn client_message(&self) -> String {
        match self {
            Self::BodyTooLarge { limit, announced, setting } => {
                let size = announced.map_or_else(String::new, |bytes| format!(" of {bytes} bytes"));
                let limit = ByteSize(*limit as u64);
                format!("the request body{size} is over the limit {setting} = \"{limit}\"; raise it in the settings, or send less")
            }
            Self::Body(error) if error.is_slow() => {
                format!("{error}; server.body_timeout and server.min_body_rate in the settings are the limits")
            }
            Self::Body(error) => error.to_string(),
            Self::TooManyRequests { limit } => {
                format!("server.max_in_flight = {limit} requests are in flight; try again, or raise it in the settings")
            }
            Self::Target(TargetError::NoPath) => {
                "the request target has no path; point the client's base URL here, abridge is not a forward proxy".to_owned()
            }
            Self::Target(TargetError::LeavesBase) => {
                "`..` in the request path leads out of the path of upstream.url; write the path without it, or set a shorter upstream.url".to_owned()
            }
            Self::NotUnderstood(error) => format!("the request body is not a conversation that can be read: {error}"),
            Self::Page(_) | Self::InvalidRequest(_) => self.to_string(),
            Self::NoSummary(none) => with_cause(none),
            Self::NotCompacted(none) => format!(
                "the conversation was not compacted: {}; go on without, or set [responses] compact = \"pass\" in the settings to ask the upstream",
                with_cause(none)
            ),
            Self::Upstream(error) => {
                let (_, fix) = explained(error, "");
                let may_be_done = matches!(error.kind, UpstreamErrorKind::Malformed | UpstreamErrorKind::Closed);
                let not_again = "; the request was not sent again, because it may have been carried out";
                format!("{error}; {fix}{}", if may_be_done { not_again } else { "" })
            }
            _ => {
                let of = MESSAGES.lines().filter_map(|line| line.split_once(' ')).find(|(code, _)| *code == self.code());
                of.map_or_else(String::new, |(_, message)| message.to_owned())
            }
        }
    }

    /// The error and all its causes, for the log.
    pub(super) fn chain(&self) -> String {
        let causes = std::iter::successors(self.source(), |&cause| cause.source());
        causes.fold(self.to_string(), |text, cause| format!("{text}: {cause}"))
    }

    /// The body of the answer, in the shape that clients of this dialect read.
    pub(super) fn body(&self, dialect: &dyn Dialect) -> Bytes {
        let message = format!("abridge: {}", self.client_message());
        let is_client_error = self.status().is_client_error();
        dialect.error_body(&ErrorFields { message: &message, is_client_error, code: self.code() })
    }

    /// The whole answer.
    pub(super) fn to_response(&self, dialect: &dyn Dialect) -> OwnAnswer {
        let status = self.status();
        let mut response = Response::new(Full::from(self.body(dialect)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ERROR, HeaderValue::from_static(self.code()));
        // After the first, another server may disagree on where the body ends; the second is to have fewer.
        if matches!(self, Self::BadTransfer | Self::TooManyConnections { .. }) {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if matches!(self, Self::SocketRefused) {
            // RFC 9110, section 15.5.22: the protocol to use instead.
            headers::set_upgrade(headers, HeaderValue::from_static("HTTP/1.1"));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_SECONDS));
        }
        response
    }
}

/// Why a summary was not made; further causes are for the log.
fn with_cause(error: &ManualSummaryError) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect;

    #[test]
    fn a_body_over_the_limit_gets_413_with_the_limit_and_its_setting() {
        let error =
            ProxyError::BodyTooLarge { limit: 64 << 20, announced: Some(70_000_000), setting: "server.max_body" };
        assert_eq!(
            error.client_message(),
            "the request body of 70000000 bytes is over the limit server.max_body = \"64MiB\"; raise it in the settings, or send less"
        );
        let response = error.to_response(dialect::default());
        assert_eq!(response.status(), 413);
        assert_eq!(response.headers()[ERROR], "body_too_large");
        assert!(!response.headers().contains_key(RETRY_AFTER));
    }

    #[test]
    fn an_overload_gets_503_with_retry_after() {
        let response = ProxyError::TooManyBytes.to_response(dialect::default());
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
    }
}
