//! `/abridge/status`, `/abridge/requests`, `/abridge/requests/{id}` and `/abridge/payloads`: what the page and the command line
//! show, as JSON.
//!
//! | path | query | answers |
//! |---|---|---|
//! | `status` | | how abridge does |
//! | `requests` | `after=SEQ&limit=N` | the requests behind that number, oldest first, and the number of the latest |
//! | `requests/{id}` | | one request, its changes, and where `[inspect]` keeps them its messages |
//! | `payloads` | `search=TEXT&after=NEXT&limit=N` | payloads, last used first; `search` is how their handles begin, or with `[inspect]` also a text that is in them |

use std::str::FromStr;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::Full;
use serde::Serialize;
use tokio::sync::Semaphore;

use super::recall::decoded;
use super::{State, text};
use crate::history::{Entry, MAX_ENTRIES};
use crate::inspect::Changes;
use crate::payload::PayloadKey;
use crate::store::{Cursor, Page, PageQuery, Time};

/// Where they are.
const STATUS: &str = "/abridge/status";
const REQUESTS: &str = "/abridge/requests";
const REQUEST: &str = "/abridge/requests/";
const PAYLOADS: &str = "/abridge/payloads";

/// How many requests or payloads an answer has, if nothing else is said, and at most.
const USUAL: usize = 100;
const MOST: usize = 500;

/// The longest text that is searched for, in bytes.
const LONGEST_SEARCH: usize = 200;

/// Who goes through all payloads does so alone; more wait.
static TURN: Semaphore = Semaphore::const_new(1);

/// Whether a path is one of these.
pub(super) fn has(path: &str) -> bool {
    [STATUS, REQUESTS, PAYLOADS].contains(&path) || path.starts_with(REQUEST)
}

/// The answer.
pub(super) async fn answer(path: &str, query: &str, state: State<'_>) -> Response<Full<Bytes>> {
    if let Some(id) = path.strip_prefix(REQUEST) {
        return request(id, state).await;
    }
    match path {
        STATUS => json(StatusCode::OK, state.numbers.status().await),
        REQUESTS => requests(query, state),
        _ => payloads(query, state).await,
    }
}

#[derive(Serialize)]
struct Requests {
    requests: Vec<Entry>,
    latest: u64,
}

fn requests(query: &str, state: State<'_>) -> Response<Full<Bytes>> {
    let Some([after, limit]) = read(query, ["after", "limit"]) else {
        return wrong("allowed: after=NUMBER&limit=NUMBER\n");
    };
    let (Some(after), Some(limit)) = (number(after.as_deref(), 0), number(limit.as_deref(), MAX_ENTRIES)) else {
        return wrong("after and limit are numbers\n");
    };
    let history = state.numbers.history();
    let latest = history.latest();
    json(StatusCode::OK, to_json(&Requests { requests: history.after(after, limit.min(MAX_ENTRIES)), latest }))
}

// === one request ===

#[derive(Serialize)]
struct Known {
    request: Entry,
    #[serde(flatten)]
    changes: Changes,
    content: Option<()>,
    reason: String,
}

#[derive(Serialize)]
struct Reason {
    reason: String,
}

async fn request(id: &str, state: State<'_>) -> Response<Full<Bytes>> {
    let kept = match state.store {
        Some(store) => store.inspected(id.to_owned()).await,
        None => Ok(None),
    };
    if let Ok(Some(kept)) = kept {
        return json(StatusCode::OK, kept);
    }
    let (history, keep) = (state.numbers.history(), state.numbers.inspect().keep);
    let Some(request) = history.get(id) else {
        let reason = format!(
            "no request with this id is among the last {MAX_ENTRIES} conversations, or among those whose messages are kept; inspect.keep is {keep}"
        );
        return json(StatusCode::NOT_FOUND, to_json(&Reason { reason }));
    };
    let reason = match kept {
        Err(error) => error.to_string(),
        Ok(_) if request.edits.is_empty() => "it was not edited, so its messages are as they came".to_owned(),
        Ok(_) if keep == 0 => "the texts of messages are not kept; [inspect] keep = 20 keeps those of the last 20 edited requests".to_owned(),
        Ok(_) if request.inspectable => format!("its messages are being written, or it is not among the last {keep} edited requests any more"),
        Ok(_) => "its messages were not kept: it was sent before [inspect] keep was set, there was no room, or the upstream got it as it came".to_owned(),
    };
    let changes = history.changes(id).unwrap_or_default();
    json(StatusCode::OK, to_json(&Known { request, changes, content: None, reason }))
}

// === payloads ===

#[derive(Serialize)]
struct Listed {
    payloads: Vec<Payload>,
    next: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

#[derive(Serialize)]
struct Payload {
    handle: PayloadKey,
    bytes: u64,
    stored_bytes: u64,
    created: Time,
    used: Time,
}

async fn payloads(query: &str, state: State<'_>) -> Response<Full<Bytes>> {
    let Some([search, after, limit]) = read(query, ["search", "after", "limit"]) else {
        return wrong("allowed: search=TEXT&after=NEXT&limit=NUMBER\n");
    };
    let (Some(limit), Some(after)) = (number(limit.as_deref(), USUAL), cursor(after.as_deref())) else {
        return wrong("limit is a number, and after is the `next` of another answer\n");
    };
    let search = search.unwrap_or_default();
    if search.len() > LONGEST_SEARCH {
        return wrong("search is at most 200 bytes\n");
    }
    let none =
        |reason| json(StatusCode::OK, to_json(&Listed { payloads: Vec::new(), next: None, reason: Some(reason) }));
    let Some(store) = state.store else { return none("there is no store: store.enabled is false") };
    let prefix = may_begin_a_handle(&search).then(|| search.clone());
    let text = Some(search).filter(|search| !search.is_empty() && state.numbers.inspect().keep > 0);
    if prefix.is_none() && text.is_none() {
        return none("no handle begins so, and texts are searched only where [inspect] keep is not 0");
    }
    // It is never closed.
    let _turn = TURN.acquire().await.ok();
    match store.page(PageQuery { limit: limit.clamp(1, MOST), after, prefix, text }).await {
        Ok(paged) => json(StatusCode::OK, to_json(&Listed::of(paged))),
        Err(error) => {
            tracing::warn!(%error, cause = %error.source, "payloads could not be listed");
            text_of(StatusCode::SERVICE_UNAVAILABLE, &error.to_string())
        }
    }
}

impl Listed {
    fn of(paged: Page) -> Self {
        let payload = |entry: crate::store::PayloadInfo| Payload {
            handle: entry.key,
            bytes: entry.bytes,
            stored_bytes: entry.stored_bytes,
            created: entry.created,
            used: entry.used,
        };
        let next = paged.next.map(|next| next.to_string());
        Self { payloads: paged.entries.into_iter().map(payload).collect(), next, reason: None }
    }
}

/// Whether a handle can begin so. All begin with nothing.
fn may_begin_a_handle(text: &str) -> bool {
    let zeros = "0".repeat(26_usize.saturating_sub(text.len()));
    format!("{text}{zeros}").parse::<PayloadKey>().is_ok()
}

#[expect(clippy::option_option, reason = "it is not there, or it is wrong")]
fn cursor(text: Option<&str>) -> Option<Option<Cursor>> {
    text.filter(|text| !text.is_empty()).map(Cursor::from_str).transpose().ok()
}

// === queries and answers ===

/// The values of a query, each key at most once; none if there is another key.
fn read<const N: usize>(query: &str, keys: [&str; N]) -> Option<[Option<String>; N]> {
    let mut values = [const { None }; N];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let slot = keys.iter().position(|known| *known == key).and_then(|n| values.get_mut(n))?;
        if slot.replace(String::from_utf8(decoded(value)).ok()?).is_some() {
            return None;
        }
    }
    Some(values)
}

fn number<N: FromStr>(text: Option<&str>, usual: N) -> Option<N> {
    text.map_or(Some(usual), |text| text.parse().ok())
}

fn to_json(value: &impl Serialize) -> String {
    // There is no value in it that JSON cannot say.
    serde_json::to_string(value).unwrap_or_default()
}

fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = text(status, body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn text_of(status: StatusCode, sentence: &str) -> Response<Full<Bytes>> {
    text(status, format!("{sentence}\n"))
}

fn wrong(sentence: &'static str) -> Response<Full<Bytes>> {
    text(StatusCode::BAD_REQUEST, sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_once_and_whole() {
        let both = |query| read(query, ["a", "b"]);
        assert_eq!(both(""), Some([None, None]));
        assert_eq!(both("b=%C3%A9+x&a="), Some([Some(String::new()), Some("é x".to_owned())]));
        for wrong in ["c=1", "a=1&a=2", "a=%ff"] {
            assert_eq!(both(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_text_may_begin_a_handle() {
        assert!(["", "0", "7z", &"0".repeat(26)].into_iter().all(may_begin_a_handle));
        assert!(!["8", "u", "0U", "a b", &"0".repeat(27)].into_iter().any(may_begin_a_handle));
    }
}
