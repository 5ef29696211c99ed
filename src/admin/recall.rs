//! `GET /abridge/recall/{handle}`: what was taken out of a conversation, as plain text, whole or in parts.
//!
//! | query | answers |
//! |---|---|
//! | none | all of it |
//! | `offset=N&limit=M` | from byte N on, M bytes; both ends move down to where a character begins, so parts that follow each other by their limits fit together without a gap; a limit that is less than a character gives that character |
//! | `lines=A-B`, `lines=A-`, `lines=A` | the lines with these numbers, the first is 1, B included |
//! | `grep=TEXT` | each line that holds the text, letter case and all, as `NUMBER:LINE`; of a very long line what is around the first find. No patterns |
//!
//! One answer has at most [`MOST`] bytes. `x-abridge-size` says how long the whole is, `x-abridge-range` which bytes of it these are
//! (the end not included), `x-abridge-lines` and `x-abridge-matches` how many there are of either.
//!
//! A text with half a surrogate pair, as JavaScript leaves it where it cuts a string inside of an emoji, is no UTF-8. It is
//! stored as the JSON string that it was sent as, and bytes are given back out of that, as `application/json`. `lines` and
//! `grep` read what it says, with U+FFFD for each half; `x-abridge-range` counts the bytes of that.
//!
//! The handle is the capability: it cannot be guessed, and who has it may read. One that never was, one that cannot be and one
//! of another store get the same answer. Equal handles are told in constant time; the store's file finds one in a tree, whose
//! order tells at most where among keyed hashes a guess would stand.
//!
//! With `recall.require_auth` the handle is not enough: who shows no credential is told so, and for who shows another's the
//! handle is unknown. Whose it is stands in the handle, so for a stranger's handle the store is not even asked, and no time
//! that it takes tells what is in it.
//!
//! A recall is a request in flight, and what it reads counts to the memory of all bodies, until the answer has been written.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, StatusCode};
use http_body_util::Full;
use memchr::{memchr_iter, memmem};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::text;
use crate::body::{Budget, Lease};
use crate::payload::{Caller, Keys, PayloadKey};
use crate::raw;
use crate::store::{Store, StoreError};
use crate::tasks::blocking;
use crate::units::Period;

/// The longest answer, in bytes.
const MOST: usize = 16 << 20;

/// The longest answer to `grep`, and the longest line in it.
const MOST_FOUND: usize = 1 << 20;
const LONGEST_LINE: usize = 2000;

/// The longest query, as it is written.
const LONGEST_QUERY: usize = 2000;

/// A longer payload is looked through on a thread that may block.
const HOP_FROM: usize = 1 << 20;

/// So many payloads are read out of the store at a time; only then their lengths are known. More wait.
const READERS: usize = 4;

const SIZE: HeaderName = HeaderName::from_static("x-abridge-size");
const RANGE: HeaderName = HeaderName::from_static("x-abridge-range");
const LINES: HeaderName = HeaderName::from_static("x-abridge-lines");
const MATCHES: HeaderName = HeaderName::from_static("x-abridge-matches");

const USAGE: &str =
    "allowed: nothing, or one of offset=N&limit=M (bytes), lines=A-B (from 1), grep=TEXT (no pattern)\n";

const WHOSE: &str = "recall.require_auth is set: show the key of the conversation that the handle is from, as its requests do (`authorization` or `api-key`), or the token that admin.token_env names\n";

/// Which part of a payload is asked for.
#[derive(Debug, Eq, PartialEq)]
enum Part {
    Bytes { offset: usize, limit: usize },
    Lines { first: usize, last: usize },
    Grep(Vec<u8>),
}

/// A part of a payload.
#[derive(Debug, Default, Eq, PartialEq)]
struct Found {
    body: Bytes,
    range: Option<Range<usize>>,
    lines: Option<usize>,
    matches: Option<usize>,
    /// Whether the payload is a JSON string, and this is a part of it as it is written.
    is_json: bool,
    /// Whether the bytes are no slice of the payload.
    is_copy: bool,
}

/// What all recalls together may take.
#[derive(Debug)]
pub struct Recalls {
    places: Arc<Semaphore>,
    budget: Budget,
    readers: Semaphore,
    patience: Duration,
    counts: Counts,
}

/// Who recalls.
#[derive(Clone, Copy, Debug)]
pub enum Reader<'a> {
    /// One whose handle is enough: no more is asked for, or it is an operator.
    Anybody,
    /// One who gets what these keys name for this caller.
    Caller(&'a Keys, Caller),
    /// One who shows nothing, and would have to.
    Stranger,
}

/// How often there was which answer.
#[derive(Debug, Default)]
struct Counts {
    found: AtomicU64,
    unknown: AtomicU64,
    swept: AtomicU64,
    refused: AtomicU64,
    busy: AtomicU64,
}

/// The bytes of an answer, and what they take until they are written.
struct Paid {
    bytes: Bytes,
    _lease: Lease,
    _place: OwnedSemaphorePermit,
}

// === impl Recalls ===

impl Recalls {
    /// Each takes one of these places, and the bytes that it reads out of this budget, and waits no longer for the store.
    pub fn new(places: Arc<Semaphore>, budget: Budget, patience: Duration) -> Self {
        Self { places, budget, readers: Semaphore::new(READERS), patience, counts: Counts::default() }
    }

    /// Each kind of answer, and how often there was one.
    pub fn counted(&self) -> [(&'static str, u64); 5] {
        let Counts { found, unknown, swept, refused, busy } = &self.counts;
        [("found", found), ("unknown", unknown), ("swept", swept), ("refused", refused), ("busy", busy)]
            .map(|(outcome, count)| (outcome, count.load(Ordering::Relaxed)))
    }

    /// The answer.
    pub(super) async fn answer(
        &self,
        handle: &str,
        query: &str,
        store: Option<&dyn Store>,
        reader: Reader<'_>,
    ) -> Response<Full<Bytes>> {
        let response = self.part(handle, query, store, reader).await;
        let Counts { found, unknown, swept, refused, busy } = &self.counts;
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

    async fn part(
        &self,
        handle: &str,
        query: &str,
        store: Option<&dyn Store>,
        reader: Reader<'_>,
    ) -> Response<Full<Bytes>> {
        if matches!(reader, Reader::Stranger) {
            let mut response = text(StatusCode::UNAUTHORIZED, WHOSE);
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return response;
        }
        let Some(part) = Part::read(query) else { return text(StatusCode::BAD_REQUEST, USAGE) };
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return later("abridge already has as many requests in flight as server.max_in_flight allows");
        };
        let found = timeout(self.patience, self.find(handle, store, reader));
        let (key, payload, mut lease) = match found.await.unwrap_or(Err(Missing::Slow(self.patience))) {
            Ok(found) => found,
            Err(missing) => return missing.to_response(),
        };
        let size = payload.len();
        let owner = reader.owner();
        let is_theirs = move |payload: &[u8]| owner.is_none_or(|(keys, caller)| keys.payload(caller, payload) == key);
        let of = move || is_theirs(&payload).then(|| part.of(&payload));
        let found = if size < HOP_FROM { of() } else { blocking(of).await.unwrap_or_else(|_| Some(Found::default())) };
        let Some(found) = found else { return Missing::Never.to_response() };
        if found.is_copy && !self.budget.extend(&mut lease, found.body.len()) {
            return Missing::NoBudget.to_response();
        }
        let body = Bytes::from_owner(Paid { bytes: found.body, _lease: lease, _place: place });
        let mut response = text(StatusCode::OK, body);
        let headers = response.headers_mut();
        // It is whatever a tool said, a page with scripts perhaps.
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if found.is_json {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
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

    /// The payload, paid for.
    async fn find(
        &self,
        handle: &str,
        store: Option<&dyn Store>,
        reader: Reader<'_>,
    ) -> Result<(PayloadKey, Bytes, Lease), Missing> {
        let (Ok(key), Some(store)) = (handle.parse::<PayloadKey>(), store) else { return Err(Missing::Never) };
        if let Reader::Caller(keys, caller) = reader
            && !keys.may_be_of(caller, key)
        {
            return Err(Missing::Never);
        }
        // It is never closed.
        let _reader = self.readers.acquire().await.ok();
        if let Some(payload) = store.get(key).await.map_err(Missing::Unknown)? {
            let lease = self.budget.lease(payload.len()).ok_or(Missing::NoBudget)?;
            return Ok((key, payload, lease));
        }
        let swept = store.was_swept(key).await.map_err(Missing::Unknown)?;
        Err(if swept { Missing::Swept } else { Missing::Never })
    }
}

impl Reader<'_> {
    /// Whose payloads it gets; none if everybody's.
    fn owner(self) -> Option<(Keys, Caller)> {
        match self {
            Self::Caller(keys, caller) => Some((keys.clone(), caller)),
            Self::Anybody | Self::Stranger => None,
        }
    }
}

impl AsRef<[u8]> for Paid {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn count(headers: &mut HeaderMap, name: HeaderName, n: Option<usize>) {
    if let Some(n) = n {
        headers.insert(name, HeaderValue::from(n));
    }
}

/// Why there is no payload.
enum Missing {
    Never,
    Swept,
    NoBudget,
    Slow(Duration),
    Unknown(StoreError),
}

impl Missing {
    fn to_response(&self) -> Response<Full<Bytes>> {
        match self {
            Self::Never => text(StatusCode::NOT_FOUND, "no payload has this handle\n"),
            Self::Swept => {
                let why = "the payload with this handle was removed: it was unused for longer than store.keep_for, or store.max_bytes was reached\n";
                text(StatusCode::GONE, why)
            }
            Self::NoBudget => later("the bodies in memory have reached server.max_buffered"),
            Self::Slow(patience) => {
                later(&format!("the store has not answered within {} (store.timeout)", Period(*patience)))
            }
            Self::Unknown(error) => {
                tracing::warn!(%error, cause = %error.source, "a payload could not be recalled");
                later(&error.to_string())
            }
        }
    }
}

/// The answer to what may work in a moment.
fn later(why: &str) -> Response<Full<Bytes>> {
    let mut response = text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}; try again\n"));
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

// === impl Part ===

impl Part {
    /// Reads a query; none if it is not one of ours.
    fn read(query: &str) -> Option<Self> {
        if query.len() > LONGEST_QUERY {
            return None;
        }
        let (mut offset, mut limit, mut lines, mut grep) = (None, None, None, None);
        for (key, value) in
            query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        {
            let value = decoded(value);
            let text = str::from_utf8(&value).ok()?;
            let before = match key {
                "offset" => offset.replace(number(text)?).is_some(),
                "limit" => limit.replace(number(text)?).is_some(),
                "lines" => lines.replace(numbers(text)?).is_some(),
                "grep" if !text.is_empty() => grep.replace(value.clone()).is_some(),
                _ => return None,
            };
            if before {
                return None;
            }
        }
        match (offset, limit, lines, grep) {
            (offset, limit, None, None) => {
                Some(Self::Bytes { offset: offset.unwrap_or(0), limit: limit.unwrap_or(MOST).min(MOST) })
            }
            (None, None, Some((first, last)), None) => Some(Self::Lines { first, last }),
            (None, None, None, Some(needle)) => Some(Self::Grep(needle)),
            _ => None,
        }
    }

    /// Takes the part out of the payload.
    fn of(&self, payload: &Bytes) -> Found {
        match self {
            Self::Bytes { offset, limit } => {
                let is_json = text_of_json(payload).is_some();
                let start = down_to_char(payload, *offset);
                let end = down_to_char(payload, offset.saturating_add(*limit));
                let end = if end > start || *limit == 0 { end.max(start) } else { up_to_char(payload, start + 1) };
                Found { is_json, ..part(payload, start..end) }
            }
            Self::Lines { first, last } => match text_of_json(payload) {
                Some(text) => Found { is_copy: true, ..lines(&text, *first, *last) },
                None => lines(payload, *first, *last),
            },
            Self::Grep(needle) => grep(text_of_json(payload).as_ref().unwrap_or(payload), needle),
        }
    }
}

/// The text of a payload that is stored as the JSON string it was sent as.
fn text_of_json(payload: &[u8]) -> Option<Bytes> {
    raw::halved(payload).map(|text| text.into_owned().into())
}

/// A range of the payload, its end within the limit and at a character.
fn part(payload: &Bytes, range: Range<usize>) -> Found {
    let end = if range.len() > MOST { down_to_char(payload, range.start + MOST) } else { range.end };
    let range = range.start..end.min(payload.len()).max(range.start);
    Found { body: payload.slice(range.clone()), range: Some(range), ..Found::default() }
}

fn lines(payload: &Bytes, first: usize, last: usize) -> Found {
    // Where each line begins; text behind the last line end is a line, nothing is none.
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
    Found { lines: Some(n_lines), ..part(payload, start..end) }
}

fn grep(payload: &Bytes, needle: &[u8]) -> Found {
    let finder = memmem::Finder::new(needle);
    let (mut text, mut n) = (String::new(), 0);
    for (number, line) in payload.split(|byte| *byte == b'\n').enumerate() {
        let Some(at) = finder.find(line) else { continue };
        n += 1;
        if text.len() < MOST_FOUND {
            // Into a String nothing fails.
            let _written = writeln!(text, "{}:{}", number + 1, excerpt(line, at, needle.len()));
        }
    }
    Found { body: text.into(), matches: Some(n), is_copy: true, ..Found::default() }
}

/// The line, or if that is very long, what is around the find.
fn excerpt(line: &[u8], at: usize, len: usize) -> String {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.len() <= LONGEST_LINE {
        return String::from_utf8_lossy(line).into_owned();
    }
    let around = LONGEST_LINE.saturating_sub(len) / 2;
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
    // No character is longer than four bytes; where one is not found so soon, this is no text.
    let within = offset.saturating_sub(3);
    let from = offset;
    while text.get(offset).is_some_and(|byte| is_inside(*byte)) {
        if offset == within {
            return from;
        }
        offset -= 1;
    }
    offset
}

fn up_to_char(text: &[u8], offset: usize) -> usize {
    let rest = text.get(offset..).unwrap_or_default();
    offset.min(text.len()) + rest.iter().take(3).take_while(|byte| is_inside(**byte)).count()
}

/// Whether a byte of UTF-8 is inside of a character.
fn is_inside(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

fn number(text: &str) -> Option<usize> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// `A-B`, `A-` or `A`.
fn numbers(text: &str) -> Option<(usize, usize)> {
    let (first, last) = match text.split_once('-') {
        None => (number(text)?, number(text)?),
        Some((first, "")) => (number(first)?, usize::MAX),
        Some((first, last)) => (number(first)?, number(last)?),
    };
    (1..=last).contains(&first).then_some((first, last))
}

/// Undoes `%20` and `+`. What is not an escape stays as it is.
pub(super) fn decoded(text: &str) -> Vec<u8> {
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
