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
