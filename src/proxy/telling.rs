//! Tells listeners of edited requests: when one goes upstream, and when its answer has ended.

use std::mem;

use http::StatusCode;
use tokio::time::Instant;

use crate::engine::EditedBody;
use crate::events::{AnswerEnd, Edits, Event, EventKind, Events};
use crate::payload::Caller;
use crate::relay::End;
use crate::relay::tap::Seen;

/// An edited request whose end is to be told.
#[derive(Debug)]
pub(super) struct Telling {
    events: Events,
    request_id: String,
    caller: Caller,
    edits: Edits,
    sent: Instant,
}

impl Telling {
    /// Tells of a request that is edited, or would be; `None` if it is neither.
    pub(super) fn begin(
        events: &Events,
        request_id: String,
        caller: Caller,
        edited: &EditedBody,
        dry_run: bool,
    ) -> Option<Self> {
        let report = edited.report.as_ref().filter(|report| !report.changes.is_empty())?;
        let edits = Edits::of(report, dry_run);
        let telling = Self { events: events.clone(), request_id, caller, edits, sent: Instant::now() };
        telling.publish(EventKind::EditBefore(telling.edits.clone()));
        Some(telling)
    }

    /// Tells how it ended.
    pub(super) fn end(mut self, status: Option<StatusCode>, end: AnswerEnd, seen: Seen) {
        let Seen { stop_reason, usage, .. } = seen;
        let edits = mem::take(&mut self.edits);
        self.publish(EventKind::EditAfter {
            edits,
            status: status.map(|status| status.as_u16()),
            end,
            milliseconds: u64::try_from(self.sent.elapsed().as_millis()).unwrap_or(u64::MAX),
            stop_reason,
            usage,
        });
    }

    fn publish(&self, kind: EventKind) {
        self.events.publish(Event { request_id: Some(self.request_id.clone()), caller: Some(self.caller), kind });
    }
}

impl From<End> for AnswerEnd {
    fn from(end: End) -> Self {
        match end {
            End::Complete => Self::Complete,
            End::Cut => Self::Cut,
            End::ClientGone => Self::ClientGone,
        }
    }
}
