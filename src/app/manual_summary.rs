//! Summaries without a running proxy: the same engine and upstream client, for one body (`abridge summarize`) or for
//! simulated sessions.

use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use tokio::time::timeout;

use super::{TASK_DRAIN_TIMEOUT, build_live, runtime, store as of_app};
use crate::body::Budget;
use crate::config::{Config, Environment, Sources};
use crate::dialect;
use crate::engine::manual_summary::ManualOutcome;
use crate::engine::summarizer::SummaryOrigin;
use crate::engine::{EditOptions, EditedBody, Engine};
use crate::events::Events;
use crate::payload::{Caller, Keys};
use crate::planner::SummaryTiming;
use crate::proxy::LiveConfig;
use crate::simulate::Summarize;
use crate::summary::{SummaryIndex, SummaryState};
use crate::tasks::Tasks;

/// The maximum time for threads that still count or read at the end.
const THREAD_JOIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Has the upstream of the settings, or the model of `[summarize.model]`, make the summaries of simulated sessions. It stores
/// none of them, and is asked once for each. `warn` is told why one was not made.
pub fn offline(sources: &Sources, config: &Config, warn: fn(&str)) -> anyhow::Result<Box<Summarize>> {
    let environment = Environment::read(&sources.variables, config)?;
    let keys = Keys::well_known();
    let live = build_live(config, &environment, config.address(), keys.clone(), None)?;
    let engine = Engine::new(None, config.store.timeout.0, keys, Tasks::default(), Events::default());
    let (runtime, budget) = (runtime(1)?, Budget::new(config.server.max_buffered.as_usize()));
    Ok(Box::new(move |job| {
        let (key, rules) = (job.key, &live.destinations.default().usual.rules);
        let origin = origin(&live, &job.source.body, &budget, engine.caller(None)).ok()?;
        let made = runtime.block_on(engine.summarizer.make(rules, job, origin));
        made.inspect_err(|error| warn(&format!("a summary was not made: {error}"))).ok()?;
        let SummaryState::Summary(summary) = engine.summaries.state(key) else { return None };
        Some(summary)
    }))
}

/// Summarises a body now, as a proxy with these settings would.
pub fn summarize(sources: &Sources, config: &Config, body: Bytes) -> anyhow::Result<(EditedBody, ManualOutcome)> {
    let environment = Environment::read(&sources.variables, config)?;
    let runtime = runtime(1)?;
    let summarized = runtime.block_on(run(config, &environment, body));
    runtime.shutdown_timeout(THREAD_JOIN_TIMEOUT);
    summarized
}

async fn run(config: &Config, environment: &Environment, body: Bytes) -> anyhow::Result<(EditedBody, ManualOutcome)> {
    let tasks = Tasks::default();
    let of_app::Opened { store, keys, .. } = of_app::open(config, environment).await?;
    let live = build_live(config, environment, config.address(), keys.clone(), None)?;
    let rules = &live.destinations.default().usual.rules;
    let engine = Engine::new(store.clone(), config.store.timeout.0, keys, tasks.clone(), Events::default());
    engine.summaries.read_index().await;

    let caller = engine.caller(None);
    let budget = Budget::new(config.server.max_buffered.as_usize());
    let origin = origin(&live, &body, &budget, caller)?;
    let (dialect, upstream, origin) = (origin.dialect, origin.upstream.name(), || origin.clone());
    let asked = EditOptions::new(caller, upstream.as_str(), SummaryTiming::Now);
    let asked = EditOptions { origin: Some(&origin), ..asked };
    let edited = engine.edit_body(rules, dialect, body, asked).await;
    let _ended = timeout(TASK_DRAIN_TIMEOUT, tasks.wait()).await;
    if let Some(store) = store {
        of_app::close(&*store).await;
    }
    let outcome = edited.manual_outcome(rules.planner.policy.names().any(|name| name == "summarize"));
    Ok((*edited, outcome))
}

/// The origin of a summary of a body that no client request has caused.
fn origin(live: &LiveConfig, body: &[u8], budget: &Budget, caller: Caller) -> anyhow::Result<SummaryOrigin> {
    let dialect = dialect::of_body(body);
    let upstream = live.destinations.default().upstream.clone();
    Ok(SummaryOrigin {
        request_id: None,
        caller,
        dialect,
        target: upstream.join(&Uri::from_static(dialect.path()))?,
        headers: HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]),
        upstream,
        budget: budget.clone(),
        assignment: None,
    })
}
