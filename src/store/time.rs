//! Seconds since 1970, who tells them, and expiry by age, with a clock that may be wrong.
//!
//! Uses are written in the system's time, as no other clock outlives a process, and the system's time can be set. So it is
//! trusted with two restrictions:
//!
//! - **No use is in the future.** A sweep sets a use that is later than now to now, in the file as well: it was noted before
//!   the clock was set back, and would otherwise keep its payload until the clock reaches it again, however full the store is.
//! - **A large jump is not trusted at once.** If the clock is far ahead of its last observation, it was set, or the machine was
//!   asleep or off. Until one sweep interval has passed, ages are judged by the last observation: what is in use is used in
//!   the meantime, and a clock that was wrong for a moment has been set right. Size limits apply all the time.

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

/// Decides which uses are too long ago.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expiry {
    keep_for: Duration,
    /// When the clock was last observed.
    pub(super) last_seen: Option<Time>,
    /// A jump of the clock that is not trusted yet.
    leap: Option<Leap>,
}

/// A jump of the clock.
#[derive(Clone, Copy, Debug)]
struct Leap {
    from: Time,
    to: Time,
}

/// The longest time between two sweeps; the clock is observed more often.
const SWEEP_INTERVAL: Duration = Duration::from_mins(10);

/// How many sweeps happen at least within `keep_for`.
const MIN_SWEEPS: u32 = 8;

impl Expiry {
    /// Expiry after `keep_for`; `last_seen` is when the clock was last observed, if that is known.
    pub(super) fn new(keep_for: Duration, last_seen: Option<Time>) -> Self {
        Self { keep_for, last_seen, leap: None }
    }

    /// How long to wait between two sweeps.
    pub(super) fn sweep_interval(&self) -> Duration {
        SWEEP_INTERVAL.min(self.keep_for / MIN_SWEEPS)
    }

    /// Observes the clock, and notes a jump.
    pub(super) fn observe(&mut self, now: Time) {
        let much = SWEEP_INTERVAL.max(self.keep_for / MIN_SWEEPS);
        if let Some(last_seen) = self.last_seen.filter(|last_seen| now.since(*last_seen) > much) {
            self.leap = Some(Leap { from: self.leap.map_or(last_seen, |leap| leap.from), to: now });
        }
        let pause = self.sweep_interval();
        self.leap = self.leap.filter(|leap| now >= leap.to && now.since(leap.to) < pause);
        self.last_seen = Some(now);
    }

    /// Declares the clock to be right.
    pub(super) fn trust(&mut self, now: Time) {
        (self.last_seen, self.leap) = (Some(now), None);
    }

    /// Returns what was last used before this time has expired.
    pub(super) fn cutoff(&self, now: Time) -> Time {
        let trusted = self.leap.map_or(now, |leap| leap.from);
        Time(trusted.0.saturating_sub(self.keep_for.as_secs()))
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

    const DAY: u64 = 86_400;

    #[test]
    fn a_clock_jump_is_trusted_after_one_sweep_interval() {
        let mut expiry = Expiry::new(Duration::from_secs(8 * DAY), None);
        let look = |expiry: &mut Expiry, now| {
            expiry.observe(Time(now));
            expiry.cutoff(Time(now)).0
        };
        let start = 1000 * DAY;
        assert_eq!(look(&mut expiry, start), start - 8 * DAY, "of the time before nothing is known");
        assert_eq!(look(&mut expiry, start + DAY), start - 7 * DAY);
        let leapt = start + 2 * DAY + 1;
        assert_eq!([look(&mut expiry, leapt), look(&mut expiry, leapt + 599)], [start - 7 * DAY; 2]);
        assert_eq!(look(&mut expiry, leapt + 600), leapt + 600 - 8 * DAY);
        for far in [2000 * DAY, 3000 * DAY] {
            assert_eq!(look(&mut expiry, far), leapt + 600 - 8 * DAY);
        }
        assert_eq!(look(&mut expiry, leapt + 700), leapt + 700 - 8 * DAY, "it was set right");
        assert_eq!(look(&mut expiry, 2000 * DAY), leapt + 700 - 8 * DAY);
        expiry.trust(Time(2000 * DAY));
        assert_eq!(expiry.cutoff(Time(2000 * DAY)), Time(1992 * DAY));
    }

    #[test]
    fn with_a_short_keep_for_each_minute_counts() {
        let mut expiry = Expiry::new(Duration::from_mins(2), None);
        for now in (6000..9000).step_by(60) {
            expiry.observe(Time(now));
            assert_eq!(expiry.cutoff(Time(now)), Time(now - 120));
        }
    }

    #[test]
    fn the_sweep_interval_is_short_compared_to_keep_for() {
        let pause = |seconds| Expiry::new(Duration::from_secs(seconds), None).sweep_interval().as_secs();
        assert_eq!([pause(8 * DAY), pause(800), pause(0)], [600, 100, 0]);
    }
}
