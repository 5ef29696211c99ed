//! The metrics of the conventions for generative AI, and what edits have taken out.

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter};

use crate::metrics::{ANSWER_TIMES, TOKEN_COUNTS};

/// What requests are measured with.
#[derive(Debug)]
pub(super) struct Instruments {
    tokens: Histogram<u64>,
    duration: Histogram<f64>,
    removed: Counter<u64>,
}

/// The measures of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measures {
    /// Billed tokens of prompt and answer.
    pub(super) tokens: Option<[u64; 2]>,
    /// In seconds, from when it was sent to the end of its answer.
    pub(super) duration: f64,
    /// Tokens that edits have taken out.
    pub(super) removed: u64,
}

impl Instruments {
    pub(super) fn new(meter: &Meter) -> Self {
        Self {
            tokens: meter
                .u64_histogram("gen_ai.client.token.usage")
                .with_unit("{token}")
                .with_description("Tokens as billed")
                .with_boundaries(TOKEN_COUNTS.to_vec())
                .build(),
            duration: meter
                .f64_histogram("gen_ai.client.operation.duration")
                .with_unit("s")
                .with_description("From when a request was sent to the end of its answer")
                .with_boundaries(ANSWER_TIMES.to_vec())
                .build(),
            removed: meter
                .u64_counter("abridge.tokens.removed")
                .with_unit("{token}")
                .with_description("Tokens that edits have taken out of requests")
                .build(),
        }
    }

    pub(super) fn record(&self, measures: Measures, attributes: &[KeyValue]) {
        self.duration.record(measures.duration, attributes);
        for (kind, tokens) in ["input", "output"].into_iter().zip(measures.tokens.into_iter().flatten()) {
            let typed: Vec<_> = attributes.iter().cloned().chain([KeyValue::new("gen_ai.token.type", kind)]).collect();
            self.tokens.record(tokens, &typed);
        }
        if measures.removed > 0 {
            self.removed.add(measures.removed, attributes);
        }
    }
}
