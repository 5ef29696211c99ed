//! The forms of a second try, how often each was made, and how often it helped.

use http::Response;

use crate::body::peek::PeekableBody;
use crate::metrics::Tally;
use crate::proxy::rescue_kind::RescueKind;

/// The outcomes of retries.
#[derive(Debug, Default)]
pub(in crate::proxy) struct RescueCounters {
    helped: Tally<RescueKind>,
    in_vain: Tally<RescueKind>,
}

impl RescueCounters {
    /// The kind of each retry, its outcome, and its count.
    pub(in crate::proxy) fn counts(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let both = self.helped.counts().zip(self.in_vain.counts());
        both.flat_map(|((kind, helped), (_, in_vain))| [(kind, "helped", helped), (kind, "in_vain", in_vain)])
    }

    /// Counts a retry that was made or could not be, and returns its answer. The first original that is accepted is logged
    /// as a warning, because an edit produced what the upstream refuses.
    pub(super) fn count(&self, by: RescueKind, helped: bool, answer: Response<PeekableBody>) -> Response<PeekableBody> {
        let count = if helped { self.helped.count(by) } else { self.in_vain.count(by) };
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
