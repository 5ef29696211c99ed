//! What is left of a request when it has ended: its line in the history, and what it adds to the metrics.

use std::future::Future;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{StatusCode, Uri};
use tokio::time::Instant;

use super::{Answered, Edit, Exchange};
use crate::dialect::Dialect;
use crate::history::{self, Entry, History, Outcome};
use crate::inspect::{Changes, short};
use crate::metrics::{AnswerUsage, Metrics, Route};
use crate::proxy::prefix::{Cache, Prompts};
use crate::proxy::respond::ProxyError;
use crate::relay::End;
use crate::relay::tap::Seen;

/// Where what has ended is written down.
#[derive(Debug)]
pub(in crate::proxy) struct Books {
    /// What the last requests were.
    pub(in crate::proxy) history: History,
    /// Numbers about all.
    pub(in crate::proxy) metrics: Metrics,
    /// How those began that were sent.
    pub(in crate::proxy) prompts: Prompts,
}

/// A request that is a conversation.
#[derive(Debug)]
pub(super) struct Conversation {
    pub(super) dialect: &'static dyn Dialect,
    pub(super) uri: Uri,
    pub(super) bytes: usize,
    pub(super) readable: bool,
    pub(super) cache: Cache,
}

/// Tells our share of the time.
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy) struct Stopwatch {
    began: Instant,
    others: Duration,
}

// === impl Stopwatch ===

impl Stopwatch {
    /// From now on.
    pub(in crate::proxy) fn start() -> Self {
        Self { began: Instant::now(), others: Duration::ZERO }
    }

    /// When that was.
    pub(super) fn began(&self) -> Instant {
        self.began
    }

    /// Does what the client has its share in: that does not count.
    pub(in crate::proxy) async fn stopped<F: Future>(&mut self, wait: F) -> F::Output {
        let began = Instant::now();
        let output = wait.await;
        self.others += began.elapsed();
        output
    }

    /// Now, and our share till now; what was `waited` for others besides does not count.
    pub(super) fn read(&self, waited: Duration) -> (Instant, Duration) {
        let now = Instant::now();
        (now, now.duration_since(self.began).saturating_sub(self.others + waited))
    }
}

// === impl Books ===

impl Books {
    /// A request got an answer of ours.
    pub(in crate::proxy) fn failed(&self, error: &ProxyError) {
        self.metrics.count_error(error.code());
        match error {
            ProxyError::TooManyRequests { .. } => self.metrics.count_shed("in_flight"),
            ProxyError::TooManyBytes => self.metrics.count_shed("memory"),
            _ => {}
        }
        match error {
            ProxyError::Upstream(_) => self.history.count_failed(),
            _ if error.status() == StatusCode::SERVICE_UNAVAILABLE => self.history.count_shed(),
            _ => self.history.count_refused(),
        }
    }
}

// === impl Exchange ===

impl Exchange {
    /// Writes down how it ended. Only the first time.
    pub(super) fn write_down(&mut self, seen: &Seen, end: history::AnswerEnd) {
        let Some(books) = self.books.take() else { return };
        let way = if self.edit.is_some() { Route::Edit } else { Route::Pass };
        books.metrics.observe_added(way, self.added);
        let Some(mut entry) = self.entry(seen, end) else { return books.history.count_passed() };
        if let Some(report) = self.edit.as_ref().and_then(|edit| edit.report.as_deref()) {
            if entry.outcome == Outcome::Edited {
                books.metrics.count_edits(report);
            }
            let is_answer = self.answer.is_some_and(|answer| answer.status.is_success());
            if is_answer && end == history::AnswerEnd::Complete {
                books.metrics.count_answer(&AnswerUsage {
                    model: entry.model.as_deref(),
                    duration: self.ended.unwrap_or_else(Instant::now).duration_since(self.sent),
                    billed: seen.usage.map(|usage| [usage.input, usage.cached, usage.output]),
                    predicted: entry.predicted_cached(),
                });
            }
        }
        entry.inspectable = self.inspecting.is_some();
        self.note_changes(&books.history);
        entry.seq = books.history.push(entry.clone());
        self.keep_messages(entry);
    }

    /// The share of its tokens that an earlier request began with, if tokens were counted.
    pub(super) fn met_before(&self) -> Option<f64> {
        let edit = self.edit.as_ref().filter(|edit| !edit.dry_run)?;
        let model = edit.report.as_ref()?.model.as_deref().unwrap_or_default();
        self.books.as_ref()?.prompts.meet(self.conversation.as_ref()?.cache, model, &edit.reads)
    }

    fn note_changes(&self, history: &History) {
        let report = self.edit.as_ref().and_then(|edit| edit.report.as_deref());
        if let Some(report) = report.filter(|report| !(report.changes.is_empty() && report.left_out.is_empty())) {
            history.note_changes(self.id.to_string(), Changes::of(report));
        }
    }

    /// Has its messages written, if they are kept. Nobody waits for that.
    fn keep_messages(&mut self, entry: Entry) {
        let Some(inspecting) = self.inspecting.take() else { return };
        // It is the last who asks for the report.
        let report = self.edit.as_mut().and_then(|edit| edit.report.take()).unwrap_or_default();
        let id = self.id;
        self.tasks.spawn(async move {
            if let Err(error) = inspecting.keep(entry, *report).await {
                tracing::debug!(request_id = %id, %error, "its messages are not kept");
            }
        });
    }

    /// The line in the history; none if it is no conversation.
    fn entry(&self, seen: &Seen, end: history::AnswerEnd) -> Option<Entry> {
        let Conversation { uri, bytes, readable, .. } = self.conversation.as_ref()?;
        let edit = self.edit.as_ref();
        let report = edit.and_then(|edit| edit.report.as_deref());
        let answer = self.answer.map(|Answered { status, after, .. }| (status.as_u16(), millis(after)));
        let ended = self.ended.unwrap_or_else(Instant::now);
        let total = ended.duration_since(self.watch.began);
        let ago = self.watch.began.elapsed();
        Some(Entry {
            seq: 0,
            id: self.id.to_string(),
            time: (now() - ago.as_secs_f64()).max(0.0),
            model: report.and_then(|report| report.model.as_deref()).map(short),
            path: short(uri.path()),
            outcome: edit.map_or(Outcome::Passed, |edit| edit.outcome(*readable)),
            edits: report.map(crate::plan::Report::counts).unwrap_or_default(),
            messages: report.map_or(0, |report| report.messages_before),
            bytes_before: report.map_or(*bytes, |report| report.bytes_before),
            bytes_after: report.map_or(*bytes, |report| report.bytes_after),
            tokens_before: report.and_then(|report| report.tokens_before),
            tokens_after: report.and_then(|report| report.tokens_after),
            offloaded_bytes: edit.map_or(0, |edit| edit.offloaded_bytes as u64),
            added_ms: millis(self.added),
            summary_ms: edit.and_then(|edit| edit.summary_time).map(millis),
            first_byte_ms: answer.map(|(_, after)| after),
            total_ms: millis(total),
            status: answer.map(|(status, _)| status),
            end,
            input_tokens: seen.usage.map(|usage| usage.input),
            cached_tokens: seen.usage.map(|usage| usage.cached),
            output_tokens: seen.usage.map(|usage| usage.output),
            prefix_kept: self.prefix_kept,
            stop_reason: seen.stop_reason.clone(),
            inspectable: false,
        })
    }
}

impl Edit {
    fn outcome(&self, readable: bool) -> Outcome {
        let changes = self.report.as_deref().map(|report| !report.changes.is_empty());
        match changes {
            Some(true) if self.dry_run => Outcome::WouldBeEdited,
            Some(true) => Outcome::Edited,
            None if !(readable && self.understood) => Outcome::NotUnderstood,
            Some(false) | None => Outcome::Unedited,
        }
    }
}

impl From<End> for history::AnswerEnd {
    fn from(end: End) -> Self {
        match end {
            End::Complete => Self::Complete,
            End::Cut => Self::Cut,
            End::ClientGone => Self::ClientGone,
        }
    }
}

// === helpers ===

/// Seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "people and other programs ask when a request came")]
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Milliseconds, to the microsecond.
fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}
