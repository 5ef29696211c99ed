//! `GET /abridge/status`: the state of the proxy as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::cache_ledger::{CacheAccount, Losses};
use super::second_try::{Lesson, RescuePolicy};
use super::{Destination, Proxy};
use crate::dialect::Form;
use crate::engine::summarizer::SummaryCounts;
use crate::history::{MAX_ENTRIES, Totals};
use crate::platform::process::resident_memory;
use crate::platform::since_1970;
use crate::store::{self, Store};
use crate::tokens::factor::LearntFactor;

/// Caches the statistics of the store, which reads all its rows for them.
#[derive(Debug, SmartDefault)]
pub(super) struct StatsCache {
    /// When the process started, since 1970.
    #[default(since_1970())]
    started: Duration,
    last: Mutex<Option<CachedStats>>,
}

#[derive(Clone, Debug)]
struct CachedStats {
    at: Instant,
    took: Duration,
    stats: Result<store::Stats, String>,
}

/// Statistics may take at most a fiftieth of the store's time.
const INTERVAL: u32 = 50;

/// The trouble of a store whose last write failed.
const STORE_FAILED: &str =
    "the last write failed: requests are forwarded without the edits that need the store, until a write succeeds";

/// The most models that are listed.
const MAX_MODELS: usize = 50;

/// What `/abridge/status` answers and `abridge status` prints. A field that another version does not send has its default.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Status {
    pub(crate) version: String,
    started: f64,
    pub(crate) uptime_seconds: u64,
    pub(crate) upstream: String,
    pub(crate) upstreams: Vec<UpstreamStatus>,
    pub(crate) dry_run: bool,
    pub(crate) edits: Vec<String>,
    pub(crate) inspect_keep: usize,
    #[serde(flatten)]
    pub(crate) totals: Totals,
    /// The savings of the edits since the start, in words, if that is known.
    pub(crate) savings: Option<String>,
    pub(crate) why_unedited: Option<String>,
    pub(crate) fail_open: BTreeMap<String, u64>,
    summaries: SummaryCounts,
    rescues: BTreeMap<String, u64>,
    keep_alives: BTreeMap<String, u64>,
    recalls: BTreeMap<String, u64>,
    pub(crate) regrets: BTreeMap<String, u64>,
    pub(crate) store: Option<StoreStatus>,
    pub(crate) store_notice: Option<String>,
    pub(crate) in_flight: usize,
    streams: u64,
    pub(crate) buffered_bytes: u64,
    pub(crate) rss_bytes: Option<u64>,
    windows: Vec<Window>,
    pub(crate) token_factors: Vec<TokenFactor>,
    pub(crate) caches: Vec<CacheStatus>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct UpstreamStatus {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    /// The forms that requests to it have: by the settings, by its documentation, and for the models that asked for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) forms: Vec<Form>,
    /// The refusals that have taught them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) lessons: Vec<Lesson>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct StoreStatus {
    pub(crate) path: Option<String>,
    #[serde(flatten)]
    pub(crate) stats: Option<store::Stats>,
    pub(crate) trouble: Option<String>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Window {
    model: String,
    tokens: Option<usize>,
    source: String,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct TokenFactor {
    pub(crate) upstream: String,
    pub(crate) model: String,
    pub(crate) factor: f64,
    pub(crate) answers: u64,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct CacheStatus {
    #[serde(flatten)]
    pub(crate) account: CacheAccount,
    /// What the losses cost more than cached tokens, in tokens at the price of input.
    pub(crate) cost: Losses,
}

impl StatsCache {
    /// The statistics, which are as old as the store is slow; otherwise the error of the store.
    pub(super) async fn get(&self, store: &dyn Store) -> Result<store::Stats, String> {
        let mut last = self.last.lock().await;
        if let Some(cached) = last.as_ref().filter(|cached| cached.at.elapsed() < cached.took * INTERVAL) {
            return cached.stats.clone();
        }
        let began = Instant::now();
        let stats = store.stats().await.map_err(|error| error.to_string());
        *last = Some(CachedStats { at: Instant::now(), took: began.elapsed(), stats: stats.clone() });
        stats
    }
}

impl TokenFactor {
    fn of(learnt: LearntFactor) -> Self {
        let factor = learnt.factor().ratio();
        let LearntFactor { upstream, model, n_bills: answers, .. } = learnt;
        Self { upstream, model, factor, answers }
    }
}

impl Proxy {
    /// The status as JSON.
    pub(super) async fn status_json(&self) -> String {
        let store = match self.engine.store() {
            Some(store) => {
                let stats = self.stats.get(store).await;
                let failed = store.is_failing().then(|| STORE_FAILED.to_owned());
                let path = store.path().map(|path| path.display().to_string());
                Some(StoreStatus { path, trouble: stats.as_ref().err().cloned().or(failed), stats: stats.ok() })
            }
            None => None,
        };
        // Every value has a JSON form.
        serde_json::to_string(&self.status(store)).unwrap_or_default()
    }

    fn status(&self, store: Option<StoreStatus>) -> Status {
        let live = self.live();
        let started = self.stats.started;
        let [repeated, recalled] = self.accounting.metrics.regrets();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: started.as_secs_f64().floor(),
            uptime_seconds: since_1970().saturating_sub(started).as_secs(),
            upstream: live.destinations.default().upstream.base.to_string(),
            upstreams: self.upstreams(),
            dry_run: live.dry_run,
            edits: live.destinations.default().usual.rules.planner.policy.names().map(str::to_owned).collect(),
            inspect_keep: live.inspect.keep,
            totals: self.accounting.history.totals(),
            savings: self.savings().map(|savings| savings.to_string()),
            why_unedited: self.why_unedited(),
            fail_open: by_name(self.fail_open.0.counts()),
            summaries: self.engine.summarizer.counts(),
            rescues: self.rescue_counters.counts().map(|(by, outcome, n)| (format!("{by}_{outcome}"), n)).collect(),
            keep_alives: by_name(self.keep_alives.counts.counts()),
            recalls: by_name(self.recalls.counts()),
            regrets: by_name([("repeated", repeated), ("recalled", recalled)]),
            store,
            store_notice: self.engine.store_notice(),
            in_flight: self.in_flight(),
            streams: self.accounting.metrics.streams(),
            buffered_bytes: self.limits.budget.used() as u64,
            rss_bytes: resident_memory(),
            windows: self.windows(),
            caches: self.accounting.caches.accounts().into_iter().map(|account| self.cache_status(account)).collect(),
            token_factors: self.engine.factors.all_learnt().into_iter().map(TokenFactor::of).collect(),
        }
    }

    /// All upstreams, `[upstream]` first.
    fn upstreams(&self) -> Vec<UpstreamStatus> {
        let counts = self.accounting.metrics.upstreams();
        let of = |destination: &Destination| {
            let upstream = &destination.upstream;
            let [answered, failed] = counts.get(upstream.name().as_str()).copied().unwrap_or_default();
            let (name, url) = (upstream.name().to_string(), upstream.base.to_string());
            let rescue = destination.usual.rescue.as_ref();
            let lessons = rescue.map(RescuePolicy::lessons).unwrap_or_default();
            let learnt = Lesson::forms(&lessons);
            let of_all = &destination.usual.rules.planner.settings.policy.forms;
            let mut forms: Vec<_> = learnt.iter().flat_map(|(_, forms)| forms).chain(of_all).copied().collect();
            forms.sort();
            forms.dedup();
            UpstreamStatus { name, url, answered, failed, forms, lessons }
        };
        self.live().destinations.iter().map(of).collect()
    }

    /// A cache, with what its losses cost by `[[prices]]`.
    fn cache_status(&self, account: CacheAccount) -> CacheStatus {
        let live = self.live();
        let named = live.destinations.iter().find(|of| of.upstream.name().as_str() == account.upstream);
        let destination = named.unwrap_or(live.destinations.default());
        let prices = &destination.usual.rules.planner.rates;
        let cost = account.lost.priced(prices.of_model(Some(&account.model)));
        CacheStatus { account, cost }
    }

    /// The models of recent requests, and their windows.
    fn windows(&self) -> Vec<Window> {
        let live = self.live();
        let meter = &live.destinations.default().usual.rules.planner.meter;
        let entries = self.accounting.history.newest(MAX_ENTRIES);
        let models: BTreeSet<_> = entries.into_iter().filter_map(|entry| entry.model).collect();
        let window = |model: String| {
            let (tokens, source) = meter.models().find(&model).window.unzip();
            Window { model, tokens, source: source.map_or("unknown", Into::into).to_owned() }
        };
        models.into_iter().take(MAX_MODELS).map(window).collect()
    }
}

fn by_name(counts: impl IntoIterator<Item = (&'static str, u64)>) -> BTreeMap<String, u64> {
    counts.into_iter().map(|(name, n)| (name.to_owned(), n)).collect()
}
