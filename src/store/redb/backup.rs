//! A copy of the file as it is at one moment, made while it is read and written.

use std::fs;
use std::path::{Path, PathBuf};

use ::redb::{Database, Error};

use super::{file, tables};

/// Copies the file to a new one. It has its name only once all of it is there; a file of that name stays as it is.
pub(super) fn backup(from: &Database, to: &Path) -> Result<(), Error> {
    let exists = || std::io::Error::new(std::io::ErrorKind::AlreadyExists, format!("{} exists", to.display()));
    if to.exists() {
        return Err(exists().into());
    }
    let part = PathBuf::from(format!("{}.part", to.display()));
    // Of a copy that was broken off.
    match fs::remove_file(&part) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let copy = || {
        let copy = file::opener(&part)()?;
        tables::copy::all(from, &copy)?;
        file::close(copy);
        // In contrast to a renaming, a link does not replace a file.
        Ok::<_, Error>(fs::hard_link(&part, to)?)
    };
    let copied = copy();
    let removed = fs::remove_file(&part);
    copied?;
    Ok(removed?)
}
