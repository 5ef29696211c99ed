//! A file with settings of a client: written where it lies, so that links, owner and mode stay, with the original beside it.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::config::read_text;
use crate::platform::files::sync;

/// A file with settings, which may not exist yet.
pub(super) struct SettingsFile {
    pub(super) path: PathBuf,
    // The original; empty without a file, beside a mark of that.
    backup: PathBuf,
    created: PathBuf,
}

impl SettingsFile {
    pub(super) fn at(path: PathBuf) -> Self {
        let beside = |end: &str| {
            let mut name = path.file_name().unwrap_or_default().to_owned();
            name.push(end);
            path.with_file_name(name)
        };
        let (backup, created) = (beside(".abridge-backup"), beside(".abridge-created"));
        Self { path, backup, created }
    }

    /// The original, or the mark that there was none.
    pub(super) fn backup(&self) -> &Path {
        if self.created.exists() { &self.created } else { &self.backup }
    }

    /// The text; none without a file.
    pub(super) fn read(&self) -> anyhow::Result<Option<String>> {
        read(&self.path)
    }

    /// The text before [`Self::write`]; none if nothing was written.
    pub(super) fn original(&self) -> anyhow::Result<Option<String>> {
        if self.created.exists() { Ok(Some(String::new())) } else { read(&self.backup) }
    }

    /// Writes the text, and keeps the original.
    pub(super) fn write(&self, text: &str) -> anyhow::Result<()> {
        if self.original()?.is_some() {
            bail!("it was set up before, as {} shows; take that back with --undo first", self.backup().display());
        }
        if self.path.exists() {
            // A file that cannot be written needs no backup, which would say that it was.
            fs::OpenOptions::new().append(true).open(&self.path).with_context(|| self.not_written())?;
            fs::copy(&self.path, &self.backup)
                .and_then(|_| sync(&self.backup))
                .with_context(|| format!("cannot write {}", self.backup.display()))?;
        } else {
            let folder = self.path.parent().map_or(Ok(()), fs::create_dir_all);
            folder.and_then(|()| fs::write(&self.created, "")).with_context(|| self.not_written())?;
        }
        fs::write(&self.path, text).with_context(|| self.not_written())
    }

    /// Writes what the text is without the change, or removes the file if there was none. Nothing else stays.
    pub(super) fn restore(&self, text: &str) -> anyhow::Result<()> {
        if !self.created.exists() {
            fs::write(&self.path, text).with_context(|| self.not_written())?;
            return remove(&self.backup).with_context(|| format!("cannot remove {}", self.backup.display()));
        }
        let left = if text.is_empty() { remove(&self.path) } else { fs::write(&self.path, text) };
        left.and_then(|()| remove(&self.created)).with_context(|| self.not_written())?;
        // It goes if it is empty: the file was the first one in it.
        let _ = self.path.parent().map(fs::remove_dir);
        Ok(())
    }

    fn not_written(&self) -> String {
        format!("cannot write {}", self.path.display())
    }
}

fn read(path: &Path) -> anyhow::Result<Option<String>> {
    match read_text(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
