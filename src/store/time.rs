//! Seconds since 1970, and who tells them.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::platform::since_1970;

/// Seconds since 1970.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Time(pub u64);

/// A source of the current time: the system's, or a test's.
#[derive(Clone, derive_more::Debug)]
#[debug("Clock")]
pub struct Clock(Arc<dyn Fn() -> Time + Send + Sync>);

// === impl Time, Clock ===

impl Time {
    /// The time this much later.
    pub(super) fn later(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by.as_secs()))
    }

    /// The time that has passed since `earlier`; zero if `earlier` is in the future.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_secs(self.0.saturating_sub(earlier.0))
    }
}

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Self::new(|| Time(since_1970().as_secs()))
    }

    /// A clock that `now` implements.
    pub fn new(now: impl Fn() -> Time + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The current time.
    pub fn now(&self) -> Time {
        (self.0)()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_future_time_was_zero_seconds_ago() {
        assert_eq!(Time(5).since(Time(3)), Duration::from_secs(2));
        assert_eq!(Time(3).since(Time(5)), Duration::ZERO);
    }
}
