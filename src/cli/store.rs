//! `abridge store`: lists, prints, checks, sweeps and compacts the store; makes the tables of an engine, copies a file
//! there and back, and copies what is whole of a damaged file. A file must not be open in a proxy.

use std::fmt::Write as _;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use clap::Subcommand;
use http::Request;
use indicatif::HumanDuration;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use crate::cli::client::ProxyArgs;
use crate::cli::{Exit, OutputArgs, print, refuse, runtime};
use crate::config::{Config, Environment, MissingError, Sources};
use crate::engine::bookkeeper::KEPT;
use crate::payload::{ChainKey, Lifetime, PayloadKey, Place};
use crate::store::redb::{salvage, secret};
use crate::store::{
    Clock, NoteGroup, OpenError, PayloadInfo, RedbStore, Salvaged, Settings, SharedStore, Stats, Store, StoreEngine,
    StoreError, StoreErrorKind, SweepResult, Time, Verified, engine, postgres,
};
use crate::units::ByteSize;

/// The subcommands of `store`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the payloads, the most recently used first.
    Ls(Ls),
    /// Print a payload.
    Get {
        /// The handle in a notice or a placeholder: 26 digits and letters
        handle: String,
    },
    /// Print statistics.
    Stats(OutputArgs),
    /// Remove what `store.keep_for` and `store.max_bytes` do not keep.
    Sweep(OutputArgs),
    /// Compact the file to its smallest size.
    Compact(OutputArgs),
    /// Read and check everything that is stored
    Verify(OutputArgs),
    /// Copy what is whole of a file, also of a damaged one, to a new file
    Salvage(SalvageArgs),
    /// Copy the file as it is at this moment to a new one, also while a proxy uses it
    Backup(BackupArgs),
    /// Make the tables that the store of a fleet needs, where they do not exist.
    Init,
    /// Copy a store file to the engine of the settings, or from there to a new file: texts, summaries and the secret.
    Copy(CopyArgs),
}

/// Arguments of `ls`.
#[derive(clap::Args, Debug)]
pub struct Ls {
    /// The maximum number of payloads
    #[arg(long, value_name = "N", default_value_t = 100)]
    most: usize,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `backup`.
#[derive(clap::Args, Debug)]
pub struct BackupArgs {
    /// The new file; the proxy writes it, if one runs
    #[arg(value_name = "FILE")]
    to: PathBuf,
    #[command(flatten)]
    proxy: ProxyArgs,
}

/// How long a copy may take.
const BACKUP_PATIENCE: Duration = Duration::from_hours(1);

/// Arguments of `salvage`.
#[derive(clap::Args, Debug)]
pub struct SalvageArgs {
    /// The damaged file, in place of the one of the settings
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// The new file
    #[arg(value_name = "OUT")]
    to: PathBuf,
}

/// Arguments of `copy`.
#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
pub struct CopyArgs {
    /// Copy this file to the engine
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Copy from the engine to this new file
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
}

/// The part of a summary that says where it is found.
#[derive(Deserialize)]
struct Rooted {
    root: ChainKey,
}

/// How many payloads are read and written at a time.
const BATCH: usize = 32;

/// The store of the settings does not exist.
#[derive(Debug, thiserror::Error)]
#[error("there is no store at {}; a proxy creates it when it first runs; set store.path if it is elsewhere", .0.display())]
pub struct StoreNotFoundError(PathBuf);

/// Runs the subcommand and closes the store.
pub fn run(command: &Command, sources: &Sources, config: &Config) -> anyhow::Result<Exit> {
    let environment = Environment::read(&sources.variables, config)?;
    let runtime = runtime()?;
    runtime.block_on(async {
        match command {
            Command::Init => return init(config, &environment).await,
            Command::Copy(args) => return run_copy(args, config, &environment).await,
            Command::Backup(args) => return backup(args, sources, config, &environment).await,
            Command::Salvage(args) => return run_salvage(args, config, &environment).await,
            _ => {}
        }
        let store = open(config, &environment).await?;
        let done = command.run(&*store, Clock::system().now()).await;
        let closed = store.close().await;
        let exit = done?;
        closed?;
        Ok(exit)
    })
}

/// Reads from the store of the settings, for a command whose proxy does not run. `None` if nothing can be read there: there is no
/// store, or another process has it open.
pub(super) fn read<T>(
    sources: &Sources,
    config: &Config,
    read: impl AsyncFnOnce(&dyn Store) -> Result<T, StoreError>,
) -> anyhow::Result<Option<T>> {
    if !config.store.enabled {
        return Ok(None);
    }
    let environment = Environment::read(&sources.variables, config)?;
    let runtime = runtime()?;
    runtime.block_on(async {
        let Ok(store) = open(config, &environment).await else { return Ok(None) };
        let found = read(&*store).await;
        store.close().await?;
        Ok(Some(found?))
    })
}

/// Makes the tables.
async fn init(config: &Config, environment: &Environment) -> anyhow::Result<Exit> {
    let options = environment.store_options(&config.store);
    match config.store.engine {
        StoreEngine::File => Err(MissingError::StoreEngine.into()),
        StoreEngine::Postgres => {
            postgres::init(&options.url, &options.settings).await?;
            print(["the tables are there\n"])
        }
        // It has no tables.
        StoreEngine::Redis => {
            open_engine(options).await?.close().await?;
            print(["Redis can be used as it is\n"])
        }
    }
}

/// Opens the store of the settings.
async fn open(config: &Config, environment: &Environment) -> anyhow::Result<Box<dyn Store>> {
    match config.store.engine {
        StoreEngine::File => {
            let path = config.store.file(environment.state.as_deref()).ok_or(MissingError::StorePath)?;
            Ok(Box::new(open_file(&path, config)?))
        }
        StoreEngine::Postgres | StoreEngine::Redis => Ok(open_engine(environment.store_options(&config.store)).await?),
    }
}

/// Opens the engine. One that is away is an error.
async fn open_engine(options: engine::Options) -> anyhow::Result<Box<dyn SharedStore>> {
    let store = engine::open(options).await?;
    store.state()?;
    Ok(store)
}

fn open_file(path: &Path, config: &Config) -> anyhow::Result<RedbStore> {
    if !path.exists() {
        return Err(StoreNotFoundError(path.to_owned()).into());
    }
    RedbStore::open(path, config.store.clone(), Clock::system()).map_err(|error| {
        let is_in_use = matches!(error, OpenError::InUse { .. });
        let error = anyhow::Error::new(error);
        let advice = "ask the running proxy, GET /abridge/recall/HANDLE, or stop it first";
        if is_in_use { error.context(advice) } else { error }
    })
}

// === impl Command ===

impl Command {
    async fn run(&self, store: &dyn Store, now: Time) -> anyhow::Result<Exit> {
        let text = match self {
            Self::Ls(Ls { most, output }) => {
                output.render(&store.list(*most).await?, |entries| format_table(entries, now))?
            }
            Self::Get { handle } => {
                let payload = match handle.parse::<PayloadKey>() {
                    Ok(key) => store.get(key).await?,
                    Err(_) => None,
                };
                let missing = || Ok(refuse(&anyhow!("no payload has the handle {handle:?}")));
                return payload.map_or_else(missing, |payload| print([payload]));
            }
            Self::Stats(output) => output.render(&store.stats().await?, format_stats)?,
            Self::Verify(output) => {
                let verified = store.verify().await?;
                print([output.render(&verified, format_verified)?])?;
                return Ok(if verified.damaged.is_empty() { Exit::Ok } else { Exit::No });
            }
            Self::Sweep(output) => output.render(&store.sweep().await?, format_swept)?,
            // They open what they need.
            Self::Init | Self::Copy(_) | Self::Salvage(_) | Self::Backup(_) => String::new(),
            Self::Compact(output) => {
                let before = store.stats().await?.file_bytes;
                store.compact().await?;
                output.render(&store.stats().await?, |after| format!("{before} -> {} bytes\n", after.file_bytes))?
            }
        };
        print([text])
    }
}

// === copies of a file ===

async fn backup(
    args: &BackupArgs,
    sources: &Sources,
    config: &Config,
    environment: &Environment,
) -> anyhow::Result<Exit> {
    let to = std::path::absolute(&args.to).context("the name of the file has no folder")?;
    check_is_new(&to)?;
    if args.proxy.is_default() {
        match open(config, environment).await {
            Ok(store) => {
                let copied = store.backup(&to).await;
                store.close().await?;
                copied.context("the store was not copied")?;
                return print([format!("copied the store to {}\n", to.display())]);
            }
            Err(error) if matches!(error.downcast_ref(), Some(OpenError::InUse { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    let mut proxy = args.proxy.proxy(sources, config)?;
    proxy.patience = BACKUP_PATIENCE;
    let path = to.to_str().context("the name of the file is not UTF-8")?;
    let target = format!("/abridge/backup?file={}", utf8_percent_encode(path, NON_ALPHANUMERIC));
    let answer = proxy.send(Request::post(&target), b"").await?;
    if answer.status != 200 {
        return Ok(refuse(&anyhow!("{}", answer.first_line())));
    }
    print([format!("{}\n", answer.first_line())])
}

/// Refuses a file that exists, with the exit code of a file that cannot be written.
fn check_is_new(path: &Path) -> anyhow::Result<()> {
    let why = || io::Error::new(ErrorKind::AlreadyExists, format!("{} exists; name a new file", path.display()));
    if path.exists() { Err(why().into()) } else { Ok(()) }
}

async fn run_salvage(args: &SalvageArgs, config: &Config, environment: &Environment) -> anyhow::Result<Exit> {
    let own = || config.store.file(environment.state.as_deref());
    let from = args.from.clone().or_else(own).ok_or(MissingError::StorePath)?;
    if !from.is_file() {
        return Err(StoreNotFoundError(from).into());
    }
    check_is_new(&args.to)?;
    let found = secret(&from);
    let (settings, clock) = (without_limit(config), Clock::system());
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

async fn run_copy(args: &CopyArgs, config: &Config, environment: &Environment) -> anyhow::Result<Exit> {
    if config.store.engine == StoreEngine::File {
        return Err(MissingError::StoreEngine.into());
    }
    let mut options = environment.store_options(&config.store);
    let copied = match (&args.from, &args.to) {
        (Some(path), _) => {
            let file = open_file(path, config)?;
            options.fresh = Some(file.secret());
            let engine = open_engine(options).await?;
            ensure!(
                engine.secret() == Some(file.secret()),
                "the engine has another secret than the file, so no handle of the file would be valid there; take a store.namespace whose tables are new, without store.secret_env, or set that to the file's secret"
            );
            copy(&file, &*engine).await?
        }
        (None, to) => {
            let path = to.as_deref().context("--from or --to")?;
            let engine = open_engine(options).await?;
            let secret = engine.secret().context("the engine has not given its secret")?;
            check_is_new(path)?;
            copy(&*engine, &RedbStore::create(path, without_limit(config), Clock::system(), secret)?).await?
        }
    };
    let (Salvaged { payloads, bytes, summaries }, damaged) = copied;
    let left_out = damaged.iter().map(|key| format!("left out the text {key}, which is damaged\n"));
    let copied = format!(
        "copied the ledger, and copied and compared {payloads} texts of {bytes} bytes and {summaries} summaries\n"
    );
    print(std::iter::once(copied).chain(left_out))
}

/// Copies all rows, and counts them; and the texts that are damaged.
async fn copy(from: &dyn Store, to: &dyn Store) -> anyhow::Result<(Salvaged, Vec<PayloadKey>)> {
    let (mut copied, mut damaged) = (Salvaged::default(), Vec::new());
    let listed = from.list(usize::MAX).await?;
    for batch in listed.chunks(BATCH) {
        let mut payloads = Vec::new();
        for info in batch {
            // Everything that was swept meanwhile is gone from both.
            match from.load(info.key).await {
                Err(error) if error.kind == StoreErrorKind::Damaged => damaged.push(info.key),
                loaded => payloads.extend(loaded?.map(|payload| (info.key, payload))),
            }
        }
        // The file does not say which ones an upstream's conversation names: all are kept as long as those.
        let put = payloads.iter().map(|(key, payload)| (*key, payload.clone())).collect();
        to.put(put, Lifetime::Chained).await?;
        for (key, payload) in payloads {
            ensure!(to.load(key).await?.as_ref() == Some(&payload), "the copy of {key} differs");
            copied.payloads += 1;
            copied.bytes += payload.len() as u64;
        }
    }
    for beginning in from.summaries().await? {
        // A damaged one is made anew.
        let Some(summary) = from.summary(beginning).await? else { continue };
        // A fact without a root is found by its own name.
        let root = serde_json::from_slice(&summary).map_or(beginning, |Rooted { root }| root);
        // A summary that the other side has already stays.
        to.offer_summary(Place { root, beginning }, summary).await?;
        copied.summaries += 1;
    }
    for note in from.notes(NoteGroup::Ledger).await? {
        to.note(note, KEPT).await?;
    }
    from.close().await?;
    to.close().await?;
    Ok((copied, damaged))
}

// === helpers ===

/// The settings of a file that takes all of another store.
fn without_limit(config: &Config) -> Settings {
    Settings { max_bytes: ByteSize(u64::MAX), ..config.store.clone() }
}

fn format_table(entries: &[PayloadInfo], now: Time) -> String {
    let mut text = format!("{:26}  {:>10}  {:>10}  {:>8}  {:>8}\n", "handle", "bytes", "in file", "kept", "used");
    for PayloadInfo { key, bytes, stored_bytes, created, used } in entries {
        let [created, used] = [created, used].map(|then| format!("{:#}", HumanDuration(now.since(*then))));
        // Writing into a String never fails.
        let _written = writeln!(text, "{key:26}  {bytes:>10}  {stored_bytes:>10}  {created:>8}  {used:>8}");
    }
    text
}

fn format_verified(Verified { payloads, summaries, inspected, notes, damaged }: &Verified) -> String {
    let (mut text, n_damaged) = (String::new(), damaged.len());
    // Writing into a String never fails.
    for name in damaged {
        let _written = writeln!(text, "damaged: {name}");
    }
    let _written = writeln!(
        text,
        "{payloads} payloads, {summaries} summaries and facts, {inspected} inspected requests and {notes} notes are whole; {n_damaged} rows are damaged"
    );
    text
}

fn format_swept(SweepResult { aged, crowded_out, stored_bytes, summaries }: &SweepResult) -> String {
    format!(
        "removed {aged} unused for too long and {crowded_out} too many, {stored_bytes} bytes in the file, \
         and {summaries} summaries\n"
    )
}

fn format_stats(stats: &Stats) -> String {
    let Stats { payloads, bytes, stored_bytes, summaries, summary_bytes, file_bytes, tombstones, .. } = stats;
    format!(
        "payloads              {payloads}\nbytes                 {bytes}\nbytes in the file     {stored_bytes}\n\
         summaries and facts   {summaries}\nbytes of them         {summary_bytes}\n\
         length of the file    {file_bytes}\nswept and remembered  {tombstones}\n"
    )
}
