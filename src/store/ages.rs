//! What is too old, by a clock that may be wrong.
//!
//! Uses are written down in the time of the machine, as nothing else outlives a process, and that time can be set. So it is
//! trusted in two ways only:
//!
//! - **Nothing was used later than now.** What a sweep finds to be so was used before the clock was set back. It counts as used
//!   now, and that is written down; else it would stay till the clock is there again, however full the store is.
//! - **Much time at once may be none.** Where the clock is far ahead of when it was last looked at, it was set, or the machine
//!   was asleep or off, and nobody can tell. Then ages are judged by that last time until one pause between two sweeps is
//!   over: what is in use is used in the meantime, and a clock that is wrong for a moment has been set right. Sizes are judged
//!   all the time.

use std::time::Duration;

use super::Time;

/// Which uses are too long ago.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ages {
    keep_for: Duration,
    /// When the clock was last looked at.
    seen: Option<Time>,
    /// A leap, till the clock is trusted again.
    leap: Option<Leap>,
}

/// From when to when the clock went at once.
#[derive(Clone, Copy, Debug)]
struct Leap {
    from: Time,
    to: Time,
}

/// The house is swept no more often, and the clock is looked at more often.
const SWEEP_PAUSE: Duration = Duration::from_mins(10);

/// It is swept at least so many times while a payload is kept.
const SWEEPS: u32 = 8;

impl Ages {
    /// Ages by the setting, and by when the clock was last looked at, if that is known.
    pub(super) fn new(keep_for: Duration, seen: Option<Time>) -> Self {
        Self { keep_for, seen, leap: None }
    }

    /// How long to wait between two sweeps.
    pub(super) fn pause(&self) -> Duration {
        SWEEP_PAUSE.min(self.keep_for / SWEEPS)
    }

    /// The clock is looked at.
    pub(super) fn look(&mut self, now: Time) {
        let much = SWEEP_PAUSE.max(self.keep_for / SWEEPS);
        if let Some(seen) = self.seen.filter(|seen| now.since(*seen) > much) {
            self.leap = Some(Leap { from: self.leap.map_or(seen, |leap| leap.from), to: now });
        }
        let pause = self.pause();
        self.leap = self.leap.filter(|leap| now >= leap.to && now.since(leap.to) < pause);
        self.seen = Some(now);
    }

    /// The clock is right: somebody says so.
    pub(super) fn trust(&mut self, now: Time) {
        (self.seen, self.leap) = (Some(now), None);
    }

    /// What was not used since then is too old.
    pub(super) fn oldest(&self, now: Time) -> Time {
        let trusted = self.leap.map_or(now, |leap| leap.from);
        Time(trusted.0.saturating_sub(self.keep_for.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;

    #[test]
    fn a_leap_is_trusted_a_pause_later() {
        let mut ages = Ages::new(Duration::from_secs(8 * DAY), None);
        let look = |ages: &mut Ages, now| {
            ages.look(Time(now));
            ages.oldest(Time(now)).0
        };
        let start = 1000 * DAY;
        assert_eq!(look(&mut ages, start), start - 8 * DAY, "of the time before nothing is known");
        assert_eq!(look(&mut ages, start + DAY), start - 7 * DAY);
        let leapt = start + 2 * DAY + 1;
        assert_eq!([look(&mut ages, leapt), look(&mut ages, leapt + 599)], [start - 7 * DAY; 2]);
        assert_eq!(look(&mut ages, leapt + 600), leapt + 600 - 8 * DAY);
        for far in [2000 * DAY, 3000 * DAY] {
            assert_eq!(look(&mut ages, far), leapt + 600 - 8 * DAY);
        }
        assert_eq!(look(&mut ages, leapt + 700), leapt + 700 - 8 * DAY, "it was set right");
        assert_eq!(look(&mut ages, 2000 * DAY), leapt + 700 - 8 * DAY);
        ages.trust(Time(2000 * DAY));
        assert_eq!(ages.oldest(Time(2000 * DAY)), Time(1992 * DAY));
    }

    #[test]
    fn what_is_kept_for_minutes_is_judged_each_minute() {
        let mut ages = Ages::new(Duration::from_mins(2), None);
        for now in (6000..9000).step_by(60) {
            ages.look(Time(now));
            assert_eq!(ages.oldest(Time(now)), Time(now - 120));
        }
    }

    #[test]
    fn a_pause_is_short_beside_what_it_waits_for() {
        let pause = |seconds| Ages::new(Duration::from_secs(seconds), None).pause().as_secs();
        assert_eq!([pause(8 * DAY), pause(800), pause(0)], [600, 100, 0]);
    }
}
