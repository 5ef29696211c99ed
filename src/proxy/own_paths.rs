//! abridge's own paths that are only read, and `POST /abridge/backup`: health, readiness, metrics, the page, recalls, and JSON for
//! the page and the command line.
//!
//! | JSON below `/abridge/` | query | answers |
//! |---|---|---|
//! | `status` | | the state of the proxy |
//! | `ledger` | `days=N&by=NAME` | what answers have cost, and would have cost without edits, of the last days by upstream, model, policy and client; with `by`, what `abridge savings --json` prints |
//! | `requests` | `after=SEQ&limit=N` | the first requests after that number, or without it the newest ones; oldest first, and the number of the latest |
//! | `requests/{id}` | | one request, its changes, and its messages if `[inspect]` keeps them; `last` is the newest that was edited, and the beginning of an id is enough |
//! | `payloads` | `search=TEXT&after=NEXT&limit=N` | payloads, last used first; `search` is the beginning of a handle, or with `[inspect]` also a text in the payload |

use std::path::PathBuf;
use std::str::FromStr;

use http::header::{ALLOW, CONTENT_TYPE};
use http::{Method, StatusCode};
use serde::Serialize;
use serde_json::json;

use super::{ClientRequest, OwnAnswer, Proxy};
use crate::admin::{
    RELOAD, REWRITE, Reader, Requester, SUMMARIZE, json, only_get, page, parse_query, percent_decoded, text, with,
};
use crate::engine::bookkeeper::Day;
use crate::history::{Entry, History, MAX_ENTRIES, Origin};
use crate::inspect::{Document, LAST};
use crate::ledger::Report;
use crate::metrics::TextFormat;
use crate::payload::PayloadKey;
use crate::recall::PATH as RECALL;
use crate::store::page::key_range;
use crate::store::{Cursor, Page, PageQuery, PayloadInfo, Store, Time};
use crate::tasks::run_blocking;

/// The paths that have one answer.
const HEALTH: &str = "/abridge/healthz";
const METRICS: &str = "/abridge/metrics";
const READY: &str = "/abridge/readyz";
const STATUS: &str = "/abridge/status";
const LEDGER: &str = "/abridge/ledger";
const REQUESTS: &str = "/abridge/requests";
const PAYLOADS: &str = "/abridge/payloads";

/// The path of one request, before its id.
const REQUEST: &str = "/abridge/requests/";

/// The path that has the file of the store copied, to `file=PATH` of its query.
const BACKUP: &str = "/abridge/backup";

/// The list of paths, for unknown ones.
const PATHS: &str = "there are /abridge/, /abridge/openapi.json, /abridge/healthz, /abridge/readyz, /abridge/metrics, /abridge/status, /abridge/ledger, /abridge/requests, /abridge/requests/ID, /abridge/payloads, /abridge/recall/HANDLE, /abridge/events, POST /abridge/summarize, POST /abridge/rewrite, POST /abridge/backup, POST /abridge/reload and POST /abridge/mcp\n";

/// How many payloads an answer lists by default, and at most.
const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 500;

/// Of how many days the ledger is read by default, and at most.
const DEFAULT_DAYS: u32 = 30;
const MAX_DAYS: u32 = 400;

/// The longest `search`, in characters.
const MAX_SEARCH: usize = 200;

/// An answer, or what queries are allowed.
type Answered = Result<OwnAnswer, &'static str>;

impl Proxy {
    /// Answers a request for a path below `/abridge/`.
    pub(super) async fn answer_own(&self, request: &ClientRequest, requester: Requester) -> OwnAnswer {
        let (method, path, query) = (request.method(), request.uri().path(), request.uri().query().unwrap_or_default());
        let (handle, id) = (path.strip_prefix(RECALL), path.strip_prefix(REQUEST));
        let is_read = || {
            let is_one = matches!(path, HEALTH | METRICS | READY | STATUS | LEDGER | REQUESTS | PAYLOADS);
            is_one || handle.is_some() || id.is_some() || page::is_path(path)
        };
        let answered = match path {
            BACKUP if method == Method::POST => Ok(self.back_up(query).await),
            SUMMARIZE | RELOAD | REWRITE | BACKUP => {
                Ok(with(text(StatusCode::METHOD_NOT_ALLOWED, "only POST\n"), ALLOW, "POST"))
            }
            _ if !matches!(*method, Method::GET | Method::HEAD) && is_read() => Ok(only_get()),
            HEALTH => Ok(text(StatusCode::OK, "ok\n")),
            METRICS => {
                let format = TextFormat::of_scrape(request.headers());
                Ok(with(text(StatusCode::OK, self.metrics(format).await), CONTENT_TYPE, format.content_type()))
            }
            READY => Ok(self.readiness()),
            STATUS => Ok(json(StatusCode::OK, self.status_json().await)),
            LEDGER => self.ledger(query).await,
            REQUESTS => self.requests(query),
            PAYLOADS => self.payloads(query, &requester).await,
            _ if page::is_path(path) => Ok(page::answer(path)),
            _ => match (handle, id) {
                (Some(handle), _) => {
                    let reader = Reader { store: self.engine.store(), requester };
                    Ok(self.recalls.answer(handle, query, reader).await)
                }
                (None, Some(id)) => Ok(self.request(id).await),
                (None, None) => Ok(text(StatusCode::NOT_FOUND, PATHS)),
            },
        };
        answered.unwrap_or_else(|allowed| text(StatusCode::BAD_REQUEST, allowed))
    }

    /// Copies the store. The path is an operator's, and of this machine; no file is overwritten.
    async fn back_up(&self, query: &str) -> OwnAnswer {
        let path = query.strip_prefix("file=").and_then(|path| String::from_utf8(percent_decoded(path)).ok());
        let Some(path) = path.map(PathBuf::from).filter(|path| path.is_absolute()) else {
            return text(StatusCode::BAD_REQUEST, "name a new file: file=/ABSOLUTE/PATH\n");
        };
        let Some(store) = self.engine.store() else {
            return text(StatusCode::CONFLICT, "nothing is stored: the store is off\n");
        };
        match store.backup(&path).await {
            Ok(()) => text(StatusCode::OK, format!("copied the store to {}\n", path.display())),
            Err(error) => text(StatusCode::UNPROCESSABLE_ENTITY, format!("{error}: {}\n", error.source)),
        }
    }

    /// Whether requests are served. They go on without the store, so a fleet whose engine is away stays ready.
    fn readiness(&self) -> OwnAnswer {
        if self.stopping.is_cancelled() {
            return text(StatusCode::SERVICE_UNAVAILABLE, "draining\n");
        }
        match self.engine.store_notice() {
            Some(notice) => text(StatusCode::OK, format!("ready, degraded: store: {notice}\n")),
            None if self.engine.store().is_some_and(Store::is_failing) => {
                text(StatusCode::OK, "ready, degraded: store\n")
            }
            None => text(StatusCode::OK, "ready\n"),
        }
    }

    /// The last days of the ledger, or their sums by something.
    async fn ledger(&self, query: &str) -> Answered {
        let asked = parse_query(query, ["days", "by"]).and_then(|[days, by]| {
            let n_days = number(days.as_deref(), DEFAULT_DAYS).filter(|n| (1..=MAX_DAYS).contains(n))?;
            Some((n_days, by.map(|by| by.parse()).transpose().ok()?))
        });
        let allowed = "allowed: days=NUMBER, from 1 to 400, and by=day, model, client, caller, policy or upstream\n";
        let (n_days, by) = asked.ok_or(allowed)?;
        let written = async {
            let days = self.engine.bookkeeper.days(n_days).await.map_err(|error| error.to_string())?;
            // The intervals of experiments take some milliseconds.
            let write = move || match by {
                None => to_json(&days),
                Some(by) => to_json(&Report::of(days.iter().map(|Day { day, rows }| (day.as_str(), rows)), by)),
            };
            run_blocking(write).await.map_err(|error| error.to_string())
        };
        Ok(match written.await {
            Ok(days) => json(StatusCode::OK, days),
            Err(reason) => with_reason(StatusCode::SERVICE_UNAVAILABLE, &reason),
        })
    }

    fn requests(&self, query: &str) -> Answered {
        let [after, limit] = parse_query(query, ["after", "limit"]).ok_or("allowed: after=NUMBER&limit=NUMBER\n")?;
        let numbers = number(after.as_deref(), 0).zip(number(limit.as_deref(), MAX_ENTRIES));
        let (seq, limit) = numbers.ok_or("after and limit are numbers\n")?;
        let history = self.history();
        let latest = history.latest();
        let requests = if after.is_some() { history.after(seq, limit) } else { history.newest(limit) };
        Ok(json(StatusCode::OK, to_json(&Requests { requests, latest })))
    }

    async fn request(&self, name: &str) -> OwnAnswer {
        let ids = self.history().named(name);
        if ids.len() > 1 {
            let reason = format!("{} requests begin so: {}; give more of the id", ids.len(), ids.join(", "));
            return with_reason(StatusCode::NOT_FOUND, &reason);
        }
        let id = ids.first().map_or(name, String::as_str);
        let kept = match self.engine.store() {
            Some(store) => store.inspected(id.to_owned()).await,
            None => Ok(None),
        };
        if let Ok(Some(kept)) = kept {
            return json(StatusCode::OK, kept);
        }
        let (history, keep) = (self.history(), self.live.load().inspect.keep);
        let Some(request) = history.get(id) else {
            let reason = format!(
                "no request with this id is among the last {MAX_ENTRIES} conversations, or among those whose messages are kept; inspect.keep is {keep}"
            );
            let none = "no conversation has come since abridge was started";
            return with_reason(StatusCode::NOT_FOUND, if name == LAST { none } else { &reason });
        };
        let reason = match kept {
            Err(error) => error.to_string(),
            Ok(_) if request.edits.is_empty() => "the request was not edited".to_owned(),
            Ok(_) if keep == 0 => "no text is kept; [inspect] keep = 20 keeps the last 20 edited requests".to_owned(),
            Ok(_) if request.inspectable => format!("not written yet, or no longer among the last {keep} edited requests"),
            Ok(_) => "its messages were not kept: it came before [inspect] keep was set, the store is off, or too many bytes were held".to_owned(),
        };
        let changes = history.changes(id).unwrap_or_default();
        json(StatusCode::OK, to_json(&Document { request, changes, content: None, reason: Some(reason) }))
    }

    async fn payloads(&self, query: &str, requester: &Requester) -> Answered {
        let asked = parse_query(query, ["search", "after", "limit"]);
        let [search, after, limit] = asked.ok_or("allowed: search=TEXT&after=NEXT&limit=NUMBER\n")?;
        let place = number(limit.as_deref(), DEFAULT_LIMIT).zip(cursor(after.as_deref()));
        let (limit, after) = place.ok_or("limit is a number, and after is the `next` of another answer\n")?;
        let search = search.unwrap_or_default();
        if search.chars().count() > MAX_SEARCH {
            return Err("search is at most 200 characters\n");
        }
        let empty = |reason| {
            let list = json!({ "payloads": [], "next": null, "reason": reason });
            Ok(json(StatusCode::OK, list.to_string()))
        };
        let Some(store) = self.engine.store() else {
            return empty("there is no store: it is off, or could not be opened");
        };
        let prefix = key_range(&search).map(|_| search.clone());
        let previews = self.live.load().inspect.keep > 0;
        let text = Some(search).filter(|search| !search.is_empty() && previews);
        if prefix.is_none() && text.is_none() {
            return empty("no handle begins with this, and texts are searched only if [inspect] keep is not 0");
        }
        let query = PageQuery { limit: limit.clamp(1, MAX_LIMIT), after, prefix, text, owner: None, previews };
        Ok(match self.recalls.search(store.page(query), requester).await {
            Ok(page) => json(StatusCode::OK, list(page, self.history())),
            Err(why) => crate::admin::text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        })
    }
}

#[derive(Serialize)]
struct Requests {
    requests: Vec<Entry>,
    latest: u64,
}

#[derive(Serialize)]
struct PayloadList {
    payloads: Vec<Payload>,
    next: Option<String>,
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

fn list(Page { entries, next, mut previews }: Page, history: &History) -> String {
    let mut origins = history.origins(&entries.iter().map(|entry| entry.key).collect());
    let payload = |PayloadInfo { key, bytes, stored_bytes, created, used }| {
        let (origin, preview) = (origins.remove(&key), previews.remove(&key));
        Payload { handle: key, bytes, stored_bytes, created, used, origin, preview }
    };
    let payloads = entries.into_iter().map(payload).collect();
    to_json(&PayloadList { payloads, next: next.map(|next| next.to_string()) })
}

#[expect(clippy::option_option, reason = "the cursor may be absent, or invalid")]
fn cursor(text: Option<&str>) -> Option<Option<Cursor>> {
    text.filter(|text| !text.is_empty()).map(Cursor::from_str).transpose().ok()
}

fn number<N: FromStr>(text: Option<&str>, default: N) -> Option<N> {
    text.map_or(Some(default), |text| text.parse().ok())
}

/// An error that only has a reason.
fn with_reason(status: StatusCode, reason: &str) -> OwnAnswer {
    json(status, json!({ "reason": reason }).to_string())
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
        assert!(["", "0", "7z", &"0".repeat(26)].into_iter().all(|text| key_range(text).is_some()));
        assert!(!["8", "u", "0U", "a b", &"0".repeat(27)].into_iter().any(|text| key_range(text).is_some()));
    }
}
