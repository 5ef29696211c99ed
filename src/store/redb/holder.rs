//! Who has the file open: a line in a file beside it, for the error of a process that comes second.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use crate::platform::files::private_file;
use crate::units::Period;

/// The longest line that is read.
const MAX_BYTES: u64 = 100;

/// Says that this process has the file, which is locked and open. What a killed process has left is written over here, and
/// read by no one before, but while the file is repaired. Where the line cannot be written, the holder is unknown.
pub(super) fn write(path: &Path) {
    // A link that someone has put there is not followed.
    remove(path);
    let line = format!("{} {}\n", std::process::id(), env!("CARGO_PKG_VERSION"));
    let _unknown = private_file()
        .write(true)
        .create_new(true)
        .open(beside(path))
        .and_then(|mut file| file.write_all(line.as_bytes()));
}

/// Removes the line, before the file is unlocked.
pub(super) fn remove(path: &Path) {
    let _missing = fs::remove_file(beside(path));
}

/// Who has the file, in parentheses after a space; empty if that is unknown.
pub(super) fn read(path: &Path) -> String {
    read_line(path).unwrap_or_default()
}

fn read_line(path: &Path) -> Option<String> {
    let file = File::open(beside(path)).ok()?;
    let since = file.metadata().and_then(|metadata| metadata.modified()).ok()?.elapsed().unwrap_or_default();
    let mut line = String::new();
    file.take(MAX_BYTES).read_to_string(&mut line).ok()?;
    let (process, version) = line.trim_end().split_once(' ')?;
    let process: u32 = process.parse().ok()?;
    let is_version = version.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    is_version.then(|| format!(" (process {process}, version {version}, for {})", rounded(since.as_secs())))
}

/// In the largest unit of which there are at least two.
fn rounded(secs: u64) -> Period {
    let secs = secs.max(1);
    let unit = [86_400, 3600, 60].into_iter().find(|unit| secs >= 2 * unit).unwrap_or(1);
    Period::secs(secs - secs % unit)
}

fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".holder");
    name.into()
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
        let known = read(&path);
        let this = format!(" (process {}, version {}, for ", std::process::id(), env!("CARGO_PKG_VERSION"));
        assert!(known.starts_with(&this), "{known}");
        remove(&path);
        assert_eq!(read(&path), "");
        for line in ["", "x 0.1.0", "12", "12 0.1.0; rm", "12 \u{1b}[0m", &format!("12 {}", "1".repeat(200))] {
            fs::write(beside(&path), line).unwrap();
            assert!(read(&path).len() < 150, "{line}");
            assert_eq!(read(&path).is_empty(), line.len() < 100, "{line}");
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

    #[test]
    fn times_are_rounded_to_a_unit() {
        let cases = [(0, "1s"), (59, "59s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7205, "2h"), (180_000, "2d")];
        for (secs, text) in cases {
            assert_eq!(rounded(secs).to_string(), text);
        }
    }
}
