//! Requests for a compaction: the client asks for fewer items to go on with. By default the upstream answers them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::request::Parts;
use http::{Request, Response, StatusCode, Uri};
use hyper::body::Incoming;

use super::exchange::{Exchange, OverheadTimer, RequestId};
use super::headers::ControlHeader;
use super::respond::ProxyError;
use super::responses::Compact;
use super::send::request_body;
use super::{Destination, Proxy, ResponseBody, full_body, manual_summary, relay, send};
use crate::body::BufferedBody;
use crate::dialect::{Compaction, Dialect};
use crate::engine::manual_summary::ManualSummaryError;
use crate::engine::{EditMode, EditOptions, EditedBody};
use crate::planner::SummaryTiming;
use crate::string_index::IndexedBody;

/// What an upstream answers that has no such path.
const MISSING: [StatusCode; 3] = [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED];

/// How much of such an answer is read before abridge answers, in bytes, and how long that may take.
const MAX_MISSING: (usize, Duration) = (64 << 10, Duration::from_secs(5));

// === impl Proxy ===

impl Proxy {
    /// Serves a request for a compaction, as `responses.compact` says.
    pub(super) async fn compact(
        &self,
        dialect: &'static dyn Dialect,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, ProxyError> {
        let live = self.live.load_full();
        let is_dry = live.dry_run || ControlHeader::from_headers(request.headers()) == ControlHeader::DryRun;
        if live.responses.compact == Compact::Pass || is_dry {
            return self.pass(request).await;
        }
        let mut timer = OverheadTimer::start();
        let (mut parts, body) = request.into_parts();
        let (permit, body) = self.admit(&parts.headers, body)?;
        let (mut buffered, indexer) = timer.excluding(self.read(&live, &parts.headers, body)).await?;
        let decoded = self.decode(&parts.headers, &mut buffered, indexer).await?;
        let path = parts.uri.path();
        let destination = live.destinations.of_body(path, &parts.headers, dialect, decoded.as_ref()).await;
        let id = self.ids.next();
        if live.responses.compact == Compact::Answer || destination.lacks_compaction.load(Ordering::Relaxed) {
            let text = decoded.ok_or(ProxyError::BadEncoding)?;
            return self.compacted(destination, dialect, &parts, text, id).await;
        }

        let (upstream, original) = (&destination.upstream, parts.clone());
        let target = upstream.join(&parts.uri)?;
        let BufferedBody { bytes, lease } = buffered;
        let lease = Arc::new(lease); // until abridge has answered
        let unedited = EditedBody::untouched(bytes.clone());
        let body = request_body(&mut parts.headers, bytes, Arc::clone(&lease), &unedited, false);
        let mut exchange = Exchange::new(id, permit, self.tasks.clone(), Arc::clone(&self.accounting), timer);
        let mut answer = send(upstream, Request::from_parts(parts, body), target, &mut exchange).await?;
        if MISSING.contains(&answer.status())
            && let Some(text) = decoded
        {
            let (most, within) = MAX_MISSING;
            answer.body_mut().peek(most, within).await;
            match self.compacted(destination, dialect, &original, text, id).await {
                Ok(made) => {
                    destination.lacks_compaction.store(true, Ordering::Relaxed);
                    let (status, upstream) = (answer.status().as_u16(), upstream.name());
                    tracing::info!(%upstream, status, "the upstream compacts no conversations; from now on abridge does");
                    return Ok(made);
                }
                Err(error) => {
                    tracing::warn!(error = %error.chain(), "a conversation was not compacted; the upstream's answer goes back");
                }
            }
        }
        Ok(relay(upstream, answer, exchange))
    }

    /// Summarises the whole conversation, and answers with what the client goes on with.
    async fn compacted(
        &self,
        destination: &Destination,
        dialect: &'static dyn Dialect,
        parts: &Parts,
        text: IndexedBody,
        id: RequestId,
    ) -> Result<Response<ResponseBody>, ProxyError> {
        let target = destination.upstream.join(&turns(dialect, &parts.uri))?;
        let caller = self.caller(&parts.headers);
        let origin = || self.origin(&destination.upstream, dialect, parts, &target, id, caller);
        let upstream = destination.upstream.name().as_str();
        let asked = EditOptions {
            caller,
            upstream,
            mode: EditMode::Apply,
            when: SummaryTiming::Whole,
            origin: Some(&origin),
            has_expired: None,
        };
        let edited = self.plan(destination, &destination.rules, dialect, parts, text, asked).await;
        let summary = manual_summary::outcome(&edited, destination).map_err(|error| match error {
            ProxyError::NoSummary(error) => ProxyError::NotCompacted(error),
            other => other,
        })?;
        let tokens = edited.report.as_ref().and_then(|report| report.tokens_before.zip(report.tokens_after));
        let name = id.to_string();
        let answer = dialect.compacted(&Compaction {
            body: &edited.body.concat(),
            id: &name,
            made_at: seconds_now(),
            tokens: tokens.unwrap_or_default(),
        });
        let answer = answer.ok_or(ProxyError::NotCompacted(ManualSummaryError::Unknown))?;
        tracing::info!(request_id = name, summary, "compacted a conversation");
        Ok(manual_summary::answer(answer, &edited, summary, &name).map(full_body))
    }
}

#[expect(clippy::disallowed_methods, reason = "an answer says when it was made; nothing of it goes upstream")]
fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Where the turns of a conversation go whose compaction is asked for at `uri`.
fn turns(dialect: &dyn Dialect, uri: &Uri) -> Uri {
    let path = uri.path();
    let before = dialect.compacting_path().and_then(|end| path.strip_suffix(end)).unwrap_or(path);
    let end = dialect.path().rsplit('/').next().unwrap_or_default();
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    format!("{before}/{end}{query}").parse().unwrap_or_else(|_| uri.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect;

    #[test]
    fn turns_go_to_the_path_without_its_end() {
        for (path, expected) in [
            ("/v1/responses/compact", "/v1/responses"),
            ("/responses/compact", "/responses"),
            ("/openai/responses/compact?api-version=1", "/openai/responses?api-version=1"),
        ] {
            let dialect = dialect::for_compacting_path(path.split('?').next().unwrap()).unwrap();
            assert_eq!(turns(dialect, &path.parse().unwrap()), expected);
        }
        for path in ["/v1/responses", "/v1/responses/compact/", "/v1/chat/completions/compact", "/v1/messages/compact"]
        {
            assert!(dialect::for_compacting_path(path).is_none(), "{path}");
        }
    }
}
