//! The forms in which a refused request is sent a second time.

use std::fmt;

/// The form of the second attempt.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::proxy) enum RescueKind {
    /// The request was too long, and was shortened.
    Overflow,
    /// The request was sent without the reasoning before each pass, or without any.
    Reasoning,
    /// The request was brought into the form that the upstream had asked for.
    Form,
    /// The request was edited, and was sent as the client wrote it.
    Original,
}

impl fmt::Display for RescueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Overflow => "overflow",
            Self::Reasoning => "reasoning",
            Self::Form => "form",
            Self::Original => "original",
        })
    }
}
