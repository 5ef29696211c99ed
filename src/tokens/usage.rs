//! What an upstream bills.

use serde::{Deserialize, Serialize};

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
    /// The same usage of a request with so many tokens: the same share of them was served and written.
    #[must_use]
    pub fn of_input(self, input: u64) -> Self {
        let of = |tokens: u64| {
            let scaled = u128::from(tokens) * u128::from(input) / u128::from(self.input.max(1));
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        let [cached, written, written_hour] = [self.cached, self.written, self.written_hour].map(of);
        Self { input, cached, written, written_hour, ..self }
    }
}
