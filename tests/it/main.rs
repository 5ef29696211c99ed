//! The real binary, as its users run it, and the library, as it promises to be.
#![expect(clippy::expect_used, clippy::indexing_slicing, clippy::unwrap_used, reason = "a panic is a test's answer")]

mod config; // settings, and the commands that need no upstream
mod properties; // what holds for every conversation, whatever is wrong with it
mod support; // generators, validators, servers
