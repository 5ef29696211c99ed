//! The bytes that a plan takes in memory.

use bytes::Bytes;

use super::{Change, Plan, PromptSegment, Report, SkippedChange, Splice};

impl Plan {
    /// The bytes that it takes in memory, besides slices of the body.
    pub fn weight(&self) -> usize {
        // The overhead of an allocation.
        const EACH: usize = 64;
        if self.splices.is_empty() {
            return 0;
        }
        let Report { changes, left_out, .. } = &self.report;
        // A splice becomes two parts of a body, which are listed twice.
        let per_splice = size_of::<Splice>() + 4 * size_of::<Bytes>() + EACH;
        let splices: usize = self.splices.iter().map(|splice| per_splice + splice.with.len()).sum();
        let changes: usize = changes.iter().map(|change| size_of::<Change>() + 3 * EACH + change.call_id.len()).sum();
        let segments = self.segments.len() * size_of::<PromptSegment>();
        splices + changes + segments + left_out.len() * (size_of::<SkippedChange>() + 2 * EACH)
    }
}
