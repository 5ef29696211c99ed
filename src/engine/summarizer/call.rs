//! One call for a summary, and what to do when it fails.

use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use tokio::time::timeout;

use super::endpoints::Candidate;
use super::stream::{self, ReadError};
use crate::dialect::{Answer, Dialect};
use crate::edit::summarize::answer::Fault;
use crate::upstream::refusal::{self, Refusal};
use crate::upstream::{UpstreamError, UpstreamErrorKind};

/// Why a call brought no summary.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// No request can be made of what the client sent.
    #[error("no request can be made of what the client sent")]
    NoRequest,
    /// There was no answer.
    #[error("{0}")]
    Upstream(#[source] UpstreamError),
    /// The head of the answer did not come in time.
    #[error("no answer came for {} s", .0.as_secs())]
    Silent(Duration),
    /// The answer is a refusal.
    #[error("the upstream answered {}", .0.status)]
    Status(Refused),
    /// The answer could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The answer says that it is an error.
    #[error("the upstream answered with an error in the midst of its answer")]
    ErrorInside,
    /// The answer ended without an end.
    #[error("the answer ended before it was finished")]
    Unfinished,
    /// The answer is no summary.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// Its tokens could not be counted.
    #[error("the answer could not be measured")]
    Unmeasured,
}

/// An answer that is none.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Refused {
    /// Its status.
    pub(super) status: StatusCode,
    /// When to come back.
    retry_after: Option<Duration>,
    /// What it is about, if that is known.
    about: Option<Refusal>,
}

/// What may help.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Remedy {
    /// The same again, after some time, if one is given.
    Again(Option<Duration>),
    /// Half as much to summarise.
    Shorter,
    /// A request without tools.
    Plainer,
    /// Nothing, here.
    Nothing,
}

/// The longest time that an upstream may ask us to wait.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// How much is read of a refusal, in bytes. Those that say something are far shorter.
const LONGEST_REFUSAL: usize = 64 << 10;

/// Sends one request, and reads the answer to its end. Nobody is silent for longer than `silence`.
pub(super) async fn call(
    candidate: &Candidate<'_>,
    dialect: &dyn Dialect,
    body: Bytes,
    silence: Duration,
) -> Result<Answer, CallError> {
    let answering = timeout(silence, candidate.upstream().send(candidate.request(body)));
    let response = answering.await.map_err(|_| CallError::Silent(silence))?.map_err(CallError::Upstream)?;
    let status = response.status();
    if status != StatusCode::OK {
        let retry_after = retry_after(response.headers());
        let text = stream::beginning(response.into_body(), LONGEST_REFUSAL, silence).await;
        return Err(CallError::Status(Refused { status, retry_after, about: about(status, &text) }));
    }
    let answer = stream::read(response, dialect, silence).await?;
    if answer.is_error {
        return Err(CallError::ErrorInside);
    }
    if answer.stop_reason.is_none() && !answer.is_complete {
        return Err(CallError::Unfinished);
    }
    Ok(answer)
}

impl CallError {
    /// What may help.
    pub(super) fn remedy(&self) -> Remedy {
        match self {
            Self::Status(refused) => refused.remedy(),
            Self::Upstream(error) => match error.kind {
                UpstreamErrorKind::Connect
                | UpstreamErrorKind::Descriptors(_)
                | UpstreamErrorKind::ConnectTimeout(_)
                | UpstreamErrorKind::HeadTooLong
                | UpstreamErrorKind::Malformed
                | UpstreamErrorKind::Closed => Remedy::Again(None),
                UpstreamErrorKind::Tls | UpstreamErrorKind::FirstByteTimeout(_) => Remedy::Nothing,
            },
            Self::NoRequest | Self::Silent(_) | Self::Read(ReadError::Silent(_)) | Self::Unmeasured => Remedy::Nothing,
            Self::Read(_) | Self::ErrorInside | Self::Unfinished | Self::Fault(_) => Remedy::Again(None),
        }
    }
}

impl Refused {
    fn remedy(self) -> Remedy {
        match (self.about, self.status.as_u16()) {
            (Some(Refusal::Overflow(_)), _) => Remedy::Shorter,
            (Some(Refusal::Sequence | Refusal::Tools), _) => Remedy::Plainer,
            (_, 408 | 409 | 429 | 500..) if self.retry_after.is_none_or(|wait| wait <= LONGEST_WAIT) => {
                Remedy::Again(self.retry_after)
            }
            _ => Remedy::Nothing,
        }
    }
}

/// What an answer of this status refuses, as far as another request may help.
fn about(status: StatusCode, text: &[u8]) -> Option<Refusal> {
    matches!(status.as_u16(), 400 | 413 | 422).then(|| refusal::classify(text)).flatten()
}

/// How long the upstream asks us to wait, in seconds or, as some have it, in milliseconds. A date is not read.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let seconds = number("retry-after-ms").map(|ms| ms / 1000.0).or_else(|| number(RETRY_AFTER.as_str()))?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remedy(status: u16, text: &str, headers: &[(&'static str, &'static str)]) -> Remedy {
        let status = StatusCode::from_u16(status).unwrap();
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        let about = about(status, text.as_bytes());
        Refused { status, retry_after: retry_after(&headers), about }.remedy()
    }

    #[test]
    fn what_may_pass_is_asked_again() {
        for status in [408, 409, 429, 500, 502, 503, 504, 529] {
            assert_eq!(remedy(status, "context length", &[]), Remedy::Again(None), "{status}");
        }
        for status in [201, 302, 400, 401, 403, 404, 413, 422] {
            assert_eq!(remedy(status, "no", &[]), Remedy::Nothing, "{status}");
        }
    }

    #[test]
    fn a_wait_is_obeyed_unless_it_is_too_long() {
        let wait = |value| remedy(429, "", &[("retry-after", value)]);
        assert_eq!(wait("7"), Remedy::Again(Some(Duration::from_secs(7))));
        assert_eq!(wait("0.5"), Remedy::Again(Some(Duration::from_millis(500))));
        assert_eq!(wait("30"), Remedy::Again(Some(LONGEST_WAIT)));
        assert_eq!(wait("31"), Remedy::Nothing);
        for odd in ["-1", "nan", "1e300", "Fri, 31 Dec 1999 23:59:59 GMT", ""] {
            assert_eq!(wait(odd), Remedy::Again(None), "{odd}");
        }
        let both = [("retry-after", "9"), ("retry-after-ms", "250")];
        assert_eq!(remedy(503, "", &both), Remedy::Again(Some(Duration::from_millis(250))));
    }

    #[test]
    fn what_a_request_is_refused_for_is_read() {
        let overflow = r#"{"error":{"code":"context_length_exceeded"}}"#;
        let tools = r#"{"error":{"message":"Tools are not supported by this model"}}"#;
        let sequence = r#"{"error":{"message":"Conversation roles must alternate"}}"#;
        for status in [400, 413, 422] {
            assert_eq!(remedy(status, overflow, &[]), Remedy::Shorter, "{status}");
            assert_eq!(remedy(status, tools, &[]), Remedy::Plainer, "{status}");
            assert_eq!(remedy(status, sequence, &[]), Remedy::Plainer, "{status}");
        }
        assert_eq!(remedy(401, overflow, &[]), Remedy::Nothing);
        assert_eq!(remedy(500, overflow, &[]), Remedy::Again(None));
    }
}
