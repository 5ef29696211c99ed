//! A proxy with all that it needs, from its store to its sockets: made, set to serve, drained.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::admin::access::{Exposure, ListenerRole};
use crate::body::{Budget, Limits, Pool};
use crate::config::{Config, Environment, MissingError};
use crate::engine::Engine;
use crate::events::Events;
use crate::history::RunTotals;
use crate::ledger::Savings;
use crate::otel;
use crate::proxy::{Proxy, Services};
use crate::recording::Recorder;
use crate::server::listen::{Address, Listener, local_url};
use crate::server::tls::Acceptor;
use crate::server::{DrainOutcome, Server};
use crate::store::Store;
use crate::tasks::{Tasks, run_blocking};
use crate::webhook::Webhook;

use super::{build_live, notes, store};

/// A proxy that serves, or is ready to.
pub(super) struct Running {
    pub(super) proxy: Arc<Proxy>,
    pub(super) acceptor: Option<Acceptor>,
    /// The URL at which clients on this machine reach it.
    pub(super) address: Option<String>,
    pub(super) tasks: Tasks,
    pub(super) store: Option<Arc<dyn Store>>,
    /// Those for clients and for operators, until it serves.
    pub(super) clients: Vec<Listener>,
    pub(super) operators: Vec<Listener>,
    /// What stops its task when it is dropped.
    pub(super) guards: Vec<DropGuard>,
    server: Server,
    webhook: Option<(Tasks, CancellationToken)>,
    otel: Option<otel::Exporter>,
}

/// How long the start waits for the index of what is stored.
const INDEX_PATIENCE: Duration = Duration::from_secs(1);

/// The maximum time for posting the last events to the webhook, and for sending the last traces and metrics.
const LAST_POST_TIMEOUT: Duration = Duration::from_secs(5);

impl Running {
    /// Opens the store, binds the addresses and builds the proxy. Connections wait until [`Self::serve`].
    pub(super) async fn new(
        config: &Config,
        environment: &Environment,
        record: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let tasks = Tasks::default();
        let mut recorder = record
            .map(|dir| Recorder::new(&dir).with_context(|| format!("cannot record into {}", dir.display())))
            .transpose()?;
        let store::Opened { store, keys, notice } = store::open(config, environment).await?;
        let acceptor = config.tls.as_ref().map(Acceptor::new).transpose().context("[tls]")?;
        let operators = config.admin.listen.as_ref().map_or_else(|| Ok(Vec::new()), |listen| listeners(&listen.0))?;
        let clients = listeners(&config.server.listen.0)?;
        let bound: Vec<Address> = clients.iter().filter_map(|listener| listener.address().ok()).collect();
        let address = local_url(&bound, acceptor.is_some());
        let live = build_live(config, environment, address.clone(), keys.clone(), None)?;
        let otel = otel::Exporter::new(&config.otel, &environment.proxies).context("otel.endpoint")?;
        let events = Events::new(&config.events);
        let webhook = Webhook::new(&config.events, &events, &environment.proxies).context("events.webhook")?;
        let mut engine = Engine::new(store.clone(), config.store.timeout.0, keys, tasks.clone(), events.clone());
        let max_body = config.server.max_body.as_usize();
        let budget = Budget::new(config.server.max_buffered.as_usize());
        let limits = Limits { max_body, budget: budget.clone(), pool: Pool::default() };
        engine.budget = budget.clone();
        engine.lacks_store = notice;
        let summaries = Arc::clone(&engine.summaries);
        let index_read = summaries.until_read();
        tasks.spawn(async move { summaries.read_index().await });
        if let Some(recorder) = &mut recorder {
            recorder.address.clone_from(&address);
        }
        let shared = Services { recorder, tasks: tasks.clone(), events, otel: otel.clone() };
        let places = [config.server.max_in_flight, config.server.max_connections];
        let proxy = Arc::new(Proxy::new(live, engine, limits, places, &config.limits, shared));
        proxy.trim_inspected();
        let guards = notes::Notes::start(store.as_ref(), &proxy, &tasks).await.into_iter().collect();
        // Its task is apart from the others, because they publish until they end.
        let webhook = webhook.map(|webhook| {
            let (tasks, stop) = (Tasks::default(), CancellationToken::new());
            tasks.spawn(webhook.run(stop.clone()));
            (tasks, stop)
        });
        let server = Server::new(&config.server, Arc::clone(&proxy), acceptor.clone(), budget);
        // An earlier request would be edited without what is stored of its conversation.
        let _read = timeout(INDEX_PATIENCE, index_read).await;
        Ok(Self { proxy, acceptor, address, tasks, store, clients, operators, guards, server, webhook, otel })
    }

    /// The address for clients at which an operator finds the page, until it serves.
    pub(super) fn page_address(&self) -> Option<Address> {
        let reached = |address: &Address| address.exposure() != Exposure::Network && matches!(address, Address::Tcp(_));
        self.clients.iter().filter_map(|listener| listener.address().ok()).find(reached)
    }

    /// Accepts connections, and maintains the store.
    pub(super) fn serve(&mut self, config: &Config) {
        for listener in self.clients.drain(..) {
            self.server.listen(listener, ListenerRole::Clients);
        }
        for listener in self.operators.drain(..) {
            self.server.listen(listener, ListenerRole::Operators);
        }
        if let Some(store) = self.store.clone() {
            self.guards.push(store::maintain(store, Arc::clone(&self.proxy), config.store.clone(), &self.tasks));
            self.guards.push(store::save_ledger(Arc::clone(&self.proxy), &self.tasks));
        }
    }

    /// Stops accepting, lets running answers finish within `grace`, and then other tasks within `task_grace`.
    pub(super) async fn drain(self, grace: Duration, task_grace: Duration) -> DrainOutcome {
        self.proxy.stopping.cancel();
        let drained = self.server.drain(grace).await;
        drop(self.guards);
        // Only the last writes remain, or tunnels that would never end by themselves.
        let _ended = timeout(task_grace, self.tasks.wait()).await;
        self.proxy.engine.bookkeeper.save().await;
        if let Some((tasks, stop)) = self.webhook {
            stop.cancel();
            if timeout(LAST_POST_TIMEOUT, tasks.wait()).await.is_err() {
                tracing::warn!("the last events were not posted to the webhook in time");
            }
        }
        if let Some(otel) = self.otel
            && timeout(LAST_POST_TIMEOUT, run_blocking(move || otel.shutdown())).await.is_err()
        {
            tracing::warn!("the last traces and metrics were not sent to otel.endpoint in time");
        }
        if let Some(store) = self.store {
            store::close(&*store).await;
        }
        drained
    }
}

// === beside other work ===

/// The maximum time for answers, and then for tasks, after the end of the work: the answers are not read any more.
const GRACE_BESIDE: Duration = Duration::from_secs(1);

/// Serves on the addresses of the settings while `work` runs, which is given the URL. Exchanges are recorded into `record`.
///
/// # Errors
///
/// When the proxy cannot start. The work has not begun then.
pub async fn serve_beside<T>(
    config: &Config,
    environment: &Environment,
    record: Option<PathBuf>,
    work: impl AsyncFnOnce(&str) -> T,
) -> anyhow::Result<(T, RunTotals)> {
    let mut running = Running::new(config, environment, record).await?;
    let url = running.address.clone().ok_or(MissingError::Address)?;
    running.serve(config);
    let outcome = work(&url).await;
    let (proxy, store) = (Arc::clone(&running.proxy), running.store.clone());
    // Answers that were cut had no reader.
    let _drained = running.drain(GRACE_BESIDE, GRACE_BESIDE).await;
    let stored = store.map_or(0, |store| store.counts().written.load(Ordering::Relaxed));
    let savings = proxy.savings().filter(Savings::has_edits).as_ref().map(Savings::to_string);
    let (totals, summaries) = (proxy.history().totals(), proxy.engine.summarizer.counts().made);
    Ok((outcome, RunTotals { totals, savings, why_unedited: proxy.why_unedited(), stored, summaries }))
}

// === addresses ===

fn listeners(addresses: &[Address]) -> anyhow::Result<Vec<Listener>> {
    let bind = |address| {
        Listener::bind(address).with_context(|| {
            format!("cannot listen on {address}; is another abridge running there? --listen takes another address")
        })
    };
    addresses.iter().map(bind).collect()
}
