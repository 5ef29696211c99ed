//! What the tests of all dialects share.

pub(super) mod by_serde;
