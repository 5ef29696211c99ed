//! The tests that look at abridge from outside, in one binary.
#![expect(clippy::expect_used, clippy::indexing_slicing, clippy::unwrap_used, reason = "a panic is a test's answer")]

mod properties; // what holds for every conversation, whatever is wrong with it
mod support; // generators, validators, servers
