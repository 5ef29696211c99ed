//! What the engine does, where all goes well and where the world does not help.

use std::borrow::Cow;
use std::cell::Cell;

use super::*;
use crate::conversation::{CallId, Conversation};
use crate::dialect::{self, Answer, ErrorFields, Field, Input, NotAnAnswer, Stop};
use crate::payload::{ChainKey, Payload, PayloadKey};
use crate::planner::Parts;
use crate::recall::Via;
use crate::span::Span;
use crate::store::memory::Memory;
use crate::store::{self, Clock, Doing, Entry, Page, Paged, Redb, Stats, Swept};
use crate::summary::{Prompt, Source};
use crate::tokens::{Gauge, Meter};

fn chat() -> &'static dyn Dialect {
    dialect::for_path("/v1/chat/completions").unwrap()
}

/// How long a request waits for the store.
const WAIT: Duration = Duration::from_secs(10);

fn keys() -> Keys {
    Keys::new([1; 32])
}

fn rules(parts: &Parts) -> Arc<Rules> {
    let meter = Meter::new(&parts.tokens, &parts.models);
    let planner = Planner::with(parts.clone(), meter, keys(), Offload::Possible);
    Arc::new(Rules { planner, endpoints: Endpoints::default() })
}

/// An engine and what it stores in.
fn engine() -> (Engine, Arc<Memory>) {
    let store = Arc::new(Memory::new(store::Settings::default(), Clock::system()));
    (Engine::new(Some(store.clone()), WAIT, keys(), Tasks::default(), Events::default()), store)
}

fn asked(caller: Caller, wanted: Wanted) -> Asked<'static> {
    Asked { caller, wanted, when: When::Triggered, origin: None }
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

fn check_same_allocation(body: &Bytes, edited: &Edited) {
    assert_eq!(edited.body.len(), 1);
    assert_eq!(edited.body[0].as_ptr_range(), body.as_ptr_range());
}

fn handles(edited: &Edited) -> Vec<PayloadKey> {
    let report = edited.report.as_ref().unwrap();
    report.changes.iter().flat_map(|change| change.handles.clone()).collect()
}

// === without a store ===

fn edit(body: &'static str) -> (Bytes, Edited) {
    let body = Bytes::from(body.to_owned());
    let edited = edit_body(&Planner::new(Parts::default()), chat(), body.clone());
    (body, edited)
}

#[test]
fn what_is_not_understood_goes_on_as_it_came() {
    for body in ["", "no json", r#"{"messages":7}"#, r#"{"messages":["hi"]}"#] {
        let (body, edited) = edit(body);
        check_same_allocation(&body, &edited);
        assert!(edited.report.is_none() && edited.skipped.is_some());
    }
}

#[test]
fn what_needs_no_edit_goes_on_as_it_came() {
    let (body, edited) = edit(r#"{"model":"m","messages":[{"role":"user"}]}"#);
    check_same_allocation(&body, &edited);
    assert_eq!(edited.report.unwrap().model.as_deref(), Some("m"));
    assert_eq!(edited.skipped, None);
}

#[test]
fn an_edited_body_is_made_of_pieces_of_the_one_that_came() {
    let (body, edited) = edit(r#"{"messages":[{"role":"assistant","tool_calls":[{"id":"1"}]}]}"#);
    assert_eq!(edited.body[0].as_ptr(), body.as_ptr());
    let output = edited.body.concat();
    assert_eq!(edited.report.unwrap().bytes_after, output.len());
    assert!(output.ends_with(b"finished.\"}]}"));
}

// === with a store ===

#[tokio::test]
async fn what_is_taken_out_is_kept_as_it_was() {
    let (engine, store) = engine();
    let (body, rules) = (body(&long_text()), rules(&Parts::default()));
    let caller = engine.caller(Some(b"Bearer a"));
    let edited = engine.edit_body(&rules, chat(), body.clone(), asked(caller, Wanted::Made)).await;
    assert!(edited.trouble.is_none() && edited.body.concat().len() < body.len());
    let [handle] = handles(&edited)[..] else { panic!("one handle: {edited:?}") };
    assert_eq!(store.get(handle).await.unwrap().unwrap(), long_text());

    // The same again is nothing new; another caller's is another payload.
    let again = engine.edit_body(&rules, chat(), body.clone(), asked(caller, Wanted::Made)).await;
    assert_eq!(again.body, edited.body);
    for (n, credential) in [(2, Some(&b"Bearer b"[..])), (3, None), (3, None)] {
        let other =
            engine.edit_body(&rules, chat(), body.clone(), asked(engine.caller(credential), Wanted::Made)).await;
        assert_ne!(handles(&other), [handle]);
        assert_eq!(store.stats().await.unwrap().payloads, n);
    }
}

#[tokio::test]
async fn what_is_only_reported_is_not_kept() {
    let (engine, store) = engine();
    let caller = engine.caller(None);
    let edited =
        engine.edit_body(&rules(&Parts::default()), chat(), body(&long_text()), asked(caller, Wanted::Reported)).await;
    assert_eq!(handles(&edited).len(), 1);
    assert_eq!(store.stats().await.unwrap().payloads, 0);
}

#[tokio::test]
async fn what_cannot_be_stored_is_not_taken_out() {
    let (engine, store) = engine();
    store.close().await.unwrap();
    let body = body(&long_text());
    let caller = engine.caller(None);
    let edited = engine.edit_body(&rules(&Parts::default()), chat(), body.clone(), asked(caller, Wanted::Made)).await;
    check_same_allocation(&body, &edited);
    assert!(matches!(edited.trouble, Some(Trouble::NotStored(_))), "{:?}", edited.trouble);
    assert_eq!(edited.report.unwrap().left_out.len(), 1);

    let without = Engine::new(None, WAIT, keys(), Tasks::default(), Events::default());
    let edited = without.edit_body(&rules(&Parts::default()), chat(), body.clone(), asked(caller, Wanted::Made)).await;
    check_same_allocation(&body, &edited);
    assert!(edited.trouble.is_none());
}

#[tokio::test]
async fn payloads_are_files_too_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, _store) = engine();
    let parts = |dir: PathBuf| {
        let mut parts = Parts::default();
        parts.recall.via = Via::File;
        parts.recall.export_dir = Some(dir.display().to_string());
        rules(&parts)
    };
    let dir = folder.path().join("exported");
    let (body, caller) = (body(&long_text()), engine.caller(None));
    let edited = engine.edit_body(&parts(dir.clone()), chat(), body.clone(), asked(caller, Wanted::Made)).await;
    let file = dir.join(format!("{}.txt", handles(&edited)[0]));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), long_text());
    let text = String::from_utf8(edited.body.concat()).unwrap();
    assert!(text.contains(&file.display().to_string()), "the notice names the file");

    // A notice that names a file is not written where the file is not.
    let edited =
        engine.edit_body(&parts(file.join("below a file")), chat(), body.clone(), asked(caller, Wanted::Made)).await;
    check_same_allocation(&body, &edited);
    assert!(matches!(edited.trouble, Some(Trouble::NotExported(_))), "{:?}", edited.trouble);
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
async fn what_was_seen_before_is_neither_tokenised_nor_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store.redb");
    let store = Arc::new(Redb::open(&file, store::Settings::default(), Clock::system()).unwrap());
    let engine = Engine::new(Some(store.clone()), WAIT, keys(), Tasks::default(), Events::default());
    let mut parts = Parts::default();
    parts.truncate_tool_results.max_bytes = 8000;
    let (rules, caller) = (rules(&parts), engine.caller(Some(b"Bearer a")));
    let edit = async |last: &str| {
        let edited = engine.edit_body(&rules, chat(), session(100, last), asked(caller, Wanted::Made)).await;
        assert!(edited.trouble.is_none());
        edited.report.unwrap().changes
    };

    let first = edit("a").await;
    let cleared = first.iter().filter(|change| change.edit == "clear").count();
    assert!(cleared >= 60 && first.len() > cleared, "{cleared} of {} changes clear", first.len());
    let (stats, tokenised) = (store.stats().await.unwrap(), rules.planner.meter.n_tokenised());
    assert!(stats.written >= 60 && tokenised > 900_000, "{stats:?}, {tokenised} bytes tokenised");

    let tail = "and then go on with the next one ".repeat(22_000 / 33);
    assert_eq!(edit(&tail).await.len(), first.len());
    let tokenised = rules.planner.meter.n_tokenised() - tokenised;
    let slack = 64; // the role of the last message, and what else is too short to be remembered
    assert!(
        (tail.len() as u64..=tail.len() as u64 + slack).contains(&tokenised),
        "{tokenised} bytes tokenised for a tail of {}",
        tail.len()
    );
    let now = store.stats().await.unwrap();
    assert_eq!((now.commits, now.written), (stats.commits, stats.written));
}

#[tokio::test]
async fn while_tokens_are_counted_others_are_served() {
    let (engine, _store) = engine();
    let (rules, caller, counted) = (rules(&Parts::default()), engine.caller(None), Cell::new(false));
    let large = async {
        engine.edit_body(&rules, chat(), session(40, "a"), asked(caller, Wanted::Reported)).await;
        counted.set(true);
    };
    // There is one thread for both: were the large one counted on it, it would end before a small one begins.
    let small = async {
        let mut n_served = 0;
        while !counted.get() {
            engine.edit_body(&rules, chat(), body("hi"), asked(caller, Wanted::Reported)).await;
            n_served += 1;
            tokio::task::yield_now().await;
        }
        n_served
    };
    let ((), n_served) = tokio::join!(large, small);
    assert!(n_served >= 5, "{n_served} served");
    assert!(rules.planner.meter.n_tokenised() > 400_000);
}

/// A store whose disk does not answer.
#[derive(Debug)]
struct Stuck(Memory);

impl Store for Stuck {
    fn keep_all(&self, _: Vec<(PayloadKey, Payload)>) -> Doing<'_, ()> {
        Box::pin(std::future::pending())
    }

    fn get(&self, key: PayloadKey) -> Doing<'_, Option<Bytes>> {
        self.0.get(key)
    }

    fn was_swept(&self, key: PayloadKey) -> Doing<'_, bool> {
        self.0.was_swept(key)
    }

    fn touch(&self, keys: Vec<PayloadKey>) -> Doing<'_, ()> {
        self.0.touch(keys)
    }

    fn keep_summary(&self, _: ChainKey, _: Bytes) -> Doing<'_, ()> {
        Box::pin(std::future::pending())
    }

    fn summary(&self, _: ChainKey) -> Doing<'_, Option<Bytes>> {
        Box::pin(std::future::pending())
    }

    fn summaries(&self) -> Doing<'_, Vec<ChainKey>> {
        Box::pin(std::future::pending())
    }

    fn touch_summaries(&self, beginnings: Vec<ChainKey>) -> Doing<'_, ()> {
        self.0.touch_summaries(beginnings)
    }

    fn keep_inspected(&self, _: String, _: Bytes, _: usize) -> Doing<'_, ()> {
        Box::pin(std::future::pending())
    }

    fn inspected(&self, id: String) -> Doing<'_, Option<Bytes>> {
        self.0.inspected(id)
    }

    fn trim_inspected(&self, most: usize) -> Doing<'_, ()> {
        self.0.trim_inspected(most)
    }

    fn sweep(&self) -> Doing<'_, Swept> {
        self.0.sweep()
    }

    fn keep_house(&self) -> Doing<'_, ()> {
        self.0.keep_house()
    }

    fn compact(&self) -> Doing<'_, ()> {
        self.0.compact()
    }

    fn list(&self, most: usize) -> Doing<'_, Vec<Entry>> {
        self.0.list(most)
    }

    fn page(&self, page: Page) -> Doing<'_, Paged> {
        self.0.page(page)
    }

    fn stats(&self) -> Doing<'_, Stats> {
        self.0.stats()
    }

    fn close(&self) -> Doing<'_, ()> {
        self.0.close()
    }
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_not_waited_for() {
    let store = Stuck(Memory::new(store::Settings::default(), Clock::system()));
    let patience = Duration::from_millis(20);
    let engine = Engine::new(Some(Arc::new(store)), patience, keys(), Tasks::default(), Events::default());
    let body = body(&long_text());
    let rules = rules(&Parts::default());
    for n in 0..3 {
        let edited = engine.edit_body(&rules, chat(), body.clone(), asked(engine.caller(None), Wanted::Made)).await;
        check_same_allocation(&body, &edited);
        match edited.trouble {
            Some(Trouble::Slow(waited)) if n == 0 => assert_eq!(waited, patience),
            Some(Trouble::Silent(since)) if n > 0 => assert_eq!(since, patience),
            other => panic!("{n}: {other:?}"),
        }
        assert_eq!(edited.report.unwrap().left_out.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_delays_one_request_for_a_summary_and_not_each() {
    let summaries = || {
        let store = Arc::new(Stuck(Memory::new(store::Settings::default(), Clock::system())));
        let engine = Engine::new(Some(store), WAIT, Keys::new([1; 32]), Tasks::default(), Events::default());
        Arc::clone(engine.summaries())
    };
    let one_waits = |waited: [Duration; 4]| {
        assert_eq!(waited[0], WAIT);
        assert!(waited[1..].iter().sum::<Duration>() < Duration::from_secs(1), "{waited:?}");
    };
    let (loading, mut waited) = (summaries(), [Duration::ZERO; 4]);
    for (n, waited) in (0..).zip(&mut waited) {
        let began = Instant::now();
        loading.load(ChainKey::from_bytes([n; 16])).await;
        *waited = began.elapsed();
    }
    one_waits(waited);
    let (unread, mut waited) = (summaries(), [Duration::ZERO; 4]);
    for waited in &mut waited {
        let began = Instant::now();
        unread.until_read().await;
        *waited = began.elapsed();
    }
    one_waits(waited);
}

// === faults of our own ===

/// A dialect with a bug.
#[derive(Debug)]
struct Panicking;

impl Dialect for Panicking {
    fn name(&self) -> &'static str {
        "panicking"
    }

    fn tag(&self) -> u8 {
        u8::MAX
    }

    fn path(&self) -> &'static str {
        "/"
    }

    fn base_path<'p>(&self, _: &'p str) -> Option<&'p str> {
        None
    }

    fn parse<'a>(&self, _: &'a [u8]) -> Result<Conversation<'a>, ParseError> {
        panic!("a bug");
    }

    fn texts(&self, _: &[u8], _: Span) -> Vec<Span> {
        Vec::new()
    }

    fn input(&self, _: &[u8], _: Span) -> Option<Input> {
        None
    }

    fn calls_key(&self, _: &[u8], _: Span) -> Option<Span> {
        None
    }

    fn tool_names<'a>(&self, _: &'a [u8], _: Span) -> Vec<Cow<'a, str>> {
        Vec::new()
    }

    fn fields<'a>(&self, _: &'a [u8]) -> Vec<Field<'a>> {
        Vec::new()
    }

    fn render_user_message(&self, _: &str) -> Bytes {
        Bytes::new()
    }

    fn render_tool_result(&self, _: &[u8], _: &CallId<'_>, _: &str) -> Bytes {
        Bytes::new()
    }

    fn count_element(&self, _: &Gauge, _: &[u8]) -> usize {
        0
    }

    fn count_call(&self, _: &Gauge, _: &[u8]) -> usize {
        0
    }

    fn count_tools(&self, _: &Gauge, _: &[u8]) -> usize {
        0
    }

    fn count_format(&self, _: &Gauge, _: &[u8]) -> usize {
        0
    }

    fn summary_request(&self, _: &Source, _: &Prompt<'_>) -> Option<Bytes> {
        None
    }

    fn reports(&self, _: &[u8]) -> bool {
        false
    }

    fn read_answer(&self, _: &[u8], _: &mut Answer) -> Result<(), NotAnAnswer> {
        Ok(())
    }

    fn stop(&self, _: &str) -> Stop {
        Stop::Done
    }

    fn error_body(&self, _: &ErrorFields<'_>) -> Bytes {
        Bytes::new()
    }
}

#[tokio::test]
async fn a_panic_in_an_edit_leaves_the_request_as_it_came() {
    let (engine, _store) = engine();
    for length in [2, HOP_FROM + 1] {
        let body = Bytes::from(vec![b' '; length]);
        let rules = rules(&Parts::default());
        let edited = engine.edit_body(&rules, &Panicking, body.clone(), asked(engine.caller(None), Wanted::Made)).await;
        check_same_allocation(&body, &edited);
        assert!(matches!(edited.trouble, Some(Trouble::Panic)));
    }
}
