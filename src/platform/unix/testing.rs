//! What tests of other modules do to files, and how they measure.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
pub(crate) use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Whether files have modes and counts of their names.
pub(crate) const HAS_MODES: bool = true;

/// Whether a file or a folder is its owner's alone.
pub(crate) fn is_private(path: &Path) -> bool {
    let mode = fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
    mode == if path.is_dir() { 0o700 } else { 0o600 }
}

/// Lets others read a file.
pub(crate) fn share(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
}

/// How long this thread has computed.
pub(crate) fn thread_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}
