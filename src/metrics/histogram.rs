//! The upper bounds of histograms' buckets, ascending. A last bucket without a bound is added.

pub use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::histogram::exponential_buckets;

/// Bounds for abridge's own latency: 10 µs to 10 s.
pub const OWN_TIMES: [f64; 18] =
    [1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// Bounds for the duration of a model's answer, as OpenTelemetry recommends: 10 ms to 82 s.
pub fn answer_times() -> impl Iterator<Item = f64> {
    exponential_buckets(0.01, 2.0, 14)
}

/// Bounds for numbers of tokens, as OpenTelemetry recommends: 1 to 4^13.
pub fn token_counts() -> impl Iterator<Item = f64> {
    exponential_buckets(1.0, 4.0, 14)
}
