//! The rules of `[keep_alive]`: when calls keep a prompt cache while a tool runs, and how many.

use std::time::Duration;

/// The calls after a request. All times are counted from when the request, or the call before, was sent: so a cache counts.
#[derive(Clone, Copy, Debug)]
pub struct CacheCalls {
    /// The pause before each call.
    pub after: Duration,
    /// How long a cache lives at least.
    pub lifetime: Duration,
    /// How many calls there are at most.
    pub most: u32,
}

impl CacheCalls {
    /// Shorter prompts are not kept, in tokens.
    pub const SHORTEST: u64 = 20_000;

    /// The calls of a request that asks for a cache of an hour, or else for one of five minutes, `after` which times each comes.
    pub const fn new(after: Duration, is_hour: bool) -> Self {
        if is_hour {
            return Self { after: Duration::from_mins(58), lifetime: Duration::from_hours(1), most: 2 };
        }
        Self { after, lifetime: Duration::from_mins(5), most: 4 }
    }

    /// The number of calls before the next request, which comes after a pause, and whether that finds the cache.
    pub fn within(self, pause: Duration) -> (usize, bool) {
        let calls = (1..=self.most).map(|n| self.after * n).take_while(|called| *called < pause);
        let last = calls.clone().last();
        (calls.count(), last.is_some_and(|called| pause < called + self.lifetime))
    }
}
