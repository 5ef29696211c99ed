//! Conformance of stores, and a store in memory, for tests of any crate. Behind the feature `testing`.

pub mod conformance;
pub mod memory;
