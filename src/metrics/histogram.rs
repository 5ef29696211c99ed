//! The bounds of histograms.

pub use prometheus_client::metrics::histogram::Histogram;

/// The upper bounds of a histogram's buckets, ascending. A last bucket without a bound is added.
pub type Bounds = &'static [f64];

/// Bounds for abridge's own latency: 10 µs to 10 s.
pub const OWN_TIMES: Bounds =
    &[1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// Bounds for the time of one chunk: 100 ns to 10 ms.
pub const CHUNK_TIMES: Bounds = &[1e-7, 2.5e-7, 5e-7, 1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 1e-4, 1e-3, 1e-2];

/// Bounds for the duration of a model's answer, as OpenTelemetry recommends.
pub const ANSWER_TIMES: Bounds =
    &[0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];

/// Bounds for numbers of tokens, as OpenTelemetry recommends.
pub const TOKEN_COUNTS: Bounds = &[
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1024.0,
    4096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// A histogram with these bounds.
pub fn with_bounds(bounds: Bounds) -> Histogram {
    Histogram::new(bounds.iter().copied())
}
