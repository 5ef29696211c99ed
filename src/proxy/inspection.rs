//! What others see of an edited request: its events, one before it is sent upstream and one when its answer has ended; the part
//! of a recording that describes it; and the messages that are kept for `[inspect]`, held while the answer runs, compared and
//! written after it.

use std::mem;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;
use tokio::time::Instant;

use super::{Proxy, RequestId};
use crate::body::{Budget, Lease};
use crate::dialect::{AnswerEnd, Dialect};
use crate::engine::EditedBody;
use crate::events::{Edits, Event, EventKind, Events};
use crate::history::Entry;
use crate::inspect::{self, Changes, Content, Document};
use crate::ledger::Savings;
use crate::payload::{Caller, ChainKey};
use crate::plan::Report;
use crate::planner::Planner;
use crate::recording::{PlanInputs, RequestForm, SentRequest};
use crate::relay::tap::TapReport;
use crate::store::{Store, StoreError};
use crate::tasks::run_blocking;
use crate::tokens::Meter;
use crate::tokens::models::Source;

/// Captures messages of edited requests.
#[derive(Debug)]
pub(super) struct Inspector {
    store: Option<Arc<dyn Store>>,
    held: Budget,
}

/// The messages of one request before and after the edits. Dropping it keeps nothing.
#[derive(Debug)]
pub(super) struct PendingInspection {
    keep: usize,
    dialect: &'static dyn Dialect,
    before: Bytes,
    after: Vec<Bytes>,
    store: Arc<dyn Store>,
    _held: Lease,
}

/// The bytes that all pending inspections may hold together, besides `server.max_buffered`. A request that exceeds it is
/// not kept.
const MAX_HELD: usize = 64 << 20;

/// The reason in a document without messages.
const NO_MESSAGES: &str = "it has too many messages to keep them";

impl Inspector {
    pub(super) fn new(store: Option<Arc<dyn Store>>) -> Self {
        Self { store, held: Budget::new(MAX_HELD) }
    }

    /// Captures a request before and after the edits, if `keep` is not 0 and the request was changed.
    pub(super) fn capture(
        &self,
        keep: usize,
        dialect: &'static dyn Dialect,
        text: &Bytes,
        edited: &EditedBody,
    ) -> Option<Box<PendingInspection>> {
        if keep == 0 || !edited.changed() {
            return None;
        }
        let store = Arc::clone(self.store.as_ref()?);
        let held = self.held.lease(text.len() + edited.body.iter().map(Bytes::len).sum::<usize>())?;
        let (before, after) = (text.clone(), edited.body.clone());
        Some(Box::new(PendingInspection { keep, dialect, before, after, store, _held: held }))
    }
}

impl PendingInspection {
    /// Compares the messages and writes the document to the store.
    pub(super) async fn keep(self, entry: Entry, report: Report) -> Result<(), StoreError> {
        let Self { keep, dialect, before, after, store, _held } = self;
        let id = entry.id.clone();
        let compare = move || {
            let messages = inspect::messages(dialect, &before, &after.concat().into(), &report);
            let reason = messages.is_none().then(|| NO_MESSAGES.to_owned());
            let content = messages.map(|messages| Content { messages });
            serde_json::to_vec(&Document { request: &entry, changes: Changes::of(&report), content, reason })
        };
        let Ok(Ok(document)) = run_blocking(compare).await else { return Ok(()) };
        store.put_inspected(id, document.into(), keep).await
    }
}

impl Proxy {
    /// Notes the title of a conversation that has none yet, in a task, if `keep` is not 0.
    pub(super) fn note_title(
        &self,
        keep: usize,
        dialect: &'static dyn Dialect,
        text: &Bytes,
        conversation: Option<ChainKey>,
    ) {
        let history = &self.accounting.history;
        let Some(conversation) = conversation.filter(|name| keep > 0 && !history.has_title(*name)) else { return };
        let (text, history) = (text.clone(), history.clone());
        self.services.tasks.spawn(async move {
            if let Ok(title) = run_blocking(move || inspect::title(dialect, &text)).await {
                history.note_title(conversation, title.unwrap_or_default());
            }
        });
    }

    /// Removes stored requests beyond the present `inspect.keep`, in a task.
    pub fn trim_inspected(&self) {
        let keep = self.live.load().inspect.keep;
        if keep == 0 {
            self.accounting.history.forget_titles();
        }
        let Some(store) = self.inspector.store.clone() else { return };
        self.services.tasks.spawn(async move {
            if let Err(error) = store.trim_inspected(keep).await {
                tracing::warn!(%error, "requests beyond inspect.keep could not be removed from the store");
            }
        });
    }
}

/// Describes a request that is about to be sent in this form.
pub(super) fn sent_request(
    parts: &Parts,
    request: Bytes,
    edited: &EditedBody,
    form: RequestForm,
    planner: &Planner,
    dry_run: bool,
) -> SentRequest {
    let was_planned = edited.report.is_some() || edited.parse_error.is_some();
    let inputs = PlanInputs {
        form: if was_planned { form } else { RequestForm::Unedited },
        forms: planner.policy.forms(edited.report.as_ref().and_then(|report| report.model.as_deref())),
        windows: learned_window(edited, &planner.meter).into_iter().collect(),
        token_factor: edited.basis.counted.map(|counted| counted.factor),
        cold_passes: edited.basis.cold_passes.clone(),
        sent: edited.basis.sent.clone(),
        upstream: Some(planner.settings.upstream.clone()),
        not_stored: was_planned && edited.error.is_some(),
        ..PlanInputs::default()
    };
    SentRequest {
        target: parts.uri.clone(),
        request,
        rewritten: edited.changed().then(|| edited.body.clone()),
        dry_run,
        inputs,
        summary: edited.basis.summary.clone(),
        offloads: edited.offloads.clone(),
        answers: edited.basis.answers.clone(),
    }
}

/// The model and its window, if the plan used a window that the upstream reported.
fn learned_window(edited: &EditedBody, meter: &Meter) -> Option<(String, usize)> {
    let model = edited.report.as_ref()?.model.as_deref()?;
    let (window, _) = meter.models().find(model).window.filter(|(_, source)| *source == Source::Upstream)?;
    (edited.basis.window == Some(window)).then(|| (model.to_owned(), window))
}

/// An edited request whose end event is still to be published.
#[derive(Debug)]
pub(super) struct EditEvents {
    events: Events,
    request_id: String,
    caller: Caller,
    edits: Edits,
    sent: Instant,
}

impl EditEvents {
    /// Publishes the first event of a request that is edited, or would be in a dry run; `None` for another request, and if
    /// there is no subscriber.
    pub(super) fn begin(
        events: &Events,
        id: RequestId,
        caller: Caller,
        edited: &EditedBody,
        dry_run: bool,
    ) -> Option<Box<Self>> {
        let report = edited.report.as_ref().filter(|report| report.has_edits() && events.has_subscribers())?;
        let (request_id, edits) = (id.to_string(), Edits::of(report, dry_run));
        let this = Self { events: events.clone(), request_id, caller, edits, sent: Instant::now() };
        this.publish(EventKind::EditBefore(this.edits.clone()));
        Some(Box::new(this))
    }

    /// Publishes how the exchange ended, and what the edits have saved since the start.
    pub(super) fn end(
        mut self,
        status: Option<StatusCode>,
        end: AnswerEnd,
        tap_report: TapReport,
        savings: Option<Savings>,
    ) {
        let TapReport { stop_reason, usage, .. } = tap_report;
        let edits = mem::take(&mut self.edits);
        self.publish(EventKind::EditAfter {
            edits,
            status: status.map(|status| status.as_u16()),
            end,
            milliseconds: u64::try_from(self.sent.elapsed().as_millis()).unwrap_or(u64::MAX),
            stop_reason,
            usage,
            savings: savings.map(|savings| savings.to_string()),
        });
    }

    fn publish(&self, kind: EventKind) {
        self.events.publish(Event { request_id: Some(self.request_id.clone()), caller: Some(self.caller), kind });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect;
    use crate::plan::{Action, Change, Sizes};
    use crate::store::tests::memory::MemoryStore;
    use crate::store::{Clock, Settings};

    #[test]
    fn pending_inspections_are_bounded() {
        let inspector = Inspector::new(Some(Arc::new(MemoryStore::new(Settings::default(), Clock::system()))));
        let dialect = dialect::for_path("/v1/chat/completions").unwrap();
        let change = Change {
            edit: "patch",
            action: Action::Drop { message: 1 },
            call_id: String::new(),
            tool_name: None,
            bytes: Sizes::default(),
            tokens: None,
            handles: Vec::new(),
            why: None,
        };
        let text = Bytes::from(vec![b' '; MAX_HELD / 4]);
        let unchanged = EditedBody { report: Some(Report::default()), ..EditedBody::untouched(text.clone()) };
        let changed =
            EditedBody { report: Some(Report { changes: vec![change], ..Report::default() }), ..unchanged.clone() };
        let capture = |keep, edited: &EditedBody| inspector.capture(keep, dialect, &text, edited);
        assert!(capture(0, &changed).is_none() && capture(1, &unchanged).is_none());
        // Each request holds a quarter before and a quarter after the edits: two use the whole budget.
        let [first, second] = [capture(1, &changed), capture(1, &changed)];
        assert!(first.is_some() && second.is_some() && capture(1, &changed).is_none());
        drop(first);
        assert!(capture(1, &changed).is_some());
    }
}
