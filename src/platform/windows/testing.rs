//! What tests of other modules do to files on Windows, and how they measure.

use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

pub(crate) use std::os::windows::fs::symlink_file as symlink;

/// Whether files have modes and counts of their names.
pub(crate) const HAS_MODES: bool = false;

/// Not known; counts as such.
pub(crate) fn is_private(_path: &Path) -> bool {
    true
}

/// Does nothing: who may read a file is inherited.
pub(crate) fn share(_path: &Path) {}

/// How long this process has run since this was first asked: what this thread has computed is less.
pub(crate) fn thread_time() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed()
}
