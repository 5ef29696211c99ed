//! The real binary between a client and an upstream that the tests play byte by byte.
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
#![expect(clippy::print_stderr, reason = "what a failed process wrote is shown")]

mod admin; // who may ask what below /abridge/
mod cancellation; // the client goes away: the upstream learns it at once
mod config; // settings, and the commands that need no upstream
mod demo; // what a newcomer sees first
mod doctor; // what is well, and each fault with its fix
mod edits; // what an edited exchange looks like on both sides
mod events; // what happens, told to who may know it
mod failures; // the upstream breaks: the client gets to know, and nothing is hidden
mod faults; // an upstream, a disk and a kernel at their worst
mod full_disk; // nothing more can be stored, until it can again
mod header_settings; // settings that become a header are one line
mod hostile; // bodies that nobody should send
mod injection; // texts that imitate ours
mod inspect; // what a person looks at, and what is kept for that
mod late_results; // results that come when the model has gone on without them
mod limits; // every limit, at the limit
mod listen; // addresses, sockets, versions of HTTP
mod manual_summary; // summaries that somebody asks for
mod memory; // how much of it abridge takes, idle and under load
mod metrics; // numbers about all requests, and the log's sentence
mod models; // what is known of models, printed
mod origins; // pages in a browser, and what is the upstream's
mod passthrough; // zero edits: identical bytes, both ways
mod properties; // what holds for every conversation, whatever is wrong with it
mod recall; // what was taken out, got back
mod recording; // `serve --record`, and replaying what it wrote
mod reductions; // what holds for every conversation that is made shorter
mod reload; // SIGHUP
mod rescue; // a second try of what the upstream has refused
mod secrets; // what must never be logged
mod shutdown; // drain, and the second signal
mod simulate; // transcripts through policies, and the figures of it
mod smuggling; // requests that could be read in two ways
mod start; // what is said at start
mod store_crash; // killed, and started again
mod streaming; // chunk by chunk, with backpressure
mod summaries; // summaries that are made, and that cannot be
mod summarised; // what holds for every conversation that summaries stand in
mod support; // what the tests stand on
mod tap; // usage and finish reason, read beside the answer
mod targets; // the client's path and the upstream's
mod tenants; // two callers, and nothing of one for the other
mod tls; // certificates on both sides
mod upstream_proxy; // HTTPS_PROXY, HTTP_PROXY, NO_PROXY
mod webhook; // what happens, posted elsewhere
mod windows; // how many tokens a model takes, learned from the upstream
mod wire; // the upstream of the tests, against a client that nobody here wrote
