//! Admits, reads and decodes a request, and has the policy edit it. Turns, counts, compactions and summaries on request begin
//! with this.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::EXPECT;
use http::{HeaderMap, Uri};
use hyper::body::Body;

use super::exchange::OverheadTimer;
use super::fair_shares::{Admission, Permit};
use super::in_band::RequestPlace;
use super::prefix_tracker::CacheScope;
use super::second_try::{Arm, BLOCKING_FROM};
use super::{ClientRequest, Destination, LiveConfig, Proxy, ProxyError, RequestHead, headers};
use crate::admin::access::{ConnectionInfo, ListenerRole};
use crate::body::encoding::{ContentEncoding, DecodeError};
use crate::body::{self, ClientBody, Limits, ReadError};
use crate::dialect::Dialect;
use crate::draft::{ParsedRequest, conversation_name};
use crate::engine::summarizer::SummaryOrigin;
use crate::engine::{EditMode, EditOptions, EditedBody, EngineConfig, EngineError};
use crate::ledger::Assignment;
use crate::metrics::Tally;
use crate::payload::Caller;
use crate::plan::Plan;
use crate::planner::SummaryTiming;
use crate::recording::RequestForm;
use crate::string_index::{IndexedBody, StringIndexer};
use crate::tasks::{run_blocking, run_blocking_from};
use crate::upstream::framing::has_coding_other_than;

/// A request whose body has been read.
pub(super) struct ReadRequest<'l> {
    pub(super) head: RequestHead<'l>,
    /// The body as it is forwarded if nothing edits it.
    pub(super) bytes: Bytes,
    /// Its text, if it could be decoded.
    pub(super) text: Option<IndexedBody>,
    /// Whether edits are only reported.
    pub(super) dry_run: bool,
    pub(super) permit: Permit,
    pub(super) timer: OverheadTimer,
}

/// A request after the policy has edited it.
pub(super) struct EditedRequest<'l> {
    pub(super) edited: Box<EditedBody>,
    /// The text, or the bytes of a body that could not be decoded.
    pub(super) text: Bytes,
    pub(super) readable: bool,
    /// The place that recalls of the answer are kept under.
    pub(super) place: Option<RequestPlace>,
    pub(super) cache: CacheScope,
    /// The name of the conversation, if an experiment or `[keep_alive]` needs it.
    pub(super) name: Option<[u8; 16]>,
    /// How it was edited, and whether a refusal is answered.
    pub(super) arm: &'l Arm,
    pub(super) is_rescued: bool,
    pub(super) assignment: Option<Assignment>,
    pub(super) form: RequestForm,
    pub(super) rules: Arc<EngineConfig>,
}

/// The purpose of an edit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Purpose {
    /// The model takes a turn.
    Turn,
    /// The edited body is the answer. Originals are stored; no model is called.
    Rewrite,
    /// Its tokens are counted. Nothing is stored and no summary is made, as in a dry run, but the edited body is sent.
    Count,
}

impl RequestHead<'_> {
    /// Whether the client has signed its body for AWS, so that another one would be refused.
    pub(super) fn is_signed_by_client(&self) -> bool {
        headers::is_signed(&self.parts.headers) && !self.destination.upstream.has_key()
    }

    /// The options of an edit of the body.
    pub(super) fn options(&self, when: SummaryTiming) -> EditOptions<'_> {
        EditOptions::new(self.caller, self.destination.upstream.name().as_str(), when)
    }
}

impl Proxy {
    /// Admits a request of this caller, reads and decodes its body, and chooses its upstream.
    pub(super) async fn receive<'l>(
        &self,
        live: &'l LiveConfig,
        dialect: &'static dyn Dialect,
        request: ClientRequest,
        caller: Caller,
    ) -> Result<ReadRequest<'l>, ProxyError> {
        let mut timer = OverheadTimer::start();
        let (mut parts, body) = request.into_parts();
        let (admission, body) = self.admit(&parts.headers, body)?;
        let dry_run = live.is_dry(&parts.headers);
        let by_token = headers::is_account(&parts.headers).then(|| headers::shown_credential(&parts.headers));
        self.callers_seen.note(by_token.map_or(caller, |token| self.engine.caller(token)), &parts.headers);
        let (mut bytes, indexer) = timer.excluding(self.read(live, &parts.headers, body, &admission)).await?;
        let text = self.decode(&parts.headers, &bytes, indexer, &admission).await?;
        let text = self.restore(dialect, &mut parts.headers, &mut bytes, text);
        let text = text.map(|text| text.at(dialect.path_facts(parts.uri.path())));
        let destination = live.destinations.of_body(parts.uri.path(), &parts.headers, dialect, text.as_ref()).await;
        let (target, id, permit) = (destination.upstream.join(&parts.uri)?, self.ids.next(), admission.permit);
        let head = RequestHead { dialect, id, parts, caller, destination, target };
        Ok(ReadRequest { head, bytes, text, dry_run, permit, timer })
    }

    /// Puts recalls back into a request, and has the policy edit it. Its text is taken.
    pub(super) async fn edited<'l>(&self, read: &mut ReadRequest<'l>, purpose: Purpose) -> EditedRequest<'l> {
        let RequestHead { caller, destination, .. } = read.head;
        let dry_run = read.dry_run;
        let adds_tool = destination.usual.rules.planner.settings.recall.adds_tool() && !dry_run;
        let place = if adds_tool { self.put_back(read).await } else { None };
        let (head, decoded) = (&read.head, read.text.take());
        let text = decoded.as_deref().unwrap_or(&read.bytes).clone();
        let readable = decoded.is_some();
        let cache = CacheScope::of(&head.target, caller);
        let name = self.conversation_name(head, decoded.as_ref()).await;
        let assignment = destination.experiment.as_ref().and_then(|experiment| Some(experiment.assign(name?)));
        let was_kept = purpose == Purpose::Turn && name.is_some_and(|name| self.keep_alives.end(&name));
        let arm = destination.arm(assignment.as_ref());
        let rescue = arm.rescue.as_ref().filter(|_| !dry_run && readable);
        let form = self.form(rescue, head, &text).await;
        let rules = rescue.map_or_else(|| Arc::clone(&arm.rules), |rescue| rescue.rules(form));
        let is_signed = head.is_signed_by_client();
        if is_signed {
            self.accounting.notices.note_signed();
        }
        let edited = match decoded {
            Some(text) if form != RequestForm::Unedited && !is_signed => {
                let origin = || SummaryOrigin { assignment: assignment.clone(), ..self.origin(head) };
                let upstream = destination.upstream.name().as_str();
                let has_expired = |plan: &Plan| !was_kept && self.accounting.has_expired(cache, upstream, plan);
                let mut asked = head.options(SummaryTiming::Triggered);
                if dry_run || purpose == Purpose::Count {
                    asked.mode = EditMode::DryRun;
                }
                if purpose == Purpose::Turn {
                    asked.origin = Some(&origin);
                }
                if purpose != Purpose::Count {
                    asked.has_expired = Some(&has_expired);
                }
                self.plan(head, &rules, text, asked).await
            }
            _ => Box::new(EditedBody::untouched(read.bytes.clone())),
        };
        let is_rescued = rescue.is_some();
        EditedRequest { edited, text, readable, place, cache, name, arm, is_rescued, assignment, form, rules }
    }

    /// The name of the conversation, by the first message of the user and not by instructions, which may have the time; `None` if
    /// nothing asks for it, or the request does not show its beginning.
    async fn conversation_name(&self, head: &RequestHead<'_>, text: Option<&IndexedBody>) -> Option<[u8; 16]> {
        let RequestHead { dialect, caller, destination, .. } = *head;
        let is_asked_for = destination.experiment.is_some() || destination.keep_alive.is_some();
        let text = text.filter(|_| is_asked_for)?.clone();
        let (n_bytes, keys) = (text.len(), self.engine.keys.clone());
        let name = move || {
            let conversation = dialect.parse_indexed(&text, text.strings()).ok()?;
            let request = ParsedRequest { dialect, body: &text, conversation: &conversation };
            Some(*conversation_name(request, &keys, caller, 1)?.as_bytes())
        };
        run_blocking_from(BLOCKING_FROM, n_bytes, name).await.ok().flatten()
    }

    /// Takes one of the `max_in_flight` permits, which the exchange keeps until its answer ends, and one of the caller's share
    /// while there are several callers.
    pub(super) fn admit(&self, headers: &HeaderMap, body: ClientBody) -> Result<(Admission, ClientBody), ProxyError> {
        // The field is hop-by-hop, so the upstream would not learn of another coding.
        if has_coding_other_than(headers, &["chunked"]) {
            return Err(ProxyError::BadTransfer);
        }
        let share = if self.are_several_callers() { self.shares.of(self.caller(headers)) } else { None };
        let of_caller = share.map(|share| Arc::clone(&share.in_flight).try_acquire_owned().ok());
        let refused = if let Some(None) = of_caller {
            self.over_share(headers)
        } else if let Ok(of_all) = Arc::clone(&self.in_flight).try_acquire_owned() {
            let budget = share.map_or(&self.limits.budget, |share| &share.budget).clone();
            let limits = Limits { budget, ..self.limits.clone() };
            let permit = Permit { _of_all: of_all, _of_caller: of_caller.flatten() };
            return Ok((Admission { permit, limits }, body));
        } else {
            ProxyError::TooManyRequests { limit: self.max_in_flight }
        };
        self.discard_unread(headers, body);
        Err(refused)
    }

    /// Counts a connection for the caller of its last request. The error if several callers send requests, and this one has
    /// its share of the connections without it.
    pub(super) fn count_connection(
        &self,
        headers: &HeaderMap,
        caller: Caller,
        connection: ConnectionInfo,
    ) -> Option<ProxyError> {
        let most =
            self.shares.connections().filter(|_| matches!(connection.listener_role, ListenerRole::Clients(_)))?;
        let most = if self.are_several_callers() { most } else { usize::MAX };
        let is_counted = self.keep_alives.connections.count(connection.id, caller, most);
        (!is_counted).then(|| ProxyError::TooManyConnections { client: self.client_name(headers) })
    }

    /// Reads the whole body of a conversation, undecoded. While a long one arrives, its strings are indexed; those of
    /// an encoded one are when it is decoded.
    pub(super) async fn read(
        &self,
        live: &LiveConfig,
        headers: &HeaderMap,
        body: ClientBody,
        admission: &Admission,
    ) -> Result<(Bytes, StringIndexer), ProxyError> {
        let is_short = body.size_hint().exact().is_some_and(|length| length < INDEXED_FROM);
        let is_indexed = !is_short && ContentEncoding::from_headers(headers) == ContentEncoding::Identity;
        let mut arms = live.destinations.iter().flat_map(Destination::arms);
        let may_count = arms.any(|arm| arm.rules.planner.policy.counts_from < usize::MAX);
        let mut indexer = StringIndexer::new(may_count);
        let watch = |chunk: &[u8]| {
            if is_indexed {
                indexer.push(chunk);
            }
        };
        let read = body::read_watched(body, &admission.limits, watch).await;
        let bytes = read.map_err(|error| match error {
            ReadError::TooLong { limit, announced, rest } => {
                self.discard_unread(headers, rest);
                ProxyError::BodyTooLarge { limit, announced, setting: "server.max_body" }
            }
            ReadError::NoBudget { rest } => {
                self.discard_unread(headers, rest);
                self.no_room(headers, admission, 0)
            }
            ReadError::Body(error) => error.into(),
        })?;
        Ok((bytes, indexer))
    }

    /// Decodes the body; `None` if its content coding is unsupported or broken. Such a body is forwarded unchanged, even if
    /// it looks like JSON: its header and its content disagree, and the upstream decides which one counts.
    pub(super) async fn decode(
        &self,
        headers: &HeaderMap,
        coded: &Bytes,
        mut indexer: StringIndexer,
        admission: &Admission,
    ) -> Result<Option<IndexedBody>, ProxyError> {
        let coded = coded.clone();
        let encoding = match ContentEncoding::from_headers(headers) {
            ContentEncoding::Identity => return Ok(Some(IndexedBody::new(coded, indexer.finish()))),
            ContentEncoding::Supported(encoding) => encoding,
            ContentEncoding::Unsupported => {
                self.fail_open
                    .count(FailOpenReason::UnknownEncoding, &"content-encoding is not one of gzip, deflate, br, zstd");
                return Ok(None);
            }
        };
        let (limit, budget, n_coded) = (admission.limits.max_body, admission.limits.budget.clone(), coded.len());
        let turn = self.engine.begin_long_work().await;
        let decoding = run_blocking(move || {
            let _turn = turn;
            let text = encoding.decode(&coded, limit, &budget)?;
            indexer.push(&text);
            Ok(IndexedBody::new(text, indexer.finish()))
        });
        match decoding.await {
            Ok(Ok(text)) => Ok(Some(text)),
            Ok(Err(DecodeError::TooLong { limit })) => {
                Err(ProxyError::BodyTooLarge { limit, announced: None, setting: "server.max_body" })
            }
            Ok(Err(DecodeError::NoBudget { needed })) => Err(self.no_room(headers, admission, n_coded + needed)),
            Ok(Err(error @ DecodeError::Broken(_))) => {
                self.fail_open.count(FailOpenReason::BrokenEncoding, &error);
                Ok(None)
            }
            Err(error) => {
                self.fail_open.count(FailOpenReason::Bug, &error);
                Ok(None)
            }
        }
    }

    /// Runs the edits. Every outcome, even a panic, leaves a body that can be sent.
    pub(super) async fn plan(
        &self,
        head: &RequestHead<'_>,
        rules: &Arc<EngineConfig>,
        text: IndexedBody,
        asked: EditOptions<'_>,
    ) -> Box<EditedBody> {
        let edited = self.engine.edit_body(rules, head.dialect, text, asked).await;
        self.count_failure(&edited);
        if let Some(report) = &edited.report {
            let Destination { upstream, windows, .. } = head.destination;
            windows.fetch_if_needed(report, rules, upstream, &head.parts, &self.services.tasks);
        }
        edited
    }

    /// Counts why a body was not edited, or not by all edits.
    pub(super) fn count_failure(&self, edited: &EditedBody) {
        match (&edited.parse_error, &edited.error) {
            (Some(error), _) => self.fail_open.count(FailOpenReason::NotUnderstood, error),
            (None, Some(error @ EngineError::Panic)) => self.fail_open.count(FailOpenReason::Bug, error),
            (None, Some(error @ EngineError::NoMemory)) => self.fail_open.count(FailOpenReason::NoMemory, error),
            (None, Some(error)) => self.fail_open.count(FailOpenReason::NotStored, error),
            (None, None) => {}
        }
    }

    /// Identifies the caller by the request's credential.
    pub(super) fn caller(&self, headers: &HeaderMap) -> Caller {
        self.engine.caller(headers::credential(headers))
    }

    /// The error for a body of `needed` bytes: it exceeds the budget by itself, or the share of its caller, or the budget
    /// together with the bodies of other requests.
    fn no_room(&self, headers: &HeaderMap, Admission { limits, .. }: &Admission, needed: usize) -> ProxyError {
        let limit = limits.budget.limit();
        if needed > limit {
            return ProxyError::BodyTooLarge { limit, announced: None, setting: "server.max_buffered" };
        }
        if limits.budget.is_narrower() { self.over_share(headers) } else { ProxyError::TooManyBytes }
    }

    /// The error for a caller that has taken its share.
    fn over_share(&self, headers: &HeaderMap) -> ProxyError {
        ProxyError::OverShare { client: self.client_name(headers) }
    }

    /// The name of a client, or a short one made of its credential, for the log.
    fn client_name(&self, headers: &HeaderMap) -> String {
        let name = headers.get(headers::CLIENT).and_then(|name| name.to_str().ok());
        let of_caller = || format!("caller {:08x}", self.caller(headers).id() >> 32);
        name.map_or_else(of_caller, |name| format!("client {name}"))
    }

    /// Collects what a summarizer call on behalf of this request needs. The call may outlive the request.
    pub(super) fn origin(&self, head: &RequestHead<'_>) -> SummaryOrigin {
        let RequestHead { dialect, id, caller, ref parts, ref target, destination } = *head;
        let mut headers = parts.headers.clone();
        headers::to_upstream(&mut headers);
        SummaryOrigin {
            request_id: Some(id.to_string()),
            caller,
            dialect,
            target: unframed(dialect, target).unwrap_or_else(|| target.clone()),
            headers,
            upstream: destination.upstream.clone(),
            budget: self.limits.budget.clone(),
            assignment: None,
        }
    }

    /// Discards the rest of a request body after an answer that did not wait for it. A client that waits for `100 Continue` has
    /// sent nothing yet; polling the body would make it send.
    pub(super) fn discard_unread(&self, headers: &HeaderMap, rest: ClientBody) {
        if rest.has_begun() || !headers.contains_key(EXPECT) {
            self.services.tasks.spawn(body::discard(rest, MAX_DISCARD));
        }
    }
}

/// How long an unread request body is discarded after an early answer, so that the client can read that answer.
const MAX_DISCARD: Duration = Duration::from_secs(10);

/// Shorter bodies are not indexed while they arrive: they mostly come in one piece, and nothing is gained.
const INDEXED_FROM: u64 = 128 << 10;

/// The place at which an answer comes as a whole that comes in frames at this one.
fn unframed(dialect: &dyn Dialect, target: &Uri) -> Option<Uri> {
    let path = dialect.unframed(target.path())?;
    target.to_string().replacen(target.path(), path, 1).parse().ok()
}

/// Why a request was forwarded without some or all edits.
#[derive(Clone, Copy, Debug, Eq, PartialEq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(super) enum FailOpenReason {
    /// The body is not a conversation that the dialect can read.
    NotUnderstood,
    /// The content coding of the body is unsupported.
    UnknownEncoding,
    /// The body is not valid for its `content-encoding`.
    BrokenEncoding,
    /// Removed payloads cannot be stored. The request is forwarded with the edits that need no store.
    NotStored,
    /// `server.max_buffered` has no room to plan the edits.
    NoMemory,
    /// A panic in abridge.
    Bug,
}

/// The number of requests for each reason.
#[derive(Debug, Default)]
pub(super) struct FailOpenCounters(pub(super) Tally<FailOpenReason>);

impl FailOpenCounters {
    /// Counts a request. The first one for a reason is logged as a warning, the others at debug.
    pub(super) fn count(&self, reason: FailOpenReason, detail: &dyn Display) {
        let count = self.0.count(reason);
        if count == 1 {
            tracing::warn!(?reason, %detail, "a request is forwarded without edits; more of this kind are logged at debug");
        } else {
            tracing::debug!(?reason, %detail, count, "a request is forwarded without edits");
        }
    }
}
