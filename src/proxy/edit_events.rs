//! Publishes the events of an edited request: one before it is sent upstream, and one when its answer has ended.

use std::mem;

use http::StatusCode;
use tokio::time::Instant;

use super::request_head::RequestId;
use crate::dialect::AnswerEnd;
use crate::engine::EditedBody;
use crate::events::{Edits, Event, EventKind, Events};
use crate::ledger::Savings;
use crate::payload::Caller;
use crate::relay::tap::TapReport;

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
        let report = edited.report.as_ref().filter(|report| events.has_subscribers() && report.has_edits())?;
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
