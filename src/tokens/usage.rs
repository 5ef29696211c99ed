//! The bill of an upstream.

use serde::{Deserialize, Serialize};

use crate::units::prorated;

/// Tokens as billed.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Usage {
    /// Tokens of the request.
    pub input: u64,
    /// Those of them that the upstream's prompt cache served.
    pub cached: u64,
    /// Those of them that were written to the cache, where the upstream says so.
    pub written: u64,
    /// Those of the written ones that the cache keeps for an hour.
    pub written_hour: u64,
    /// Tokens of the answer.
    pub output: u64,
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        let Self { input, cached, written, written_hour, output } = other;
        for (sum, n) in [
            (&mut self.input, input),
            (&mut self.cached, cached),
            (&mut self.written, written),
            (&mut self.written_hour, written_hour),
            (&mut self.output, output),
        ] {
            *sum = sum.saturating_add(n);
        }
    }
}

impl Usage {
    /// The same answer to a request of so many tokens, of which a cache serves so many. Of the others, those are written to it that
    /// were: all but as many as were not, or none.
    #[must_use]
    pub fn with_input(self, input: u64, cached: u64) -> Self {
        let cached = cached.min(input);
        let new = input - cached;
        let not_written = self.input.saturating_sub(self.cached).saturating_sub(self.written);
        let written = if self.written == 0 { 0 } else { new.saturating_sub(not_written) };
        let written_hour = prorated(written, self.written_hour, self.written);
        Self { input, cached, written, written_hour, output: self.output }
    }

    /// The same answer to a request of so many tokens, of which the cache serves the same share.
    #[must_use]
    pub fn of_input(self, input: u64) -> Self {
        self.with_input(input, prorated(self.cached, input, self.input))
    }
}
