//! Summaries without a running proxy (`abridge summarize`): the same engine and upstream client, for one body.

use std::sync::Arc;
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
use crate::planner::SummaryTiming;
use crate::proxy::Destination;
use crate::proxy::second_try::Arm;
use crate::tasks::Tasks;

/// The maximum time for threads that still count or read at the end.
const THREAD_JOIN_TIMEOUT: Duration = Duration::from_secs(1);

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
    let Destination { upstream, usual: Arm { rules, .. }, .. } = live.destinations.default();
    let engine = Engine::new(store.clone(), config.store.timeout.0, keys, tasks.clone(), Events::default());
    engine.summaries.read_index().await;

    let caller = engine.caller(None);
    let dialect = dialect::of_body(&body);
    // No request of a client has caused it.
    let origin = SummaryOrigin {
        request_id: None,
        caller,
        dialect,
        target: upstream.join(&Uri::from_static(dialect.path()))?,
        headers: HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]),
        upstream: upstream.clone(),
        budget: Budget::new(config.server.max_buffered.as_usize()),
        assignment: None,
    };
    let origin = || origin.clone();
    let asked = EditOptions::new(caller, upstream.name().as_str(), SummaryTiming::Now);
    let asked = EditOptions { origin: Some(&origin), ..asked };
    let edited = engine.edit_body(&Arc::clone(rules), dialect, body, asked).await;
    let _ended = timeout(TASK_DRAIN_TIMEOUT, tasks.wait()).await;
    if let Some(store) = store {
        of_app::close(&*store).await;
    }
    let outcome = edited.manual_outcome(rules.planner.policy.names().any(|name| name == "summarize"));
    Ok((*edited, outcome))
}
