//! The engine with working and with failing stores.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::EditMode::{Apply, DryRun};
use super::disks::BreakerError;
use super::planning::BLOCKING_FROM;
use super::*;
use crate::conversation::{CallId, Conversation};
use crate::dialect::{self, Answer, CallInput, Exchange, Facts, InvalidAnswer, Stop};
use crate::payload::{ChainKey, PayloadKey};
use crate::planner::{Offload, PlanSettings};
use crate::recall::Via;
use crate::span::Span;
use crate::store::tests::memory::MemoryStore;
use crate::store::{self, Clock, RedbStore};
use crate::string_index::StringIndex;
use crate::tokens::{Countable, Gauge, Meter, factor::Factor};

mod cold_passes;
mod kept_recalls;
mod known;
mod lifetimes;
mod stuck;
mod threads;

use stuck::Stuck;

fn chat() -> &'static dyn Dialect {
    dialect::for_path("/v1/chat/completions").unwrap()
}

/// How long a request waits for the store.
const WAIT: Duration = Duration::from_secs(10);

fn keys() -> Keys {
    Keys::new([1; 32])
}

fn config(settings: &PlanSettings) -> Arc<EngineConfig> {
    let meter = Meter::new(&settings.tokens, &settings.models);
    let planner = Planner::with(settings.clone(), meter, keys(), Offload::Possible);
    Arc::new(EngineConfig {
        planner,
        endpoints: Endpoints::default(),
        handlers: HandlerClients::default(),
        policy: EngineConfig::NO_POLICY.into(),
    })
}

/// An engine and its store.
fn engine() -> (Engine, Arc<MemoryStore>) {
    let store = Arc::new(MemoryStore::new(store::Settings::default(), Clock::system()));
    (Engine::new(Some(store.clone()), WAIT, keys(), Tasks::default(), Events::default()), store)
}

fn options(caller: Caller, mode: EditMode) -> EditOptions<'static> {
    EditOptions { mode, ..EditOptions::new(caller, "default", SummaryTiming::Triggered) }
}

/// A text that is truncated by default.
fn long_text() -> String {
    (0..9_000).map(|n| format!("line {n}\n")).collect::<Vec<_>>().concat()
}

fn body(result: &str) -> Bytes {
    let result = serde_json::to_string(result).unwrap();
    let calls = r#"[{"id":"1","type":"function","function":{"name":"cat","arguments":"{}"}}]"#;
    format!(
        r#"{{"model":"m","messages":[{{"role":"assistant","tool_calls":{calls}}},{{"role":"tool","tool_call_id":"1","content":{result}}}]}}"#
    )
    .into()
}

fn check_same_allocation(body: &Bytes, edited: &EditedBody) {
    assert_eq!(edited.body.len(), 1);
    assert_eq!(edited.body[0].as_ptr_range(), body.as_ptr_range());
}

fn handles(edited: &EditedBody) -> Vec<PayloadKey> {
    let report = edited.report.as_ref().unwrap();
    report.changes.iter().flat_map(|change| change.handles.clone()).collect()
}

// === without a store ===

fn edit(body: &'static str) -> (Bytes, EditedBody) {
    let body = Bytes::from(body.to_owned());
    let edited = edit_body(&Planner::new(PlanSettings::default()), chat(), body.clone());
    (body, edited)
}

#[test]
fn unreadable_bodies_are_unchanged() {
    for body in ["", "no json", r#"{"messages":7}"#, r#"{"messages":["hi"]}"#] {
        let (body, edited) = edit(body);
        check_same_allocation(&body, &edited);
        assert!(edited.report.is_none() && edited.parse_error.is_some());
    }
}

#[test]
fn bodies_without_edits_are_unchanged() {
    let (body, edited) = edit(r#"{"model":"m","messages":[{"role":"user"}]}"#);
    check_same_allocation(&body, &edited);
    assert_eq!(edited.report.unwrap().model.as_deref(), Some("m"));
    assert_eq!(edited.parse_error, None);
}

#[test]
fn an_edited_body_consists_of_slices_of_the_original() {
    let (body, edited) = edit(r#"{"messages":[{"role":"assistant","tool_calls":[{"id":"1"}]}]}"#);
    assert_eq!(edited.body[0].as_ptr(), body.as_ptr());
    let output = edited.body.concat();
    assert_eq!(edited.report.unwrap().bytes_after, output.len());
    assert!(output.ends_with(b"finished.\"}]}"));
}

// === with a store ===

#[tokio::test]
async fn payloads_are_stored_unchanged() {
    let (engine, store) = engine();
    let (body, config) = (body(&long_text()), config(&PlanSettings::default()));
    let caller = engine.caller(Some(b"Bearer a"));
    let edited = engine.edit_body(&config, chat(), body.clone(), options(caller, Apply)).await;
    assert!(edited.error.is_none() && edited.body.concat().len() < body.len());
    let [handle] = handles(&edited)[..] else { panic!("one handle: {edited:?}") };
    assert_eq!(store.get(handle).await.unwrap().unwrap(), long_text());

    // The same payload is not stored again; another caller's is stored.
    let again = engine.edit_body(&config, chat(), body.clone(), options(caller, Apply)).await;
    assert_eq!(again.body, edited.body);
    for (n, credential) in [(2, Some(&b"Bearer b"[..])), (3, None), (3, None)] {
        let other = engine.edit_body(&config, chat(), body.clone(), options(engine.caller(credential), Apply)).await;
        assert_ne!(handles(&other), [handle]);
        assert_eq!(store.stats().await.unwrap().payloads, n);
    }
}

#[tokio::test]
async fn a_dry_run_stores_nothing() {
    let (engine, store) = engine();
    let caller = engine.caller(None);
    let edited =
        engine.edit_body(&config(&PlanSettings::default()), chat(), body(&long_text()), options(caller, DryRun)).await;
    assert_eq!(handles(&edited).len(), 1);
    assert_eq!(store.stats().await.unwrap().payloads, 0);
}

#[tokio::test]
async fn texts_that_cannot_be_stored_stay_in_the_body() {
    let (engine, store) = engine();
    store.close().await.unwrap();
    let body = body(&long_text());
    let caller = engine.caller(None);
    let edited =
        engine.edit_body(&config(&PlanSettings::default()), chat(), body.clone(), options(caller, Apply)).await;
    check_same_allocation(&body, &edited);
    assert!(matches!(edited.error, Some(EngineError::NotPersisted(PersistError::Store(_)))), "{:?}", edited.error);
    assert_eq!(edited.report.unwrap().left_out.len(), 1);

    let without = Engine::new(None, WAIT, keys(), Tasks::default(), Events::default());
    let edited =
        without.edit_body(&config(&PlanSettings::default()), chat(), body.clone(), options(caller, Apply)).await;
    check_same_allocation(&body, &edited);
    assert!(edited.error.is_none());
}

#[tokio::test]
async fn payloads_are_exported_if_export_dir_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, _store) = engine();
    let settings = |dir: PathBuf| {
        let mut settings = PlanSettings::default();
        settings.recall.via = Via::File;
        settings.recall.export_dir = Some(dir.display().to_string());
        config(&settings)
    };
    let dir = folder.path().join("exported");
    let (body, caller) = (body(&long_text()), engine.caller(None));
    let edited = engine.edit_body(&settings(dir.clone()), chat(), body.clone(), options(caller, Apply)).await;
    let file = dir.join(format!("{}.txt", handles(&edited)[0]));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), long_text());
    let text = String::from_utf8(edited.body.concat()).unwrap();
    assert!(text.contains(&file.display().to_string()), "the notice names the file");

    // A notice that names a file is not written if the file is not.
    let edited =
        engine.edit_body(&settings(file.join("below a file")), chat(), body.clone(), options(caller, Apply)).await;
    check_same_allocation(&body, &edited);
    assert!(matches!(edited.error, Some(EngineError::NotPersisted(PersistError::Export(_)))), "{:?}", edited.error);
}

/// An agent's session of results of 12,000 bytes, no two of them the same, and a last message.
fn session(rounds: usize, last: &str) -> Bytes {
    let mut messages = vec![r#"{"role":"user","content":"Find out why the build is broken."}"#.to_owned()];
    for n in 0..rounds {
        let lines: Vec<_> = (0..600).map(|line| format!(r#"{n}: line {line} of \"{line}\"\n"#)).collect();
        let result = lines.concat();
        messages.push(format!(
            r#"{{"role":"assistant","tool_calls":[{{"id":"{n}","type":"function","function":{{"name":"cat","arguments":"{{}}"}}}}]}}"#
        ));
        messages.push(format!(r#"{{"role":"tool","tool_call_id":"{n}","content":"{result}"}}"#));
    }
    messages.push(format!(r#"{{"role":"user","content":"{last}"}}"#));
    format!(r#"{{"model":"gpt-4o","messages":[{}]}}"#, messages.join(",")).into()
}

#[tokio::test]
async fn counting_tokens_does_not_block_other_requests() {
    let (engine, _store) = engine();
    let (config, caller, counted) = (config(&PlanSettings::default()), engine.caller(None), Cell::new(false));
    let large = async {
        engine.edit_body(&config, chat(), session(40, "a"), options(caller, DryRun)).await;
        counted.set(true);
    };
    // There is one thread for both: if the large body were counted on it, that would end before a small one begins.
    let small = async {
        let mut n_served = 0;
        while !counted.get() {
            engine.edit_body(&config, chat(), body("hi"), options(caller, DryRun)).await;
            n_served += 1;
            tokio::task::yield_now().await;
        }
        n_served
    };
    let ((), n_served) = tokio::join!(large, small);
    assert!(n_served >= 5, "{n_served} served");
    assert!(config.planner.meter.n_tokenised() > 400_000);
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_not_waited_for() {
    let store = Stuck::new();
    let breaker = Duration::from_millis(20);
    let engine = Engine::new(Some(Arc::new(store)), breaker, keys(), Tasks::default(), Events::default());
    let body = body(&long_text());
    let mut settings = PlanSettings::default();
    // With it, the token factor is what the request waits for.
    settings.tokens.calibrate = false;
    let config = config(&settings);
    for n in 0..3 {
        let edited = engine.edit_body(&config, chat(), body.clone(), options(engine.caller(None), Apply)).await;
        check_same_allocation(&body, &edited);
        match edited.error {
            Some(EngineError::NotPersisted(PersistError::Breaker(BreakerError::TimedOut(wait)))) if n == 0 => {
                assert_eq!(wait, breaker);
            }
            Some(EngineError::NotPersisted(PersistError::Breaker(BreakerError::Open(since)))) if n > 0 => {
                assert_eq!(since, breaker);
            }
            other => panic!("{n}: {other:?}"),
        }
        assert_eq!(edited.report.unwrap().left_out.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_delays_one_request_for_a_summary_and_not_each() {
    let summaries = || {
        let store = Arc::new(Stuck::new());
        let engine = Engine::new(Some(store), WAIT, Keys::new([1; 32]), Tasks::default(), Events::default());
        Arc::clone(&engine.summaries)
    };
    let one_waits = |wait: [Duration; 4]| {
        assert_eq!(wait[0], WAIT);
        assert!(wait[1..].iter().sum::<Duration>() < Duration::from_secs(1), "{wait:?}");
    };
    let (loading, mut wait) = (summaries(), [Duration::ZERO; 4]);
    for (n, wait) in (0..).zip(&mut wait) {
        let began = Instant::now();
        loading.load(ChainKey::from_bytes([n; 16])).await;
        *wait = began.elapsed();
    }
    one_waits(wait);
    let (unread, mut wait) = (summaries(), [Duration::ZERO; 4]);
    for wait in &mut wait {
        let began = Instant::now();
        unread.wait_for_index().await;
        *wait = began.elapsed();
    }
    one_waits(wait);
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_once_for_its_token_factor() {
    let slow = Stuck(MemoryStore::new(store::Settings::default(), Clock::system()), true.into(), WAIT * 3 / 5);
    let engine = Engine::new(Some(Arc::new(slow)), WAIT, keys(), Tasks::default(), Events::default());
    let (learnt, table, began) = (Factor::nearest(2.0), Factor::ONE, Instant::now());
    assert_eq!(engine.factors.settle(ChainKey::from_bytes([1; 16]), learnt, table).await, table);
    assert_eq!(began.elapsed(), WAIT);
}

// === bugs in abridge ===

/// A dialect with a bug.
#[derive(Debug)]
struct Panicking;

impl dialect::TokenRules for Panicking {
    fn count(&self, _: &Gauge, _: Countable, _: &str) -> usize {
        0
    }
}

impl dialect::AnswerFormat for Panicking {
    fn reports(&self, _: &[u8]) -> bool {
        false
    }

    fn read_answer(&self, _: &[u8], _: &mut Answer) -> Result<(), InvalidAnswer> {
        Ok(())
    }

    fn stop(&self, _: &str) -> Stop {
        Stop::Done
    }
}

impl Dialect for Panicking {
    fn facts(&self) -> &'static Facts {
        chat().facts()
    }

    fn base_path<'p>(&self, _: &'p str) -> Option<&'p str> {
        None
    }

    fn parse_indexed<'a>(&self, _: &'a [u8], _: &'a StringIndex) -> Result<Conversation<'a>, ParseError> {
        panic!("a bug");
    }

    fn texts(&self, _: &[u8], _: Span) -> Vec<Span> {
        Vec::new()
    }

    fn input(&self, _: &[u8], _: Span) -> Option<CallInput> {
        None
    }

    fn tool_names<'a>(&self, _: &'a [u8], _: Span) -> Vec<Cow<'a, str>> {
        Vec::new()
    }

    fn render_user_message(&self, _: &str) -> Bytes {
        Bytes::new()
    }

    fn render_tool_result(&self, _: &[u8], _: &CallId<'_>, _: Option<&str>, _: &str) -> Bytes {
        Bytes::new()
    }

    fn render_exchange(&self, _: &Exchange<'_>) -> [Bytes; 2] {
        Default::default()
    }
}

#[tokio::test]
async fn a_panic_in_an_edit_leaves_the_request_as_it_came() {
    let (engine, _store) = engine();
    for length in [2, BLOCKING_FROM + 1] {
        let body = Bytes::from(vec![b' '; length]);
        let config = config(&PlanSettings::default());
        let edited = engine.edit_body(&config, &Panicking, body.clone(), options(engine.caller(None), Apply)).await;
        check_same_allocation(&body, &edited);
        assert!(matches!(edited.error, Some(EngineError::Panic)));
    }
}
