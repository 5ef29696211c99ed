//! What is special to OpenAI Responses: websockets, which carry turns past the edits, and requests for a compaction.
//!
//! A websocket is refused where at least one edit is on; with `dry_run`, or with `x-abridge: off` or `dry-run` in the request, it
//! is tunnelled. For a compaction, the client asks for fewer items to go on with, at a separate path or in a turn; by default
//! the upstream answers it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use memchr::memmem;
use serde::{Deserialize, Serialize};

use super::request::ReadRequest;
use super::{
    ClientRequest, ControlHeader, Destination, LiveConfig, Proxy, ProxyError, ProxyResult, RequestHead, ResponseBody,
    UpstreamAnswer, full_body, headers, on_request, relay, request_body, send,
};
use crate::dialect::{self, Compaction, CompactionTrigger, Dialect};
use crate::engine::EditedBody;
use crate::engine::manual_summary::ManualSummaryError;
use crate::payload::Caller;
use crate::planner::SummaryTiming;
use crate::platform::since_1970;
use crate::string_index::IndexedBody;
use crate::upstream::routes::RequestFacts;

/// `[responses]` of `proxy.toml`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Who answers requests for a compaction: `POST …/responses/compact`, and turns that end in `compaction_trigger`. An
    /// answer of abridge's own is a summary of the whole conversation, made by the settings of `[summarize]`, as one
    /// message of the user, or as one item `compaction`.
    pub compact: Compact,
}

/// Who answers requests for a compaction.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Compact {
    /// The upstream.
    #[default]
    Pass,
    /// The upstream, until it has shown that it compacts nothing; then abridge.
    Auto,
    /// abridge.
    Answer,
}

/// How the paths of turns end, which is where clients open sockets too.
const PATH: &str = "/responses";

impl Proxy {
    /// The error for a socket that is refused. The log says once what becomes of sockets.
    pub(super) fn check_socket<B>(&self, live: &LiveConfig, request: &Request<B>) -> Option<ProxyError> {
        let has_edits = || {
            let destination = live.destinations.find(&RequestFacts::of_head(request));
            !destination.usual.rules.planner.settings.policy.edits.is_empty()
        };
        if !is_socket(request) || !has_edits() {
            return None;
        }
        let follows_policy =
            matches!(ControlHeader::from_headers(request.headers()), ControlHeader::Policy | ControlHeader::Unknown);
        let notices = &self.accounting.notices;
        if !live.dry_run && follows_policy {
            if !notices.socket_refused.swap(true, Ordering::Relaxed) {
                tracing::info!(
                    "a websocket to {PATH} was answered with 426, so that the client goes on over HTTP, where its requests are edited; x-abridge: off lets a socket through, unedited"
                );
            }
            return Some(ProxyError::SocketRefused);
        }
        if !notices.socket_tunnelled.swap(true, Ordering::Relaxed) {
            tracing::info!("a websocket to {PATH} is tunnelled, and no request in it is edited");
        }
        None
    }

    /// Serves a request for a compaction, as `responses.compact` says.
    pub(super) async fn compact(
        &self,
        dialect: &'static dyn Dialect,
        request: ClientRequest,
        caller: Caller,
    ) -> ProxyResult {
        let live = self.live.load_full();
        if live.responses.compact == Compact::Pass || live.is_dry(request.headers()) {
            return self.pass(request).await;
        }
        let read = self.receive(&live, dialect, request, caller).await?;
        let ReadRequest { head, bytes, text, permit, timer, .. } = read;
        let destination = head.destination;
        if live.responses.compact == Compact::Answer || destination.lacks_compaction.load(Ordering::Relaxed) {
            let text = text.ok_or(ProxyError::BadEncoding)?;
            return self.compacted(&head, text, None).await;
        }

        let (upstream, mut parts) = (&destination.upstream, head.parts.clone());
        let unedited = EditedBody::untouched(bytes.clone());
        let body = request_body(&mut parts.headers, bytes, &unedited, false);
        let mut exchange = self.exchange(head.id, permit, timer);
        let request = Request::from_parts(parts, body);
        let mut answer = send(upstream, Box::new(request), head.target.clone(), &mut exchange).await?;
        if MISSING.contains(&answer.status())
            && let Some(text) = text
        {
            let (most, within) = MAX_MISSING;
            answer.body_mut().peek(most, within).await;
            let made = self.compacted(&head, text, None).await;
            if let Some(made) = in_place_of(answer.status(), destination, made) {
                return Ok(made);
            }
        }
        Ok(relay(upstream, answer, exchange))
    }

    /// Summarises the whole conversation, and answers with what the client goes on with.
    async fn compacted(
        &self,
        head: &RequestHead<'_>,
        text: IndexedBody,
        trigger: Option<&CompactionTrigger>,
    ) -> ProxyResult {
        let RequestHead { dialect, destination, .. } = *head;
        let target = destination.upstream.join(&turns(dialect, &head.parts.uri))?;
        let of_turns = RequestHead { target, ..head.clone() };
        let summarised = self.summarised(&of_turns, text, SummaryTiming::Whole).await;
        let (edited, summary) = summarised.map_err(|error| match error {
            ProxyError::NoSummary(error) => ProxyError::NotCompacted(error),
            other => other,
        })?;
        let tokens = edited.report.as_ref().and_then(|report| report.tokens_before.zip(report.tokens_after));
        let name = head.id.to_string();
        let answer = dialect.compacted(&Compaction {
            body: &edited.body.concat(),
            id: &name,
            made_at: since_1970().as_secs(),
            tokens: tokens.unwrap_or_default(),
            trigger,
        });
        let answer = answer.ok_or(ProxyError::NotCompacted(ManualSummaryError::Unknown))?;
        tracing::info!(request_id = name, summary, "compacted a conversation");
        let mut answer = on_request::answer(answer, &edited, Some(summary), &name);
        if trigger.is_some_and(|trigger| trigger.streams) {
            answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        }
        Ok(answer.map(full_body))
    }

    /// Puts back what compactions of abridge replace, in a body that could be decoded.
    pub(super) fn restore(
        &self,
        dialect: &'static dyn Dialect,
        headers: &mut HeaderMap,
        bytes: &mut Bytes,
        decoded: Option<IndexedBody>,
    ) -> Option<IndexedBody> {
        let restored = decoded.as_deref().and_then(|text| dialect.restored(text));
        let restored = restored.and_then(|text| Some(self.limits.budget.lease(text.len())?.hold(text)));
        let Some(text) = restored else { return decoded };
        bytes.clone_from(&text);
        headers.remove(CONTENT_ENCODING);
        Some(text.into())
    }

    /// Answers a turn that asks for a compaction, if abridge is to do it before the upstream is asked.
    pub(super) async fn compacted_turn(&self, turn: Option<&CompactionTurn<'_>>) -> Option<ProxyResult> {
        let CompactionTurn { compact, head, trigger } = turn?;
        let is_ours = *compact == Compact::Answer || head.destination.lacks_compaction.load(Ordering::Relaxed);
        if !is_ours {
            return None;
        }
        let text = trigger.conversation.clone().into();
        Some(Box::pin(self.compacted(head, text, Some(trigger))).await)
    }

    /// Answers such a turn in place of an upstream whose answer shows that it compacts nothing. None if it has compacted,
    /// or if abridge cannot: then the upstream's answer goes back.
    pub(super) async fn compacted_instead(
        &self,
        turn: Option<Box<CompactionTurn<'_>>>,
        answer: &mut UpstreamAnswer,
    ) -> Option<Response<ResponseBody>> {
        let CompactionTurn { head, trigger, .. } = *turn?;
        let status = answer.status();
        let lacks = if status.is_success() {
            let within = head.destination.usual.rules.planner.settings.summarize.timeout.0;
            let is_coded = answer.headers().contains_key(CONTENT_ENCODING);
            let whole = if is_coded { None } else { Box::pin(answer.body_mut().peek(MAX_COMPACTED, within)).await };
            whole.is_some_and(|text: Bytes| !has_compaction(&text))
        } else {
            MISSING.contains(&status) || matches!(status.as_u16(), 400 | 422)
        };
        if !lacks {
            return None;
        }
        let text = trigger.conversation.clone().into();
        let made = Box::pin(self.compacted(&head, text, Some(&trigger))).await;
        in_place_of(status, head.destination, made)
    }
}

/// Whether a request asks for a WebSocket to a path of turns.
fn is_socket<B>(request: &Request<B>) -> bool {
    let is_websocket = |name: &[u8]| {
        name.split(|byte| *byte == b'/').next().is_some_and(|name| name.eq_ignore_ascii_case(b"websocket"))
    };
    request.method() == Method::GET
        && request.uri().path().ends_with(PATH)
        && headers::upgrade_protocol(request.headers()).iter().flat_map(headers::names).any(is_websocket)
}

/// What an upstream answers that has no such path.
const MISSING: [StatusCode; 3] = [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED];

/// How many bytes of an answer to a turn that asks for a compaction are read before abridge decides that there is none.
const MAX_COMPACTED: usize = 4 << 20;

/// How much of such an answer is read before abridge answers, in bytes, and how long that may take.
const MAX_MISSING: (usize, Duration) = (64 << 10, Duration::from_secs(5));

// === impl Proxy ===

/// The compaction that abridge has made in place of an upstream's answer, whose status shows that it makes none; abridge
/// makes the later ones, too.
fn in_place_of(status: StatusCode, destination: &Destination, made: ProxyResult) -> Option<Response<ResponseBody>> {
    match &made {
        Ok(_) => {
            destination.lacks_compaction.store(true, Ordering::Relaxed);
            let (status, upstream) = (status.as_u16(), destination.upstream.name());
            tracing::info!(%upstream, status, "the upstream compacts no conversations; from now on abridge does");
        }
        Err(error) => {
            tracing::warn!(error = %error.chain(), "a conversation was not compacted; the upstream's answer goes back");
        }
    }
    made.ok()
}

/// A turn whose client wants a compaction and nothing else.
pub(super) struct CompactionTurn<'l> {
    compact: Compact,
    head: RequestHead<'l>,
    trigger: CompactionTrigger,
}

impl<'l> CompactionTurn<'l> {
    /// Reads a request; none if it is not such a turn, or if the upstream's answer is to go back whatever it is.
    pub(super) fn of(compact: Compact, head: &RequestHead<'l>, text: &IndexedBody) -> Option<Box<Self>> {
        let trigger = if compact == Compact::Pass { None } else { head.dialect.compaction_trigger(text) }?;
        Some(Box::new(Self { compact, head: head.clone(), trigger }))
    }
}

/// Whether an answer, or its events, have an item that is a compaction.
fn has_compaction(text: &[u8]) -> bool {
    memmem::find_iter(text, br#""type""#).any(|at| {
        let behind = text.get(at + 6..).unwrap_or_default().trim_ascii_start();
        let value = behind.strip_prefix(b":").unwrap_or_default().trim_ascii_start();
        value.starts_with(br#""compaction""#) || value.starts_with(br#""compaction_summary""#)
    })
}

/// Where the turns of a conversation go whose compaction is asked for at `uri`.
fn turns(dialect: &dyn Dialect, uri: &Uri) -> Uri {
    let path = uri.path();
    if dialect::for_path(path).is_some() {
        return uri.clone();
    }
    let before = dialect.facts().compacting_path.and_then(|end| path.strip_suffix(end)).unwrap_or(path);
    let end = dialect.path().rsplit('/').next().unwrap_or_default();
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    format!("{before}/{end}{query}").parse().unwrap_or_else(|_| uri.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str, fields: &[(&str, &str)]) -> Request<()> {
        let request = fields.iter().fold(Request::get(path), |request, (name, value)| request.header(*name, *value));
        request.body(()).unwrap()
    }

    #[test]
    fn a_socket_is_a_get_with_an_upgrade_to_websocket() {
        let upgrade = |protocol| [("connection", "Upgrade"), ("upgrade", protocol)];
        for path in ["/v1/responses", "/responses", "/backend-api/codex/responses", "/openai/responses?api-version=1"] {
            assert!(is_socket(&get(path, &upgrade("websocket"))), "{path}");
        }
        for protocol in ["WebSocket", "websocket/13", "foo, websocket"] {
            assert!(is_socket(&get("/v1/responses", &upgrade(protocol))), "{protocol}");
        }
        for path in ["/v1/realtime", "/v1/responses/resp_1", "/v1/chat/completions", "/v1/responses/"] {
            assert!(!is_socket(&get(path, &upgrade("websocket"))), "{path}");
        }
        for protocol in ["foo", "h2c", "websocket, h2c", "websockets"] {
            assert!(!is_socket(&get("/v1/responses", &upgrade(protocol))), "{protocol}");
        }
        assert!(!is_socket(&get("/v1/responses", &[("upgrade", "websocket")])));
        let mut post = get("/v1/responses", &upgrade("websocket"));
        *post.method_mut() = Method::POST;
        assert!(!is_socket(&post));
    }

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
