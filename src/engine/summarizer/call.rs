//! One call for a summary, and what to do when it fails.

use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use tokio::time::timeout;

use super::endpoints::Candidate;
use super::stream::{self, Heard, Unheard};
use crate::edit::summarize::answer::Fault;
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
    Status(Refusal),
    /// The answer could not be read.
    #[error(transparent)]
    Unheard(#[from] Unheard),
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
pub(super) struct Refusal {
    /// Its status.
    pub(super) status: StatusCode,
    /// When to come back.
    retry_after: Option<Duration>,
    /// What it is about.
    about: About,
}

/// What a refusal is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum About {
    /// The request is longer than the model takes.
    Length,
    /// Tools, or the choice of one.
    Tools,
    Other,
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

/// How much is read of a refusal, in bytes.
const LONGEST_REFUSAL: usize = 16 << 10;

/// What upstreams say of a request that is too long, in lower case: OpenAI and Azure, vLLM, llama.cpp, OpenRouter, Anthropic,
/// Ollama, Gemini.
const LENGTH: [&str; 16] = [
    "context_length_exceeded",
    "context length",
    "context_length",
    "context window",
    "context size",
    "exceed_context_size",
    "maximum context",
    "prompt is too long",
    "prompt too long",
    "input is too long",
    "input length",
    "too many tokens",
    "input token count",
    "maximum number of tokens",
    "reduce the length",
    "token limit",
];

/// Sends one request, and reads the answer to its end. Nobody is silent for longer than `silence`.
pub(super) async fn call(candidate: &Candidate<'_>, body: Bytes, silence: Duration) -> Result<Heard, CallError> {
    let answering = timeout(silence, candidate.upstream().send(candidate.request(body)));
    let response = answering.await.map_err(|_| CallError::Silent(silence))?.map_err(CallError::Upstream)?;
    let status = response.status();
    if status != StatusCode::OK {
        let retry_after = retry_after(response.headers());
        let text = stream::beginning(response.into_body(), LONGEST_REFUSAL, silence).await;
        return Err(CallError::Status(Refusal { status, retry_after, about: About::of(status, &text) }));
    }
    let heard = stream::hear(response, silence).await?;
    if heard.is_error {
        return Err(CallError::ErrorInside);
    }
    if heard.finish_reason.is_none() && !heard.is_done {
        return Err(CallError::Unfinished);
    }
    Ok(heard)
}

impl CallError {
    /// What may help.
    pub(super) fn remedy(&self) -> Remedy {
        match self {
            Self::Status(refusal) => refusal.remedy(),
            Self::Upstream(error) => match error.kind {
                UpstreamErrorKind::Connect | UpstreamErrorKind::ConnectTimeout(_) | UpstreamErrorKind::Closed => {
                    Remedy::Again(None)
                }
                UpstreamErrorKind::Tls | UpstreamErrorKind::FirstByteTimeout(_) => Remedy::Nothing,
            },
            Self::NoRequest | Self::Silent(_) | Self::Unheard(Unheard::Silent(_)) | Self::Unmeasured => Remedy::Nothing,
            Self::Unheard(_) | Self::ErrorInside | Self::Unfinished | Self::Fault(_) => Remedy::Again(None),
        }
    }
}

impl Refusal {
    fn remedy(self) -> Remedy {
        match (self.about, self.status.as_u16()) {
            (About::Length, _) => Remedy::Shorter,
            (About::Tools, _) => Remedy::Plainer,
            (_, 408 | 409 | 429 | 500..) if self.retry_after.is_none_or(|wait| wait <= LONGEST_WAIT) => {
                Remedy::Again(self.retry_after)
            }
            _ => Remedy::Nothing,
        }
    }
}

impl About {
    fn of(status: StatusCode, text: &[u8]) -> Self {
        if !matches!(status.as_u16(), 400 | 413 | 422) {
            return Self::Other;
        }
        let text = String::from_utf8_lossy(text).to_lowercase();
        if LENGTH.iter().any(|says| text.contains(says)) {
            Self::Length
        } else if text.contains("tool") {
            Self::Tools
        } else {
            Self::Other
        }
    }
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
        let refusal = Refusal { status, retry_after: retry_after(&headers), about: About::of(status, text.as_bytes()) };
        refusal.remedy()
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
        for text in [
            r#"{"error":{"code":"context_length_exceeded"}}"#,
            "This model's maximum context length is 4096 tokens. Please reduce the length of the messages or tools.",
            r#"{"error":{"type":"exceed_context_size_error"}}"#,
            "prompt is too long: 210000 tokens > 200000 maximum",
        ] {
            assert_eq!(remedy(400, text, &[]), Remedy::Shorter, "{text}");
        }
        assert_eq!(remedy(413, "The input is too long", &[]), Remedy::Shorter);
        for text in
            ["\"tool_choice\" is not supported", "Tools are not supported by this model", r#"{"param":"tools"}"#]
        {
            assert_eq!(remedy(400, text, &[]), Remedy::Plainer, "{text}");
        }
    }
}
