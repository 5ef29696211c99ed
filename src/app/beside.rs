//! A proxy that serves for as long as a piece of work lasts, without a line of output.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::running::Running;
use crate::config::{Config, Environment, MissingError};
use crate::history::RunTotals;
use crate::ledger::Savings;

/// The maximum time for answers, and then for tasks, after the end of the work: the answers are not read any more.
const GRACE: Duration = Duration::from_secs(1);

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
    let _drained = running.drain(GRACE, GRACE).await;
    let stored = store.and_then(|store| Some(store.counts()?.written.load(Ordering::Relaxed))).unwrap_or_default();
    let savings = proxy.savings().filter(Savings::has_edits).as_ref().map(Savings::to_string);
    let (totals, summaries) = (proxy.history().totals(), proxy.summaries_made());
    Ok((outcome, RunTotals { totals, savings, why_unedited: proxy.why_unedited(), stored, summaries }))
}
