//! `/abridge/status`, `/abridge/ledger`, `/abridge/requests`, `/abridge/requests/{id}` and `/abridge/payloads`: the JSON for the
//! page and the command line.
//!
//! | path | query | answers |
//! |---|---|---|
//! | `status` | | the state of the proxy |
//! | `ledger` | `days=N&by=NAME` | what answers have cost, and would have cost without edits, of the last days by upstream, model, policy and client; with `by`, what `abridge savings --json` prints |
//! | `requests` | `after=SEQ&limit=N` | the first requests after that number, or without it the newest ones; oldest first, and the number of the latest |
//! | `requests/{id}` | | one request, its changes, and its messages if `[inspect]` keeps them; `last` is the newest that was edited, and the beginning of an id is enough |
//! | `payloads` | `search=TEXT&after=NEXT&limit=N` | payloads, last used first; `search` is the beginning of a handle, or with `[inspect]` also a text in the payload |

use std::collections::BTreeMap;
use std::str::FromStr;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use serde::Serialize;

use super::recall::parse_query;
use super::{State, json, text};
use crate::history::{Entry, History, MAX_ENTRIES, Origin};
use crate::inspect::Document;
use crate::payload::PayloadKey;
use crate::store::{Cursor, Page, PageQuery, PayloadInfo, Time};

/// The paths.
const STATUS: &str = "/abridge/status";
const LEDGER: &str = "/abridge/ledger";
const REQUESTS: &str = "/abridge/requests";
const REQUEST: &str = "/abridge/requests/";
const PAYLOADS: &str = "/abridge/payloads";

/// How many payloads an answer lists by default, and at most.
const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 500;

/// Of how many days the ledger is read by default, and at most.
const DEFAULT_DAYS: u32 = 30;
const MAX_DAYS: u32 = 400;

/// The longest `search`, in characters.
const MAX_SEARCH: usize = 200;

/// Whether this module serves a path.
pub(super) fn is_path(path: &str) -> bool {
    [STATUS, LEDGER, REQUESTS, PAYLOADS].contains(&path) || path.starts_with(REQUEST)
}

/// Answers a request for one of the paths.
pub(super) async fn answer(path: &str, query: &str, state: &State<'_>) -> Response<Full<Bytes>> {
    if let Some(id) = path.strip_prefix(REQUEST) {
        return request(id, state).await;
    }
    let answered = match path {
        STATUS => Ok(json(StatusCode::OK, state.introspection.status().await)),
        LEDGER => ledger(query, state).await,
        REQUESTS => requests(query, state),
        _ => payloads(query, state).await,
    };
    answered.unwrap_or_else(|allowed| text(StatusCode::BAD_REQUEST, allowed))
}

/// An answer, or what queries are allowed.
type Answered = Result<Response<Full<Bytes>>, &'static str>;

async fn ledger(query: &str, state: &State<'_>) -> Answered {
    let asked = parse_query(query, ["days", "by"]).and_then(|[days, by]| {
        let n_days = number(days.as_deref(), DEFAULT_DAYS).filter(|n| (1..=MAX_DAYS).contains(n))?;
        Some((n_days, by.map(|by| by.parse()).transpose().ok()?))
    });
    let allowed = "allowed: days=NUMBER, from 1 to 400, and by=day, model, client, caller, policy or upstream\n";
    let (n_days, by) = asked.ok_or(allowed)?;
    Ok(match state.introspection.ledger(n_days, by).await {
        Ok(days) => json(StatusCode::OK, days),
        Err(reason) => json(StatusCode::SERVICE_UNAVAILABLE, to_json(&BTreeMap::from([("reason", reason)]))),
    })
}

#[derive(Serialize)]
struct Requests {
    requests: Vec<Entry>,
    latest: u64,
}

fn requests(query: &str, state: &State<'_>) -> Answered {
    let [after, limit] = parse_query(query, ["after", "limit"]).ok_or("allowed: after=NUMBER&limit=NUMBER\n")?;
    let numbers = number(after.as_deref(), 0).zip(number(limit.as_deref(), MAX_ENTRIES));
    let (seq, limit) = numbers.ok_or("after and limit are numbers\n")?;
    let history = state.introspection.history();
    let latest = history.latest();
    let requests = if after.is_some() { history.after(seq, limit) } else { history.newest(limit) };
    Ok(json(StatusCode::OK, to_json(&Requests { requests, latest })))
}

// === one request ===

async fn request(name: &str, state: &State<'_>) -> Response<Full<Bytes>> {
    let ids = state.introspection.history().named(name);
    if ids.len() > 1 {
        let reason = format!("{} requests begin so: {}; give more of the id", ids.len(), ids.join(", "));
        return json(StatusCode::NOT_FOUND, to_json(&BTreeMap::from([("reason", reason)])));
    }
    let id = ids.first().map_or(name, String::as_str);
    let kept = match state.store {
        Some(store) => store.inspected(id.to_owned()).await,
        None => Ok(None),
    };
    if let Ok(Some(kept)) = kept {
        return json(StatusCode::OK, kept);
    }
    let (history, keep) = (state.introspection.history(), state.introspection.inspect().keep);
    let Some(request) = history.get(id) else {
        let reason = format!(
            "no request with this id is among the last {MAX_ENTRIES} conversations, or among those whose messages are kept; inspect.keep is {keep}"
        );
        return json(StatusCode::NOT_FOUND, to_json(&BTreeMap::from([("reason", reason)])));
    };
    let reason = match kept {
        Err(error) => error.to_string(),
        Ok(_) if request.edits.is_empty() => "the request was not edited".to_owned(),
        Ok(_) if keep == 0 => "the texts of messages are not kept; [inspect] keep = 20 keeps those of the last 20 edited requests".to_owned(),
        Ok(_) if request.inspectable => format!("its messages are being written, or the request is no longer among the last {keep} edited ones"),
        Ok(_) => "its messages were not kept: the request was sent before [inspect] keep was set, the memory limit was reached, or the request was forwarded unedited".to_owned(),
    };
    let changes = history.changes(id).unwrap_or_default();
    json(StatusCode::OK, to_json(&Document { request, changes, content: None, reason: Some(reason) }))
}

// === payloads ===

#[derive(Serialize)]
struct PayloadList {
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
    #[serde(flatten)]
    origin: Option<Origin>,
    #[serde(skip_serializing_if = "Option::is_none")]
    preview: Option<String>,
}

async fn payloads(query: &str, state: &State<'_>) -> Answered {
    let asked = parse_query(query, ["search", "after", "limit"]);
    let [search, after, limit] = asked.ok_or("allowed: search=TEXT&after=NEXT&limit=NUMBER\n")?;
    let place = number(limit.as_deref(), DEFAULT_LIMIT).zip(cursor(after.as_deref()));
    let (limit, after) = place.ok_or("limit is a number, and after is the `next` of another answer\n")?;
    let search = search.unwrap_or_default();
    if search.chars().count() > MAX_SEARCH {
        return Err("search is at most 200 characters\n");
    }
    let empty = |reason| {
        let list = PayloadList { payloads: Vec::new(), next: None, reason: Some(reason) };
        Ok(json(StatusCode::OK, to_json(&list)))
    };
    let Some(store) = state.store else {
        let lacks_store = state.introspection.store_notice().is_some();
        return empty(if lacks_store {
            "the store could not be opened"
        } else {
            "there is no store: store.enabled is false"
        });
    };
    let prefix = may_begin_a_handle(&search).then(|| search.clone());
    let previews = state.introspection.inspect().keep > 0;
    let text = Some(search).filter(|search| !search.is_empty() && previews);
    if prefix.is_none() && text.is_none() {
        return empty("no handle begins with this, and texts are searched only if [inspect] keep is not 0");
    }
    let query = PageQuery { limit: limit.clamp(1, MAX_LIMIT), after, prefix, text, owner: None, previews };
    Ok(match state.recalls.search(store.page(query), &state.requester).await {
        Ok(page) => json(StatusCode::OK, to_json(&list(page, state.introspection.history()))),
        Err(why) => super::text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    })
}

fn list(Page { entries, next, mut previews }: Page, history: &History) -> PayloadList {
    let mut origins = history.origins(&entries.iter().map(|entry| entry.key).collect());
    let payload = |PayloadInfo { key, bytes, stored_bytes, created, used }| {
        let (origin, preview) = (origins.remove(&key), previews.remove(&key));
        Payload { handle: key, bytes, stored_bytes, created, used, origin, preview }
    };
    let payloads = entries.into_iter().map(payload).collect();
    PayloadList { payloads, next: next.map(|next| next.to_string()), reason: None }
}

/// Whether a handle can begin with this text; true for the empty text.
fn may_begin_a_handle(text: &str) -> bool {
    let zeros = "0".repeat(26_usize.saturating_sub(text.len()));
    format!("{text}{zeros}").parse::<PayloadKey>().is_ok()
}

#[expect(clippy::option_option, reason = "the cursor may be absent, or invalid")]
fn cursor(text: Option<&str>) -> Option<Option<Cursor>> {
    text.filter(|text| !text.is_empty()).map(Cursor::from_str).transpose().ok()
}

// === queries and answers ===

fn number<N: FromStr>(text: Option<&str>, default: N) -> Option<N> {
    text.map_or(Some(default), |text| text.parse().ok())
}

fn to_json(value: &impl Serialize) -> String {
    // Every value has a JSON form.
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_and_repeated_keys_of_a_query_are_refused() {
        let both = |query| parse_query(query, ["a", "b"]);
        assert_eq!(both(""), Some([None, None]));
        assert_eq!(both("b=%C3%A9+x&a="), Some([Some(String::new()), Some("é x".to_owned())]));
        for wrong in ["c=1", "a=1&a=2", "a=%ff"] {
            assert_eq!(both(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_beginnings_of_handles_are_searched_as_handles() {
        assert!(["", "0", "7z", &"0".repeat(26)].into_iter().all(may_begin_a_handle));
        assert!(!["8", "u", "0U", "a b", &"0".repeat(27)].into_iter().any(may_begin_a_handle));
    }
}
