//! abridge: an OpenAI-compatible reverse proxy that edits the `messages` array in flight and leaves every other byte
//! alone.
//!
//! `ARCHITECTURE.md` says which modules may import which, and why. [`proxy`] describes the way of one request.

pub mod admin;
pub mod app;
pub mod body;
pub mod cli;
pub mod config;
pub mod conversation;
pub mod demo;
pub mod dialect;
pub mod draft;
pub mod edit;
pub mod engine;
pub mod events;
pub mod history;
pub mod inspect;
pub mod language;
pub mod metrics;
pub mod names;
pub mod payload;
pub mod plan;
pub mod planner;
pub mod proxy;
mod raw;
pub mod recall;
pub mod recording;
pub mod relay;
pub mod replay;
pub mod server;
pub mod simulate;
pub mod span;
pub mod store;
pub mod summary;
pub mod tasks;
pub mod telemetry;
pub mod tokens;
pub mod units;
pub mod upstream;
pub mod webhook;
