//! Conversations keep their factors, whatever is learnt meanwhile, and whoever serves them.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use tokio::runtime;

use crate::dialect;
use crate::engine::EditMode::{Apply, DryRun};
use crate::engine::handlers::HandlerClients;
use crate::engine::summarizer::Endpoints;
use crate::engine::{EditMode, EditOptions, Engine, EngineConfig};
use crate::events::Events;
use crate::payload::Keys;
use crate::planner::{Offload, PlanSettings, Planner, SummaryTiming};
use crate::store::tests::memory::MemoryStore;
use crate::store::{self, Clock, Store, Time};
use crate::tasks::Tasks;
use crate::tokens::{self, Counter, Meter};
use crate::units::Period;

use super::*;

const MODEL: &str = "m";

/// A trigger that five results of 1,000 bytes have reached with a factor of 2, and not with 1.
const POLICY: &str = "clear_tool_results = { trigger = { tokens = 2000 }, clear_at_least = 0, when = \"any\", keep = { results = 1 }, keep_reads = 0 }";

/// A process, on a store that others may have too.
struct Process {
    engine: Engine,
    config: Arc<EngineConfig>,
}

impl Process {
    fn start(store: Option<&Arc<MemoryStore>>) -> Self {
        Self::calibrating(store, true)
    }

    fn calibrating(store: Option<&Arc<MemoryStore>>, calibrate: bool) -> Self {
        let keys = Keys::new([1; 32]);
        let mut settings: PlanSettings = toml::from_str(POLICY).unwrap();
        settings.tokens = tokens::Settings { counter: Counter::Estimate, calibrate, ..tokens::Settings::default() };
        let meter = Meter::new(&settings.tokens, &[]);
        let planner = Planner::with(settings, meter, keys.clone(), Offload::Possible);
        let store = store.map(|store| Arc::clone(store) as Arc<dyn Store>);
        let engine = Engine::new(store, Duration::from_secs(10), keys, Tasks::default(), Events::default());
        Self {
            engine,
            config: Arc::new(EngineConfig {
                planner,
                endpoints: Endpoints::default(),
                handlers: HandlerClients::default(),
                policy: EngineConfig::NO_POLICY.into(),
            }),
        }
    }

    /// From now on, new conversations have this factor.
    fn learn(&self, percent: u64) {
        let bill = Bill { counted: 10_000, factor: Factor::ONE, billed: 100 * percent };
        (0..400).for_each(|_| self.engine.factors.learn("default", MODEL, bill));
    }

    /// Returns what is sent, and the factor that it was counted with.
    async fn edit(&self, body: &Bytes, mode: EditMode) -> (Bytes, Option<f64>) {
        let options = EditOptions::new(self.engine.caller(None), "default", SummaryTiming::Triggered);
        let options = EditOptions { mode, ..options };
        let chat = dialect::for_path("/v1/chat/completions").unwrap();
        let edited = self.engine.edit_body(&self.config, chat, body.clone(), options).await;
        (edited.body.concat().into(), edited.basis.counted.map(|counted| counted.factor.ratio()))
    }

    async fn factor(&self, body: &Bytes) -> Option<f64> {
        self.edit(body, Apply).await.1
    }
}

fn store() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(store::Settings::default(), Clock::system()))
}

/// A conversation with results of so many bytes.
fn conversation(seed: &str, results: &[usize]) -> Bytes {
    let mut messages = format!(r#"{{"role":"user","content":"{seed}"}}"#);
    for (n, bytes) in results.iter().enumerate() {
        let text = format!("{n} ").repeat(bytes / 2);
        write!(
            messages,
            r#",{{"role":"assistant","tool_calls":[{{"id":"{n}","type":"function","function":{{"name":"cat","arguments":"{{}}"}}}}]}},{{"role":"tool","tool_call_id":"{n}","content":"{text}"}}"#
        )
        .unwrap();
    }
    format!(r#"{{"model":"{MODEL}","messages":[{messages}]}}"#).into()
}

#[tokio::test]
async fn a_conversation_keeps_the_factor_that_was_learnt_when_it_was_first_counted() {
    let store = store();
    let process = || Process::start(Some(&store));
    let one = process();
    let [old, new] = ["old", "new"].map(|seed| conversation(seed, &[1000; 5]));
    assert_eq!(one.edit(&old, Apply).await, (old.clone(), Some(1.0)));
    one.learn(200);
    assert_eq!(one.edit(&old, Apply).await, (old.clone(), Some(1.0)));
    let (sent, factor) = one.edit(&new, Apply).await;
    assert!(factor == Some(2.0) && sent.len() < new.len(), "{factor:?}");
    // Another process has learnt something else, and a later one nothing.
    let (other, later) = (process(), process());
    other.learn(100);
    for process in [&other, &later] {
        assert_eq!(process.edit(&new, Apply).await, (sent.clone(), Some(2.0)));
        assert_eq!(process.edit(&old, Apply).await, (old.clone(), Some(1.0)));
    }
}

#[tokio::test]
async fn what_is_not_counted_and_dry_runs_store_no_factor() {
    let store = store();
    let process = Process::start(Some(&store));
    process.learn(200);
    assert_eq!(process.factor(&conversation("short", &[100])).await, None);
    let body = conversation("dry", &[1000; 5]);
    assert_eq!(process.edit(&body, DryRun).await.1, Some(2.0), "what it would have");
    assert_eq!(store.summaries().await.unwrap(), []);
    assert_eq!(process.factor(&body).await, Some(2.0));
    assert_eq!(store.summaries().await.unwrap().len(), 1);
}

#[tokio::test]
async fn without_a_store_or_with_calibrate_off_the_table_counts() {
    let body = conversation("c", &[1000; 5]);
    for process in [Process::start(None), Process::calibrating(Some(&store()), false)] {
        process.learn(200);
        assert_eq!(process.factor(&body).await, Some(1.0));
    }
}

#[tokio::test]
async fn if_the_store_cannot_be_asked_the_table_counts_and_what_is_known_stays() {
    let store = store();
    let process = Process::start(Some(&store));
    let [body, known] = ["c", "known"].map(|seed| conversation(seed, &[1000; 5]));
    process.learn(200);
    assert_eq!(process.factor(&known).await, Some(2.0));
    store.close().await.unwrap();
    for _ in 0..2 {
        assert_eq!((process.factor(&body).await, process.factor(&known).await), (Some(1.0), Some(2.0)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_factor_that_is_in_use_stays_in_the_store_and_is_stored_again_if_it_was_swept() {
    let seconds = Arc::new(AtomicU64::new(1_000_000));
    let now = Arc::clone(&seconds);
    let clock = Clock::new(move || Time(now.load(Ordering::Relaxed)));
    let settings = store::Settings { keep_for: Period(2 * USE_INTERVAL), ..store::Settings::default() };
    let store = Arc::new(MemoryStore::new(settings, clock));
    let (body, process) = (conversation("c", &[1000; 5]), Process::start(Some(&store)));
    let later = async |by: Duration| {
        tokio::time::advance(by).await;
        seconds.fetch_add(by.as_secs(), Ordering::Relaxed);
    };
    process.learn(200);
    assert_eq!(process.factor(&body).await, Some(2.0));
    process.learn(100);
    for _ in 0..4 {
        later(USE_INTERVAL).await;
        assert_eq!(process.factor(&body).await, Some(2.0));
        assert_eq!(store.sweep().await.unwrap().summaries, 0);
    }
    later(3 * USE_INTERVAL).await;
    assert_eq!(store.sweep().await.unwrap().summaries, 1);
    assert_eq!(process.factor(&body).await, Some(2.0));
    assert_eq!(store.summaries().await.unwrap().len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Each request of a growing conversation is served by one of two processes on one store, either of which may have
    /// been started again, and both of which learn something else each time. What is sent is what one process sends that
    /// has always had the first factor.
    #[test]
    fn a_growing_conversation_is_edited_by_one_factor_whatever_is_learnt(
        results in prop::collection::vec(1_usize..2000, 1..12),
        events in prop::collection::vec((50_u64..400, 0_usize..2, any::<bool>()), 12),
    ) {
        runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
            let shared = store();
            let start = || Process::start(Some(&shared));
            let (mut processes, mut first) = ([start(), start()], None);
            for (n, (percent, which, restarts)) in (1..=results.len()).zip(events) {
                if restarts {
                    processes[which] = start();
                }
                processes[which].learn(percent);
                let body = conversation("c", &results[..n]);
                let (sent, factor) = processes[which].edit(&body, Apply).await;
                let Some(factor) = factor else {
                    assert!(sent == body, "edited, and not counted");
                    continue;
                };
                let first = *first.get_or_insert(factor);
                let alone = Process::start(Some(&store()));
                let bill = Bill { counted: 10_000, factor: Factor::nearest(first), billed: 10_000 };
                alone.engine.factors.learn("default", MODEL, bill);
                assert!(alone.edit(&body, Apply).await == (sent, Some(factor)), "{factor} and {first}");
            }
        });
    }
}
