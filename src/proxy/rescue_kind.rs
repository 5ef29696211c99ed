//! The forms of second attempts, by which they are counted and logged.

/// The form of the second attempt.
#[derive(Clone, Copy, Debug, Eq, PartialEq, strum::Display, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(super) enum RescueKind {
    /// The request was too long, and was shortened.
    Overflow,
    /// The request was sent without the reasoning before each pass, or without any.
    Reasoning,
    /// The request was brought into the form that the upstream had asked for.
    Form,
    /// The request was edited, and was sent as the client wrote it.
    Original,
}
