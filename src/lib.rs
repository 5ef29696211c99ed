//! abridge: an OpenAI-compatible reverse proxy that edits the `messages` array in flight and leaves every other byte alone.
//!
//! The modules stand in reading order, from the rim to the core. `ARCHITECTURE.md` tells which may know which.

pub mod conversation;
pub mod dialect;
pub mod draft;
pub mod edit;
pub mod engine;
pub mod plan;
pub mod planner;
pub mod recording;
pub mod replay;
pub mod server;
pub mod span;
pub mod telemetry;
pub mod units;
pub mod upstream;
