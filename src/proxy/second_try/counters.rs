//! How often a second try was made, and how often it helped.

use std::sync::atomic::{AtomicU64, Ordering};

use http::Response;

use crate::body::peek::PeekableBody;
use crate::proxy::exchange::RescueKind;

/// The outcomes of retries.
#[derive(Debug, Default)]
pub(in crate::proxy) struct RescueCounters {
    overflow: OutcomeCounts,
    reasoning: OutcomeCounts,
    form: OutcomeCounts,
    original: OutcomeCounts,
}

#[derive(Debug, Default)]
struct OutcomeCounts {
    helped: AtomicU64,
    in_vain: AtomicU64,
}

impl RescueCounters {
    /// The kind of each retry, its outcome, and its count.
    pub(in crate::proxy) fn counts(&self) -> [(&'static str, &'static str, u64); 8] {
        let Self { overflow, reasoning, form, original } = self;
        [
            ("overflow", "helped", &overflow.helped),
            ("overflow", "in_vain", &overflow.in_vain),
            ("reasoning", "helped", &reasoning.helped),
            ("reasoning", "in_vain", &reasoning.in_vain),
            ("form", "helped", &form.helped),
            ("form", "in_vain", &form.in_vain),
            ("original", "helped", &original.helped),
            ("original", "in_vain", &original.in_vain),
        ]
        .map(|(rescue, outcome, count)| (rescue, outcome, count.load(Ordering::Relaxed)))
    }

    /// Counts a retry that was made or could not be, and returns its answer. The first original that is accepted is logged
    /// as a warning, because an edit produced what the upstream refuses.
    pub(super) fn count(&self, by: RescueKind, helped: bool, answer: Response<PeekableBody>) -> Response<PeekableBody> {
        let outcomes = match by {
            RescueKind::Overflow => &self.overflow,
            RescueKind::Reasoning => &self.reasoning,
            RescueKind::Form => &self.form,
            RescueKind::Original => &self.original,
        };
        let counter = if helped { &outcomes.helped } else { &outcomes.in_vain };
        let count = counter.fetch_add(1, Ordering::Relaxed) + 1;
        if helped && by == RescueKind::Original && count == 1 {
            tracing::warn!(
                "the upstream refused an edited request and accepted the original; more of this kind are logged at debug"
            );
        } else {
            tracing::debug!(rescue = %by, helped, count, "the upstream refused a request");
        }
        answer
    }
}
