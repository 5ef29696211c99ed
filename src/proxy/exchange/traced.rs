//! The trace of an exchange: begun when the request is sent, ended when it is accounted for.

use std::time::SystemTime;

use http::HeaderMap;
use tokio::time::Instant;

use super::Exchange;
use crate::history::Entry;
use crate::otel::{Exporter, RequestTrace};

/// A trace, and when its request was sent.
#[derive(Debug)]
pub(super) struct Traced {
    trace: RequestTrace,
    sent: Moment,
}

/// One moment in both clocks, by which times of the one become those of the other.
#[derive(Clone, Copy, Debug)]
struct Moment {
    instant: Instant,
    time: SystemTime,
}

impl Exchange {
    /// Begins the trace of a request that was planned and is to be sent, if traces are sent. Its header names the trace.
    pub(in crate::proxy) fn begin_trace(&mut self, exporter: Option<&Exporter>, headers: &mut HeaderMap) {
        let Some((exporter, conversation)) = exporter.zip(self.conversation.as_ref()) else { return };
        let sent = Moment::now();
        let trace = exporter.begin(&conversation.path, sent.time_of(self.timer.began()), sent.time, headers);
        self.traced = Some(Box::new(Traced { trace, sent }));
    }

    /// Ends the trace.
    pub(super) fn end_trace(&mut self, entry: &Entry) {
        let Some((traced, conversation)) = self.traced.take().zip(self.conversation.as_ref()) else { return };
        let Traced { trace, sent } = *traced;
        let began = self.timer.began();
        let read = self.timer.body_read().unwrap_or(began);
        let span = |name, began: Instant, ended: Instant| (name, sent.time_of(began), sent.time_of(ended));
        let mut steps = vec![span("read", began, read), span("plan", read, sent.instant)];
        let waits = self.edit.iter().flat_map(|edit| edit.waits.iter());
        steps.extend(waits.map(|wait| span(wait.cause.label(), wait.began, wait.began + wait.took)));
        let at = sent.time_of(self.ended.unwrap_or_else(Instant::now));
        trace.end(entry, conversation.dialect.provider(), &steps, sent.time, at);
    }
}

// === impl Moment ===

impl Moment {
    #[expect(clippy::disallowed_methods, reason = "spans have the time of their request")]
    fn now() -> Self {
        Self { instant: Instant::now(), time: SystemTime::now() }
    }

    fn time_of(&self, instant: Instant) -> SystemTime {
        self.time - self.instant.saturating_duration_since(instant) + instant.saturating_duration_since(self.instant)
    }
}
