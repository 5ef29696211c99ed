//! `abridge store salvage`: copies what is whole of a file to a new one.

use std::path::PathBuf;

use anyhow::bail;

use crate::cli::{Exit, print};
use crate::config::{Config, Environment, MissingError};
use crate::store::redb::{salvage, secret};
use crate::store::{Clock, RedbStore, Salvaged, Store as _};

/// Arguments of `salvage`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The damaged file, in place of the one of the settings
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// The new file
    #[arg(value_name = "OUT")]
    to: PathBuf,
}

pub(super) async fn run(args: &Args, config: &Config, environment: &Environment) -> anyhow::Result<Exit> {
    let own = || config.store.file(environment.state.as_deref());
    let from = args.from.clone().or_else(own).ok_or(MissingError::StorePath)?;
    if !from.is_file() {
        bail!("there is no file at {}", from.display());
    }
    if args.to.exists() {
        bail!("{} exists; name a new file", args.to.display());
    }
    let found = secret(&from);
    let (settings, clock) = (config.store.clone(), Clock::system());
    let to = match found {
        Some(secret) => RedbStore::create(&args.to, settings, clock, secret)?,
        None => RedbStore::open(&args.to, settings, clock)?,
    };
    let Salvaged { payloads, bytes, summaries } = salvage(&from, &to).await?;
    to.close().await?;
    let secret = match found {
        Some(_) => "the secret is the same, so new handles are as before",
        None => "the secret could not be read, so the same texts get new handles",
    };
    print([format!("copied {payloads} payloads of {bytes} bytes and {summaries} summaries; {secret}\n")])
}
