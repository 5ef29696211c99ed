//! Checks of the store: it opens, can be written to, and has disk space.

use std::path::Path;

use bytes::Bytes;
use tokio::time::timeout;

use super::{Findings, try_write};
use crate::config::{Config, Environment, MissingError};
use crate::payload::{Keys, Lifetime, Payload};
use crate::platform::files::free_space;
use crate::store::engine::{self, Options};
use crate::store::redb::aside_of;
use crate::store::{Clock, OpenError, RedbStore, Stats, Store, StoreEngine};
use crate::units::ByteSize;

/// Below this free space, in bytes, a busy hour may fill the disk.
const LOW_SPACE: u64 = 1 << 30;

/// Below this free space, in bytes, hardly anything can be stored.
const NO_SPACE: u64 = 16 << 20;

/// The text that is written as a check. It is swept like any unused payload.
const PROBE_TEXT: &str = "abridge doctor has looked whether this can be stored";

pub(super) async fn check(findings: &mut Findings, config: &Config, environment: &Environment) {
    if !config.store.enabled {
        let said = "off: edits that need the store take nothing out";
        return findings.ok("store", said);
    }
    if config.store.engine != StoreEngine::File {
        return check_engine(findings, environment.store_options(&config.store)).await;
    }
    let Some(path) = config.store.file(environment.state.as_deref()) else {
        return findings.fault("store", MissingError::StorePath.to_string(), "set the variable, or store.path");
    };
    check_aside(findings, &path);
    if path.exists() {
        check_opens(findings, config, &path).await;
    } else {
        check_can_be_created(findings, &path);
    }
    check_free_space(findings, &path, config.store.max_bytes);
}

/// Says which files were set aside.
fn check_aside(findings: &mut Findings, path: &Path) {
    let aside = aside_of(path);
    let Some(last) = aside.last() else { return };
    let said = format!("{} files of a store were set aside, the last one as {}", aside.len(), last.display());
    let fix = format!("copy what is whole with `abridge store salvage --from {} OUT`, then delete it", last.display());
    findings.warn("store", said, fix);
}

/// Checks that the file can be created, without creating it: it would belong to this user, who may not be the proxy's.
fn check_can_be_created(findings: &mut Findings, path: &Path) {
    let Some(folder) = nearest_existing_folder(path) else { return };
    match try_write(folder) {
        Ok(()) => findings.ok("store", format!("{} will be made; its folder can be written to", path.display())),
        Err(error) => {
            let said = format!("{} cannot be made: {}: {error}", path.display(), folder.display());
            findings.fault("store", said, "let this user write there, or set store.path to where it may");
        }
    }
}

/// The nearest existing folder above the path.
fn nearest_existing_folder(path: &Path) -> Option<&Path> {
    let folders = path.ancestors().skip(1);
    let mut folders = folders.map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
    folders.find(|folder| folder.exists())
}

async fn check_opens(findings: &mut Findings, config: &Config, path: &Path) {
    let size = path.metadata().map_or(0, |metadata| metadata.len());
    let store = match RedbStore::open(path, config.store.clone(), Clock::system()) {
        Ok(store) => store,
        Err(OpenError::InUse { holder, .. }) => {
            let size = ByteSize(size);
            let said = format!("{}, {size}: a running abridge has it{holder}, so it was not opened", path.display());
            return findings.ok("store", said);
        }
        Err(error) => {
            // The text after the semicolon is the fix.
            let line = error.to_string();
            let (said, fix) = line.rsplit_once("; ").unwrap_or((&line, "set another store.path"));
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            let then = match (config.store.required, error.is_unusable()) {
                (true, _) => "; store.required is set, so abridge does not start",
                (false, true) => "; when abridge starts, it sets the file aside and begins a new one",
                (false, false) => "; abridge starts without the edits that need it",
            };
            return findings.fault("store", format!("{said}{cause}{then}"), fix);
        }
    };
    let written = write_and_read_back(&store, store.secret()).await;
    let stats = store.stats().await;
    let closed = store.close().await;
    match written.and(closed.map_err(Into::into)).and(stats.map_err(Into::into)) {
        Ok(Stats { payloads, summaries, file_bytes, .. }) => {
            let said = format!(
                "{} opens and can be written to: {payloads} texts, {summaries} summaries, {file_bytes} bytes",
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

/// Checks that the engine can be reached, is this fleet's, and can be written to, and says what it promises.
async fn check_engine(findings: &mut Findings, options: Options) {
    let fix = "let this machine reach the engine with that URL, as a role that may read and write there";
    let patience = options.settings.timeout.0 * 2;
    let store = match timeout(patience, engine::open(options)).await {
        Ok(Ok(store)) => store,
        Ok(Err(error)) => return findings.fault("store", format!("{:#}", anyhow::Error::new(error)), fix),
        Err(_) => return findings.fault("store", "the engine has not answered".to_owned(), fix),
    };
    let written = match store.state() {
        Ok(()) => write_and_read_back(&*store, store.secret().unwrap_or_default()).await,
        Err(error) => Err(error.into()),
    };
    match written {
        Ok(()) => findings.ok("store", format!("{} can be written to: {}", store.engine(), store.promise().await)),
        Err(error) => findings.fault("store", error.to_string(), fix),
    }
    // It holds nothing back.
    let _closed = store.close().await;
}

/// Stores a text and reads it back.
async fn write_and_read_back(store: &dyn Store, secret: [u8; 32]) -> anyhow::Result<()> {
    let keys = Keys::new(secret);
    let text = Bytes::from_static(PROBE_TEXT.as_bytes());
    let key = keys.payload(keys.caller(b"abridge doctor"), &text);
    store.put(vec![(key, Payload::from(text.clone()))], Lifetime::Usual).await?;
    anyhow::ensure!(store.get(key).await? == Some(text), "what was written cannot be read again");
    Ok(())
}

fn check_free_space(findings: &mut Findings, path: &Path, max_bytes: ByteSize) {
    let Some(folder) = nearest_existing_folder(path) else { return };
    let Some(free) = free_space(folder) else { return };
    let said = format!("{} MiB free for the store, which takes at most {max_bytes}", free >> 20);
    let fix = "make room, set a smaller store.max_bytes, or set store.path to another disk";
    match free {
        _ if free < NO_SPACE => findings.fault("disk", said, fix),
        _ if free < LOW_SPACE.min(max_bytes.0) => findings.warn("disk", said, fix),
        _ => findings.ok("disk", said),
    }
}
