//! The listening side: sockets, connection limit, TLS, drain.

use serde::{Deserialize, Serialize};

use crate::units::{ByteSize, Period};

pub mod listen;
pub mod tls;

use listen::Addresses;

/// `[server]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where to listen: `host:port` or `unix:/path`, one or a list.
    pub listen: Addresses,
    /// Threads that serve requests. One is quickest for a sidecar; more serve many busy clients.
    pub workers: usize,
    /// Connections open at a time; more wait in the kernel's queue.
    pub max_connections: usize,
    /// Requests in flight at a time, answers that are still streaming among them; more get 503 with `retry-after`.
    pub max_in_flight: usize,
    /// The longest request body that is read to be edited; a longer one gets 413.
    pub max_body: ByteSize,
    /// The bytes of all request bodies held in memory at a time; a request over it gets 503 with `retry-after`.
    pub max_buffered: ByteSize,
    /// How long a client may take to send its request head.
    pub header_timeout: Period,
    /// How long a client may pause while it sends a body that is to be edited.
    pub body_timeout: Period,
    /// How long running answers may go on after a stop signal.
    pub grace: Period,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: Addresses::default(),
            workers: 1,
            max_connections: 8192,
            max_in_flight: 4096,
            max_body: ByteSize::mib(64),
            max_buffered: ByteSize::mib(512),
            header_timeout: Period::secs(30),
            body_timeout: Period::secs(60),
            grace: Period::secs(30),
        }
    }
}
