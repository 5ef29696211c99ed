//! What differs between operating systems: files, sockets, and the signals, children and resources of a process.
//!
//! No other code is compiled for one system alone. `docs/platforms.md` says what each has.

use std::fmt;

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

#[cfg(test)]
pub(crate) use system::testing;
pub use system::{files, process, sockets};

/// What a signal asks of a proxy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SignalAction {
    /// To read the settings again.
    Reload,
    /// To stop.
    Stop,
}

/// A limit on open files and connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DescriptorLimit {
    /// That of this process.
    Process,
    /// That of the system.
    System,
}

/// The system offers no Unix sockets.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("abridge has no Unix sockets on this system; allowed: a TCP address such as 127.0.0.1:8787")]
pub struct NoUnixSocketsError;

impl fmt::Display for DescriptorLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process => "abridge",
            Self::System => "the machine",
        })
    }
}
