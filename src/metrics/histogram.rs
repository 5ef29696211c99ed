//! Histograms that cost a few relaxed additions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds of a histogram's buckets, ascending. Above the last there is one more.
pub type Bounds = &'static [f64];

/// Our own time: 10 µs to 10 s.
pub const SHORT: Bounds =
    &[1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// The time of one chunk: 100 ns to 10 ms.
pub const SHORTEST: Bounds = &[1e-7, 2.5e-7, 5e-7, 1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 1e-4, 1e-3, 1e-2];

/// The time of a model's answer, as OpenTelemetry advises.
pub const ANSWER: Bounds = &[0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];

/// Tokens, as OpenTelemetry advises.
pub const TOKENS: Bounds = &[
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

/// How often a value fell into each bucket. Of times it holds nanoseconds, and tells seconds.
#[derive(Debug)]
pub struct Histogram {
    bounds: Bounds,
    unit: Unit,
    buckets: Vec<AtomicU64>,
    sum: AtomicU64,
}

/// What its values are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Unit {
    Nanoseconds,
    One,
}

/// A histogram as it is at a moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The sum of all values.
    pub sum: f64,
    /// How many there are.
    pub count: u64,
    /// Each upper bound, and how many values are in its bucket alone.
    pub buckets: Vec<(f64, u64)>,
}

// === impl Histogram ===

impl Histogram {
    /// Of times.
    pub fn of_times(bounds: Bounds) -> Self {
        Self::new(bounds, Unit::Nanoseconds)
    }

    /// Of numbers.
    pub fn of_numbers(bounds: Bounds) -> Self {
        Self::new(bounds, Unit::One)
    }

    fn new(bounds: Bounds, unit: Unit) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, unit, buckets, sum: AtomicU64::new(0) }
    }

    /// Adds a time.
    pub fn time(&self, time: Duration) {
        self.add(time.as_secs_f64(), u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds a number.
    pub fn number(&self, n: u64) {
        self.add(float(n), n);
    }

    fn add(&self, value: f64, n: u64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        if let Some(bucket) = self.buckets.get(at) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.sum.fetch_add(n, Ordering::Relaxed);
    }

    /// How it is now.
    pub fn snapshot(&self) -> Snapshot {
        let counts: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let sum = float(self.sum.load(Ordering::Relaxed));
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        Snapshot {
            sum: if self.unit == Unit::Nanoseconds { sum / 1e9 } else { sum },
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
    fn a_value_is_in_the_bucket_whose_bound_it_does_not_pass() {
        let histogram = Histogram::of_numbers(&[1.0, 4.0]);
        for n in [0, 1, 2, 4, 5, 1000] {
            histogram.number(n);
        }
        let Snapshot { sum, count, buckets } = histogram.snapshot();
        assert_eq!((sum, count), (1012.0, 6));
        assert_eq!(buckets, [(1.0, 2), (4.0, 2), (f64::INFINITY, 2)]);
    }

    #[test]
    fn times_are_told_in_seconds() {
        let histogram = Histogram::of_times(&[0.001, 0.1]);
        histogram.time(Duration::from_millis(2));
        histogram.time(Duration::from_millis(500));
        let Snapshot { sum, count, buckets } = histogram.snapshot();
        assert!((sum - 0.502).abs() < 1e-9, "{sum}");
        assert_eq!((count, buckets.iter().map(|bucket| bucket.1).collect::<Vec<_>>()), (2, vec![0, 1, 1]));
    }
}
