//! The interface of the app to the proxy.

use std::sync::Arc;

use super::{Destination, LiveConfig, OpenConnection, Proxy};
use crate::history::History;
use crate::ledger::Savings;

impl Proxy {
    /// Replaces the configuration. Running requests keep the old one.
    pub fn reload(&self, live: LiveConfig) {
        self.live.store(Arc::new(live));
    }

    /// The history of the last requests.
    pub fn history(&self) -> &History {
        &self.accounting.history
    }

    /// The current configuration.
    pub fn live(&self) -> Arc<LiveConfig> {
        self.live.load_full()
    }

    /// Makes `/abridge/readyz` report 503, and ends the event streams.
    pub fn drain(&self) {
        self.stopping.cancel();
    }

    /// Stores what the ledger has counted.
    pub async fn save_ledger(&self) {
        self.engine.bookkeeper().save().await;
    }

    /// The savings of the edits since the start; `None` if no answer has reported its tokens.
    pub fn savings(&self) -> Option<Savings> {
        self.accounting.ledger.savings()
    }

    /// Why no request was edited, in words; none if one was, or if edits are only reported.
    pub fn why_unedited(&self) -> Option<String> {
        let live = self.live();
        let is_off = |destination: &Destination| destination.usual.rules.planner.settings.policy.edits.is_empty();
        let are_off = live.destinations.iter().all(is_off);
        self.accounting.history.totals().requests.why_unedited(are_off).filter(|_| !live.dry_run)
    }

    /// Notes that a client's connection is open until what is returned is dropped.
    pub(crate) fn connected(&self) -> OpenConnection {
        self.keep_alives.open()
    }

    /// How many summaries were made.
    pub fn summaries_made(&self) -> u64 {
        self.engine.summary_counts().made
    }
}
