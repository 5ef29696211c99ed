//! `POST /abridge/rewrite`: takes a body of any dialect and answers with what would be sent upstream.
//!
//! | path | the body is read as one that is sent to |
//! |---|---|
//! | `/abridge/rewrite` | the path of the dialect that the body shows |
//! | `/abridge/rewrite/PATH` | that path, if a dialect serves it |
//!
//! It is for operators, so `authorization` has their token. The client's own field is in `x-abridge-authorization`: handles
//! depend on it. No model is called, so a summary is used only if it is stored. With `?report=true` the answer is
//! `{"body": …, "report": …}`.

use http::header::AUTHORIZATION;
use http::{HeaderName, Request};
use serde::Serialize;
use serde_json::value::RawValue;

use super::request::{Purpose, ReadRequest};
use super::request_head::RequestHead;
use super::respond::ProxyError;
use super::{Proxy, ProxyResult, full_body, manual_summary};
use crate::admin::REWRITE;
use crate::body::ClientBody;
use crate::dialect;
use crate::plan::Report;
use crate::span::joined;

/// The `authorization` of the client whose request it is.
const CLIENT_AUTHORIZATION: HeaderName = HeaderName::from_static("x-abridge-authorization");

#[derive(Serialize)]
struct Reported<'a> {
    body: &'a RawValue,
    report: Option<&'a Report>,
}

/// Whether requests to this path are rewritten.
pub(super) fn is_path(path: &str) -> bool {
    path.strip_prefix(REWRITE).is_some_and(|behind| behind.is_empty() || dialect::for_path(behind).is_some())
}

impl Proxy {
    /// Answers with the body that would be sent.
    pub(super) async fn rewrite(&self, mut request: Request<ClientBody>) -> ProxyResult {
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
        Ok(manual_summary::answer(answered.unwrap_or(body), &edited, None, &id.to_string()).map(full_body))
    }
}
