//! What tests of any crate need: what every store must do, and a store in memory. Behind the feature `testing`.

pub mod conformance;
pub mod memory;
