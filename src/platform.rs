//! What differs between operating systems: files, sockets, and the signals, children and resources of a process.
//!
//! No other code is compiled for one system alone. `docs/platforms.md` says what each has.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

/// The allocator of a program that is linked with mimalloc. With glibc, mimalloc is `malloc` itself, and `System` calls it in
/// fewer instructions.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub use mimalloc::MiMalloc as Allocator;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub use std::alloc::System as Allocator;

#[cfg(test)]
pub(crate) use system::testing;
pub use system::{files, process, sockets};

/// The time since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "entries, events, answers and signatures have the time when they were made"
)]
pub fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The folder of a file.
pub fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().unwrap_or(path);
    if folder.as_os_str().is_empty() { Path::new(".") } else { folder }
}

/// What a signal asks of a proxy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SignalAction {
    /// To read the settings again.
    Reload,
    /// To stop.
    Stop,
}
