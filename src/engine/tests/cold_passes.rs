//! Results cleared because the prompt cache had expired stay cleared, whoever serves the conversation.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use tokio::runtime;

use crate::dialect;
use crate::engine::EditMode::{Apply, DryRun};
use crate::engine::handlers::HandlerClients;
use crate::engine::summarizer::Endpoints;
use crate::engine::{EditMode, EditOptions, EditedBody, Engine, EngineConfig};
use crate::events::Events;
use crate::payload::Keys;
use crate::plan::Plan;
use crate::planner::{Offload, PlanSettings, Planner, SummaryTiming};
use crate::store::tests::memory::MemoryStore;
use crate::store::{self, Clock, Store};
use crate::tasks::Tasks;
use crate::tokens::{self, Counter, Meter};

/// A round has some 510 tokens, of which a pass frees some 430; from 1,500 on one can be cold.
const POLICY: &str = "prices = [{ read = 0.1, write = 1.0 }]
    clear_tool_results = { trigger = { tokens = 4000 }, keep = { results = 1 }, keep_reads = 0 }";

/// A process on a store.
struct Process {
    engine: Engine,
    config: Arc<EngineConfig>,
}

impl Process {
    async fn start(store: Option<Arc<dyn Store>>, more: &str) -> Self {
        let keys = Keys::new([1; 32]);
        let mut settings: PlanSettings = toml::from_str(&POLICY.replace("keep_reads = 0", more)).unwrap();
        settings.tokens = tokens::Settings { counter: Counter::Estimate, ..tokens::Settings::default() };
        let meter = Meter::new(&settings.tokens, &[]);
        let planner = Planner::with(settings, meter, keys.clone(), Offload::Possible);
        let engine = Engine::new(store, Duration::from_secs(10), keys, Tasks::default(), Events::default());
        engine.summaries.read_index().await;
        let (endpoints, handlers) = (Endpoints::default(), HandlerClients::default());
        Self {
            engine,
            config: Arc::new(EngineConfig { planner, endpoints, handlers, policy: EngineConfig::NO_POLICY.into() }),
        }
    }

    async fn edit(&self, body: &Bytes, mode: EditMode, is_cold: bool) -> Box<EditedBody> {
        let has_expired = |_: &Plan| is_cold;
        let has_expired = Some(&has_expired as &(dyn Fn(&Plan) -> bool + Sync));
        let options = EditOptions::new(self.engine.caller(None), "default", SummaryTiming::Triggered);
        let options = EditOptions { mode, has_expired, ..options };
        let chat = dialect::for_path("/v1/chat/completions").unwrap();
        self.engine.edit_body(&self.config, chat, body.clone(), options).await
    }

    /// The results that are cleared.
    async fn cleared(&self, body: &Bytes, is_cold: bool) -> BTreeSet<String> {
        let edited = self.edit(body, Apply, is_cold).await;
        edited.report.unwrap().changes.into_iter().map(|change| change.call_id).collect()
    }
}

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(store::Settings::default(), Clock::system()))
}

/// A conversation of so many rounds, with what the user says behind some of them.
fn conversation(seed: &str, n_rounds: usize, said_behind: &BTreeSet<usize>) -> Bytes {
    let mut messages = format!(r#"{{"role":"user","content":"{seed}"}}"#);
    for n in 0..n_rounds {
        let text = format!("{n:04}").repeat(500);
        write!(
            messages,
            r#",{{"role":"assistant","tool_calls":[{{"id":"{n}","type":"function","function":{{"name":"f","arguments":"{{}}"}}}}]}},{{"role":"tool","tool_call_id":"{n}","content":"{text}"}}"#
        )
        .unwrap();
        if said_behind.contains(&n) {
            messages.push_str(r#",{"role":"assistant","content":"Done."},{"role":"user","content":"Go on."}"#);
        }
    }
    format!(r#"{{"model":"m","messages":[{messages}]}}"#).into()
}

fn rounds(n: usize) -> Bytes {
    conversation("x", n, &BTreeSet::new())
}

fn first(n: usize) -> BTreeSet<String> {
    (0..n).map(|n| n.to_string()).collect()
}

#[tokio::test]
async fn a_pass_behind_an_expired_cache_is_found_again_by_later_requests_and_processes() {
    let store = memory();
    let process = Process::start(Some(Arc::clone(&store)), "keep_reads = 0").await;
    assert_eq!(process.cleared(&rounds(5), false).await, first(0), "a warm cache waits for the user or the trigger");
    assert_eq!(process.cleared(&rounds(5), true).await, first(4));
    let later = Process::start(Some(store), "keep_reads = 0").await;
    for process in [&process, &later] {
        for n in [5, 6, 7] {
            assert_eq!(process.cleared(&rounds(n), false).await, first(4), "{n} rounds");
        }
        let other = conversation("another task", 6, &BTreeSet::new());
        assert_eq!(process.cleared(&other, false).await, first(0), "another conversation");
    }
    let recorded = later.edit(&rounds(7), Apply, false).await.basis;
    assert_eq!(recorded.cold_passes, [11], "in the request of eleven messages");
}

#[tokio::test]
async fn short_requests_dry_runs_and_those_without_a_store_make_no_cold_pass() {
    let store = memory();
    let process = Process::start(Some(Arc::clone(&store)), "keep_reads = 0").await;
    assert_eq!(process.cleared(&rounds(2), true).await, first(0), "below three eighths of the trigger");
    assert!(process.edit(&rounds(5), DryRun, true).await.report.unwrap().changes.is_empty());
    assert_eq!(process.cleared(&rounds(5), false).await, first(0), "a dry run remembers nothing");
    let process = Process::start(None, "keep_reads = 0, offload = false").await;
    assert_eq!(process.cleared(&rounds(5), true).await, first(0), "without a store");
    let shared: Arc<dyn Store> = {
        let [one, _] = MemoryStore::pair(store::Settings::default(), Clock::system());
        Arc::new(one)
    };
    assert_eq!(Process::start(Some(shared), "keep_reads = 0").await.cleared(&rounds(5), true).await, first(0));
}

#[tokio::test]
async fn a_store_that_fails_means_no_cold_pass() {
    let store = memory();
    let process = Process::start(Some(Arc::clone(&store)), "keep_reads = 0").await;
    store.close().await.unwrap();
    let edited = process.edit(&rounds(5), Apply, true).await;
    assert_eq!(edited.body.concat(), rounds(5));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_cleared_stays_cleared_whenever_the_cache_expires_and_whichever_process_serves(
        requests in prop::collection::vec((1_usize..4, any::<bool>(), any::<bool>(), any::<bool>()), 1..12),
    ) {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = memory();
            let mut process = Process::start(Some(Arc::clone(&store)), "keep_reads = 0").await;
            let (mut n, mut said, mut cleared) = (0, BTreeSet::new(), BTreeSet::new());
            for (more, user_speaks, is_cold, restarts) in requests {
                n += more;
                if user_speaks {
                    said.insert(n - 1);
                }
                if restarts {
                    process = Process::start(Some(Arc::clone(&store)), "keep_reads = 0").await;
                }
                let body = conversation("x", n, &said);
                let sent = process.edit(&body, Apply, is_cold).await;
                let now: BTreeSet<_> = sent.report.unwrap().changes.into_iter().map(|change| change.call_id).collect();
                assert!(cleared.is_subset(&now), "{cleared:?} were cleared, {now:?} are");
                let again = process.edit(&body, Apply, false).await;
                assert_eq!(sent.body.concat(), again.body.concat(), "the same request again");
                cleared = now;
            }
        });
    }
}
