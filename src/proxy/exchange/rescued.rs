//! How a request that the upstream has refused was sent a second time.

use std::fmt;

/// How a request was rescued.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::proxy) enum Rescued {
    /// It was too long, and was made shorter.
    Overflow,
    /// It was edited, and was sent as it came.
    Original,
}

impl fmt::Display for Rescued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Overflow => "overflow",
            Self::Original => "original",
        })
    }
}
