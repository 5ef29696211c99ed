//! Which summaries are known, and for how long.

use tokio::time::{advance, timeout};

use super::*;
use crate::engine::flight::{Flight, SummaryError};
use crate::payload::{Fingerprint, PayloadKey};
use crate::store::tests::conformance::{PutAll, TestClock, dense, place};
use crate::store::{self, Store, tests::memory};
use crate::summary::OutlinedMessage;
use crate::tasks::Tasks;

fn beginning(n: u8) -> ChainKey {
    place(n).beginning
}

fn summary(text: &str) -> Summary {
    Summary { text: text.to_owned(), tokens_replaced: 7, made_at: 0, transcript: None }
}

fn summaries(store: Option<Arc<dyn Store>>) -> Summaries {
    Summaries::new(Disks::new(store, Duration::from_secs(10), &Tasks::default()))
}

fn with_store() -> (Arc<Summaries>, Arc<memory::MemoryStore>, TestClock) {
    let clock = TestClock::new();
    let store = Arc::new(memory::MemoryStore::new(store::Settings::default(), clock.clock()));
    (Arc::new(summaries(Some(store.clone()))), store, clock)
}

fn text(summaries: &Summaries, n: u8) -> Option<String> {
    match summaries.state(beginning(n)) {
        SummaryState::Summary(summary) => Some(summary.text.clone()),
        _ => None,
    }
}

#[tokio::test]
async fn stored_summaries_are_known_after_a_restart() {
    let (summaries, store, _) = with_store();
    assert!(summaries.is_empty());
    summaries.put(place(1), summary("one")).await.unwrap();
    assert_eq!(text(&summaries, 1).as_deref(), Some("one"));
    drop(summaries);

    let later = self::summaries(Some(store));
    assert!(later.is_empty() && !later.is_index_read());
    later.read_index().await;
    assert!(later.is_index_read());
    assert!(matches!(later.state(beginning(1)), SummaryState::Stored));
    assert!(matches!(later.state(beginning(2)), SummaryState::Unknown));
    later.load(beginning(1)).await;
    assert_eq!(text(&later, 1).as_deref(), Some("one"));
}

#[tokio::test]
async fn swept_summaries_are_forgotten() {
    let (summaries, store, clock) = with_store();
    store.offer_summary(place(1), serde_json::to_vec(&summary("one")).unwrap().into()).await.unwrap();
    store.offer_summary(place(2), dense(2, 100)).await.unwrap();
    summaries.read_index().await;
    clock.forward(8 * 86_400);
    store.sweep().await.unwrap();
    for n in [1, 2] {
        assert!(matches!(summaries.state(beginning(n)), SummaryState::Stored));
        summaries.load(beginning(n)).await;
        assert!(matches!(summaries.state(beginning(n)), SummaryState::Unknown));
    }
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_summary_is_read_again_after_a_pause() {
    let (summaries, store, _) = with_store();
    summaries.put(place(1), summary("one")).await.unwrap();
    summaries.texts.clear();
    store.close().await.unwrap();
    summaries.load(beginning(1)).await;
    assert!(matches!(summaries.state(beginning(1)), SummaryState::CoolingDown));
    assert!(matches!(summaries.claim(beginning(1), false), Claim::CoolingDown));
    advance(READ_BACKOFF).await;
    assert!(matches!(summaries.state(beginning(1)), SummaryState::Stored));
    assert!(summaries.put(place(2), summary("two")).await.is_err());
    assert!(matches!(summaries.state(beginning(2)), SummaryState::Unknown), "what is not kept is not used");
}

#[tokio::test]
async fn of_concurrent_claims_one_leads_and_all_get_the_result() {
    let (summaries, _, _) = with_store();
    let Claim::Lead(leader) = summaries.claim(beginning(1), false) else { panic!("no claim has been made") };
    assert!(matches!(summaries.state(beginning(1)), SummaryState::InProgress));
    assert!(!leader.flight.is_wanted());
    let mut waiters = Vec::new();
    for _ in 0..8 {
        let Claim::Join(flight) = summaries.claim(beginning(1), false) else { panic!("the summary is in flight") };
        waiters.push(flight.join());
    }
    assert!(leader.flight.is_wanted());
    assert!(matches!(summaries.claim(beginning(2), true), Claim::Lead(_)));
    summaries.put(place(1), summary("one")).await.unwrap();
    leader.end(Ok(()));
    for waiter in waiters {
        waiter.await.unwrap();
    }
    assert!(matches!(summaries.claim(beginning(1), false), Claim::Stored));
}

#[tokio::test]
async fn a_flight_without_waiters_is_abandoned_unless_in_the_background() {
    let (summaries, _, _) = with_store();
    let Claim::Lead(leader) = summaries.claim(beginning(1), false) else { panic!("no claim has been made") };
    let waiter = leader.flight.join();
    let flight = Arc::clone(&leader.flight);
    let mut deserted = Box::pin(flight.abandoned());
    let still = timeout(Duration::from_millis(1), &mut deserted).await;
    assert!(still.is_err());
    drop(waiter);
    deserted.await;
    leader.end(Err(SummaryError::Abandoned));
    assert!(matches!(summaries.state(beginning(1)), SummaryState::Unknown));

    let Claim::Lead(leader) = summaries.claim(beginning(1), true) else { panic!("the flight was abandoned") };
    assert!(leader.flight.is_wanted());
    // A task that panics leaves no waiter behind, even one that keeps the flight.
    let waiter = leader.flight.join();
    let Claim::Join(joined) = summaries.claim(beginning(1), false) else { panic!("the summary is in flight") };
    let joining = joined.join();
    drop(leader);
    for waiter in [timeout(Duration::from_secs(1), waiter).await, timeout(Duration::from_secs(1), joining).await] {
        assert!(matches!(waiter, Ok(Err(SummaryError::ShuttingDown))), "{waiter:?}");
    }
    assert!(matches!(summaries.state(beginning(1)), SummaryState::Unknown));
}

#[tokio::test(start_paused = true)]
async fn a_failed_summary_is_not_tried_again_before_its_cooldown_ends() {
    let (summaries, _, _) = with_store();
    let Claim::Lead(leader) = summaries.claim(beginning(1), false) else { panic!("no claim has been made") };
    leader.fail(SummaryError::Busy, Duration::from_mins(1));
    assert!(matches!(summaries.state(beginning(1)), SummaryState::CoolingDown));
    assert!(matches!(summaries.claim(beginning(1), false), Claim::CoolingDown));
    advance(Duration::from_mins(1)).await;
    assert!(matches!(summaries.state(beginning(1)), SummaryState::Unknown));
    assert!(matches!(summaries.claim(beginning(1), false), Claim::Lead(_)));
}

#[tokio::test(start_paused = true)]
async fn the_number_of_cooldowns_is_bounded() {
    let summaries = summaries(None);
    for n in 0..MAX_COOLDOWNS + 10 {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&n.to_le_bytes());
        advance(Duration::from_millis(1)).await;
        summaries.cool_down(ChainKey::from_bytes(key), Duration::from_hours(1));
    }
    assert_eq!(summaries.statuses().len(), MAX_COOLDOWNS);
    assert!(matches!(summaries.state(beginning(0)), SummaryState::Unknown), "the oldest has left");
    advance(Duration::from_hours(2)).await;
    summaries.cool_down(beginning(9), Duration::from_secs(1));
    assert_eq!(summaries.statuses().len(), 1);
}

#[tokio::test]
async fn the_memory_of_texts_is_bounded() {
    let summaries = summaries(None);
    assert!(summaries.is_index_read());
    for n in 0..100 {
        summaries.put(place(n), summary(&"x".repeat(1 << 20))).await.unwrap();
    }
    assert!(summaries.texts.weight() <= MAX_TEXT_BYTES);
    // Without a store, a summary whose text was evicted is forgotten when it is loaded.
    assert!(matches!(summaries.state(beginning(0)), SummaryState::Stored));
    summaries.load(beginning(0)).await;
    assert!(matches!(summaries.state(beginning(0)), SummaryState::Unknown));
}

#[tokio::test(start_paused = true)]
async fn a_used_summary_and_its_transcript_do_not_expire() {
    let (summaries, store, clock) = with_store();
    let transcript = PayloadKey::from_bytes([9; 16]);
    store.put_all(vec![(transcript, dense(9, 10))]).await.unwrap();
    let used = Summary { transcript: Some(transcript), ..summary("one") };
    summaries.put(place(1), used).await.unwrap();
    summaries.put(place(2), summary("two")).await.unwrap();
    clock.forward(6 * 86_400);
    advance(USE_INTERVAL).await;
    for _ in 0..3 {
        assert!(text(&summaries, 1).is_some());
        summaries.flush_uses().await;
    }
    clock.forward(2 * 86_400);
    let swept = store.sweep().await.unwrap();
    assert_eq!((swept.aged, swept.summaries), (0, 1));
    assert_eq!(store.summaries().await.unwrap(), [beginning(1)]);
}

#[tokio::test]
async fn only_a_fact_that_was_read_or_stored_counts_as_used() {
    let (summaries, store, _) = with_store();
    assert_eq!(summaries.fact(beginning(1)).await.unwrap(), None);
    assert!(summaries.noted.get(&beginning(1)).is_none(), "there is none");
    summaries.offer_fact(place(2), dense(2, 100)).await.unwrap();
    assert!(summaries.noted.get(&beginning(2)).is_some());
    store.close().await.unwrap();
    assert!(summaries.fact(beginning(3)).await.is_err() && summaries.offer_fact(place(4), dense(4, 9)).await.is_err());
    assert!([3, 4].iter().all(|n| summaries.noted.get(&beginning(*n)).is_none()));
}

#[tokio::test(start_paused = true)]
async fn of_many_facts_each_use_is_noted_once() {
    let summaries = summaries(None);
    let key = |n: u32| ChainKey::from_bytes(u128::from(n).to_le_bytes());
    let noted = async || {
        let mut n_noted = 0;
        for first in (0..20_000).step_by(MAX_PENDING_USES) {
            let keys = (first..20_000).take(MAX_PENDING_USES);
            keys.for_each(|n| summaries.note_use(key(n), USE_INTERVAL));
            n_noted += summaries.pending_uses.with(|used| used.len());
            summaries.flush_uses().await;
        }
        n_noted
    };
    assert_eq!((noted().await, noted().await), (20_000, 0));
}

// === a store that several processes use ===

/// Two processes, and the clock of the store.
fn two() -> ([Arc<Summaries>; 2], TestClock) {
    let clock = TestClock::new();
    let stores = memory::MemoryStore::pair(store::Settings::default(), clock.clock());
    (stores.map(|store| Arc::new(summaries(Some(Arc::new(store))))), clock)
}

#[tokio::test]
async fn a_summary_of_another_process_is_known_after_a_look_up() {
    let ([one, other], _) = two();
    assert!(other.is_index_read(), "nothing is read at start");
    one.put(place(1), summary("one")).await.unwrap();
    assert!(matches!(other.state(beginning(1)), SummaryState::Unknown));
    other.look(place(1).root).await;
    assert!(matches!(other.state(beginning(1)), SummaryState::Stored));
    other.load(beginning(1)).await;
    assert_eq!(text(&other, 1).as_deref(), Some("one"));
    // Who comes later uses the first one.
    assert!(other.put(place(1), summary("other")).await.unwrap());
    assert_eq!(text(&other, 1).as_deref(), Some("one"));
}

#[tokio::test(start_paused = true)]
async fn one_process_makes_a_summary_and_the_other_waits_for_it() {
    let ([one, other], _) = two();
    let flight = Flight::new(true);
    let Ok(Turn::Make(Some(_lease))) = one.take_turn(place(1), &flight).await else { panic!("nobody makes it") };
    other.look(place(1).root).await;
    assert!(matches!(other.state(beginning(1)), SummaryState::InProgress));
    let background = Flight::new(true);
    let mut waits = Box::pin(other.take_turn(place(1), &background));
    assert!(timeout(Duration::from_secs(9), &mut waits).await.is_err());
    one.put(place(1), summary("one")).await.unwrap();
    assert!(matches!(waits.await, Ok(Turn::Made)));
    assert_eq!(text(&other, 1).as_deref(), Some("one"));
}

#[tokio::test]
async fn a_failed_summary_cools_down_in_all_processes_and_an_abandoned_one_does_not() {
    let ([one, other], _) = two();
    let flight = Flight::new(true);
    for (n, cooldown) in [(1, Some(Duration::from_mins(1))), (2, None)] {
        let Ok(Turn::Make(Some(lease))) = one.take_turn(place(n), &flight).await else { panic!("nobody makes it") };
        lease.release(cooldown).await;
    }
    other.look(place(1).root).await;
    assert!(matches!(other.state(beginning(1)), SummaryState::CoolingDown));
    assert!(matches!(other.state(beginning(2)), SummaryState::Unknown));
    assert!(matches!(other.take_turn(place(1), &flight).await, Err(SummaryError::CoolingDown)));
    assert!(matches!(other.take_turn(place(2), &flight).await, Ok(Turn::Make(Some(_)))));
}

#[tokio::test]
async fn a_summary_that_the_engine_has_lost_is_offered_again() {
    let ([one, other], clock) = two();
    one.put(place(1), summary("one")).await.unwrap();
    one.look(place(1).root).await;
    other.look(place(1).root).await;
    let lose = async || {
        clock.forward(8 * 86_400);
        one.disks.store.as_ref().unwrap().sweep().await.unwrap();
    };
    lose().await;
    // It has the text.
    one.look(place(1).root).await;
    assert_eq!(text(&one, 1).as_deref(), Some("one"));
    assert!(one.disks.store.as_ref().unwrap().summary(beginning(1)).await.unwrap().is_some());
    // Without the text it is forgotten.
    lose().await;
    other.look(place(1).root).await;
    assert!(matches!(other.state(beginning(1)), SummaryState::Unknown));
}

/// A plan is made again only if the look-up has brought more than the plan began with.
#[tokio::test(start_paused = true)]
async fn what_is_learnt_from_others_is_counted_and_what_was_known_is_not() {
    let ([one, other], clock) = two();
    let n_learnt = async || {
        let before = other.n_learnt();
        other.look(place(1).root).await;
        other.n_learnt() - before
    };
    assert_eq!(n_learnt().await, 0, "there is nothing");
    let flight = Flight::new(true);
    let Ok(Turn::Make(Some(lease))) = one.take_turn(place(1), &flight).await else { panic!("nobody makes it") };
    assert_eq!((n_learnt().await, n_learnt().await), (1, 0), "it is under way");
    lease.release(Some(Duration::from_mins(1))).await;
    assert_eq!((n_learnt().await, n_learnt().await), (1, 0), "it could not be made");
    advance(Duration::from_mins(2)).await;
    clock.forward(120);
    assert_eq!(n_learnt().await, 0, "that is over");
    one.put(place(1), summary("one")).await.unwrap();
    assert_eq!((n_learnt().await, n_learnt().await), (1, 0), "it is there");
    clock.forward(8 * 86_400);
    other.disks.store.as_ref().unwrap().sweep().await.unwrap();
    assert_eq!((n_learnt().await, n_learnt().await), (1, 0), "it is lost");
    other.put(place(1), summary("other")).await.unwrap();
    assert_eq!(n_learnt().await, 0, "its own is no news");
    let n_learnt = other.n_learnt();
    let (root, elsewhere) = (place(1).root, beginning(9));
    assert!(!other.has_learnt_since(n_learnt, root) && other.has_learnt_since(n_learnt - 1, root));
    assert!(!other.has_learnt_since(0, elsewhere), "of another conversation nothing was learnt");
}

// === recent summaries ===

/// Twenty messages; the first one says `first`.
fn outline(scope: u8, first: usize) -> Outline {
    let message = |n| OutlinedMessage { print: Fingerprint::of_numbers(n, 0), tokens: 9 };
    let messages = [first].into_iter().chain(101..120).map(message).collect();
    Outline { scope: ChainKey::from_bytes([scope; 16]), first: 0, n_elements: 20, n_summarised: 0, messages }
}

#[test]
fn only_the_most_recent_summaries_are_remembered() {
    let recent = RecentSummaries::default();
    assert!(!recent.has_similar(&outline(0, 2)));
    for scope in 0..100 {
        recent.note(outline(scope, 1));
        assert!(recent.has_similar(&outline(scope, 2)) && !recent.has_similar(&outline(scope, 1)));
    }
    let n_known = (0..100).filter(|scope| recent.has_similar(&outline(*scope, 2))).count();
    assert_eq!(n_known, MAX_RECENT);
    let long = Outline { messages: vec![outline(200, 1).messages; MAX_MESSAGES / 20].concat(), ..outline(200, 1) };
    recent.note(long);
    assert!((0..100).all(|scope| !recent.has_similar(&outline(scope, 2))), "there is no room for others");
}

#[tokio::test]
async fn facts_of_one_caller_do_not_push_those_of_another_out_of_memory() {
    let (summaries, ..) = with_store();
    let fact = |n: usize, caller: u8| {
        let mut name = [caller; 16];
        name[..8].copy_from_slice(&n.to_le_bytes());
        ChainKey::from_bytes(name)
    };
    for n in 0..10 {
        summaries.set(fact(n, 1), Status::Stored);
    }
    for n in 0..=2 * MAX_SUMMARIES {
        summaries.set(fact(n, 2), Status::Stored);
    }
    assert!((0..10).all(|n| summaries.is_stored(fact(n, 1))), "what it has is less than its share");
    let n_left = (0..=2 * MAX_SUMMARIES).filter(|n| summaries.is_stored(fact(*n, 2))).count();
    assert!((MAX_SUMMARIES - 10..=MAX_SUMMARIES + 20).contains(&n_left), "{n_left}");
}
