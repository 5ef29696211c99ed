//! Serves gateways that call a compressor: `POST {prefix}/v1/compress` shortens texts of messages in place, and
//! `GET {prefix}/v1/retrieve/{hash}` returns the originals.
//!
//! A gateway may send a part of a conversation, so results without their calls are data. The answer has as many rows as the
//! request, in the same order. Only `truncate_tool_results` and `clear_tool_results` run. If editing fails, the answer is 200
//! with the messages of the request.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use serde::{Deserialize, Serialize};

use super::exchange::{BillingContext, Conversation};
use super::fair_shares::Admission;
use super::inspection::EditEvents;
use super::prefix_tracker::CacheScope;
use super::request::ReadRequest;
use super::{
    ClientRequest, ControlHeader, OwnAnswer, Proxy, ProxyError, ProxyResult, RequestHead, full_body, headers,
    inspection,
};
use crate::admin::{RETRY_SECONDS, Reader, Requester, json};
use crate::body::{Limits, read_up_to};
use crate::dialect::{self, AnswerEnd};
use crate::engine::{EditMode, EditOptions, EditedBody, EngineConfig};
use crate::payload::Caller;
use crate::planner::SummaryTiming;
use crate::recall::{Auth, Via};
use crate::recording::{InPlace, RequestForm};
use crate::relay::Observe;
use crate::string_index::IndexedBody;
use crate::tasks::run_blocking;
use crate::upstream::UpstreamName;

mod wire;

use wire::{CompressRequest, Outcome, Readback, RetrieveRequest};

/// `[compress]` of `proxy.toml`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Serves `POST /v1/compress` and `GET /v1/retrieve/{hash}` to gateways that call a compressor. On an address that other
    /// machines can reach, they are served only to known clients (`[clients]`).
    pub enabled: bool,
    /// The path before both. Allowed: nothing, or a path that begins with `/` and does not end with one.
    ///
    /// Example: `"/gateway"`
    pub prefix: String,
}

/// The edits of gateways' requests, under the settings of one upstream.
#[derive(Debug)]
pub struct CompressRules {
    /// For gateways that read originals by hash.
    by_hash: Arc<EngineConfig>,
    /// For agents that read originals as the settings say; `None` if that needs tools of the request or its credential.
    by_settings: Option<Arc<EngineConfig>>,
    /// Finds the repairs that a proxied request would get.
    repairs: Arc<EngineConfig>,
}

/// A request of a gateway.
pub(super) enum GatewayRequest {
    Compress,
    /// The original with this hash, or with the one that the body names.
    Retrieve(Option<String>),
}

/// Tells the tenants of a gateway apart.
const AFFINITY: HeaderName = HeaderName::from_static("x-headroom-affinity");
/// Asks for the messages as they are.
const BYPASS: HeaderName = HeaderName::from_static("x-headroom-bypass");
/// The key of a gateway, where `authorization` has none.
const PROXY_TOKEN: HeaderName = HeaderName::from_static("x-headroom-proxy-token");

/// The name of the upstream in the history, the log and metrics.
const NAME: &str = "compress";

/// The most bytes of a request for an original.
const MAX_RETRIEVE_REQUEST: usize = 4 << 10;

// === impl Settings ===

impl Settings {
    /// The gateway's request; `None` if it is not one.
    pub(super) fn path<B>(&self, request: &Request<B>) -> Option<GatewayRequest> {
        let path = request.uri().path().strip_prefix(&self.prefix).filter(|_| self.enabled)?;
        match (request.method().as_str(), path) {
            ("POST", "/v1/compress") => Some(GatewayRequest::Compress),
            ("POST", "/v1/retrieve") => Some(GatewayRequest::Retrieve(None)),
            ("GET", _) => Some(GatewayRequest::Retrieve(Some(path.strip_prefix("/v1/retrieve/")?.to_owned()))),
            _ => None,
        }
    }
}

// === impl CompressRules ===

impl CompressRules {
    /// The rules for the requests that `rules` are for.
    pub fn new(rules: &EngineConfig, auth: Auth) -> Self {
        let settings = &rules.planner.settings;
        let recall = &settings.recall;
        // Gateways do not say which tools the request offers, and the agent does not have their key.
        let is_readable = match recall.via {
            Via::File => recall.export_dir.is_some(),
            Via::Http => recall.public_url.is_some() && auth == Auth::Handle,
            _ => false,
        };
        Self {
            by_hash: rules.under(settings.in_place(Via::Retrieve)),
            by_settings: is_readable.then(|| rules.under(settings.in_place(recall.via))),
            repairs: rules.under(settings.repairing()),
        }
    }
}

// === impl Proxy ===

impl Proxy {
    /// Shortens the texts of messages, and answers with all of them.
    pub(super) async fn compress(&self, request: ClientRequest, caller: Caller) -> ProxyResult {
        let live = self.live.load_full();
        let read = self.receive(&live, dialect::default(), request, caller).await?;
        let ReadRequest { head, text, dry_run, permit, timer, .. } = read;
        let RequestHead { id, mut parts, destination, target, .. } = head;
        let text = text.ok_or(ProxyError::BadEncoding)?;
        let body = text.clone();
        let request = run_blocking(move || CompressRequest::read(&body)).await;
        let request =
            request.unwrap_or_else(|_| Err("it cannot be read".into())).map_err(ProxyError::InvalidRequest)?;
        let caller = self.engine.caller(Some(&tenant(&parts.headers, request.session.as_deref())));
        let mode = if dry_run { EditMode::DryRun } else { EditMode::Apply };
        let upstream = destination.upstream.name().as_str();
        let options = EditOptions { mode, ..EditOptions::new(caller, upstream, SummaryTiming::Triggered) };
        let rules = destination.compress.as_ref().filter(|_| !is_bypassed(&parts.headers));
        let (outcome, edited) = self.shortened(&request, rules, options, &text).await;

        let cache = CacheScope::of(&target, caller);
        let mut exchange = self.exchange(id, permit, timer);
        exchange.conversation = Some(Conversation::new(request.dialect, &parts.uri, text.len(), cache));
        exchange.client = parts.headers.get(headers::CLIENT).cloned();
        exchange.billing = Some(BillingContext::new(&destination.usual.rules, &parts.headers, None));
        exchange.begin_trace(self.services.otel.as_ref(), &mut parts.headers);
        exchange.pending_inspection = self.inspector.capture(live.inspect.keep, request.dialect, &text, &edited);
        exchange.edit_events = EditEvents::begin(&self.services.events, id, caller, &edited, dry_run);
        exchange.record(self.services.recorder.as_ref(), || {
            let (form, planner) = (RequestForm::Edited, &destination.usual.rules.planner);
            let mut sent = inspection::sent_request(&parts, Bytes::clone(&text), &edited, form, planner, dry_run);
            let by_hash = request.readback == Readback::ByHash;
            sent.inputs.in_place = Some(InPlace { n_frozen: request.n_frozen, by_hash });
            sent
        });
        // The edited body, the answer, and the text of its rows are held at a time.
        let lease = self.limits.budget.lease(3 * text.len()).ok_or(ProxyError::TooManyBytes)?;
        let request_id = id.to_string();
        let report = edited.report.clone();
        let body = edited.body.clone();
        let written = run_blocking(move || {
            wire::write(&text, &body.concat(), request.is_input, report.as_ref(), &outcome, &request_id)
        });
        let written =
            written.await.ok().flatten().ok_or(ProxyError::InvalidRequest("its messages cannot be read".into()))?;
        exchange.set_edited(edited, dry_run);
        exchange.mark_sent(&UpstreamName::of_a_route(NAME));
        let written = lease.hold(written);
        let mut response = json(StatusCode::OK, written.clone());
        exchange.on_answer_head(&mut response);
        exchange.on_data(&written);
        exchange.on_end(AnswerEnd::Complete);
        Ok(response.map(full_body))
    }

    /// Shortens the texts, unless there is a reason not to.
    async fn shortened(
        &self,
        request: &CompressRequest,
        rules: Option<&CompressRules>,
        options: EditOptions<'_>,
        text: &IndexedBody,
    ) -> (Outcome, Box<EditedBody>) {
        let unedited =
            |skipped| (Outcome { skipped, ..Outcome::default() }, EditedBody::untouched(Bytes::clone(text)).into());
        let Some(rules) = rules else { return unedited(Some("bypass")) };
        if request.n_rows == 0 {
            return unedited(None);
        }
        let in_place = match request.readback {
            Readback::ByHash => Some(&rules.by_hash),
            Readback::BySettings => rules.by_settings.as_ref(),
        };
        let Some(in_place) = in_place else { return unedited(Some("no_way_to_read_back")) };
        if self.engine.store().is_none() {
            return unedited(Some("no_store"));
        }
        let dry_run = options.mode == EditMode::DryRun;
        let repairs = EditOptions { mode: EditMode::DryRun, ..options };
        let options = EditOptions { in_place: Some(request.n_frozen), ..options };
        let edited = self.engine.edit_body(in_place, request.dialect, text.clone(), options).await;
        self.count_failure(&edited);
        let repairs = self.engine.edit_body(&rules.repairs, request.dialect, text.clone(), repairs).await;
        let repairs = repairs.report.map(|report| report.changes).unwrap_or_default();
        let skipped = match (&edited.parse_error, &edited.error) {
            (Some(_), _) => Some("not_understood"),
            (None, Some(_)) => Some("failed"),
            (None, None) if dry_run => Some("dry_run"),
            (None, None) => None,
        };
        (Outcome { skipped, repairs }, edited)
    }

    /// Answers with the original of a hash.
    pub(super) async fn retrieve(&self, hash: Option<String>, request: ClientRequest) -> ProxyResult {
        let (parts, body) = request.into_parts();
        let request = if let Some(hash) = hash {
            RetrieveRequest::of_query(hash, parts.uri.query().unwrap_or_default())
        } else {
            let (Admission { permit: _until_read, limits }, body) = self.admit(&parts.headers, body)?;
            let limits = Limits { max_body: MAX_RETRIEVE_REQUEST, ..limits };
            let read = read_up_to(body, &limits).await;
            let read = read.map_err(|_| ProxyError::InvalidRequest("it is too long or broken".into()))?;
            serde_json::from_slice(&read).map_err(|error| ProxyError::InvalidRequest(error.to_string()))?
        };
        let credential = tenant(&parts.headers, request.session_id.as_deref());
        let requester = Requester::caller(&self.engine.keys, &credential);
        let reader = Reader { store: self.engine.store(), requester };
        let found = self.recalls.by_hash(&request.hash, reader).await;
        let (status, written) = wire::original(&request.hash, found);
        let lease = self.limits.budget.lease(written.len()).ok_or(ProxyError::TooManyBytes)?;
        let mut response = json(status, lease.hold(written));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_SECONDS));
        }
        Ok(response.map(full_body))
    }
}

/// Whether a gateway asks for its messages as they are.
fn is_bypassed(headers: &HeaderMap) -> bool {
    headers.get(BYPASS).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"))
        || ControlHeader::from_headers(headers) == ControlHeader::Off
}

/// Moves Kong's key to `authorization`, which other gateways use.
pub(super) fn place_token<B>(request: &mut Request<B>) {
    let headers = request.headers_mut();
    if let Some(token) = headers.remove(PROXY_TOKEN).filter(|_| !headers.contains_key(AUTHORIZATION)) {
        let bearer = HeaderValue::from_bytes(&[b"Bearer ", token.as_bytes()].concat());
        if let Ok(bearer) = bearer {
            headers.insert(AUTHORIZATION, bearer);
        }
    }
}

/// What tells apart whose conversation it is: the gateway's credential, and what it says of the tenant, if anything.
fn tenant(headers: &HeaderMap, session: Option<&str>) -> Vec<u8> {
    let credential = headers::credential(headers).unwrap_or_default();
    let affinity = headers.get(AFFINITY).map(HeaderValue::as_bytes).filter(|affinity| !affinity.is_empty());
    match affinity.or(session.map(str::as_bytes)) {
        // No header field has the byte 0.
        Some(tenant) => [NAME.as_bytes(), credential, tenant].join(&0),
        None => credential.to_owned(),
    }
}

impl ProxyError {
    /// The answer to a gateway.
    pub(super) fn to_gateway(&self) -> OwnAnswer {
        let (head, _) = self.to_response(dialect::default()).into_parts();
        let status = match self.status() {
            StatusCode::TOO_MANY_REQUESTS => StatusCode::SERVICE_UNAVAILABLE,
            status => status,
        };
        let kind = if status == StatusCode::BAD_REQUEST { "invalid_request" } else { self.code() };
        let body = wire::error(kind, &format!("abridge: {}", self.client_message()));
        let mut response = Response::from_parts(head, Full::from(body));
        *response.status_mut() = status;
        response
    }
}
