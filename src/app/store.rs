//! The store of a running proxy: opened at start, maintained beside the requests, closed at the end.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::DropGuard;

use crate::config::{Config, Environment, MissingError};
use crate::engine::export;
use crate::payload::Keys;
use crate::proxy::Proxy;
use crate::store::{self, Clock, OpenError, RedbStore, SharedStore, Store, StoreEngine, SweepResult, engine};
use crate::tasks::{Tasks, run_blocking};

/// The interval between two maintenance runs of the store.
const MAINTENANCE_INTERVAL: Duration = Duration::from_mins(1);

/// The interval at which the ledger is stored, if it has changed; a kill may lose as much.
const LEDGER_INTERVAL: Duration = Duration::from_secs(5);

/// The minimum interval between two sweeps of the exported files.
const EXPORT_SWEEP_INTERVAL: Duration = Duration::from_mins(10);

/// At start, an engine that is away is asked again after this time.
const START_PAUSE: Duration = Duration::from_secs(1);

/// The maximum time for closing the store.
const STORE_CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A store, or what is done without one.
pub(super) struct Opened {
    pub(super) store: Option<Arc<dyn Store>>,
    /// Made with the secret of the store. Without a store, the keys are the well-known ones.
    pub(super) keys: Keys,
    /// Why the store of the settings could not be opened, with the fix.
    pub(super) notice: Option<String>,
}

/// Opens the store. Without a usable file abridge still serves, unless the settings require the store or another process
/// uses the file.
pub(super) async fn open(config: &Config, environment: &Environment) -> anyhow::Result<Opened> {
    let opened = |keys, store| Opened { store: Some(store), keys, notice: None };
    if !config.store.enabled {
        return Ok(Opened { store: None, keys: Keys::well_known(), notice: None });
    }
    match config.store.engine {
        StoreEngine::File => {
            let path = config.store.file(environment.state.as_deref()).ok_or(MissingError::StorePath)?;
            match RedbStore::open_or_set_aside(&path, config.store.clone(), Clock::system()) {
                Ok(store) => Ok(opened(Keys::new(store.secret()), Arc::new(store))),
                Err(error) if config.store.required || matches!(error, OpenError::InUse { .. }) => Err(error.into()),
                Err(error) => {
                    let why = format!("{:#}", anyhow::Error::new(error));
                    let notice = format!("edits that need the store take nothing out until a restart: {why}");
                    tracing::error!("{notice}");
                    Ok(Opened { store: None, keys: Keys::well_known(), notice: Some(notice) })
                }
            }
        }
        StoreEngine::Postgres | StoreEngine::Redis => {
            let store = open_engine(&environment.store_options(&config.store)).await?;
            if store.state().is_ok() {
                tracing::info!("the store is in {}: {}", store.engine(), store.promise().await);
            }
            let secret = store.secret().context("the store's engine has not given its secret")?;
            let store: Box<dyn Store> = store;
            Ok(opened(Keys::new(secret).replacing(environment.store_secrets.old()), store.into()))
        }
    }
}

/// Opens the engine. Waits for one that has the secret and is away.
async fn open_engine(options: &engine::Options) -> Result<Box<dyn SharedStore>, engine::OpenError> {
    let mut is_told = false;
    loop {
        match engine::open(options.clone()).await {
            Err(engine::OpenError::Engine(error)) if error.may_pass() => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::error!(%error, "the store's engine is away; abridge waits for it, because it has the secret");
                }
                sleep(START_PAUSE).await;
            }
            opened => return opened,
        }
    }
}

/// Spawns the task that stores the ledger. It stops when the returned guard is dropped.
pub(super) fn save_ledger(proxy: Arc<Proxy>, tasks: &Tasks) -> DropGuard {
    tasks.spawn_guarded(async move {
        loop {
            sleep(LEDGER_INTERVAL).await;
            proxy.engine.bookkeeper.save().await;
        }
    })
}

/// Spawns the task that maintains the store and sweeps exported files. It stops when the returned guard is dropped.
pub(super) fn maintain(
    store: Arc<dyn Store>,
    proxy: Arc<Proxy>,
    settings: store::Settings,
    tasks: &Tasks,
) -> DropGuard {
    tasks.spawn_guarded(async move {
        let pause = EXPORT_SWEEP_INTERVAL.min(settings.keep_for.0 / 8);
        let mut swept: Option<Instant> = None;
        loop {
            // A failure has been reported by the store, and the next run tries again.
            let _maintained = store.maintain().await;
            if swept.is_none_or(|swept| swept.elapsed() >= pause) {
                swept = Some(Instant::now());
                sweep_exports(&proxy, &settings).await;
            }
            sleep(MAINTENANCE_INTERVAL).await;
        }
    })
}

/// Removes exported files by the same limits as stored payloads.
async fn sweep_exports(proxy: &Proxy, settings: &store::Settings) {
    let Some(dir) = proxy.live().destinations.default().usual.rules.export_dir() else { return };
    let settings = settings.clone();
    let sweep = move || export::sweep(&dir, &settings, Clock::system().now());
    match run_blocking(sweep).await {
        Ok(Ok(swept)) if swept == SweepResult::default() => {}
        Ok(Ok(SweepResult { aged, crowded_out, stored_bytes, .. })) => {
            tracing::debug!(aged, crowded_out, bytes = stored_bytes, "exported files were swept");
        }
        Ok(Err(error)) => tracing::warn!(%error, "the files in recall.export_dir were not all swept"),
        Err(_) => {}
    }
}

pub(super) async fn close(store: &dyn Store) {
    match timeout(STORE_CLOSE_TIMEOUT, store.close()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, cause = %error.source, "the store was not closed well"),
        Err(_) => tracing::warn!("the store was not closed in time; nothing that was sent upstream is lost"),
    }
}
