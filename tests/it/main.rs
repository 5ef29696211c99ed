//! The real binary, as its users run it.
#![expect(clippy::unwrap_used, reason = "a panic is a test's answer")]

mod config; // settings, and the commands that need no upstream
