//! What abridge knows of one request and its answer while both pass: for headers, the log line and the recording.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Uri};
use http_body_util::Full;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tracing::Level;

use super::headers;
use super::inspecting::Inspecting;
use super::prefix::Cache;
use super::telling::Telling;
use super::tunnel::Tunnel;
use crate::dialect::Dialect;
use crate::engine::{EditedBody, EngineError};
use crate::events::AnswerEnd;
use crate::history;
use crate::metrics::StreamGuard;
use crate::plan::{Report, Stretch};
use crate::recording::{Recorder, Recording, ResponseEnd, SentRequest};
use crate::relay::tap::{Seen, Tap};
use crate::relay::{End, Observe};
use crate::tasks::{Tasks, blocking};

mod entry;
mod line;
mod rescued;

use entry::Conversation;
pub(super) use entry::{Books, Stopwatch};
use line::Line;
pub(super) use rescued::Rescued;

/// The id of an edited request, so that a client's log and ours can be laid side by side.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-abridge-request-id");
/// What was edited: `patch=1`.
pub(super) const EDITS: HeaderName = HeaderName::from_static("x-abridge-edits");
/// The tokens of messages and tools as they came and as they went on: `131072->24110`. Only where they were counted.
pub(super) const TOKENS: HeaderName = HeaderName::from_static("x-abridge-tokens");
/// The upstream refused the request first, and this is the answer to another form of it: `overflow` or `original`.
pub(super) const RESCUE: HeaderName = HeaderName::from_static("x-abridge-rescue");
/// The edits were reported and not made.
pub(super) const DRY_RUN: HeaderName = HeaderName::from_static("x-abridge-dry-run");

/// Of so many chunks one is timed, beginning with the first.
const TIMED: u32 = 16;

/// One request and its answer.
#[derive(Debug)]
pub struct Exchange {
    /// The client's wish to change the protocol.
    pub(super) tunnel: Option<Tunnel>,
    /// How it was sent a second time, if that is what is answered.
    pub(super) rescued: Option<Rescued>,
    /// Its messages, if they are kept.
    pub(super) inspecting: Option<Inspecting>,
    id: RequestId,
    watch: Stopwatch,
    sent: Instant,
    added: Duration,
    // Taken when the end is written down, so that it is once.
    books: Option<Arc<Books>>,
    conversation: Option<Conversation>,
    // While the answer is on its way.
    streaming: Option<StreamGuard>,
    n_chunks: u32,
    ended: Option<Instant>,
    prefix_kept: Option<f64>,
    answer: Option<Answered>,
    edit: Option<Edit>,
    recording: Option<Recording>,
    /// Set if the request is edited, and somebody listens.
    pub(super) telling: Option<Telling>,
    tasks: Tasks,
    // Given back when the answer has ended.
    in_flight: Option<OwnedSemaphorePermit>,
}

/// What became of a conversation.
#[derive(Debug)]
struct Edit {
    tap: Tap,
    report: Option<Box<Report>>,
    dry_run: bool,
    report_headers: bool,
    understood: bool,
    summary_time: Option<Duration>,
    offloaded_bytes: usize,
    reads: Vec<Stretch>,
}

#[derive(Clone, Copy, Debug)]
struct Answered {
    status: StatusCode,
    after: Duration,
    bytes: u64,
}

/// Names one request of this process. Not to be guessed from another one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct RequestId(u64);

/// Makes request ids.
#[derive(Debug, Default)]
pub(super) struct RequestIds {
    key: RandomState,
    next: AtomicU64,
}

// === impl Exchange ===

impl Exchange {
    /// A request that is about to be sent.
    pub(super) fn new(
        id: RequestId,
        in_flight: OwnedSemaphorePermit,
        tasks: Tasks,
        books: Arc<Books>,
        watch: Stopwatch,
    ) -> Self {
        Self {
            tunnel: None,
            rescued: None,
            inspecting: None,
            id,
            watch,
            sent: watch.began(),
            added: Duration::ZERO,
            books: Some(books),
            conversation: None,
            streaming: None,
            n_chunks: 0,
            ended: None,
            prefix_kept: None,
            answer: None,
            edit: None,
            recording: None,
            telling: None,
            tasks,
            in_flight: Some(in_flight),
        }
    }

    /// Names the request.
    pub(super) fn id(&self) -> RequestId {
        self.id
    }

    /// Notes what the edits did, for the answer's headers and the log.
    pub(super) fn edited(&mut self, edited: EditedBody, dry_run: bool, report_headers: bool) {
        let understood = edited.parse_error.is_none() && !matches!(edited.error, Some(EngineError::Panic));
        let EditedBody { report, summary_time, offloaded_bytes, reads, .. } = edited;
        let (tap, report) = (Tap::default(), report.map(Box::new));
        self.edit =
            Some(Edit { tap, report, dry_run, report_headers, understood, summary_time, offloaded_bytes, reads });
    }

    /// It is a conversation in this dialect, of so many bytes as it came, for that prompt cache; `readable` if its coding
    /// could be undone.
    pub(super) fn converses(
        &mut self,
        dialect: &'static dyn Dialect,
        uri: &Uri,
        bytes: usize,
        readable: bool,
        cache: Cache,
    ) {
        self.conversation = Some(Conversation { dialect, uri: uri.clone(), bytes, readable, cache });
    }

    /// It is handed to the upstream's pool now.
    pub(super) fn goes(&mut self) {
        let waited = self.edit.as_ref().and_then(|edit| edit.summary_time).unwrap_or_default();
        (self.sent, self.added) = self.watch.read(waited);
    }

    /// Begins to record what `sent` says, if that is asked for and there is room. What was begun before is forgotten.
    pub(super) fn record<'a>(&mut self, recorder: Option<&Recorder>, sent: impl FnOnce() -> SentRequest<'a>) {
        let Some(recorder) = recorder else { return };
        self.recording = None;
        self.recording = recorder.begin(&self.id.to_string(), sent());
        if self.recording.is_none() {
            tracing::warn!(request_id = %self.id, "not recorded: the unfinished recordings hold all the memory they may");
        }
    }

    /// The head of the answer is here.
    pub(super) fn answered<B>(&mut self, response: &mut Response<B>) {
        let status = response.status();
        self.streaming = self.books.as_ref().map(|books| books.metrics.start_stream());
        self.answer = Some(Answered { status, after: self.sent.elapsed(), bytes: 0 });
        if let Some(recording) = &mut self.recording {
            recording.begin_response(status, response.headers());
        }
        if let Some(edit) = &mut self.edit {
            edit.tap = self
                .conversation
                .as_ref()
                .map_or_else(Tap::default, |conversation| Tap::new(conversation.dialect, response.headers()));
            edit.put_headers(self.id, self.rescued, response.headers_mut());
        }
    }

    /// The upstream gave no answer.
    pub(super) fn failed(&mut self) {
        self.write_down(&Seen::default(), history::AnswerEnd::Unanswered);
        self.tell_end(AnswerEnd::Unanswered, Seen::default());
        self.finish_recording(End::Cut);
    }

    /// The connection changes to another protocol: the answer is its head, and bytes flow both ways behind it.
    pub(super) fn switch<B>(mut self, mut response: Response<B>) -> Response<Full<Bytes>> {
        let upstream = hyper::upgrade::on(&mut response);
        let protocol = headers::upgrade(response.headers());
        headers::to_client(response.headers_mut());
        if let Some(protocol) = protocol {
            headers::set_upgrade(response.headers_mut(), protocol);
        }
        if let Some(tunnel) = self.tunnel.take() {
            let tasks = self.tasks.clone();
            tasks.spawn(async move {
                tunnel.join(upstream).await;
                // Till here the tunnel was a request in flight.
                drop(self);
            });
        }
        response.map(|_| Full::default())
    }

    /// One line a request: for edited ones at info, for the others at debug. Never content, never a key.
    fn log(&self, seen: &Seen, end: End) {
        let Some(Answered { status, after, bytes }) = self.answer else { return };
        let (status, first_byte_ms) = (status.as_u16(), millis(after));
        let Some(edit) = &self.edit else {
            return tracing::debug!(request_id = %self.id, status, first_byte_ms, bytes_answered = bytes, ?end, "passed");
        };
        let Seen { stop_reason, usage, overflowed } = seen;
        let report = edit.report.as_deref();
        let (bytes_in, bytes_out) = report.map_or((0, 0), |report| (report.bytes_before, report.bytes_after));
        macro_rules! line {
            ($level:ident, $outcome:literal, $edits:expr, $message:expr) => {
                tracing::$level!(
                    request_id = %self.id,
                    outcome = $outcome,
                    edits = $edits,
                    rescue = self.rescued.map(tracing::field::display),
                    model = report.and_then(|report| report.model.as_deref()),
                    bytes_in,
                    bytes_out,
                    tokens_in = report.and_then(|report| report.tokens_before),
                    tokens_out = report.and_then(|report| report.tokens_after),
                    left_out = report.map(|report| report.left_out.len()).filter(|n| *n > 0),
                    status,
                    first_byte_ms,
                    bytes_answered = bytes,
                    ?end,
                    stop_reason = stop_reason.as_deref(),
                    input_tokens = usage.map(|usage| usage.input),
                    cached_tokens = usage.map(|usage| usage.cached),
                    output_tokens = usage.map(|usage| usage.output),
                    tap_overflowed = overflowed.then_some(true),
                    added_ms = millis(self.added),
                    summary_ms = edit.summary_time.map(millis),
                    offloaded_bytes = (edit.offloaded_bytes > 0).then_some(edit.offloaded_bytes),
                    prefix_kept = self.prefix_kept.map(|share| (share * 1000.0).round() / 1000.0),
                    "{}", $message
                )
            };
        }
        let sentence = || report.map(|report| self.sentence(edit, report)).unwrap_or_default();
        match edit.counts() {
            None if self.rescued.is_some() => line!(info, "unedited", None::<&str>, "unedited"),
            None => line!(debug, "unedited", None::<&str>, "unedited"),
            Some(edits) if edit.dry_run => line!(info, "would_be_edited", Some(edits.as_str()), sentence()),
            Some(edits) => line!(info, "edited", Some(edits.as_str()), sentence()),
        }
    }

    /// What was done, for people.
    fn sentence(&self, edit: &Edit, report: &Report) -> String {
        let Edit { dry_run, summary_time, offloaded_bytes, .. } = *edit;
        let (id, added, prefix_kept) = (self.id, self.added, self.prefix_kept);
        Line { id, report, dry_run, offloaded_bytes, added, summary_time, prefix_kept }.text()
    }

    /// All that is done when nothing more comes.
    fn finish(mut self, end: End) {
        self.in_flight = None;
        self.prefix_kept = self.met_before();
        let seen = self.edit.as_mut().map(|edit| mem::take(&mut edit.tap).finish()).unwrap_or_default();
        self.tell_end(end.into(), seen.clone());
        self.finish_recording(end);
        self.log(&seen, end);
        self.write_down(&seen, end.into());
    }

    fn tell_end(&mut self, end: AnswerEnd, seen: Seen) {
        if let Some(telling) = self.telling.take() {
            telling.end(self.answer.map(|answer| answer.status), end, seen);
        }
    }

    /// Writes the recording, beside the request: nobody waits for a disk.
    fn finish_recording(&mut self, end: End) {
        let Some(recording) = self.recording.take() else { return };
        let ended = match end {
            End::Complete => ResponseEnd::Complete,
            End::Cut => ResponseEnd::UpstreamCut,
            End::ClientGone => ResponseEnd::ClientGone,
        };
        let id = self.id;
        self.tasks.spawn(async move {
            match blocking(move || recording.finish(ended)).await {
                Ok(Ok(path)) => tracing::debug!(request_id = %id, path = %path.display(), "recorded"),
                Ok(Err(error)) => tracing::warn!(request_id = %id, %error, "not recorded"),
                Err(error) => tracing::warn!(request_id = %id, %error, "not recorded"),
            }
        });
    }
}

impl Observe for Exchange {
    fn on_data(&mut self, chunk: &Bytes) {
        let began = self.n_chunks.is_multiple_of(TIMED).then(Instant::now);
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
        if let (Some(began), Some(books)) = (began, &self.books) {
            books.metrics.observe_chunk(began.elapsed());
        }
    }

    fn on_end(mut self, end: End) {
        self.streaming = None;
        self.ended = Some(Instant::now());
        let is_told = self.edit.is_some() || self.conversation.is_some() || self.recording.is_some();
        if !is_told && !tracing::enabled!(Level::DEBUG) {
            return self.write_down(&Seen::default(), end.into());
        }
        // The last bytes are still on their way to the socket, and nobody who waits for them shall wait for this.
        let tasks = self.tasks.clone();
        tasks.spawn(async move { self.finish(end) });
    }
}

impl Drop for Exchange {
    /// A request whose client did not wait for an answer is told of and recorded too: it is the one somebody will ask about.
    fn drop(&mut self) {
        if self.answer.is_none() {
            self.write_down(&Seen::default(), history::AnswerEnd::ClientGone);
            self.tell_end(AnswerEnd::ClientGone, Seen::default());
            self.finish_recording(End::ClientGone);
        }
    }
}

// === impl Edit ===

impl Edit {
    /// What was edited, as the header and the log write it; `None` if nothing was.
    fn counts(&self) -> Option<String> {
        Some(counts(self.report.as_ref()?)).filter(|counts| !counts.is_empty())
    }

    /// The headers of an edited request, or one that was sent twice. An answer to another one stays as the upstream made it.
    fn put_headers(&self, id: RequestId, rescued: Option<Rescued>, headers: &mut HeaderMap) {
        let edits = self.counts();
        if !self.report_headers || edits.is_none() && rescued.is_none() {
            return;
        }
        let values = [(REQUEST_ID, Some(id.to_string())), (EDITS, edits), (RESCUE, rescued.map(|by| by.to_string()))];
        for (name, value) in values {
            if let Some(Ok(value)) = value.map(HeaderValue::try_from) {
                headers.insert(name, value);
            }
        }
        let tokens = self.report.as_deref().and_then(tokens);
        if let Some(Ok(tokens)) = tokens.map(HeaderValue::try_from) {
            headers.insert(TOKENS, tokens);
        }
        if self.dry_run {
            headers.insert(DRY_RUN, HeaderValue::from_static("true"));
        }
    }
}

/// What was edited: `patch=1;clear=5`.
pub(super) fn counts(report: &Report) -> String {
    let each: Vec<String> = report.counts().into_iter().map(|(label, n)| format!("{label}={n}")).collect();
    each.join(";")
}

/// The tokens before and after, where they were counted.
pub(super) fn tokens(report: &Report) -> Option<String> {
    Some(format!("{}->{}", report.tokens_before?, report.tokens_after?))
}

// === impl RequestIds ===

impl RequestIds {
    /// An id that this process has not given out before.
    pub(super) fn next(&self) -> RequestId {
        RequestId(self.key.hash_one(self.next.fetch_add(1, Ordering::Relaxed)))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "req_{:016x}", self.0)
    }
}

fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 10_000.0).round() / 10.0
}
