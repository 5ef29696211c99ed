//! Histograms whose observations cost a few relaxed additions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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

/// A histogram. Times are summed in nanoseconds and reported in seconds.
#[derive(Debug)]
pub struct Histogram {
    bounds: Bounds,
    // The reported value of one counted unit.
    scale: f64,
    buckets: Vec<AtomicU64>,
    sum: AtomicU64,
}

/// The state of a histogram at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The sum of all values.
    pub sum: f64,
    /// The number of values.
    pub count: u64,
    /// Each upper bound with the number of values in its bucket alone.
    pub buckets: Vec<(f64, u64)>,
}

// === impl Histogram ===

impl Histogram {
    /// A histogram of times.
    pub fn of_times(bounds: Bounds) -> Self {
        Self::new(bounds, 1e9)
    }

    /// A histogram of numbers.
    pub fn of_numbers(bounds: Bounds) -> Self {
        Self::new(bounds, 1.0)
    }

    fn new(bounds: Bounds, scale: f64) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, scale, buckets, sum: AtomicU64::new(0) }
    }

    /// Observes a time.
    pub fn observe_time(&self, time: Duration) {
        self.add(time.as_secs_f64(), u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Observes a number.
    pub fn observe_number(&self, n: u64) {
        self.add(float(n), n);
    }

    fn add(&self, value: f64, n: u64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        if let Some(bucket) = self.buckets.get(at) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.sum.fetch_add(n, Ordering::Relaxed);
    }

    /// The current state.
    pub fn snapshot(&self) -> Snapshot {
        let counts: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        Snapshot {
            sum: float(self.sum.load(Ordering::Relaxed)) / self.scale,
            count: counts.iter().sum(),
            buckets: bounds.zip(counts).collect(),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a sum that is not exact to the last of 2^53 is good enough")]
fn float(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fall_into_the_first_bucket_with_a_bound_at_least_as_large() {
        let histogram = Histogram::of_numbers(&[1.0, 4.0]);
        for n in [0, 1, 2, 4, 5, 1000] {
            histogram.observe_number(n);
        }
        let Snapshot { sum, count, buckets } = histogram.snapshot();
        assert_eq!((sum, count), (1012.0, 6));
        assert_eq!(buckets, [(1.0, 2), (4.0, 2), (f64::INFINITY, 2)]);
    }

    #[test]
    fn times_are_reported_in_seconds() {
        let histogram = Histogram::of_times(&[0.001, 0.1]);
        histogram.observe_time(Duration::from_millis(2));
        histogram.observe_time(Duration::from_millis(500));
        let Snapshot { sum, count, buckets } = histogram.snapshot();
        assert!((sum - 0.502).abs() < 1e-9, "{sum}");
        assert_eq!((count, buckets.iter().map(|bucket| bucket.1).collect::<Vec<_>>()), (2, vec![0, 1, 1]));
    }
}
