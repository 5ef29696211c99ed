//! A folder for what one command needs while it runs.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::platform::files::private_folder;

/// A temporary folder, removed when it is dropped.
pub(super) struct TempFolder(PathBuf);

impl TempFolder {
    /// Creates a folder in that for temporary files, which only this user can read.
    pub(super) fn new() -> io::Result<Self> {
        let mut name = [0; 8];
        getrandom::getrandom(&mut name)?;
        let path = std::env::temp_dir().join(format!("abridge-{:016x}", u64::from_le_bytes(name)));
        private_folder().create(&path)?;
        Ok(Self(path))
    }

    /// The path of the folder.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        // A failure cannot be reported anywhere.
        let _ = fs::remove_dir_all(&self.0);
    }
}
