//! Files and folders. What is in a user's profile is closed to other users by the lists of access that files inherit.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// The variables that name the user's folder, in order.
pub const HOME: &[&str] = &["USERPROFILE", "HOME"];

/// Why there is no [`state_folder`].
pub const NO_STATE_FOLDER: &str = "LOCALAPPDATA is not set";

/// Makes folders. They inherit who may read them.
pub fn private_folder() -> DirBuilder {
    DirBuilder::new()
}

/// Opens files. Those that it creates inherit who may read them.
pub fn private_file() -> OpenOptions {
    OpenOptions::new()
}

/// Does nothing: there are no modes.
pub fn make_private(_file: &File) -> io::Result<()> {
    Ok(())
}

/// Whether a file is a regular one: there are no modes.
pub fn is_private_file(metadata: &Metadata) -> bool {
    metadata.is_file()
}

/// Has a file survive a crash of the machine. Folders are not synchronised: that is the file system's own work.
pub fn sync(path: &Path) -> io::Result<()> {
    if path.is_dir() { Ok(()) } else { OpenOptions::new().write(true).open(path)?.sync_all() }
}

/// The bytes that this user may still write: not known without unsafe code.
pub fn free_space(_folder: &Path) -> Option<u64> {
    None
}

/// The folder for a user's state, by the variables that are set; a path that is not absolute is ignored.
pub fn state_folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    variable("LOCALAPPDATA").filter(|path| path.is_absolute())
}
