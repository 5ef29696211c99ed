//! The tests that look at abridge from outside, in one binary.

mod properties; // what holds for every conversation, whatever is wrong with it
mod support; // generators, validators, servers
