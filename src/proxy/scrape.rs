//! `GET /abridge/metrics`: the counters of the proxy, and the gauges that are read at each scrape.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::Handle;

use super::Proxy;
use crate::ledger::{Experiment, Figures};
use crate::metrics::{Exposition, Labels, TextFormat, labels};
use crate::platform::process::resident_memory;
use crate::tokens::prices::Nanodollars;

impl Proxy {
    /// The metrics as text.
    pub(super) async fn metrics(&self, format: TextFormat) -> String {
        let mut exposition = Exposition::default();
        exposition.info("abridge", labels([("version", env!("CARGO_PKG_VERSION"))]));
        exposition.info("abridge_settings", labels([("fingerprint", &self.live.load().fingerprint())]));
        self.write_requests(&mut exposition);
        let live = self.live();
        let clients = live.clients.counts().map(|(name, n)| (labels([("client", name)]), n));
        exposition.counters("abridge_client_requests", clients);
        self.accounting.metrics.write(&mut exposition);
        self.write_costs(&mut exposition);
        self.write_store(&mut exposition).await;
        self.write_summaries(&mut exposition);
        let handlers = self.engine.answers.counts();
        let handlers =
            handlers.iter().map(|(handler, outcome, n)| (labels([("handler", handler), ("outcome", outcome)]), *n));
        exposition.counters("abridge_handler_calls", handlers);
        let factors = self.engine.factors.all_learnt();
        let factors = factors.iter().map(|learnt| {
            (labels([("upstream", &learnt.upstream), ("model", &learnt.model)]), learnt.factor().ratio())
        });
        exposition.ratios("abridge_token_factor", factors);
        self.write_load(&mut exposition);
        exposition.into_text(format)
    }

    fn write_requests(&self, exposition: &mut Exposition) {
        let totals = self.accounting.history.totals();
        let outcomes = [
            ("edited", totals.requests.edited),
            ("unedited", totals.requests.unedited),
            ("would_be_edited", totals.requests.would_be_edited),
            ("not_understood", totals.requests.not_understood),
            ("passed", totals.requests.passed),
        ];
        exposition.counters("abridge_requests", labelled("outcome", outcomes));
        let ended =
            [("failed", totals.requests.failed), ("shed", totals.requests.shed), ("refused", totals.requests.refused)];
        exposition.counters("abridge_unanswered", labelled("reason", ended));
        exposition.counter("abridge_tokens_before", totals.tokens.before);
        exposition.counter("abridge_tokens_after", totals.tokens.after);
        exposition.counters("abridge_fail_open", labelled("reason", self.fail_open.0.counts()));
        let rescues = self.rescue_counters.counts();
        let rescues = rescues.map(|(rescue, outcome, n)| (labels([("rescue", rescue), ("outcome", outcome)]), n));
        exposition.counters("abridge_rescues", rescues);
        exposition.counters("abridge_keep_alives", labelled("outcome", self.keep_alives.counts.counts()));
        exposition.counters("abridge_recalls", labelled("outcome", self.recalls.counts()));
    }

    /// Costs by model, of requests that were sent as edited.
    fn write_costs(&self, exposition: &mut Exposition) {
        let mut costs = BTreeMap::<String, Figures>::new();
        let rows = self.accounting.ledger.since_start();
        for (account, figures) in rows.iter().filter(|(account, _)| !account.dry_run) {
            costs.entry(account.model.clone()).or_default().add(figures);
        }
        let of = |cost: fn(&Figures) -> Nanodollars| {
            costs.iter().map(move |(model, figures)| (labels([("model", model)]), cost(figures).0 / 1000))
        };
        exposition.counters("abridge_cost_microdollars", of(|figures| figures.edited_cost));
        exposition.counters("abridge_unedited_cost_microdollars", of(|figures| figures.unedited_cost));
        let arms = || {
            rows.experiments.iter().flat_map(|(policy, Experiment { usual, tried })| {
                [("usual", usual), ("tried", tried)].map(|(arm, of)| (labels([("policy", policy), ("arm", arm)]), of))
            })
        };
        exposition.counters("abridge_experiment_requests", arms().map(|(labels, arm)| (labels, arm.total().requests)));
        let costs = arms().map(|(labels, arm)| (labels, arm.total().cost.0 / 1000));
        exposition.counters("abridge_experiment_cost_microdollars", costs);
        let conversations = arms().filter_map(|(labels, arm)| Some((labels, arm.conversations()?)));
        exposition.ratios("abridge_experiment_conversations", conversations);
    }

    async fn write_store(&self, exposition: &mut Exposition) {
        let Some(store) = self.engine.store() else { return };
        let work = store.counts();
        let n = |count: &AtomicU64| count.load(Ordering::Relaxed);
        exposition.counter("abridge_store_written", n(&work.written));
        exposition.counter("abridge_store_written_bytes", n(&work.written_bytes));
        exposition.counter("abridge_store_known", n(&work.known));
        exposition.counter("abridge_store_commits", n(&work.commits));
        exposition.counter("abridge_store_errors", n(&work.failures));
        exposition.counter("abridge_store_damaged", n(&work.damaged));
        exposition.times("abridge_store_wait", [(Labels::new(), work.waits.clone())]);
        if let Some(shared) = store.shared() {
            exposition.gauge("abridge_store_up", u64::from(!store.is_failing()));
            exposition.counter("abridge_store_reconnects", shared.epoch().saturating_sub(1));
        }
        let Ok(stats) = self.stats.get(store).await else { return };
        exposition.gauge("abridge_store_payloads", stats.payloads);
        exposition.gauge("abridge_store_payload_bytes", stats.bytes);
        exposition.gauge("abridge_store_summaries", stats.summaries);
        exposition.gauge("abridge_store_file_bytes", stats.file_bytes);
    }

    fn write_summaries(&self, exposition: &mut Exposition) {
        let counted = self.engine.summarizer.counts();
        let outcomes = [("made", counted.made), ("failed", counted.failed), ("theirs", counted.theirs)];
        exposition.counters("abridge_summaries", labelled("outcome", outcomes));
        exposition.counter("abridge_summarize_calls", counted.calls);
        exposition.counter("abridge_summarize_joined", counted.joined);
        let usage = counted.usage;
        let tokens = [("input", usage.input), ("cached", usage.cached), ("output", usage.output)];
        exposition.counters("abridge_summarize_tokens", labelled("type", tokens));
    }

    fn write_load(&self, exposition: &mut Exposition) {
        let live = self.live();
        let meter = &live.destinations.default().usual.rules.planner.meter;
        exposition.counter("abridge_tokenised_bytes", meter.n_tokenised());
        exposition.gauge("abridge_in_flight", self.in_flight() as u64);
        exposition.gauge("abridge_buffered_bytes", self.limits.budget.used() as u64);
        if let Ok(runtime) = Handle::try_current() {
            exposition.gauge("abridge_tasks", runtime.metrics().num_alive_tasks() as u64);
        }
        if let Some(bytes) = resident_memory() {
            exposition.gauge("process_resident_memory_bytes", bytes);
        }
    }

    /// How many requests are in flight.
    pub fn in_flight(&self) -> usize {
        self.max_in_flight.saturating_sub(self.in_flight.available_permits())
    }
}

fn labelled(
    name: &'static str,
    counts: impl IntoIterator<Item = (&'static str, u64)>,
) -> impl Iterator<Item = (Labels, u64)> {
    counts.into_iter().map(move |(value, n)| (labels([(name, value)]), n))
}
