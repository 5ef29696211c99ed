//! `abridge store`: what is in the store, while no proxy has it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Subcommand;
use tokio::runtime;

use crate::cli::{Exit, print};
use crate::config::{Config, Environment, NoStorePath, Sources};
use crate::payload::PayloadKey;
use crate::store::{Clock, OpenError, PayloadInfo, RedbStore, Stats, Store, SweepResult, Time};

/// What to do with the store of the settings.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the payloads, the last used first.
    Ls(Ls),
    /// Print a payload.
    Get(Get),
    /// Print numbers.
    Stats(Form),
    /// Remove what `store.keep_for` and `store.max_bytes` do not keep.
    Sweep(Form),
    /// Make the file as small as it can be.
    Compact(Form),
}

/// What to list.
#[derive(clap::Args, Debug)]
pub struct Ls {
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 100)]
    most: usize,
    #[command(flatten)]
    form: Form,
}

/// What to print.
#[derive(clap::Args, Debug)]
pub struct Get {
    /// As a notice or a placeholder names it: 26 digits and letters
    handle: String,
}

/// How to print.
#[derive(clap::Args, Debug)]
pub struct Form {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The settings name a file that is not there.
#[derive(Debug, thiserror::Error)]
#[error("there is no store at {}; a proxy that has run makes one, and store.path says where", .0.display())]
pub struct NoStore(PathBuf);

/// Does it, and lets go of the file again.
pub fn run(command: &Command, sources: &Sources, config: &Config) -> anyhow::Result<Exit> {
    let environment = Environment::read(&sources.variables, config)?;
    let path = config.store.file(environment.state.as_deref()).ok_or(NoStorePath)?;
    let clock = Clock::system();
    let store = open(&path, config, clock.clone())?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build().context("no thread to read with")?;
    runtime.block_on(async {
        let done = command.run(&store, clock.now()).await;
        let closed = store.close().await;
        let exit = done?;
        closed?;
        Ok(exit)
    })
}

fn open(path: &Path, config: &Config, clock: Clock) -> anyhow::Result<RedbStore> {
    if !path.exists() {
        return Err(NoStore(path.to_owned()).into());
    }
    let opened = RedbStore::open(path, config.store.clone(), clock);
    opened.map_err(|error| match error {
        error @ OpenError::InUse { .. } => {
            anyhow::Error::new(error).context("ask the running proxy, GET /abridge/recall/HANDLE, or stop it first")
        }
        error => error.into(),
    })
}

// === impl Command ===

impl Command {
    async fn run(&self, store: &impl Store, now: Time) -> anyhow::Result<Exit> {
        let text = match self {
            Self::Ls(Ls { most, form }) => {
                let entries = store.list(*most).await?;
                if form.json { json(&entries)? } else { table(&entries, now) }
            }
            Self::Get(Get { handle }) => {
                let payload = match handle.parse::<PayloadKey>() {
                    Ok(key) => store.get(key).await?,
                    Err(_) => None,
                };
                let Some(payload) = payload else {
                    crate::cli::complain(&anyhow::anyhow!("no payload has the handle {handle:?}"));
                    return Ok(Exit::No);
                };
                print([payload])?;
                return Ok(Exit::Ok);
            }
            Self::Stats(form) => {
                let stats = store.stats().await?;
                if form.json { json(&stats)? } else { numbers(&stats) }
            }
            Self::Sweep(form) => {
                let swept = store.sweep().await?;
                if form.json {
                    json(&swept)?
                } else {
                    let SweepResult { aged, crowded_out, stored_bytes, summaries } = swept;
                    format!(
                        "removed {aged} unused for too long and {crowded_out} too many, {stored_bytes} bytes in the file, \
                         and {summaries} summaries\n"
                    )
                }
            }
            Self::Compact(form) => {
                let before = store.stats().await?.file_bytes;
                store.compact().await?;
                let after = store.stats().await?;
                if form.json { json(&after)? } else { format!("{before} -> {} bytes\n", after.file_bytes) }
            }
        };
        print([text])?;
        Ok(Exit::Ok)
    }
}

// === helpers ===

fn json(value: &impl serde::Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

fn table(entries: &[PayloadInfo], now: Time) -> String {
    let mut text = format!("{:26}  {:>10}  {:>10}  {:>8}  {:>8}\n", "handle", "bytes", "in file", "kept", "used");
    for PayloadInfo { key, bytes, stored_bytes, created, used } in entries {
        let (created, used) = (age(now, *created), age(now, *used));
        // Into a String nothing fails.
        let _written = writeln!(text, "{key:26}  {bytes:>10}  {stored_bytes:>10}  {created:>8}  {used:>8}");
    }
    text
}

/// How long ago, in the largest unit that is not nought.
fn age(now: Time, then: Time) -> String {
    let seconds = now.since(then).as_secs();
    let units = [(86_400, "d"), (3_600, "h"), (60, "min")];
    let unit = units.into_iter().find(|(length, _)| seconds >= *length);
    unit.map_or_else(|| format!("{seconds} s"), |(length, name)| format!("{} {name}", seconds / length))
}

fn numbers(stats: &Stats) -> String {
    let Stats { payloads, bytes, stored_bytes, summaries, summary_bytes, file_bytes, tombstones, .. } = stats;
    format!(
        "payloads              {payloads}\nbytes                 {bytes}\nbytes in the file     {stored_bytes}\n\
         summaries             {summaries}\nbytes of them         {summary_bytes}\n\
         length of the file    {file_bytes}\nswept and remembered  {tombstones}\n"
    )
}
