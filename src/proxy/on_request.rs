//! Requests that abridge answers with the edited body: `POST /abridge/summarize` and `POST /abridge/rewrite`.
//!
//! `POST /abridge/summarize` takes a conversation and returns it summarised, whatever the trigger.
//!
//! | path | calls the model at |
//! |---|---|
//! | `/abridge/summarize` | `/v1/chat/completions` of the upstream |
//! | `/abridge/summarize/PATH` | that path, if a dialect serves it: Azure's paths contain the model |
//!
//! The call has the header fields of the request, `authorization` included, as for any summary. The answer has
//! `x-abridge-summary: made`, or `none` if there is nothing to summarise; the other edits are made in both cases.
//!
//! `POST /abridge/rewrite` takes a body of any dialect and answers with what would be sent upstream.
//!
//! | path | the body is read as one that is sent to |
//! |---|---|
//! | `/abridge/rewrite` | the path of the dialect that the body shows |
//! | `/abridge/rewrite/PATH` | that path, if a dialect serves it |
//!
//! It is for operators, so `authorization` has their token. The client's own field is in `x-abridge-authorization`: handles
//! depend on it. No model is called, so a summary is used only if it is stored. With `?report=true` the answer is
//! `{"body": …, "report": …}`.

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Method, Request, Response, Uri};
use http_body_util::Full;
use serde::Serialize;
use serde_json::value::RawValue;

use super::exchange::{self, EDITS, REQUEST_ID, TOKENS};
use super::request::{Purpose, ReadRequest};
use super::{ClientRequest, OwnAnswer, Proxy, ProxyError, ProxyResult, RequestHead, full_body};
use crate::admin::{REWRITE, SUMMARIZE, set_fields};
use crate::dialect::{self, Dialect};
use crate::engine::manual_summary::ManualSummaryError;
use crate::engine::{EditOptions, EditedBody};
use crate::payload::Caller;
use crate::plan::Report;
use crate::planner::SummaryTiming;
use crate::span::joined;
use crate::string_index::IndexedBody;

/// Whether the body has a summary: `made` or `none`.
const SUMMARY: HeaderName = HeaderName::from_static("x-abridge-summary");

/// A request for a summary.
pub(super) struct ManualSummary {
    dialect: &'static dyn Dialect,
    /// The path that the conversation would be posted to.
    target: Uri,
}

impl ManualSummary {
    /// Reads the request; `None` if it is none for a summary.
    pub(super) fn from_request<B>(request: &Request<B>) -> Option<Self> {
        let behind = request.uri().path().strip_prefix(SUMMARIZE).filter(|_| request.method() == Method::POST)?;
        let path = if behind.is_empty() { dialect::default().path() } else { behind };
        let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
        Some(Self { dialect: dialect::for_path(path)?, target: format!("{path}{query}").parse().ok()? })
    }
}

impl Proxy {
    /// Summarises a conversation now and returns its body: admit, read, decode, plan, and answer.
    pub(super) async fn summarize(
        &self,
        manual: ManualSummary,
        mut request: ClientRequest,
        caller: Caller,
    ) -> ProxyResult {
        let ManualSummary { dialect, target } = manual;
        *request.uri_mut() = target;
        let live = self.live.load_full();
        let read = self.receive(&live, dialect, request, caller).await?;
        let ReadRequest { head, text, permit: _until_the_end, .. } = read;
        let text = text.ok_or(ProxyError::BadEncoding)?;
        let (edited, summary) = self.summarised(&head, text, SummaryTiming::Now).await?;
        tracing::info!(request_id = %head.id, summary, "summarised on request");
        Ok(answer(edited.body.concat(), &edited, Some(summary), &head.id.to_string()).map(full_body))
    }

    /// Edits a conversation with a summary, and says whether that was `made`, or `none` was to be made.
    pub(super) async fn summarised(
        &self,
        head: &RequestHead<'_>,
        text: IndexedBody,
        when: SummaryTiming,
    ) -> Result<(Box<EditedBody>, &'static str), ProxyError> {
        let origin = || self.origin(head);
        let asked = EditOptions { origin: Some(&origin), ..head.options(when) };
        let rules = &head.destination.usual.rules;
        let edited = self.plan(head, rules, text, asked).await;
        match edited.manual_outcome(rules.planner.policy.names().any(|name| name == "summarize")) {
            Ok(is_made) => Ok((edited, if is_made { "made" } else { "none" })),
            Err(ManualSummaryError::NotUnderstood(error)) => Err(ProxyError::NotUnderstood(error)),
            Err(none) => Err(ProxyError::NoSummary(none)),
        }
    }

    /// Answers with the body that would be sent.
    pub(super) async fn rewrite(&self, mut request: ClientRequest) -> ProxyResult {
        let live = self.live.load_full();
        let is_reported = request.uri().query().is_some_and(|query| query.split('&').any(|part| part == "report=true"));
        let behind = request.uri().path().strip_prefix(REWRITE).unwrap_or_default().to_owned();
        let path = if behind.is_empty() { dialect::default().path() } else { &behind };
        let dialect = dialect::for_path(path).unwrap_or(dialect::default());
        *request.uri_mut() = path.parse().map_err(|_| ProxyError::InvalidRequest("its path is not a path".into()))?;
        let headers = request.headers_mut();
        headers.remove(AUTHORIZATION);
        if let Some(authorization) = headers.remove(CLIENT_AUTHORIZATION) {
            headers.insert(AUTHORIZATION, authorization);
        }
        let caller = self.caller(request.headers());
        let mut read = self.receive(&live, dialect, request, caller).await?;
        let Some(text) = read.text.clone() else { return Err(ProxyError::BadEncoding) };
        if behind.is_empty() {
            let head = &mut read.head;
            head.dialect = dialect::of_body(&text);
            let path = head.dialect.path();
            head.parts.uri = path.parse().unwrap_or_default();
            head.destination = live.destinations.of_body(path, &head.parts.headers, head.dialect, Some(&text)).await;
            head.target = head.destination.upstream.join(&head.parts.uri)?;
        }
        let edited = self.edited(&mut read, Purpose::Rewrite).await.edited;
        let ReadRequest { head: RequestHead { id, .. }, permit: _until_the_end, dry_run, .. } = read;
        let body = if dry_run { text.bytes.clone() } else { joined(edited.body.clone()) };
        let reported = || {
            let body = serde_json::from_slice(&body).ok()?;
            serde_json::to_vec(&Reported { body, report: edited.report.as_ref() }).ok()
        };
        let answered = if is_reported { reported().map(Into::into) } else { None };
        tracing::debug!(request_id = %id, "rewrote a body");
        Ok(answer(answered.unwrap_or(body), &edited, None, &id.to_string()).map(full_body))
    }
}

/// The answer with this body, and what it says of the edits.
pub(super) fn answer(
    body: impl Into<Bytes>,
    edited: &EditedBody,
    summary: Option<&'static str>,
    id: &str,
) -> OwnAnswer {
    let mut response = Response::new(Full::new(body.into()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let report = edited.report.as_ref();
    let fields = [
        (SUMMARY, summary.map(str::to_owned)),
        (REQUEST_ID, Some(id.to_owned())),
        (EDITS, report.map(exchange::counts).filter(|edits| !edits.is_empty())),
        (TOKENS, report.and_then(exchange::tokens)),
    ];
    set_fields(response.headers_mut(), fields);
    response
}

/// The `authorization` of the client whose request it is.
const CLIENT_AUTHORIZATION: HeaderName = HeaderName::from_static("x-abridge-authorization");

#[derive(Serialize)]
struct Reported<'a> {
    body: &'a RawValue,
    report: Option<&'a Report>,
}

/// Whether requests to this path are rewritten.
pub(super) fn is_rewrite_path(path: &str) -> bool {
    path.strip_prefix(REWRITE).is_some_and(|behind| behind.is_empty() || dialect::for_path(behind).is_some())
}
