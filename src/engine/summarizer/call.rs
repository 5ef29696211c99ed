//! One call for a summary, how its failures are retried, and what the log says of them: the words of a refusal are bounded, on
//! one line, and without what the upstream was sent.

use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use memchr::memmem;
use tokio::time::timeout;

use super::endpoints::Candidate;
use super::stream::{self, ReadError};
use crate::dialect::{Answer, Dialect};
use crate::edit::summarize::{self as settings, answer::Fault};
use crate::raw::{Fields, elements};
use crate::upstream::post::json_post_with;
use crate::upstream::refusal::{self, Refusal};
use crate::upstream::{KeyHeader, UpstreamError, UpstreamErrorKind};

/// Why a call produced no summary, and how to retry.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub(super) struct CallError {
    why: String,
    pub(super) retry: Retry,
}

/// How to retry after an error.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Retry {
    /// Send the same request again, after this time if there is one.
    Same(Option<Duration>),
    /// Send half as much of the conversation.
    Shorter,
    /// Send a request in the plain form.
    Plain,
    /// Do not retry with this model.
    Never,
}

/// The longest `retry-after` that is honoured.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// How many bytes of an error body are read.
const MAX_ERROR_BODY: usize = 64 << 10;

/// Sends one request and reads its answer. Fails if nothing arrives for `idle_timeout`.
pub(super) async fn call(
    candidate: &Candidate<'_>,
    dialect: &dyn Dialect,
    body: Bytes,
    retry: &settings::Retry,
    idle_timeout: Duration,
) -> Result<Answer, CallError> {
    let request = json_post_with(candidate.target.clone(), candidate.headers.clone(), body.clone());
    let keys = KeyHeader::ALL.into_iter().filter_map(|key| request.headers().get(key.name()));
    let sent: Vec<_> = keys.map(|key| Bytes::copy_from_slice(key.as_bytes())).chain([body]).collect();
    let silent = |_| CallError::new(format!("no answer came for {} s", idle_timeout.as_secs()), Retry::Never);
    let mut response = timeout(idle_timeout, candidate.upstream.send(request.into())).await.map_err(silent)??;
    let status = response.status();
    if status != StatusCode::OK {
        let retry_after = retry_after(response.headers());
        let mut text = Vec::new();
        let _broken = stream::read_prefix(response.body_mut(), MAX_ERROR_BODY, idle_timeout, &mut text).await;
        let retry = retry_after_status(status, retry_after, &text, retry);
        return Err(CallError::new(format!("the upstream answered {status}{}", words_of(&text, &sent)), retry));
    }
    let answer = stream::read(response, dialect, idle_timeout).await.map_err(|error| match error {
        ReadError::ErrorEvent(data) => {
            let retry = refusal::classify_event(&data).map_or(Retry::Same(None), retry_after_refusal);
            CallError::new(format!("the upstream's answer contains an error{}", words_of(&data, &sent)), retry)
        }
        ReadError::Idle(_) => CallError::new(error.to_string(), Retry::Never),
        error => CallError::new(error.to_string(), Retry::Same(None)),
    })?;
    if answer.stop_reason.is_none() && !answer.is_complete {
        return Err(CallError::new("the answer ended before it was complete", Retry::Same(None)));
    }
    Ok(answer)
}

impl CallError {
    pub(super) fn new(why: impl Into<String>, retry: Retry) -> Self {
        Self { why: why.into(), retry }
    }
}

impl From<Fault> for CallError {
    fn from(fault: Fault) -> Self {
        Self::new(fault.to_string(), Retry::Same(None))
    }
}

impl From<UpstreamError> for CallError {
    fn from(error: UpstreamError) -> Self {
        use UpstreamErrorKind::{FirstByteTimeout, ProxyRefusal, Tls};
        let is_final = matches!(error.kind, Tls | ProxyRefusal | FirstByteTimeout(_));
        Self::new(error.to_string(), if is_final { Retry::Never } else { Retry::Same(None) })
    }
}

/// How to retry after a refusal for a known reason.
fn retry_after_refusal(refusal: Refusal) -> Retry {
    match refusal {
        Refusal::Overflow(_) => Retry::Shorter,
        Refusal::Sequence | Refusal::Reasoning | Refusal::Form(..) | Refusal::Tools => Retry::Plain,
    }
}

/// How to retry after an answer with another status than 200, which may ask for a pause.
fn retry_after_status(status: StatusCode, pause: Option<Duration>, text: &[u8], settings: &settings::Retry) -> Retry {
    let refuses = matches!(status.as_u16(), 400 | 413 | 422);
    let is_json = matches!(text.trim_ascii_start().first(), Some(b'{' | b'['));
    match refuses.then(|| refusal::classify(text)).flatten() {
        Some(refusal) => retry_after_refusal(refusal),
        // Servers before the upstream say in HTML that a body is too large.
        None if status == StatusCode::PAYLOAD_TOO_LARGE && !is_json => Retry::Shorter,
        None if settings.repeats(status.as_u16(), text) && pause.is_none_or(|pause| pause <= MAX_RETRY_AFTER) => {
            Retry::Same(pause)
        }
        None if refuses && refusal::may_be_of_form(text) => Retry::Plain,
        None => Retry::Never,
    }
}

/// The pause that the upstream asks for, in seconds or, in `retry-after-ms`, in milliseconds. A date is ignored.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let seconds = number("retry-after-ms").map(|ms| ms / 1000.0).or_else(|| number(RETRY_AFTER.as_str()))?;
    Duration::try_from_secs_f64(seconds).ok()
}

// === the words of an upstream ===

/// How many characters of a message are looked at.
const MAX_CHARS: usize = 300;

/// How deep the message is looked for.
const MAX_DEPTH: usize = 4;

/// So many characters that are in what was sent, too, count as a repetition of it.
const REPEATED: usize = 12;

/// The message in the body of a refusal, after a colon, without what the upstream was `sent`; empty if there is none.
fn words_of(body: &[u8], sent: &[Bytes]) -> String {
    let text = str::from_utf8(body).unwrap_or_default();
    let Some(said) = Fields::of(first(text)).and_then(|fields| message(&fields, MAX_DEPTH)) else {
        return String::new();
    };
    let chars: Vec<char> = said.chars().take(MAX_CHARS).collect();
    let mut is_sent = vec![false; chars.len()];
    for (n, part) in chars.windows(REPEATED).enumerate() {
        let part: String = part.iter().collect();
        if sent.iter().any(|sent| memmem::find(sent, part.as_bytes()).is_some()) {
            is_sent.iter_mut().skip(n).take(REPEATED).for_each(|is_sent| *is_sent = true);
        }
    }
    let mut words = ": ".to_owned();
    for (c, is_sent) in chars.into_iter().zip(is_sent) {
        match c {
            _ if is_sent && words.ends_with('\u{2026}') => {}
            _ if is_sent => words.push('\u{2026}'),
            ' ' => words.push(c),
            c if c.is_alphanumeric() || c.is_ascii_punctuation() => words.push(c),
            c => words.extend(c.escape_unicode()),
        }
    }
    words
}

/// The sentence that servers say: `error.message`, `message`, `detail`, or `error` as a string, in an event below `response`,
/// and `detail[0].msg` of servers that check requests with pydantic.
fn message(fields: &Fields<'_>, depth: usize) -> Option<String> {
    let depth = depth.checked_sub(1)?;
    let said = |key: &str| Some(fields.string(key)?.into_owned()).filter(|said| !said.is_empty());
    let inner = |key: &str| message(&Fields::of(first(fields.get(key)?))?, depth);
    let found = inner("error").or_else(|| inner("response"));
    let found = found.or_else(|| ["message", "detail", "msg"].iter().find_map(|key| said(key).or_else(|| inner(key))));
    found.or_else(|| said("error"))
}

/// The first element of an array; any other value as it is.
fn first(json: &str) -> &str {
    elements(json).and_then(|elements| elements.first().copied()).unwrap_or(json)
}

#[cfg(test)]
mod tests;
