//! Application wiring: builds a proxy from the settings, serves it, and handles the signals for reload and shutdown.

use std::iter;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use tokio::runtime::{self, Runtime};

use crate::admin::access::Access;
use crate::config::{Config, Environment, Secret, Sources, clients};
use crate::engine::EngineConfig;
use crate::engine::handlers::HandlerClients;
use crate::engine::summarizer::Endpoints;
use crate::payload::Keys;
use crate::platform::SignalAction;
use crate::platform::process::ProxySignals;
use crate::proxy::compress::CompressRules;
use crate::proxy::keep_alive::KeepAlive;
use crate::proxy::second_try::{Arm, RescuePolicy};
use crate::proxy::{Destination, Destinations, Experiment, LiveConfig, WindowDiscovery};
use crate::server::DrainOutcome;
use crate::server::listen::Listener;
use crate::tasks::yield_thread;
use crate::telemetry::LevelHandle;
use crate::tokens::Meter;
use crate::upstream::{KeyHeader, Upstream};

pub mod manual_summary;
mod notes;
mod running;
mod startup;
mod store;

use running::Running;
pub use running::serve_beside;

/// The input of [`serve`].
#[derive(Debug)]
pub struct Launch {
    /// The sources of the settings, read again at SIGHUP.
    pub sources: Sources,
    /// The settings.
    pub config: Config,
    /// Values from the environment that are not settings.
    pub environment: Environment,
    /// The folder that edited exchanges are recorded into, if any.
    pub record: Option<PathBuf>,
    /// Changes the log level at SIGHUP.
    pub level: LevelHandle,
}

/// The maximum time for tunnels and unfinished recordings after the last answer of a drain.
const TASK_DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves until a signal ends it. Returns whether every answer was finished.
pub fn serve(launch: Launch) -> anyhow::Result<DrainOutcome> {
    let runtime = runtime(launch.config.server.workers)?;
    let ended = runtime.block_on(run(launch));
    // Remaining tasks were cancelled and have had their time.
    runtime.shutdown_background();
    ended
}

fn runtime(workers: usize) -> anyhow::Result<Runtime> {
    let workers = if workers == 0 { thread::available_parallelism().map_or(1, usize::from) } else { workers };
    let mut builder =
        if workers == 1 { runtime::Builder::new_current_thread() } else { runtime::Builder::new_multi_thread() };
    builder.event_interval(EVENT_INTERVAL).enable_all();
    builder.worker_threads(workers).max_blocking_threads(MAX_BLOCKING_THREADS);
    builder.build().context("cannot start the threads of the server")
}

/// How many tasks a worker runs at most before it asks the kernel for events; it also does so when no task is ready. A request
/// takes four, so that of 32 connections with a request each all are served in one round. With tokio's own 61 there are 6 %
/// fewer requests a second, and with 8 there are 12 % fewer (`cargo bench --bench load -- --parts rate`).
const EVENT_INTERVAL: u32 = 128;

/// The maximum number of threads for blocking work: planning long bodies, decoding, name look-ups, recordings. Further
/// work is queued.
const MAX_BLOCKING_THREADS: usize = 32;

async fn run(launch: Launch) -> anyhow::Result<DrainOutcome> {
    let Launch { sources, config, mut environment, record, level } = launch;
    let token_kept = environment.make_operator_token();
    let mut running = Running::new(&config, &environment, record).await?;
    let mut signals = ProxySignals::new().context("cannot install signal handlers")?;
    let mut reloads = running.proxy.reloads();
    let (proxy, tls) = (Arc::clone(&running.proxy), running.acceptor.is_some());
    for address in running.clients.iter().map(Listener::address) {
        startup::announce_listener(&address?, tls);
    }
    let logged = startup::is_logged(&config);
    // A token of the settings is not printed, and none is written into a log.
    let is_printed = token_kept.is_some() && !logged;
    let token = environment.operator_token.as_ref().filter(|_| is_printed);
    let operators: Vec<_> = running.operators.iter().map(Listener::address).collect::<Result<_, _>>()?;
    for address in &operators {
        startup::announce_operators(address, tls, token);
    }
    let on_clients = || startup::describe_page(running.page_address().as_ref(), tls, token);
    let page = operators.is_empty().then(on_clients);
    running.serve(&config);
    startup::report_settings(&config, &environment, &running, page, token_kept.as_ref(), logged);
    running.guards.extend(startup::spawn_probes(&config, &proxy.live().destinations, &running.tasks, logged));
    // The keys are held where they are used, until a reload replaces them.
    drop(environment);

    let grace = config.server.grace.0;
    let mut reloader = Reloader { sources, started_with: config.clone(), config, level, running: &running };
    loop {
        tokio::select! {
            action = signals.next() => match action {
                // The log says what came of it.
                SignalAction::Reload => drop(reloader.reload()),
                SignalAction::Stop => break,
            },
            // Who has asked may have left meanwhile.
            Some(reply) = reloads.recv() => drop(reply.send(reloader.reload())),
        }
    }
    drop(reloads);
    tracing::info!(grace_seconds = grace.as_secs(), "stopping: running answers may finish; a second signal ends them");
    let drained = tokio::select! {
        drained = running.drain(grace, TASK_DRAIN_TIMEOUT) => drained,
        // Until the next signal that stops the proxy.
        () = async { while signals.next().await == SignalAction::Reload {} } => DrainOutcome::Interrupted,
    };
    match drained {
        DrainOutcome::Complete => tracing::info!("stopped: every answer was finished"),
        DrainOutcome::TimedOut(n) => {
            tracing::warn!(connections = n, "stopped: server.grace ended before every answer was finished");
        }
        DrainOutcome::Interrupted => tracing::warn!("stopped at once by a second signal"),
    }
    if let Some(savings) = proxy.savings() {
        let why = proxy.why_unedited().map(|why| format!(" ({why})")).unwrap_or_default();
        tracing::info!("since the start: {savings}{why}");
    }
    Ok(drained)
}

/// Builds the part of the proxy that a reload replaces. State learned by `present` is kept where the settings that it
/// depends on are unchanged.
fn build_live(
    config: &Config,
    environment: &Environment,
    address: Option<String>,
    keys: Keys,
    present: Option<(&Config, &LiveConfig)>,
) -> anyhow::Result<LiveConfig> {
    let urls = |config: &Config| {
        let routes = config.upstreams.iter().map(|route| &route.url);
        iter::once(&config.upstream.url).chain(routes).cloned().collect::<Vec<_>>()
    };
    let same_counts = |present: &Config| {
        // Another upstream may report other windows for its models.
        present.tokens == config.tokens && present.models == config.models && urls(present) == urls(config)
    };
    let meter = present.filter(|(present, _)| same_counts(present)).map_or_else(
        || Meter::with_yield(&config.tokens, &config.models, yield_thread),
        |(_, live)| live.destinations.default().usual.rules.planner.meter.clone(),
    );
    let parts = Parts { config, environment };
    let endpoints = parts.endpoints(config)?;
    let planner = config.planner(address, meter, keys);
    let names = config.admin.hosts.iter().map(String::as_str);
    let public = planner.settings.recall.public_url.as_deref().and_then(|url| url.split('/').nth(2));
    let token = environment.operator_token.as_ref().map(Secret::expose);
    let origins = clients::add_headers(config, environment).then(|| config.admin.origins.clone());
    let access = Access::new(token, names.chain(public), origins);
    let key = |name: &str| environment.handler_keys.get(name)?.header(KeyHeader::Authorization).ok();
    let handlers = HandlerClients::new(&config.handlers, &environment.proxies, key).context("[handlers]")?;
    let rules = Arc::new(EngineConfig { planner, endpoints, handlers, policy: EngineConfig::NO_POLICY.into() });
    let destinations = parts.destinations(&rules)?;
    Ok(LiveConfig {
        destinations,
        access,
        recall_auth: config.recall.auth,
        clients: config.known_clients()?,
        responses: config.responses,
        compress: config.compress.clone(),
        inspect: config.inspect,
        dry_run: config.dry_run,
    })
}

/// What the upstreams and their edits are built from.
#[derive(Clone, Copy)]
struct Parts<'a> {
    config: &'a Config,
    environment: &'a Environment,
}

impl Parts<'_> {
    /// The models that can be called for summaries under these settings.
    fn endpoints(self, config: &Config) -> anyhow::Result<Endpoints> {
        let key = |name: &str, field| self.environment.model_keys.get(name)?.header(field).ok();
        let endpoints = Endpoints::new(&config.summarize, &config.upstream, &self.environment.proxies, key);
        endpoints.context("[summarize]")
    }

    /// The edits for the upstream at a host: of a policy, or of the top level, by the prices and limits of the host. They share
    /// the counts of tokens with all others.
    fn rules_at(self, host: &str, policy: Option<&str>, rules: &EngineConfig) -> anyhow::Result<Arc<EngineConfig>> {
        let own = policy.map(|name| self.config.under_policy(name)).transpose()?;
        let endpoints = own.as_ref().map_or_else(|| Ok(rules.endpoints.clone()), |own| self.endpoints(own))?;
        let planner = own.as_ref().unwrap_or(self.config).planner_at(host, &rules.planner);
        let policy = policy.map_or_else(|| Arc::clone(&rules.policy), Into::into);
        Ok(Arc::new(EngineConfig { planner, endpoints, handlers: rules.handlers.clone(), policy }))
    }

    /// Builds the upstreams, without open connections.
    fn destinations(self, rules: &Arc<EngineConfig>) -> anyhow::Result<Destinations> {
        let Self { config, environment } = self;
        let routes = config.upstreams.iter().map(|settings| {
            let rules = self.rules_at(settings.url.host(), settings.policy.as_deref(), rules)?;
            let destination = self.destination(clients::of(config, environment, Some(settings))?, rules)?;
            Ok((settings.requests().unwrap_or_default(), destination))
        });
        let routes = routes.collect::<anyhow::Result<_>>()?;
        let default = self.destination(clients::of(config, environment, None)?, Arc::clone(rules))?;
        Ok(Destinations::new(routes, default))
    }

    fn destination(self, upstream: Upstream, rules: Arc<EngineConfig>) -> anyhow::Result<Destination> {
        let Self { config, .. } = self;
        let experiment = config.experiment.share.map(|share| {
            let host = &rules.planner.settings.upstream;
            let tried = self.rules_at(host, Some(&config.experiment.policy), &rules)?;
            Ok::<_, anyhow::Error>(Experiment { tried: self.arm(tried), share })
        });
        Ok(Destination {
            upstream,
            experiment: experiment.transpose()?,
            compress: config.compress.enabled.then(|| CompressRules::new(&rules, config.recall.auth)),
            usual: self.arm(rules),
            keep_alive: KeepAlive::new(config.keep_alive),
            windows: WindowDiscovery::new(&config.tokens),
            lacks_compaction: AtomicBool::new(false),
        })
    }

    fn arm(self, rules: Arc<EngineConfig>) -> Arm {
        let rescue = self.config.second_try.enabled.then(|| RescuePolicy::new(&rules));
        Arm { rules, rescue }
    }
}

// === reload ===

/// The state that a reload needs.
struct Reloader<'r> {
    sources: Sources,
    // The settings at start, and the settings in effect now.
    started_with: Config,
    config: Config,
    level: LevelHandle,
    running: &'r Running,
}

impl Reloader<'_> {
    /// Reads the settings again. A reload takes effect as a whole or not at all.
    fn reload(&mut self) -> Result<(), String> {
        let reloaded = self.try_reload().map_err(|error| format!("{error:#}"));
        match &reloaded {
            Ok(()) => tracing::info!("settings reloaded"),
            Err(error) => tracing::error!(error, "settings not reloaded; the old ones stay in force"),
        }
        reloaded
    }

    fn try_reload(&mut self) -> anyhow::Result<()> {
        let config = Config::load(&self.sources)?;
        let mut environment = Environment::read(&self.sources.variables, &config)?;
        environment.make_operator_token();
        let Running { proxy, acceptor, address, .. } = self.running;
        let present = proxy.live();
        let keys = present.destinations.default().usual.rules.planner.keys.clone();
        let live = build_live(&config, &environment, address.clone(), keys, Some((&self.config, &present)))?;
        if let (Some(acceptor), Some(settings)) = (acceptor, &config.tls) {
            acceptor.reload(settings).context("[tls]")?;
        }
        let before = &self.started_with;
        for (what, has_changed) in [
            ("[server]", config.server != before.server),
            ("[tls], on or off,", config.tls.is_some() != before.tls.is_some()),
            ("admin.listen", config.admin.listen != before.admin.listen),
            ("[store]", config.store != before.store),
            ("[events]", config.events != before.events),
            ("[otel]", config.otel != before.otel),
            ("log.format", config.log.format != before.log.format),
        ] {
            if has_changed {
                tracing::warn!("a change of {what} comes into force only with a restart");
            }
        }
        self.level.set(config.log.level);
        proxy.live.store(Arc::new(live));
        if config.inspect != self.config.inspect {
            proxy.trim_inspected();
        }
        self.config = config;
        Ok(())
    }
}
