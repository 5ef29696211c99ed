//! The state of one request and its answer while they are relayed: for headers, the log line, metrics and the recording.

use std::sync::Arc;
use std::time::Duration;
use std::{io, mem};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use tokio::time::Instant;
use tracing::Level;

use super::fair_shares::Permit;
use super::headers;
use super::in_band::InBandRecalls;
use super::inspection::EditEvents;
use super::inspection::PendingInspection;
use super::keep_alive::CachedPrompt;
use super::send::Tunnel;
use super::{OwnAnswer, Proxy, RequestId};
use crate::admin::set_fields;
use crate::dialect::AnswerEnd;
use crate::engine::{EditedBody, WaitCause};
use crate::metrics::StreamGuard;
use crate::plan::{Report, SentNames};
use crate::recording::{Recorder, Recording, SentRequest};
use crate::relay::Observe;
use crate::relay::tap::{Tap, TapReport};
use crate::tasks::{Tasks, run_blocking};
use crate::upstream::UpstreamName;

mod accounting;
mod bookkeeping;
mod log_line;

pub(super) use accounting::{Accounting, Conversation, OverheadTimer};
pub(super) use bookkeeping::BillingContext;
use bookkeeping::Traced;

/// The id of an edited request, to match a client's log with abridge's.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-abridge-request-id");
/// The number of changes by edit: `patch=1`.
pub(super) const EDITS: HeaderName = HeaderName::from_static("x-abridge-edits");
/// The tokens of messages and tools before and after the edits: `131072->24110`. Only where they were counted.
pub(super) const TOKENS: HeaderName = HeaderName::from_static("x-abridge-tokens");
/// The window of the model, where the request has more tokens as it goes on.
pub(super) const BEYOND_WINDOW: HeaderName = HeaderName::from_static("x-abridge-beyond-window");
/// Set if the upstream refused the request and this answers another form of it: `overflow` or `original`.
pub(super) const RESCUE: HeaderName = HeaderName::from_static("x-abridge-rescue");
/// Set if the edits were reported and not made.
pub(super) const DRY_RUN: HeaderName = HeaderName::from_static("x-abridge-dry-run");

/// One chunk in this many is timed, beginning with the first.
const TIMED_EVERY: u32 = 16;

/// One request and its answer. It is moved from task to task, so it is boxed, and so is what few requests have.
#[derive(Debug)]
pub struct Exchange {
    /// The client's request to switch protocols.
    pub(super) tunnel: Option<Box<Tunnel>>,
    /// How the request was sent a second time, if that answer is relayed.
    pub(super) rescue: Option<RescueKind>,
    /// What answers the model's recalls, if the request offers the tool for them.
    pub(super) recalls: Option<Box<InBandRecalls>>,
    /// The prompt whose cache is kept when the answer has ended, if it may be.
    pub(super) cached_prompt: Option<Box<CachedPrompt>>,
    /// The messages to keep for inspection, if any.
    pub(super) pending_inspection: Option<Box<PendingInspection>>,
    id: RequestId,
    /// The facts of the request for the ledger, if it may be edited.
    pub(super) billing: Option<BillingContext>,
    /// The name of the client, if the settings know it.
    pub(super) client: Option<HeaderValue>,
    upstream: UpstreamName,
    timer: OverheadTimer,
    sent: Instant,
    added: Duration,
    // Taken when the exchange is accounted for, so that this happens once.
    accounting: Option<Arc<Accounting>>,
    pub(super) conversation: Option<Conversation>,
    // Counts the stream in the metrics while the answer is relayed.
    streaming: Option<StreamGuard>,
    n_chunks: u32,
    ended: Option<Instant>,
    prefix_kept: Option<f64>,
    answer: Option<AnswerHead>,
    edit: Option<EditState>,
    recording: Option<Box<Recording>>,
    /// Set if the request is edited and events have a listener.
    pub(super) edit_events: Option<Box<EditEvents>>,
    tasks: Tasks,
    // The trace of the request, if traces are sent.
    traced: Option<Box<Traced>>,
    // Released when the answer has ended.
    in_flight: Option<Permit>,
}

/// The edits of a conversation, and the tap on its answer.
#[derive(Debug, derive_more::Deref)]
struct EditState {
    tap: Tap,
    dry_run: bool,
    /// Without the body and the offloads.
    #[deref]
    edited: Box<EditedBody>,
}

/// The form of the second attempt.
#[derive(Clone, Copy, Debug, Eq, PartialEq, strum::Display, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(super) enum RescueKind {
    /// The request was too long, and was shortened.
    Overflow,
    /// The request was sent without the reasoning before each pass, or without any.
    Reasoning,
    /// The request was brought into the form that the upstream had asked for.
    Form,
    /// The request was edited, and was sent as the client wrote it.
    Original,
}

#[derive(Clone, Copy, Debug)]
struct AnswerHead {
    status: StatusCode,
    after: Duration,
    bytes: u64,
}

impl Proxy {
    /// The exchange of a request that is about to be sent upstream.
    pub(super) fn exchange(&self, id: RequestId, permit: Permit, timer: OverheadTimer) -> Box<Exchange> {
        Box::new(Exchange {
            tunnel: None,
            rescue: None,
            recalls: None,
            cached_prompt: None,
            pending_inspection: None,
            billing: None,
            id,
            client: None,
            upstream: UpstreamName::default(),
            timer,
            sent: timer.began,
            added: Duration::ZERO,
            accounting: Some(Arc::clone(&self.accounting)),
            conversation: None,
            streaming: None,
            n_chunks: 0,
            ended: None,
            prefix_kept: None,
            answer: None,
            edit: None,
            recording: None,
            edit_events: None,
            tasks: self.services.tasks.clone(),
            traced: None,
            in_flight: Some(permit),
        })
    }
}

// === impl Exchange ===

impl Exchange {
    fn report(&self) -> Option<&Report> {
        self.edit.as_ref()?.report.as_ref()
    }

    /// Sets what the edits did, for the answer's headers and the log.
    pub(super) fn set_edited(&mut self, mut edited: Box<EditedBody>, dry_run: bool) {
        (edited.body, edited.offloads) = (Vec::new(), Vec::new());
        self.edit = Some(EditState { tap: Tap::default(), dry_run, edited });
    }

    /// The facts to remember of the request when it is answered with this status.
    pub(super) fn take_sent_form(&mut self, status: StatusCode) -> Option<SentNames> {
        let edit = self.edit.as_mut().filter(|edit| !edit.dry_run)?;
        let form = mem::take(&mut edit.edited.basis.sent_form);
        (status.is_success() && !form.names.is_empty()).then_some(form)
    }

    /// Notes that the request is handed to this upstream's connection pool now.
    pub(super) fn mark_sent(&mut self, upstream: &UpstreamName) {
        self.upstream = upstream.clone();
        let waits = self.edit.as_ref().map(|edit| &edit.waits);
        let total = |cause| waits.and_then(|waits| waits.total(cause));
        let waited = [WaitCause::Summary, WaitCause::Handlers].into_iter().filter_map(total).sum();
        (self.sent, self.added) = self.timer.read(waited);
    }

    /// Starts the recording of `sent`, if there is a recorder with room. An earlier recording of the exchange is discarded.
    pub(super) fn record(&mut self, recorder: Option<&Recorder>, sent: impl FnOnce() -> SentRequest) {
        let Some(recorder) = recorder else { return };
        self.recording = None;
        self.recording = recorder.begin(&self.id.to_string(), sent()).map(Box::new);
        if self.recording.is_none() {
            tracing::warn!(request_id = %self.id, "not recorded: unfinished recordings have reached their memory limit");
        }
    }

    /// Handles the head of the answer: starts the tap, and adds the headers of abridge.
    pub(super) fn on_answer_head<B>(&mut self, response: &mut Response<B>) {
        let status = response.status();
        self.streaming = self.accounting.as_ref().map(|accounting| accounting.metrics.start_stream());
        self.answer = Some(AnswerHead { status, after: self.sent.elapsed(), bytes: 0 });
        if let Some(recording) = &mut self.recording {
            recording.begin_response(status, response.headers());
        }
        if let Some(edit) = &mut self.edit {
            edit.tap = match (&self.conversation, &self.accounting) {
                (Some(conversation), Some(accounting)) => {
                    Tap::new(conversation.dialect, response.headers(), &accounting.budget)
                }
                _ => Tap::default(),
            };
            edit.put_headers(self.id, self.rescue, response.headers_mut());
        }
    }

    /// Accounts for an exchange that has no answer.
    pub(super) fn end_without_answer(&mut self, end: AnswerEnd) {
        self.account_and_publish(TapReport::default(), end);
        self.finish_recording(end);
    }

    /// Switches to another protocol: returns the head of the answer, and joins the two connections in a task.
    pub(super) fn switch_protocols<B>(mut self: Box<Self>, mut response: Response<B>) -> OwnAnswer {
        let upstream = hyper::upgrade::on(&mut response);
        let protocol = headers::upgrade_protocol(response.headers());
        headers::to_client(response.headers_mut());
        if let Some(protocol) = protocol {
            headers::set_upgrade(response.headers_mut(), protocol);
        }
        if let Some(tunnel) = self.tunnel.take() {
            let tasks = self.tasks.clone();
            tasks.spawn(async move {
                tunnel.join(upstream).await;
                // Until here the tunnel counts as a request in flight.
                drop(self);
            });
        }
        response.map(|_| Full::default())
    }

    /// Everything that is done after the last frame of the answer.
    fn finish(mut self: Box<Self>, end: AnswerEnd) {
        self.in_flight = None;
        self.prefix_kept = self.known_prefix_share();
        let tap_report = self.edit.as_mut().map(|edit| mem::take(&mut edit.tap).finish()).unwrap_or_default();
        self.finish_recording(end);
        self.log(&tap_report, end);
        // A second try and recalls in band have sent another request.
        let is_sent = end == AnswerEnd::Complete && self.rescue.is_none() && tap_report.as_one_round.is_none();
        if let Some(prompt) = self.cached_prompt.take().filter(|_| is_sent)
            && let Some(account) = self.calls_account()
        {
            prompt.keep(&tap_report, &self.tasks, account);
        }
        self.account_and_publish(tap_report, end);
    }

    /// Accounts for the exchange, and publishes how it ended.
    fn account_and_publish(&mut self, tap_report: TapReport, end: AnswerEnd) {
        let edit_events = self.edit_events.take();
        let ledger = edit_events.as_ref().and(self.accounting.as_ref()).map(|accounting| accounting.ledger.clone());
        self.account(&tap_report, end);
        if let Some(edit_events) = edit_events {
            let savings = ledger.and_then(|ledger| ledger.savings());
            edit_events.end(self.answer.map(|answer| answer.status), end, tap_report, savings);
        }
    }

    /// Writes the recording in a task, so that no request waits for the disk.
    fn finish_recording(&mut self, end: AnswerEnd) {
        let Some(recording) = self.recording.take() else { return };
        let id = self.id;
        self.tasks.spawn(async move {
            match run_blocking(move || recording.finish(end)).await.map_err(io::Error::other).flatten() {
                Ok(path) => tracing::debug!(request_id = %id, path = %path.display(), "recorded"),
                Err(error) => tracing::warn!(request_id = %id, %error, "not recorded"),
            }
        });
    }
}

impl Observe for Box<Exchange> {
    fn on_data(&mut self, chunk: &Bytes) {
        let began = self.n_chunks.is_multiple_of(TIMED_EVERY).then(Instant::now);
        self.n_chunks = self.n_chunks.wrapping_add(1);
        if let Some(answer) = &mut self.answer {
            answer.bytes += chunk.len() as u64;
        }
        if let Some(edit) = &mut self.edit {
            edit.tap.watch(chunk);
        }
        if let Some(recording) = &mut self.recording {
            recording.push_chunk(self.sent.elapsed(), chunk);
        }
        if let (Some(began), Some(accounting)) = (began, &self.accounting) {
            accounting.metrics.observe_chunk(began.elapsed());
        }
    }

    fn on_end(mut self, end: AnswerEnd) {
        self.streaming = None;
        self.ended = Some(Instant::now());
        let needs_finish = self.edit.is_some() || self.conversation.is_some() || self.recording.is_some();
        if !needs_finish && !tracing::enabled!(Level::DEBUG) {
            return self.account(&TapReport::default(), end);
        }
        // The last bytes may not have been written to the socket yet; the task keeps this work from delaying them.
        let tasks = self.tasks.clone();
        tasks.spawn(async move { self.finish(end) });
    }
}

impl Drop for Exchange {
    /// Accounts for a request whose client disconnected before the answer: it gets its events, entry and recording, too.
    fn drop(&mut self) {
        if self.answer.is_none() {
            self.end_without_answer(AnswerEnd::ClientGone);
        }
    }
}

// === impl EditState ===

impl EditState {
    /// The changes by edit, as the header and the log write them; `None` without changes.
    fn counts(&self) -> Option<String> {
        self.report.as_ref().filter(|report| report.has_edits()).map(counts)
    }

    /// Adds the headers of an edited request, or of one that was sent twice. Other answers stay unchanged.
    fn put_headers(&self, id: RequestId, rescue: Option<RescueKind>, headers: &mut HeaderMap) {
        let edits = self.counts();
        if edits.is_none() && rescue.is_none() {
            return;
        }
        let report = self.report.as_ref();
        let beyond = report.and_then(|report| report.beyond_window);
        let fields = [
            (REQUEST_ID, Some(id.to_string())),
            (EDITS, edits),
            (RESCUE, rescue.map(|by| by.to_string())),
            (BEYOND_WINDOW, beyond.map(|window| window.to_string())),
            (TOKENS, report.and_then(tokens)),
            (DRY_RUN, self.dry_run.then(|| "true".to_owned())),
        ];
        set_fields(headers, fields);
    }
}

/// The changes by edit: `patch=1;clear=5`.
pub(super) fn counts(report: &Report) -> String {
    report.counts().into_iter().fold(String::new(), |mut text, (label, n)| {
        text.extend([if text.is_empty() { "" } else { ";" }, label, "=", &n.to_string()]);
        text
    })
}

/// The tokens before and after, where they were counted.
pub(super) fn tokens(report: &Report) -> Option<String> {
    Some(format!("{}->{}", report.tokens_before?, report.tokens_after?))
}
