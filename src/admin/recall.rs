//! `GET /abridge/recall/{handle}`: returns a payload that was removed from a conversation, whole or in parts, as plain text
//! or with the type of an image, a file or sound.
//!
//! | query | answers |
//! |---|---|
//! | none | the whole payload |
//! | `offset=N&limit=M` | M bytes from byte N on; both ends move down to the start of a character, so consecutive parts fit together without a gap; a limit below one character returns that character |
//! | `lines=A-B`, `lines=A-`, `lines=A` | the lines with these numbers, from 1, B included |
//! | `grep=TEXT` | each line with the text, case-sensitive, as `NUMBER:LINE`; of a very long line the part around the first match. No patterns |
//!
//! One answer has at most [`MAX_PART_BYTES`] bytes. `x-abridge-size` is the length of the payload, `x-abridge-range` the
//! range of bytes in the answer (end excluded), and `x-abridge-lines` and `x-abridge-matches` are the numbers of either.
//!
//! A text with half a surrogate pair, as JavaScript produces it by cutting a string inside an emoji, is not UTF-8. It is
//! stored as the JSON string that was sent, and byte ranges refer to that string, as `application/json`. `lines` and `grep`
//! read the decoded text, with U+FFFD for each half; then `x-abridge-range` counts the bytes of that text.
//!
//! What was base64 is answered as the bytes that it stood for: all of them with their type, a part, whose range is exact, as
//! `application/octet-stream`; what is no text comes as an attachment.
//!
//! The handle is the capability: it cannot be guessed, and its holder may read. An unused handle, an invalid one and one of
//! another store get the same answer. Handles are compared in constant time; the look-up in the tree of the store's file
//! reveals at most where a guess would be among keyed hashes.
//!
//! With `recall.require_auth` the handle is not enough: a request without a credential gets 401, and with another caller's
//! credential the handle is unknown. The handle encodes its caller, so the store is not read for another caller's handle, and
//! no timing reveals its content.
//!
//! A recall counts as a request in flight, and the bytes that it reads count to `server.max_buffered`, until the answer has
//! been written.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};
use http_body_util::Full;
use memchr::{memchr_iter, memmem};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::text;
use crate::body::{Budget, Lease};
use crate::payload::{Caller, Keys, MediaType, Payload, PayloadKey};
use crate::raw;
use crate::store::{Store, StoreError};
use crate::tasks::run_blocking;
use crate::units::Period;

mod media;

/// The longest answer, in bytes.
const MAX_PART_BYTES: usize = 16 << 20;

/// The longest answer to `grep` and the longest line in it, in bytes.
const MAX_GREP_BYTES: usize = 1 << 20;
const MAX_GREP_LINE: usize = 2000;

/// The longest query, in bytes, before decoding.
const MAX_QUERY: usize = 2000;

/// From this length on, in bytes, a payload is searched on a blocking thread.
const BLOCKING_FROM: usize = 1 << 20;

/// How many payloads are read from the store at a time; more wait. The length of a payload is known only after the read.
const MAX_STORE_READS: usize = 4;

const SIZE: HeaderName = HeaderName::from_static("x-abridge-size");
const RANGE: HeaderName = HeaderName::from_static("x-abridge-range");
const LINES: HeaderName = HeaderName::from_static("x-abridge-lines");
const MATCHES: HeaderName = HeaderName::from_static("x-abridge-matches");

const USAGE: &str =
    "allowed: nothing, or one of offset=N&limit=M (bytes), lines=A-B (from 1), grep=TEXT (no pattern)\n";

const CREDENTIAL_REQUIRED: &str = "recall.require_auth is set: send the key of the conversation that the handle is from, as its requests do (`authorization`, `x-api-key` or `api-key`), or the token that admin.token_env names\n";

/// Selects a part of a payload.
#[derive(Debug, Eq, PartialEq)]
enum Selector {
    Bytes { offset: usize, limit: usize },
    Lines { first: usize, last: usize },
    Grep(Vec<u8>),
}

/// A selected part of a payload.
#[derive(Debug, Default, Eq, PartialEq)]
struct Selection {
    body: Bytes,
    range: Option<Range<usize>>,
    lines: Option<usize>,
    matches: Option<usize>,
    /// Whether the payload is a JSON string, and this is a part of its encoded form.
    is_json: bool,
    /// Whether the bytes are a copy and no slice of the payload.
    is_copy: bool,
}

/// Answers recalls, within limits for all of them together.
#[derive(Debug)]
pub struct RecallHandler {
    in_flight: Arc<Semaphore>,
    budget: Budget,
    store_reads: Semaphore,
    store_timeout: Duration,
    counts: OutcomeCounts,
}

/// The rights of a request that recalls a payload.
#[derive(Clone, Copy, Debug)]
pub enum Requester<'a> {
    /// The handle is enough: no credential is required, or an operator sent the request.
    Unrestricted,
    /// Only payloads that these keys name for this caller.
    Caller(&'a Keys, Caller),
    /// A credential is required, and the request has none.
    Unauthenticated,
}

/// The number of answers by outcome.
#[derive(Debug, Default)]
struct OutcomeCounts {
    found: AtomicU64,
    unknown: AtomicU64,
    swept: AtomicU64,
    refused: AtomicU64,
    busy: AtomicU64,
}

/// The bytes of an answer, with the lease and the permit that they hold until they are written.
struct LeasedBytes {
    bytes: Bytes,
    _lease: Lease,
    _permit: OwnedSemaphorePermit,
}

// === impl RecallHandler ===

impl RecallHandler {
    /// Creates the handler. Each recall takes one permit of `in_flight` and leases its bytes from `budget`, and waits at most
    /// `store_timeout` for the store.
    pub fn new(in_flight: Arc<Semaphore>, budget: Budget, store_timeout: Duration) -> Self {
        Self {
            in_flight,
            budget,
            store_reads: Semaphore::new(MAX_STORE_READS),
            store_timeout,
            counts: OutcomeCounts::default(),
        }
    }

    /// Each outcome, and its count.
    pub fn counts(&self) -> [(&'static str, u64); 5] {
        let OutcomeCounts { found, unknown, swept, refused, busy } = &self.counts;
        [("found", found), ("unknown", unknown), ("swept", swept), ("refused", refused), ("busy", busy)]
            .map(|(outcome, count)| (outcome, count.load(Ordering::Relaxed)))
    }

    /// Answers a recall and counts its outcome.
    pub(super) async fn answer(
        &self,
        handle: &str,
        query: &str,
        store: Option<&dyn Store>,
        requester: Requester<'_>,
    ) -> Response<Full<Bytes>> {
        let response = self.respond(handle, query, store, requester).await;
        let OutcomeCounts { found, unknown, swept, refused, busy } = &self.counts;
        let count = match response.status() {
            StatusCode::OK => found,
            StatusCode::NOT_FOUND => unknown,
            StatusCode::GONE => swept,
            StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED => refused,
            _ => busy,
        };
        count.fetch_add(1, Ordering::Relaxed);
        response
    }

    async fn respond(
        &self,
        handle: &str,
        query: &str,
        store: Option<&dyn Store>,
        requester: Requester<'_>,
    ) -> Response<Full<Bytes>> {
        if matches!(requester, Requester::Unauthenticated) {
            let mut response = text(StatusCode::UNAUTHORIZED, CREDENTIAL_REQUIRED);
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return response;
        }
        let Some(part) = Selector::parse(query) else { return text(StatusCode::BAD_REQUEST, USAGE) };
        let Ok(permit) = Arc::clone(&self.in_flight).try_acquire_owned() else {
            return retry_later("abridge already has as many requests in flight as server.max_in_flight allows");
        };
        let found = timeout(self.store_timeout, self.load(handle, store, requester));
        let (key, payload, mut lease) = match found.await.unwrap_or(Err(RecallError::Timeout(self.store_timeout))) {
            Ok(found) => found,
            Err(missing) => return missing.to_response(),
        };
        let size = payload.len();
        let owner = requester.owner();
        let is_owned = move |payload: &[u8]| owner.is_none_or(|(keys, caller)| keys.payload(caller, payload) == key);
        let media = payload.media().filter(|media| *media != MediaType::Text);
        let of = move || is_owned(&payload.bytes()).then(|| part.select(&payload));
        let found = if size < BLOCKING_FROM {
            of()
        } else {
            run_blocking(of).await.unwrap_or_else(|_| Some(Selection::default()))
        };
        let Some(found) = found else { return RecallError::Unknown.to_response() };
        if found.is_copy && !self.budget.extend(&mut lease, found.body.len()) {
            return RecallError::NoBudget.to_response();
        }
        let body = Bytes::from_owner(LeasedBytes { bytes: found.body.clone(), _lease: lease, _permit: permit });
        let mut response = text(StatusCode::OK, body);
        let headers = response.headers_mut();
        // The payload is untrusted output of a tool, which may be HTML with scripts.
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        media::set_type(headers, key, media, size, &found);
        headers.insert(SIZE, HeaderValue::from(size));
        count(headers, LINES, found.lines);
        count(headers, MATCHES, found.matches);
        if let Some(Ok(range)) =
            found.range.map(|range| HeaderValue::try_from(format!("{}-{}", range.start, range.end)))
        {
            headers.insert(RANGE, range);
        }
        response
    }

    /// Reads the payload from the store, with a lease for its bytes.
    async fn load(
        &self,
        handle: &str,
        store: Option<&dyn Store>,
        requester: Requester<'_>,
    ) -> Result<(PayloadKey, Payload, Lease), RecallError> {
        let (Ok(key), Some(store)) = (handle.parse::<PayloadKey>(), store) else { return Err(RecallError::Unknown) };
        if let Requester::Caller(keys, caller) = requester
            && !keys.may_be_of(caller, key)
        {
            return Err(RecallError::Unknown);
        }
        // The semaphore is never closed.
        let _permit = self.store_reads.acquire().await.ok();
        if let Some(payload) = store.load(key).await.map_err(RecallError::Store)? {
            let lease = self.budget.lease(payload.len()).ok_or(RecallError::NoBudget)?;
            return Ok((key, payload, lease));
        }
        let swept = store.was_swept(key).await.map_err(RecallError::Store)?;
        Err(if swept { RecallError::Swept } else { RecallError::Unknown })
    }
}

impl Requester<'_> {
    /// The caller that must own the payload; `None` without such a limit.
    fn owner(self) -> Option<(Keys, Caller)> {
        match self {
            Self::Caller(keys, caller) => Some((keys.clone(), caller)),
            Self::Unrestricted | Self::Unauthenticated => None,
        }
    }
}

impl AsRef<[u8]> for LeasedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn count(headers: &mut HeaderMap, name: HeaderName, n: Option<usize>) {
    if let Some(n) = n {
        headers.insert(name, HeaderValue::from(n));
    }
}

/// Why a payload cannot be returned.
enum RecallError {
    Unknown,
    Swept,
    NoBudget,
    Timeout(Duration),
    Store(StoreError),
}

impl RecallError {
    fn to_response(&self) -> Response<Full<Bytes>> {
        match self {
            Self::Unknown => text(StatusCode::NOT_FOUND, "no payload has this handle\n"),
            Self::Swept => {
                let why = "the payload with this handle was removed: it was unused for longer than store.keep_for, or store.max_bytes was reached\n";
                text(StatusCode::GONE, why)
            }
            Self::NoBudget => retry_later("the bodies in memory have reached server.max_buffered"),
            Self::Timeout(store_timeout) => {
                retry_later(&format!("the store has not answered within {} (store.timeout)", Period(*store_timeout)))
            }
            Self::Store(error) => {
                tracing::warn!(%error, cause = %error.source, "a payload could not be recalled");
                retry_later(&error.to_string())
            }
        }
    }
}

/// A 503 with `retry-after`.
fn retry_later(why: &str) -> Response<Full<Bytes>> {
    let mut response = text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}; try again\n"));
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

// === impl Selector ===

impl Selector {
    /// Parses a query; `None` if it is not valid.
    fn parse(query: &str) -> Option<Self> {
        if query.len() > MAX_QUERY {
            return None;
        }
        let (mut offset, mut limit, mut lines, mut grep) = (None, None, None, None);
        for (key, value) in
            query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        {
            let value = percent_decoded(value);
            let text = str::from_utf8(&value).ok()?;
            let before = match key {
                "offset" => offset.replace(number(text)?).is_some(),
                "limit" => limit.replace(number(text)?).is_some(),
                "lines" => lines.replace(line_range(text)?).is_some(),
                "grep" if !text.is_empty() => grep.replace(value.clone()).is_some(),
                _ => return None,
            };
            if before {
                return None;
            }
        }
        match (offset, limit, lines, grep) {
            (offset, limit, None, None) => Some(Self::Bytes {
                offset: offset.unwrap_or(0),
                limit: limit.unwrap_or(MAX_PART_BYTES).min(MAX_PART_BYTES),
            }),
            (None, None, Some((first, last)), None) => Some(Self::Lines { first, last }),
            (None, None, None, Some(needle)) => Some(Self::Grep(needle)),
            _ => None,
        }
    }

    /// Selects the part from the payload.
    fn select(&self, payload: &Payload) -> Selection {
        let (media, payload) = (payload.media(), &payload.bytes());
        match self {
            Self::Bytes { offset, limit } if media.is_some() => {
                part(payload, *offset.min(&payload.len())..offset.saturating_add(*limit))
            }
            Self::Bytes { offset, limit } => {
                let is_json = text_of_json(payload).is_some();
                let start = down_to_char(payload, *offset);
                let end = down_to_char(payload, offset.saturating_add(*limit));
                let end = if end > start || *limit == 0 { end.max(start) } else { up_to_char(payload, start + 1) };
                Selection { is_json, ..part(payload, start..end) }
            }
            Self::Lines { first, last } => match text_of_json(payload) {
                Some(text) => Selection { is_copy: true, ..lines(&text, *first, *last) },
                None => lines(payload, *first, *last),
            },
            Self::Grep(needle) => grep(text_of_json(payload).as_ref().unwrap_or(payload), needle),
        }
    }
}

/// The decoded text of a payload that is stored as a JSON string.
fn text_of_json(payload: &[u8]) -> Option<Bytes> {
    raw::halved(payload).map(|text| text.into_owned().into())
}

/// A range of the payload, cut to the limit at the start of a character.
fn part(payload: &Bytes, range: Range<usize>) -> Selection {
    let end =
        if range.len() > MAX_PART_BYTES { down_to_char(payload, range.start + MAX_PART_BYTES) } else { range.end };
    let range = range.start..end.min(payload.len()).max(range.start);
    Selection { body: payload.slice(range.clone()), range: Some(range), ..Selection::default() }
}

fn lines(payload: &Bytes, first: usize, last: usize) -> Selection {
    // The start of each line. Text after the last line end is a line; an empty rest is none.
    let starts = [0].into_iter().chain(memchr_iter(b'\n', payload).map(|at| at + 1)).filter(|at| *at < payload.len());
    let (mut n_lines, mut start, mut end) = (0, payload.len(), payload.len());
    for at in starts {
        n_lines += 1;
        if n_lines == first {
            start = at;
        }
        if n_lines - 1 == last {
            end = at;
        }
    }
    Selection { lines: Some(n_lines), ..part(payload, start..end) }
}

fn grep(payload: &Bytes, needle: &[u8]) -> Selection {
    let finder = memmem::Finder::new(needle);
    let (mut text, mut n) = (String::new(), 0);
    for (number, line) in payload.split(|byte| *byte == b'\n').enumerate() {
        let Some(at) = finder.find(line) else { continue };
        n += 1;
        if text.len() < MAX_GREP_BYTES {
            // Writing to a String cannot fail.
            let _written = writeln!(text, "{}:{}", number + 1, excerpt(line, at, needle.len()));
        }
    }
    Selection { body: text.into(), matches: Some(n), is_copy: true, ..Selection::default() }
}

/// The line, or, if it is very long, the part around the match.
fn excerpt(line: &[u8], at: usize, len: usize) -> String {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.len() <= MAX_GREP_LINE {
        return String::from_utf8_lossy(line).into_owned();
    }
    let around = MAX_GREP_LINE.saturating_sub(len) / 2;
    let (start, end) = (at.saturating_sub(around), at.saturating_add(len + around));
    let (start, end) = (down_to_char(line, start), down_to_char(line, end));
    let text = String::from_utf8_lossy(line.get(start..end).unwrap_or_default());
    let [before, after] = [start > 0, end < line.len()].map(|cut| if cut { "…" } else { "" });
    format!("{before}{text}{after}")
}

// === helpers ===

/// The offset, or the nearest one below it where a character begins; at most the length.
fn down_to_char(text: &[u8], offset: usize) -> usize {
    let mut offset = offset.min(text.len());
    // A character has at most four bytes; without a start within those, the bytes are no text.
    let within = offset.saturating_sub(3);
    let from = offset;
    while text.get(offset).is_some_and(|byte| is_continuation(*byte)) {
        if offset == within {
            return from;
        }
        offset -= 1;
    }
    offset
}

fn up_to_char(text: &[u8], offset: usize) -> usize {
    let rest = text.get(offset..).unwrap_or_default();
    offset.min(text.len()) + rest.iter().take(3).take_while(|byte| is_continuation(**byte)).count()
}

/// Whether a byte of UTF-8 continues a character.
fn is_continuation(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

fn number(text: &str) -> Option<usize> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// `A-B`, `A-` or `A`.
fn line_range(text: &str) -> Option<(usize, usize)> {
    let (first, last) = match text.split_once('-') {
        None => (number(text)?, number(text)?),
        Some((first, "")) => (number(first)?, usize::MAX),
        Some((first, last)) => (number(first)?, number(last)?),
    };
    (1..=last).contains(&first).then_some((first, last))
}

/// Decodes `%20` and `+`. Invalid escapes stay unchanged.
pub(super) fn percent_decoded(text: &str) -> Vec<u8> {
    let mut rest = text.as_bytes();
    let mut decoded = Vec::with_capacity(rest.len());
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        let escaped = behind.first_chunk::<2>().filter(|_| *byte == b'%').and_then(|digits| hex(*digits));
        if escaped.is_some() {
            rest = behind.get(2..).unwrap_or_default();
        }
        decoded.push(escaped.unwrap_or(if *byte == b'+' { b' ' } else { *byte }));
    }
    decoded
}

fn hex(digits: [u8; 2]) -> Option<u8> {
    let digits = str::from_utf8(&digits).ok().filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
    u8::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests;
