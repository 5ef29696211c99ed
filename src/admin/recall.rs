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
//! One answer has at most 16 MiB. `x-abridge-size` is the length of the payload, `x-abridge-range` the
//! range of bytes in the answer (end excluded), and `x-abridge-lines` and `x-abridge-matches` are the numbers of either.
//!
//! A text with half a surrogate pair, as JavaScript produces it by cutting a string inside an emoji, is not UTF-8. It is
//! stored as the JSON string that was sent, and byte ranges refer to that string, as `application/json`. `lines` and `grep`
//! read the decoded text, with U+FFFD for each half; then `x-abridge-range` counts the bytes of that text.
//!
//! Base64 is answered decoded: the whole with its type, a part, whose range is exact, as `application/octet-stream`; anything
//! but text is an attachment.
//!
//! The handle is the capability: it cannot be guessed, and its holder may read. An unused handle, an invalid one and one of
//! another store get the same answer. Handles are compared in constant time; the look-up in the tree of the store's file
//! reveals at most where a guess would be among keyed hashes.
//!
//! Where `recall.auth` asks for a credential, a request without one gets 401, and with another caller's
//! credential the handle is unknown. The handle encodes its caller, so the store is not read for another caller's handle, and
//! no timing reveals its content.
//!
//! A recall counts as a request in flight, and the bytes that it reads count to `server.max_buffered`, until the answer has
//! been written.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    CONTENT_DISPOSITION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, StatusCode};
use http_body_util::Full;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::{set_fields, text, with};
use crate::body::{Budget, Lease};
use crate::metrics::Tally;
use crate::payload::{Keys, MediaType, Payload, PayloadKey};
use crate::store::{Owner, Page, Store, StoreError, StoreErrorKind, StoreFuture};
use crate::tasks::run_blocking_from;
use crate::units::Period;

mod selector;

pub(crate) use selector::Selection;
use selector::Selector;
pub(crate) use selector::{parse_query, percent_decoded};

/// From this length on, in bytes, a payload is searched on a blocking thread.
const BLOCKING_FROM: usize = 1 << 20;

/// How many payloads are read from the store at a time; more wait. The length of a payload is known only after the read.
const MAX_STORE_READS: usize = 4;

/// The seconds until another try, in the answer to a recall for which a place, memory or the store is missing.
pub(crate) const RETRY_SECONDS: &str = "1";

const SIZE: HeaderName = HeaderName::from_static("x-abridge-size");
const RANGE: HeaderName = HeaderName::from_static("x-abridge-range");
const LINES: HeaderName = HeaderName::from_static("x-abridge-lines");
const MATCHES: HeaderName = HeaderName::from_static("x-abridge-matches");

const USAGE: &str =
    "allowed: nothing, or one of offset=N&limit=M (bytes), lines=A-B (from 1), grep=TEXT (no pattern)\n";

const TOO_MANY: &str = "abridge already has as many requests in flight as server.max_in_flight allows";

const SWEPT: &str = "the payload with this handle was removed: it was unused for longer than store.keep_for, or store.max_bytes was reached\n";

const NO_BUDGET: &str = "the bodies in memory have reached server.max_buffered";

const UNKNOWN_HERE: &str = "no payload has this handle; the store that it may be in could not be used when abridge started, or was damaged: ask who runs abridge, whose log and `abridge status` say what to do\n";

/// Marks an error as abridge's; the value is its code.
const ERROR: HeaderName = HeaderName::from_static("x-abridge-error");

const CREDENTIAL_REQUIRED: &str = "a handle alone is not enough here, because several callers use this abridge, others reach its address, or recall.auth says so: send the key of the conversation that the handle is from, as its requests do (`authorization`, `x-api-key` or `api-key`), or the operators' token; recall.auth = \"handle\" makes the handle enough\n";

/// Answers recalls, within limits for all of them together. The limits for operators are separate, so that operators read
/// while clients have reached theirs.
#[derive(Debug)]
pub struct RecallHandler {
    clients: Places,
    operators: Places,
    store_reads: Semaphore,
    // A search may read many payloads.
    searches: Semaphore,
    store_timeout: Duration,
    counts: Tally<RecallOutcome>,
    /// Whether the settings have a store that could not be opened.
    pub lacks_store: bool,
}

/// How many recalls may be answered at a time, and how many bytes they hold.
#[derive(Debug)]
struct Places {
    in_flight: Arc<Semaphore>,
    budget: Budget,
}

/// How many requests of operators are answered at a time where those of others have such a limit.
const OPERATOR_REQUESTS: usize = 16;

/// The rights of a request that recalls a payload.
#[derive(Clone, Debug)]
pub enum Requester {
    /// An operator.
    Operator,
    /// The handle is enough: no credential is required.
    Unrestricted,
    /// Only payloads of this caller, who is known under each secret.
    Caller(Vec<Owner>),
    /// A credential is required, and the request has none.
    Unauthenticated,
}

/// Who recalls a payload, and from which store.
#[derive(Clone, Debug)]
pub struct Reader<'s> {
    /// The store, unless it is off.
    pub store: Option<&'s dyn Store>,
    /// The rights.
    pub requester: Requester,
}

/// How a recall was answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum RecallOutcome {
    /// With the payload.
    Found,
    /// No payload has the handle.
    Unknown,
    /// The payload was removed.
    Swept,
    /// The request was not right, or had no credential.
    Refused,
    /// The payload is damaged.
    Damaged,
    /// Not now.
    Busy,
}

/// The bytes of an answer, with the lease and the permit that they hold until they are written.
#[derive(derive_more::AsRef)]
struct LeasedBytes {
    #[as_ref([u8])]
    bytes: Bytes,
    _lease: Lease,
    _permit: OwnedSemaphorePermit,
}

// === impl RecallHandler ===

impl RecallHandler {
    /// Creates the handler. Each recall takes one permit of `in_flight` and leases its bytes from `budget`, and waits at most
    /// `store_timeout` for the store. Recalls of operators lease `operator_bytes` at most.
    pub fn new(in_flight: Arc<Semaphore>, budget: Budget, operator_bytes: usize, store_timeout: Duration) -> Self {
        let operators = Arc::new(Semaphore::new(OPERATOR_REQUESTS));
        Self {
            clients: Places { in_flight, budget },
            operators: Places { in_flight: operators, budget: Budget::new(operator_bytes) },
            store_reads: Semaphore::new(MAX_STORE_READS),
            searches: Semaphore::new(1),
            store_timeout,
            counts: Tally::default(),
            lacks_store: false,
        }
    }

    /// Each outcome, and its count.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counts.counts()
    }

    /// Answers a recall.
    pub async fn answer(&self, handle: &str, query: &str, reader: Reader<'_>) -> Response<Full<Bytes>> {
        let found = self.recall(handle, query, reader).await;
        found.map_or_else(RecallError::into_response, Recalled::into_response)
    }

    /// Reads a payload, or the part of it that the query asks for, and counts the outcome.
    pub(crate) async fn recall(&self, handle: &str, query: &str, reader: Reader<'_>) -> Result<Recalled, RecallError> {
        let found = self.find(handle, query, reader).await;
        self.counts.count(match found.as_ref().map_or_else(|error| error.0, |_| StatusCode::OK) {
            StatusCode::OK => RecallOutcome::Found,
            StatusCode::NOT_FOUND => RecallOutcome::Unknown,
            StatusCode::GONE => RecallOutcome::Swept,
            StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED => RecallOutcome::Refused,
            StatusCode::INTERNAL_SERVER_ERROR => RecallOutcome::Damaged,
            _ => RecallOutcome::Busy,
        });
        found
    }

    async fn find(&self, handle: &str, query: &str, reader: Reader<'_>) -> Result<Recalled, RecallError> {
        let Reader { store, requester } = &reader;
        if matches!(requester, Requester::Unauthenticated) {
            return Err(RecallError(StatusCode::UNAUTHORIZED, CREDENTIAL_REQUIRED.into()));
        }
        let part = Selector::parse(query).ok_or(RecallError(StatusCode::BAD_REQUEST, USAGE.into()))?;
        let places = self.places(requester);
        let permit = Arc::clone(&places.in_flight).try_acquire_owned().map_err(|_| RecallError::busy(TOO_MANY))?;
        let owners = if let Requester::Caller(owners) = requester { Some(owners.clone()) } else { None };
        let found = timeout(self.store_timeout, self.load(handle, &reader));
        let found = found.await.unwrap_or_else(|_| Err(RecallError::busy(self.no_answer())));
        let lacks_store = || self.lacks_store || store.is_some_and(|store| store.notice().is_some());
        let (key, payload, mut lease) = found.map_err(|error| match error.0 {
            StatusCode::NOT_FOUND if lacks_store() => RecallError(StatusCode::NOT_FOUND, UNKNOWN_HERE.into()),
            _ => error,
        })?;
        let size = payload.len();
        let names = move |owner: &Owner, payload: &[u8]| owner.keys.payload(owner.caller, payload) == key;
        let is_owned = move |payload: &[u8]| owners.is_none_or(|owners| owners.iter().any(|one| names(one, payload)));
        let media = payload.media().filter(|media| *media != MediaType::Text);
        let of = move || is_owned(&payload.bytes()).then(|| part.select(&payload));
        let found = run_blocking_from(BLOCKING_FROM, size, of).await.unwrap_or_else(|_| Some(Selection::default()));
        let found = found.ok_or_else(RecallError::unknown)?;
        if found.is_copy && !places.budget.extend(&mut lease, found.body.len()) {
            return Err(RecallError::busy(NO_BUDGET));
        }
        let body = Bytes::from_owner(LeasedBytes { bytes: found.body.clone(), _lease: lease, _permit: permit });
        Ok(Recalled { key, media, size, part: Selection { body, ..found } })
    }

    /// Reads the whole payload that a caller's hash names.
    pub(crate) async fn by_hash(&self, hash: &str, reader: Reader<'_>) -> Result<Recalled, RecallError> {
        let named = |owner: &Owner| owner.keys.of_hash(owner.caller, hash);
        let owners = if let Requester::Caller(owners) = &reader.requester { owners.as_slice() } else { &[] };
        let keys: Vec<_> = owners.iter().filter_map(named).collect();
        let mut found = Err(RecallError::unknown());
        for key in keys {
            found = self.recall(&key.to_string(), "", reader.clone()).await;
            if !matches!(&found, Err(RecallError(StatusCode::NOT_FOUND | StatusCode::GONE, _))) {
                break;
            }
        }
        found
    }

    /// Waits for a search of the store, within the limits of recalls.
    pub(crate) async fn search(&self, page: StoreFuture<'_, Page>, requester: &Requester) -> Result<Page, String> {
        let Ok(_permit) = self.places(requester).in_flight.try_acquire() else { return Err(TOO_MANY.to_owned()) };
        // The semaphore is never closed.
        let _search = self.searches.acquire().await.ok();
        match timeout(self.store_timeout, page).await {
            Ok(Ok(page)) => Ok(page),
            Ok(Err(error)) => {
                tracing::warn!(%error, cause = %error.source, "payloads could not be searched");
                Err(error.to_string())
            }
            Err(_) => Err(self.no_answer()),
        }
    }

    fn no_answer(&self) -> String {
        format!("the store has not answered within {} (store.timeout)", Period(self.store_timeout))
    }

    fn places(&self, requester: &Requester) -> &Places {
        if matches!(requester, Requester::Operator) { &self.operators } else { &self.clients }
    }

    /// Reads the payload from the store, with a lease for its bytes.
    async fn load(
        &self,
        handle: &str,
        Reader { store, requester }: &Reader<'_>,
    ) -> Result<(PayloadKey, Payload, Lease), RecallError> {
        let (Ok(key), Some(store)) = (handle.parse::<PayloadKey>(), store) else { return Err(RecallError::unknown()) };
        if let Requester::Caller(owners) = requester
            && !owners.iter().any(|owner| owner.keys.may_be_of(owner.caller, key))
        {
            return Err(RecallError::unknown());
        }
        // The semaphore is never closed.
        let _permit = self.store_reads.acquire().await.ok();
        if let Some(payload) = store.load(key).await? {
            let budget = &self.places(requester).budget;
            let lease = budget.lease(payload.len()).ok_or_else(|| RecallError::busy(NO_BUDGET))?;
            return Ok((key, payload, lease));
        }
        let was_swept = store.was_swept(key).await?;
        Err(if was_swept { RecallError(StatusCode::GONE, SWEPT.into()) } else { RecallError::unknown() })
    }
}

impl Requester {
    /// The caller who shows this credential.
    pub fn caller(keys: &Keys, credential: &[u8]) -> Self {
        let owner = |keys: &Keys| Owner { keys: keys.clone(), caller: keys.caller(credential) };
        Self::Caller(keys.all().map(owner).collect())
    }
}

/// A payload, or a part of it, that was read.
pub(crate) struct Recalled {
    key: PayloadKey,
    // That of an image, a file or sound.
    media: Option<MediaType>,
    /// The length of the payload.
    pub(crate) size: usize,
    pub(crate) part: Selection,
}

impl Recalled {
    /// The type of an image, a file or sound. A part has none itself, and no browser shows any of it as a page of this origin.
    pub(crate) fn media(&self) -> Option<MediaType> {
        let (media, range) = self.media.zip(self.part.range.as_ref())?;
        Some(if *range == (0..self.size) { media } else { MediaType::Bytes })
    }

    /// The type of what was read.
    pub(crate) fn content_type(&self) -> &'static str {
        let text = if self.part.is_json { "application/json" } else { "text/plain; charset=utf-8" };
        self.media().map_or(text, MediaType::name)
    }

    fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = text(StatusCode::OK, self.part.body.clone());
        let headers = response.headers_mut();
        // The payload is untrusted output of a tool, which may be HTML with scripts.
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type()));
        let Self { key, media, size, part: Selection { range, lines, matches, .. } } = self;
        let extension = media.filter(|_| range.is_some()).map(MediaType::extension);
        let file = extension.map(|extension| format!("attachment; filename=\"{key}.{extension}\""));
        let range = range.map(|range| format!("{}-{}", range.start, range.end));
        let [size, lines, matches] = [Some(size), lines, matches].map(|n| Some(n?.to_string()));
        let fields = [(CONTENT_DISPOSITION, file), (SIZE, size), (LINES, lines), (MATCHES, matches), (RANGE, range)];
        set_fields(headers, fields);
        response
    }
}

/// Why a payload cannot be returned: the status, and a sentence.
#[derive(Debug)]
pub(crate) struct RecallError(pub(crate) StatusCode, pub(crate) Cow<'static, str>);

impl RecallError {
    fn unknown() -> Self {
        Self(StatusCode::NOT_FOUND, "no payload has this handle\n".into())
    }

    /// It can be, but not now.
    fn busy(why: impl fmt::Display) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, format!("{why}; try again\n").into())
    }

    fn into_response(self) -> Response<Full<Bytes>> {
        let response = text(self.0, self.1.into_owned());
        match self.0 {
            StatusCode::UNAUTHORIZED => with(response, WWW_AUTHENTICATE, "Bearer"),
            StatusCode::INTERNAL_SERVER_ERROR => with(response, ERROR, "payload_damaged"),
            StatusCode::SERVICE_UNAVAILABLE => with(response, RETRY_AFTER, RETRY_SECONDS),
            _ => response,
        }
    }
}

impl From<StoreError> for RecallError {
    fn from(error: StoreError) -> Self {
        if error.kind == StoreErrorKind::Damaged {
            // The store has logged it.
            return Self(StatusCode::INTERNAL_SERVER_ERROR, format!("payload_damaged: {error}\n").into());
        }
        tracing::warn!(%error, cause = %error.source, "a payload could not be recalled");
        Self::busy(error)
    }
}

#[cfg(test)]
mod tests;
