//! Sets aside a file that is damaged, is not a store, or has another format.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::file::OpenError;
use crate::platform::files::sync;
use crate::platform::folder_of;
use crate::store::Time;
use crate::units::utc_timestamp;

/// The suffix of a file that was set aside, before the time.
const ASIDE: &str = ".aside-";

/// A file that was set aside.
pub(super) struct Aside {
    pub(super) path: PathBuf,
    /// Why and where, and what to do.
    pub(super) notice: String,
}

/// Sets a file aside that cannot be opened, as `error` says.
pub(super) fn set_aside(path: &Path, now: Time, error: &OpenError) -> io::Result<Aside> {
    if !path.symlink_metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let aside = free_name(path, now)?;
    fs::rename(path, &aside)?;
    // After a crash, the file may be at its old place, and is set aside again.
    let _synced = sync(folder_of(path));
    let why = match error {
        OpenError::OtherFormat { found, .. } => format!("has format {found}, which this abridge does not read"),
        _ => "is damaged, or is not a store of abridge".to_owned(),
    };
    let notice = format!(
        "the store {} {why}: it was set aside, and a new one was begun; copy what is whole with `abridge store salvage --from {} OUT`",
        path.display(),
        aside.display()
    );
    tracing::error!(cause = ?error, "{notice}");
    Ok(Aside { path: aside, notice })
}

/// The files beside a store that were set aside.
pub fn aside_of(path: &Path) -> Vec<PathBuf> {
    let Some(name) = path.file_name() else { return Vec::new() };
    let start = [name.as_encoded_bytes(), ASIDE.as_bytes()].concat();
    let names = fs::read_dir(folder_of(path)).into_iter().flatten().flatten();
    let of = names.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(&start));
    let mut found: Vec<_> = of.map(|entry| entry.path()).collect();
    found.sort();
    found
}

/// A name that says when, and that no file has.
fn free_name(path: &Path, now: Time) -> io::Result<PathBuf> {
    for n in 0..100 {
        let mut name = OsString::from(path);
        name.push(format!("{ASIDE}{}", utc_timestamp(now.0)));
        if n > 0 {
            name.push(format!("-{n}"));
        }
        let name = PathBuf::from(name);
        if name.symlink_metadata().is_err() {
            return Ok(name);
        }
    }
    Err(io::Error::other("too many files were set aside"))
}
