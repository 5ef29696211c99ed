//! Seconds since 1970, who tells them, and expiry by age, with a clock that may be wrong.
//!
//! Uses are written in the system's time, as no other clock outlives a process, and the system's time can be set. So it is
//! trusted with two restrictions:
//!
//! - **No use is in the future.** A sweep sets a use that is later than now to now, in the file as well: it was noted before
//!   the clock was set back, and would otherwise keep its payload until the clock reaches it again, however full the store is.
//! - **A jump ahead is not trusted at once.** The clock was set, or the machine was asleep or off. So a sweep takes the ages
//!   that there were at the sweep before it: what is in use is used in the meantime, and a clock that was wrong for a moment
//!   has been set right. Size limits apply all the time.

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

// === expiry ===

/// The longest time between two sweeps.
const SWEEP_INTERVAL: Duration = Duration::from_mins(10);

/// How many sweeps happen at least within `keep_for`.
const MIN_SWEEPS: u32 = 8;

/// How long to wait between two sweeps.
pub(super) fn sweep_interval(keep_for: Duration) -> Duration {
    SWEEP_INTERVAL.min(keep_for / MIN_SWEEPS)
}

/// What was last used before this time has expired. Ages are those at the last sweep.
pub(super) fn cutoff(now: Time, last_sweep: Option<Time>, keep_for: Duration) -> Time {
    let trusted = last_sweep.map_or(now, |swept| now.min(swept));
    Time(trusted.0.saturating_sub(keep_for.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_future_time_was_zero_seconds_ago() {
        assert_eq!(Time(5).since(Time(3)), Duration::from_secs(2));
        assert_eq!(Time(3).since(Time(5)), Duration::ZERO);
    }

    const DAY: u64 = 86_400;

    #[test]
    fn the_sweep_interval_is_short_compared_to_keep_for() {
        let pause = |seconds| sweep_interval(Duration::from_secs(seconds)).as_secs();
        assert_eq!([pause(8 * DAY), pause(800), pause(0)], [600, 100, 0]);
    }
}
