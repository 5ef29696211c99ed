//! The store: whether it opens, takes what is written, and has room.

use std::path::Path;

use bytes::Bytes;

use super::{Findings, tempfile_in};
use crate::config::{Config, Environment, NoStorePath};
use crate::payload::{Keys, Payload};
use crate::store::{Clock, OpenError, RedbStore, Stats, Store};
use crate::units::ByteSize;

/// With less room than this, a busy hour may fill the disk.
const LITTLE: u64 = 1 << 30;

/// With less room than this, hardly anything can be stored.
const NONE: u64 = 16 << 20;

/// What is written to see whether it can be. It is swept like anything else that nobody uses.
const TEXT: &str = "abridge doctor has looked whether this can be stored";

pub(super) async fn look(findings: &mut Findings, config: &Config, environment: &Environment) {
    if !config.store.enabled {
        let said = "off: nothing is taken out of a conversation that could not be got back";
        return findings.ok("store", said);
    }
    let Some(path) = config.store.file(environment.state.as_deref()) else {
        return findings.fault("store", NoStorePath.to_string(), "export HOME, or set store.path");
    };
    if path.exists() {
        open(findings, config, &path).await;
    } else {
        will_be_made(findings, &path);
    }
    room(findings, &path, config.store.max_bytes);
}

/// The file is not made here: it would be this user's, who may be another one than the proxy's.
fn will_be_made(findings: &mut Findings, path: &Path) {
    let Some(folder) = nearest(path) else { return };
    match tempfile_in(folder) {
        Ok(()) => findings.ok("store", format!("{} will be made; its folder can be written to", path.display())),
        Err(error) => {
            let said = format!("{} cannot be made: {}: {error}", path.display(), folder.display());
            findings.fault("store", said, "let this user write there, or set store.path to where it may");
        }
    }
}

/// The folder of the file, or the nearest one above it that is there.
fn nearest(path: &Path) -> Option<&Path> {
    let folders = path.ancestors().skip(1);
    let mut folders = folders.map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
    folders.find(|folder| folder.exists())
}

async fn open(findings: &mut Findings, config: &Config, path: &Path) {
    let size = path.metadata().map_or(0, |metadata| metadata.len());
    let store = match RedbStore::open(path, config.store.clone(), Clock::system()) {
        Ok(store) => store,
        Err(OpenError::InUse { .. }) => {
            let said =
                format!("{}, {}: a running abridge has it, so it was not opened", path.display(), ByteSize(size));
            return findings.ok("store", said);
        }
        Err(error) => {
            // What to do stands behind the semicolon.
            let line = error.to_string();
            let (said, fix) = line.rsplit_once("; ").unwrap_or((&line, "set another store.path"));
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            return findings.fault("store", format!("{said}{cause}"), fix);
        }
    };
    let written = write(&store).await;
    let stats = store.stats().await;
    let closed = store.close().await;
    match written.and(closed.map_err(|error| error.to_string())).and(stats.map_err(|error| error.to_string())) {
        Ok(Stats { payloads, summaries, file_bytes, .. }) => {
            let said = format!(
                "{} opens and takes what is written: {payloads} texts, {summaries} summaries, {file_bytes} bytes",
                path.display()
            );
            findings.ok("store", said);
        }
        Err(error) => {
            let fix = "make room on the disk and let this user write to the file, or set another store.path";
            findings.fault("store", format!("{}: {error}", path.display()), fix);
        }
    }
}

/// Keeps a text, and reads it back.
async fn write(store: &RedbStore) -> Result<(), String> {
    let keys = Keys::new(store.secret());
    let text = Bytes::from_static(TEXT.as_bytes());
    let key = keys.payload(keys.caller(b"abridge doctor"), &text);
    store.put(vec![(key, Payload::from(text.clone()))]).await.map_err(|error| error.to_string())?;
    match store.get(key).await {
        Ok(Some(kept)) if kept == text => Ok(()),
        Ok(_) => Err("what was written cannot be read again".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn room(findings: &mut Findings, path: &Path, max_bytes: ByteSize) {
    let Some(folder) = nearest(path) else { return };
    let Ok(disk) = rustix::fs::statvfs(folder) else { return };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let said = format!("{} MiB free for the store, which takes at most {max_bytes}", free >> 20);
    let fix = "make room, set a smaller store.max_bytes, or set store.path to another disk";
    match free {
        _ if free < NONE => findings.fault("disk", said, fix),
        _ if free < LITTLE.min(max_bytes.0) => findings.warn("disk", said, fix),
        _ => findings.ok("disk", said),
    }
}
