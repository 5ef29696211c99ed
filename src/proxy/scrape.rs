//! `GET /abridge/metrics`: what is counted, and what others know when they are asked.

use std::fs;
use std::time::Duration;

use rustix::param::page_size;
use tokio::runtime::Handle;

use super::Proxy;
use crate::admin::{Numbers, Writing};
use crate::history::History;
use crate::inspect;
use crate::metrics::{Exposition, Labels};

impl Numbers for Proxy {
    fn metrics(&self) -> Writing<'_> {
        Box::pin(async {
            let mut exposition = Exposition::default();
            exposition.info("abridge", "This abridge", one("version", env!("CARGO_PKG_VERSION")));
            self.write_requests(&mut exposition);
            self.books.metrics.write(&mut exposition);
            self.write_store(&mut exposition).await;
            self.write_summaries(&mut exposition);
            self.write_load(&mut exposition);
            exposition.into_text()
        })
    }

    fn status(&self) -> Writing<'_> {
        Box::pin(self.status_json())
    }

    fn history(&self) -> &History {
        &self.books.history
    }

    fn inspect(&self) -> inspect::Settings {
        self.live.load().inspect
    }
}

impl Proxy {
    fn write_requests(&self, exposition: &mut Exposition) {
        let totals = self.books.history.totals();
        let outcomes = [
            ("edited", totals.edited),
            ("unedited", totals.unedited),
            ("would_be_edited", totals.would_be_edited),
            ("not_understood", totals.not_understood),
            ("passed", totals.passed),
        ];
        exposition.counters(
            "abridge_requests",
            "Requests that have ended, by what became of them",
            each("outcome", outcomes),
        );
        let ended = [("failed", totals.failed), ("shed", totals.shed), ("refused", totals.refused)];
        exposition.counters(
            "abridge_unanswered",
            "Requests that got an answer of ours: the upstream failed to answer, there was no room, or they were refused for another reason",
            each("reason", ended),
        );
        exposition.counter(
            "abridge_tokens_before",
            "Tokens of requests as they came, where they were counted; dry runs are left out",
            totals.tokens_before,
        );
        exposition.counter("abridge_tokens_after", "The same as they went on", totals.tokens_after);
        exposition.counters(
            "abridge_fail_open",
            "Requests that went on with less editing than there could be, by the reason",
            each("reason", self.fail_open.counted()),
        );
        let rescues = self
            .rescues
            .counted()
            .map(|(rescue, outcome, n)| (vec![("rescue", rescue.to_owned()), ("outcome", outcome.to_owned())], n));
        exposition.counters(
            "abridge_rescues",
            "Refusals of the upstream that a second try was for, and whether it helped",
            rescues,
        );
        exposition.counters("abridge_recalls", "Answers to recalls", each("outcome", self.recalls.counted()));
    }

    async fn write_store(&self, exposition: &mut Exposition) {
        let Some(store) = self.engine.store() else { return };
        let work = store.counters();
        exposition.counter("abridge_store_written", "Payloads that were written", work.written);
        exposition.counter(
            "abridge_store_written_bytes",
            "Their length, before they are compressed",
            work.written_bytes,
        );
        exposition.counter("abridge_store_known", "Payloads that were to be kept and were known to be", work.known);
        exposition.counter("abridge_store_commits", "Transactions that were made durable", work.commits);
        exposition.counter(
            "abridge_store_errors",
            "What failed, of everything that the store was to do",
            work.failures,
        );
        exposition.times(
            "abridge_store_wait",
            "How long a request waited till what was taken out was durable; what was known to be kept is not in it",
            [(Labels::new(), work.waits)],
        );
        let Ok(stats) = self.stats.of(store, Duration::ZERO).await else { return };
        exposition.gauge("abridge_store_payloads", "Payloads that are kept", stats.payloads);
        exposition.gauge("abridge_store_payload_bytes", "Their length", stats.bytes);
        exposition.gauge("abridge_store_summaries", "Summaries that are kept", stats.summaries);
        exposition.gauge("abridge_store_file_bytes", "The length of the store's file", stats.file_bytes);
    }

    fn write_summaries(&self, exposition: &mut Exposition) {
        let counted = self.engine.summary_counts();
        let outcomes = [("made", counted.made), ("failed", counted.failed)];
        exposition.counters("abridge_summaries", "Summaries, by what became of them", each("outcome", outcomes));
        exposition.counter("abridge_summary_calls", "Calls that were made for summaries", counted.calls);
        exposition.counter(
            "abridge_summary_joined",
            "Requests that waited for a summary that another had asked for",
            counted.joined,
        );
        let usage = counted.usage;
        let tokens = [("input", usage.input), ("cached", usage.cached), ("output", usage.output)];
        exposition.counters("abridge_summary_tokens", "What these calls cost: tokens as billed", each("type", tokens));
    }

    fn write_load(&self, exposition: &mut Exposition) {
        let meter = &self.live().rules.planner.meter;
        exposition.counter(
            "abridge_tokenised_bytes",
            "Bytes whose tokens were counted anew, since the settings of tokens changed",
            meter.n_tokenised(),
        );
        exposition.gauge("abridge_in_flight", "Requests in flight, recalls among them", self.in_flight() as u64);
        exposition.gauge(
            "abridge_buffered_bytes",
            "Bytes of request bodies in memory",
            self.limits.budget.taken() as u64,
        );
        if let Ok(runtime) = Handle::try_current() {
            let tasks = runtime.metrics().num_alive_tasks() as u64;
            exposition.gauge(
                "abridge_tasks",
                "Tasks that have not ended: connections, what is done for them, and the house",
                tasks,
            );
        }
        if let Some(bytes) = resident() {
            exposition.gauge("process_resident_memory_bytes", "Resident memory of the process", bytes);
        }
    }

    /// How many requests are in flight.
    pub fn in_flight(&self) -> usize {
        self.max_in_flight.saturating_sub(self.in_flight.available_permits())
    }
}

fn one(name: &'static str, value: &str) -> Labels {
    vec![(name, value.to_owned())]
}

fn each<const N: usize>(name: &'static str, counts: [(&'static str, u64); N]) -> [(Labels, u64); N] {
    counts.map(|(value, n)| (one(name, value), n))
}

/// The memory that the process has; none where the system does not say.
pub fn resident() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages * page_size() as u64)
}
