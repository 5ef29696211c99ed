//! Which process has the file open: its number in a file beside it, for the error of a process that comes second.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use crate::platform::files::private_file;

/// The longest text that is read.
const MAX_BYTES: u64 = 20;

/// Says that this process has the file, which is locked and open. Where that cannot be written, the process is unknown.
pub(super) fn write(path: &Path) {
    // A link that someone has put there is not followed.
    remove(path);
    let file = private_file().write(true).create_new(true).open(beside(path));
    let _unknown = file.and_then(|mut file| write!(file, "{}", std::process::id()));
}

/// Removes the number, before the file is unlocked.
pub(super) fn remove(path: &Path) {
    let _missing = fs::remove_file(beside(path));
}

/// The process that has the file, in parentheses after a space; empty if that is unknown.
pub(super) fn read(path: &Path) -> String {
    let mut number = String::new();
    let read = File::open(beside(path)).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut number));
    match number.parse::<u32>() {
        Ok(process) if read.is_ok() => format!(" (process {process})"),
        _ => String::new(),
    }
}

fn beside(path: &Path) -> PathBuf {
    path.with_added_extension("holder")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_read_as_it_was_written_and_anything_else_is_unknown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.redb");
        assert_eq!(read(&path), "");
        write(&path);
        assert_eq!(read(&path), format!(" (process {})", std::process::id()));
        remove(&path);
        assert_eq!(read(&path), "");
        for line in ["", "x", "12; rm", "12 \u{1b}[0m", &"1".repeat(200)] {
            fs::write(beside(&path), line).unwrap();
            assert_eq!(read(&path), "", "{line}");
        }
    }

    #[test]
    fn what_a_link_in_its_place_leads_to_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("store.redb"), folder.path().join("other"));
        fs::write(&other, "mine").unwrap();
        crate::platform::testing::symlink(&other, beside(&path)).unwrap();
        write(&path);
        assert!(!read(&path).is_empty());
        assert_eq!(fs::read_to_string(other).unwrap(), "mine");
    }
}
