//! Helpers for the tests of all dialects.

pub(super) mod by_serde;
