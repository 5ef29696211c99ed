//! abridge: a reverse proxy between agents and models that repairs and shortens the conversation of a request in flight, and
//! leaves every other byte alone.
//!
//! `ARCHITECTURE.md` says which modules may import which, and why. [`proxy`] describes the way of one request.
//!
//! # Edit a body
//!
//! What edits a body needs no runtime, no file and no network:
//!
//! ```
//! use abridge_proxy::dialect;
//! use abridge_proxy::engine::edit_body;
//! use abridge_proxy::planner::{PlanSettings, Planner};
//!
//! let body = r#"{"model":"m","messages":[{"role":"user","content":"list"},
//!     {"role":"assistant","tool_calls":[{"id":"c1","type":"function","function":{"name":"ls","arguments":"{}"}}]},
//!     {"role":"user","content":"never mind"}]}"#;
//! let planner = Planner::new(PlanSettings::default());
//! let edited = edit_body(&planner, dialect::of_body(body.as_bytes()), body.into());
//! let sent = String::from_utf8(edited.body.concat())?;
//! assert!(sent.contains(r#""tool_call_id":"c1""#), "the call has a result");
//! assert_eq!(edited.report.map(|report| report.changes.len()), Some(1));
//! # Ok::<(), std::string::FromUtf8Error>(())
//! ```
//!
//! # Serve
//!
//! [`app::serve`] runs the proxy until a signal ends it; `examples/embed.rs` starts it from another program.

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
pub mod gather_writes;
pub mod handler;
mod held;
pub mod history;
pub mod inspect;
pub mod language;
pub mod ledger;
mod local_address;
pub mod metrics;
pub mod names;
pub mod otel;
pub mod payload;
pub mod plan;
pub mod planner;
pub mod platform;
pub mod proxy;
mod raw;
pub mod recall;
pub mod recording;
pub mod relay;
pub mod replay;
pub mod roots;
pub mod server;
pub mod setup_error;
pub mod simulate;
pub mod span;
pub mod store;
pub mod string_index;
pub mod summary;
pub mod tasks;
pub mod telemetry;
mod template;
pub mod tokens;
pub mod units;
pub mod upstream;
pub mod webhook;
mod wildcard;
