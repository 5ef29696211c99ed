//! `abridge store copy`: from a file to the engine of the settings, or back, with the proxies stopped. The secret goes
//! along, so every handle stays valid.

use std::path::PathBuf;

use anyhow::{Context, bail};
use serde::Deserialize;

use super::{open_engine, open_file};
use crate::cli::{Exit, print};
use crate::config::{Config, Environment, MissingError};
use crate::engine::bookkeeper::KEPT;
use crate::payload::{ChainKey, Lifetime, Place};
use crate::store::{Clock, NoteGroup, RedbStore, Store, StoreEngine};

/// Arguments of `copy`.
#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
pub struct Args {
    /// Copy this file to the engine
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Copy from the engine to this new file
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
}

/// Counts of the copied rows.
#[derive(Debug, Default)]
struct Copied {
    payloads: u64,
    bytes: u64,
    summaries: u64,
    /// Summaries of versions that did not note where they are found.
    left_out: u64,
}

/// The part of a summary that says where it is found.
#[derive(Deserialize)]
struct Rooted {
    root: Option<ChainKey>,
}

/// How many payloads are read and written at a time.
const BATCH: usize = 32;

pub(super) async fn run(args: &Args, config: &Config, environment: &Environment) -> anyhow::Result<Exit> {
    if config.store.engine == StoreEngine::File {
        return Err(MissingError::StoreEngine.into());
    }
    let mut options = environment.store_options(&config.store);
    let copied = match (&args.from, &args.to) {
        (Some(path), _) => {
            let file = open_file(path, config)?;
            options.fresh = Some(file.secret());
            let engine = open_engine(options).await?;
            if engine.secret() != Some(file.secret()) {
                bail!(
                    "the engine has another secret than the file, so no handle of the file would be valid there; take a store.namespace whose tables are new, without store.secret_env, or set that to the file's secret"
                );
            }
            copy(&file, &*engine).await?
        }
        (None, Some(path)) => {
            let engine = open_engine(options).await?;
            let secret = engine.secret().context("the engine has not given its secret")?;
            if path.exists() {
                bail!("{} exists; name a new file", path.display());
            }
            copy(&*engine, &RedbStore::create(path, config.store.clone(), Clock::system(), secret)?).await?
        }
        (None, None) => Copied::default(),
    };
    let Copied { payloads, bytes, summaries, left_out } = copied;
    print([format!(
        "copied the ledger, and copied and compared {payloads} texts of {bytes} bytes and {summaries} summaries; left out {left_out} summaries \
         of earlier versions\n"
    )])
}

async fn copy(from: &dyn Store, to: &dyn Store) -> anyhow::Result<Copied> {
    let mut copied = Copied::default();
    let listed = from.list(usize::MAX).await?;
    for batch in listed.chunks(BATCH) {
        let mut payloads = Vec::new();
        for info in batch {
            // Everything that was swept meanwhile is gone from both.
            payloads.extend(from.load(info.key).await?.map(|payload| (info.key, payload)));
        }
        // The file does not say which ones an upstream's conversation names: all are kept as long as those.
        let put = payloads.iter().map(|(key, payload)| (*key, payload.clone())).collect();
        to.put(put, Lifetime::Chained).await?;
        for (key, payload) in payloads {
            if to.load(key).await?.as_ref() != Some(&payload) {
                bail!("the copy of {key} differs");
            }
            copied.payloads += 1;
            copied.bytes += payload.len() as u64;
        }
    }
    for beginning in from.summaries().await? {
        let Some(summary) = from.summary(beginning).await? else { continue };
        match serde_json::from_slice(&summary) {
            Ok(Rooted { root: Some(root) }) => {
                // A summary that the other side has already stays.
                to.offer_summary(Place { root, beginning }, summary).await?;
                copied.summaries += 1;
            }
            _ => copied.left_out += 1,
        }
    }
    for note in from.notes(NoteGroup::Ledger).await? {
        to.note(note, KEPT).await?;
    }
    from.close().await?;
    to.close().await?;
    Ok(copied)
}
