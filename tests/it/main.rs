//! The real binary, as its users run it.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic is a test's answer"
)]

mod config; // settings, and the commands that need no upstream
