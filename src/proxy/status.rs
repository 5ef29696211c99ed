//! `GET /abridge/status`: how the proxy does, as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Proxy;
use super::scrape::resident;
use crate::dialect::Usage;
use crate::history::{AddedLatency, MAX_ENTRIES};
use crate::store::{self, Store};

/// Numbers about the store, and when they were asked for: it goes through all its rows for them.
#[derive(Debug)]
pub(super) struct Stats {
    began: SystemTime,
    last: Mutex<Option<Known>>,
}

#[derive(Clone, Debug)]
struct Known {
    at: Instant,
    took: Duration,
    stats: Result<store::Stats, String>,
}

/// For a page that asks all the time, they are asked for again after this.
const FRESH: Duration = Duration::from_secs(1);

/// A store that takes longer than this to say them has many rows: it is not asked more often than takes a fiftieth of the time.
const SLOW: Duration = Duration::from_millis(100);
const SHARE: u32 = 50;

/// What a store says whose last write failed.
const IN_TROUBLE: &str = "it has failed: requests go on without the edits that need it, until it works again";

/// So many models are listed.
const MOST_MODELS: usize = 50;

#[derive(Serialize)]
struct Status {
    version: &'static str,
    started: f64,
    uptime_seconds: u64,
    upstream: String,
    dry_run: bool,
    edits: Vec<&'static str>,
    inspect_keep: usize,
    requests: Requests,
    tokens: Sizes,
    offloaded_bytes: u64,
    billed: Usage,
    predicted_cached: u64,
    added_ms: AddedLatency,
    fail_open: BTreeMap<&'static str, u64>,
    summaries: Summaries,
    rescues: BTreeMap<String, u64>,
    recalls: BTreeMap<&'static str, u64>,
    store: Option<StoreStatus>,
    in_flight: usize,
    streams: u64,
    buffered_bytes: usize,
    rss_bytes: Option<u64>,
    windows: Vec<Window>,
}

#[derive(Serialize)]
struct Requests {
    total: u64,
    edited: u64,
    unedited: u64,
    would_be_edited: u64,
    not_understood: u64,
    passed: u64,
    failed: u64,
    shed: u64,
    refused: u64,
}

#[derive(Serialize)]
struct Sizes {
    before: u64,
    after: u64,
}

#[derive(Serialize)]
struct Summaries {
    made: u64,
    failed: u64,
    joined: u64,
    calls: u64,
    billed: Usage,
}

#[derive(Serialize)]
struct StoreStatus {
    path: Option<String>,
    #[serde(flatten)]
    stats: Option<store::Stats>,
    trouble: Option<String>,
}

#[derive(Serialize)]
struct Window {
    model: String,
    tokens: Option<usize>,
    source: &'static str,
}

impl Default for Stats {
    #[expect(clippy::disallowed_methods, reason = "a person reads since when it runs")]
    fn default() -> Self {
        Self { began: SystemTime::now(), last: Mutex::default() }
    }
}

impl Stats {
    /// The numbers, not older than they may be unless the store has many rows. What fails is said.
    pub(super) async fn of(&self, store: &dyn Store, fresh: Duration) -> Result<store::Stats, String> {
        let mut last = self.last.lock().await;
        if let Some(known) = last.as_ref().filter(|known| known.will_do(fresh)) {
            return known.stats.clone();
        }
        let began = Instant::now();
        let stats = store.stats().await.map_err(|error| error.to_string());
        *last = Some(Known { at: Instant::now(), took: began.elapsed(), stats: stats.clone() });
        stats
    }
}

impl Known {
    /// Whether they are no older than `fresh`, or than a store is left in peace that takes long to say them.
    fn will_do(&self, fresh: Duration) -> bool {
        let peace = if self.took > SLOW { self.took * SHARE } else { Duration::ZERO };
        self.at.elapsed() < fresh.max(peace)
    }
}

impl Proxy {
    /// How it does, as JSON.
    pub(super) async fn status_json(&self) -> String {
        let store = match self.engine.store() {
            Some(store) => {
                let (stats, trouble) = match self.stats.of(store, FRESH).await {
                    Ok(stats) => (Some(stats), None),
                    Err(trouble) => (None, Some(trouble)),
                };
                let failed = store.is_failing().then(|| IN_TROUBLE.to_owned());
                let path = store.path().map(|path| path.display().to_string());
                Some(StoreStatus { path, stats, trouble: trouble.or(failed) })
            }
            None => None,
        };
        // There is no value in it that JSON cannot say.
        serde_json::to_string(&self.status(store)).unwrap_or_default()
    }

    fn status(&self, store: Option<StoreStatus>) -> Status {
        let (live, totals) = (self.live(), self.books.history.totals());
        let summaries = self.engine.summary_counts();
        let usage = summaries.usage;
        let began = self.stats.began;
        Status {
            version: env!("CARGO_PKG_VERSION"),
            started: began.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64().floor(),
            uptime_seconds: began.elapsed().unwrap_or_default().as_secs(),
            upstream: live.upstream.base().to_string(),
            dry_run: live.dry_run,
            edits: live.rules.planner.policy.names().collect(),
            inspect_keep: live.inspect.keep,
            requests: Requests {
                total: totals.total,
                edited: totals.edited,
                unedited: totals.unedited,
                would_be_edited: totals.would_be_edited,
                not_understood: totals.not_understood,
                passed: totals.passed,
                failed: totals.failed,
                shed: totals.shed,
                refused: totals.refused,
            },
            tokens: Sizes { before: totals.tokens_before, after: totals.tokens_after },
            offloaded_bytes: totals.offloaded_bytes,
            billed: totals.billed,
            predicted_cached: totals.predicted_cached,
            added_ms: totals.added_ms,
            fail_open: self.fail_open.counted().into(),
            summaries: Summaries {
                made: summaries.made,
                failed: summaries.failed,
                joined: summaries.joined,
                calls: summaries.calls,
                billed: usage,
            },
            rescues: self.rescues.counted().map(|(by, outcome, n)| (format!("{by}_{outcome}"), n)).into(),
            recalls: self.recalls.counted().into(),
            store,
            in_flight: self.in_flight(),
            streams: self.books.metrics.streams(),
            buffered_bytes: self.limits.budget.taken(),
            rss_bytes: resident(),
            windows: self.windows(),
        }
    }

    /// The models that were asked lately, and their windows.
    fn windows(&self) -> Vec<Window> {
        let meter = &self.live().rules.planner.meter;
        let entries = self.books.history.after(0, MAX_ENTRIES);
        let models: BTreeSet<_> = entries.into_iter().filter_map(|entry| entry.model).collect();
        let window = |model: String| match meter.model(&model).window {
            Some(window) => Window { model, tokens: Some(window.value), source: window.source.into() },
            None => Window { model, tokens: None, source: "unknown" },
        };
        models.into_iter().take(MOST_MODELS).map(window).collect()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    /// For how many milliseconds numbers will do that took so long to say.
    async fn age(took: Duration, fresh: Duration) -> usize {
        let known = Known { at: Instant::now(), took, stats: Ok(store::Stats::default()) };
        let mut n = 0;
        while known.will_do(fresh) {
            advance(Duration::from_millis(1)).await;
            n += 1;
        }
        n
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_of_many_rows_is_not_asked_for_its_numbers_at_each_scrape() {
        let (quick, slow) = (SLOW, SLOW + Duration::from_millis(20));
        assert_eq!(age(quick, Duration::ZERO).await, 0, "a scrape reads what is now");
        assert_eq!(age(quick, FRESH).await, 1000, "a page asks every second");
        assert_eq!(age(slow, Duration::ZERO).await, 6000, "a fiftieth of the time is left to it");
        assert_eq!(age(slow, FRESH).await, 6000);
    }
}
