//! Several processes on one engine: the real binary, and the real engine. A test whose engine is not installed says
//! `NOT RUN`, and passes.
#![expect(
    clippy::disallowed_methods,
    reason = "tests spawn the other sides of a connection, and read bodies that they made"
)]
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic is a test's answer"
)]
#![expect(clippy::print_stderr, reason = "what was not run, and what a failed process wrote, is shown")]

#[path = "../it"]
#[expect(dead_code, unused_imports, reason = "it serves the integration tests, too")]
mod it {
    pub(crate) mod support;
}

mod commands; // `abridge store init` and `abridge doctor`
mod compose; // what examples/compose starts
mod conformance; // what each engine does as a store
mod copy; // from a file to an engine and back
mod damage; // rows and keys that no version has written
mod disk; // an engine whose disk is full
mod encrypted; // TLS to the engine
mod engine; // PostgreSQL and Redis, started and stopped
mod failover; // a primary is killed, and its standby promoted
mod faults; // an engine that refuses, hangs, is killed, is full or has lost what it had
mod gateways; // LiteLLM and others, which call either of two processes
mod identity; // whose tables they are
mod ledger; // the costs of a day, over two processes
mod relay; // delays what passes between processes and an engine, or holds it back
mod replicas; // two processes behave as one
mod sealed; // texts and handles that who runs the engine cannot read
mod starts; // many processes start at once
mod versions; // an earlier version beside a later one
