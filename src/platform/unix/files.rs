//! Files and folders: modes, durability, free space, and where a user's files are.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The variables that name the user's folder, in order.
pub const HOME: &[&str] = &["HOME"];

/// Why there is no [`state_folder`].
pub const NO_STATE_FOLDER: &str = "neither XDG_STATE_HOME nor HOME is set";

/// The mode of files that only their owner reads and writes.
const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_FOLDER: u32 = 0o700;

/// Where state is below the user's folder.
const STATE: &str = if cfg!(target_os = "macos") { "Library/Application Support" } else { ".local/state" };

/// Makes folders that only this user can read.
pub fn private_folder() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.mode(PRIVATE_FOLDER);
    builder
}

/// Opens files; those that it creates can be read by this user alone.
pub fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(PRIVATE_FILE);
    options
}

/// Has a file read and written by its owner alone, whatever the umask was when it was created. If it is so already, the
/// mode is left, as some file systems have one for all files.
pub fn make_private(file: &File) -> io::Result<()> {
    let owner_may_execute = 0o100;
    if file.metadata()?.mode() & 0o777 & !owner_may_execute == PRIVATE_FILE {
        return Ok(());
    }
    file.set_permissions(Permissions::from_mode(PRIVATE_FILE))
}

/// Whether a regular file may be one of [`private_file`]: it has that mode, and no second name.
pub fn is_private_file(metadata: &Metadata) -> bool {
    metadata.is_file() && metadata.nlink() == 1 && metadata.mode() & 0o7777 == PRIVATE_FILE
}

/// Has a file, or the entries of a folder, survive a crash of the machine.
pub fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// The bytes that this user may still write to the disk of a folder, if the system says.
pub fn free_space(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// The folder for a user's state, by the variables that are set; a path that is not absolute is ignored.
pub fn state_folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let folder = |name| variable(name).filter(|path| path.is_absolute());
    folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(STATE)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn private_files_and_folders_are_their_owners_alone() {
        let scratch = tempfile::tempdir().unwrap();
        let (folder, file) = (scratch.path().join("a/b"), scratch.path().join("a/b/c"));
        private_folder().recursive(true).create(&folder).unwrap();
        private_file().write(true).create_new(true).open(&file).unwrap();
        assert_eq!([mode(&scratch.path().join("a")), mode(&folder), mode(&file)], [0o700, 0o700, 0o600]);
        assert!(is_private_file(&fs::symlink_metadata(&file).unwrap()));
    }

    #[test]
    fn a_file_of_another_mode_or_with_a_second_name_is_not_private_until_it_is_made_so() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("file");
        let file = private_file().write(true).create_new(true).open(&path).unwrap();
        let is_private = || is_private_file(&fs::symlink_metadata(&path).unwrap());
        for (other, made) in [(0o700, 0o700), (0o644, 0o600), (0o620, 0o600), (0o400, 0o600)] {
            fs::set_permissions(&path, Permissions::from_mode(other)).unwrap();
            assert!(!is_private(), "{other:o}");
            make_private(&file).unwrap();
            assert_eq!(mode(&path), made, "{other:o}");
        }
        assert!(is_private());
        let second = scratch.path().join("second");
        fs::hard_link(&path, &second).unwrap();
        assert!(!is_private());
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&second, &path).unwrap();
        assert!(!is_private(), "a symbolic link");
        assert!(!is_private_file(&fs::symlink_metadata(scratch.path()).unwrap()), "a folder");
    }

    #[test]
    fn files_and_folders_are_synchronised_and_what_is_not_there_is_an_error() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("file");
        assert_eq!(sync(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(&path, "text").unwrap();
        sync(&path).unwrap();
        sync(scratch.path()).unwrap();
    }

    #[test]
    fn the_disk_of_a_folder_has_free_space_and_no_folder_has_none() {
        let scratch = tempfile::tempdir().unwrap();
        assert!(free_space(scratch.path()).is_some_and(|free| free > 0));
        assert_eq!(free_space(&scratch.path().join("none")), None);
    }

    #[test]
    fn the_state_folder_is_xdg_state_home_or_below_home() {
        let state = |variables: &[(&str, &str)]| {
            state_folder(|name| variables.iter().find(|(set, _)| *set == name).map(|(_, path)| PathBuf::from(path)))
        };
        let (home, below_home) = (("HOME", "/home/me"), Some(Path::new("/home/me").join(STATE)));
        assert_eq!(state(&[home, ("XDG_STATE_HOME", "/state")]), Some("/state".into()));
        assert_eq!(state(&[home, ("XDG_STATE_HOME", "state")]), below_home);
        assert_eq!(state(&[home]), below_home);
        assert_eq!(state(&[("HOME", "")]), None);
        if cfg!(target_os = "linux") {
            assert_eq!(below_home, Some("/home/me/.local/state".into()));
        }
    }
}
