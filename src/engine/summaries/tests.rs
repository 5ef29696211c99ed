//! What is remembered of summaries, and for how long.

use tokio::time::{advance, timeout};

use super::*;
use crate::engine::error::SummaryError;
use crate::payload::PayloadKey;
use crate::store::conformance::{Hands, PutAll, dense};
use crate::store::{self, memory};
use crate::tasks::Tasks;

fn beginning(n: u8) -> ChainKey {
    ChainKey::from_bytes([n; 16])
}

fn summary(text: &str) -> Summary {
    Summary { text: text.to_owned(), tokens_replaced: 7, transcript: None }
}

fn patience() -> Patience {
    Patience::new(Duration::from_secs(10), Tasks::default())
}

fn with_store() -> (Arc<Summaries>, Arc<memory::Memory>, Hands) {
    let hands = Hands::new();
    let store = Arc::new(memory::Memory::new(store::Settings::default(), hands.clock()));
    (Arc::new(Summaries::new(Some(store.clone()), patience())), store, hands)
}

fn text(summaries: &Summaries, n: u8) -> Option<String> {
    match summaries.recall(beginning(n)) {
        Recollection::Summary(summary) => Some(summary.text.clone()),
        _ => None,
    }
}

#[tokio::test]
async fn what_is_kept_is_there_after_a_restart() {
    let (summaries, store, _) = with_store();
    assert!(summaries.is_empty());
    summaries.keep(beginning(1), summary("one")).await.unwrap();
    assert_eq!(text(&summaries, 1).as_deref(), Some("one"));
    drop(summaries);

    let later = Summaries::new(Some(store), patience());
    assert!(later.is_empty() && !later.is_read());
    later.read_index().await;
    assert!(later.is_read());
    assert!(matches!(later.recall(beginning(1)), Recollection::Stored));
    assert!(matches!(later.recall(beginning(2)), Recollection::Nothing));
    later.load(beginning(1)).await;
    assert_eq!(text(&later, 1).as_deref(), Some("one"));
}

#[tokio::test]
async fn what_the_store_has_swept_is_forgotten() {
    let (summaries, store, hands) = with_store();
    store.keep_summary(beginning(1), serde_json::to_vec(&summary("one")).unwrap().into()).await.unwrap();
    store.keep_summary(beginning(2), dense(2, 100)).await.unwrap();
    summaries.read_index().await;
    hands.forward(8 * 86_400);
    store.sweep().await.unwrap();
    for n in [1, 2] {
        assert!(matches!(summaries.recall(beginning(n)), Recollection::Stored));
        summaries.load(beginning(n)).await;
        assert!(matches!(summaries.recall(beginning(n)), Recollection::Nothing));
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_read_is_asked_again_later() {
    let (summaries, store, _) = with_store();
    summaries.keep(beginning(1), summary("one")).await.unwrap();
    summaries.texts.clear();
    store.close().await.unwrap();
    summaries.load(beginning(1)).await;
    assert!(matches!(summaries.recall(beginning(1)), Recollection::NotNow));
    assert!(matches!(summaries.begin(beginning(1), false), Begin::NotNow));
    advance(REST).await;
    assert!(matches!(summaries.recall(beginning(1)), Recollection::Stored));
    assert!(summaries.keep(beginning(2), summary("two")).await.is_err());
    assert!(matches!(summaries.recall(beginning(2)), Recollection::Nothing), "what is not kept is not used");
}

#[tokio::test]
async fn of_many_who_ask_one_makes_it_and_all_hear_of_it() {
    let (summaries, _, _) = with_store();
    let Begin::Yours(leader) = summaries.begin(beginning(1), false) else { panic!("nobody makes it yet") };
    assert!(matches!(summaries.recall(beginning(1)), Recollection::UnderWay));
    assert!(!leader.flight().is_wanted());
    let mut seats = Vec::new();
    for _ in 0..8 {
        let Begin::Join(flight) = summaries.begin(beginning(1), false) else { panic!("somebody makes it") };
        seats.push(flight.join());
    }
    assert!(leader.flight().is_wanted());
    assert!(matches!(summaries.begin(beginning(2), true), Begin::Yours(_)));
    summaries.keep(beginning(1), summary("one")).await.unwrap();
    leader.made();
    for seat in seats {
        seat.wait().await.unwrap();
    }
    assert!(matches!(summaries.begin(beginning(1), false), Begin::Kept));
}

#[tokio::test]
async fn a_flight_without_passengers_is_deserted_unless_it_is_in_the_background() {
    let (summaries, _, _) = with_store();
    let Begin::Yours(leader) = summaries.begin(beginning(1), false) else { panic!("nobody makes it yet") };
    let seat = Arc::clone(leader.flight()).join();
    let flight = Arc::clone(leader.flight());
    let mut deserted = Box::pin(flight.abandoned());
    let still = timeout(Duration::from_millis(1), &mut deserted).await;
    assert!(still.is_err());
    drop(seat);
    deserted.await;
    leader.given_up(SummaryError::Deserted);
    assert!(matches!(summaries.recall(beginning(1)), Recollection::Nothing));

    let Begin::Yours(leader) = summaries.begin(beginning(1), true) else { panic!("nobody makes it any more") };
    assert!(leader.flight().is_wanted());
    // A task that ends by a panic leaves nobody waiting.
    let seat = Arc::clone(leader.flight()).join();
    drop(leader);
    assert!(matches!(seat.wait().await, Err(SummaryError::Ending)));
    assert!(matches!(summaries.recall(beginning(1)), Recollection::Nothing));
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_made_is_not_tried_again_for_some_time() {
    let (summaries, _, _) = with_store();
    let Begin::Yours(leader) = summaries.begin(beginning(1), false) else { panic!("nobody makes it yet") };
    leader.failed(SummaryError::Busy, Duration::from_mins(1));
    assert!(matches!(summaries.recall(beginning(1)), Recollection::NotNow));
    assert!(matches!(summaries.begin(beginning(1), false), Begin::NotNow));
    advance(Duration::from_mins(1)).await;
    assert!(matches!(summaries.recall(beginning(1)), Recollection::Nothing));
    assert!(matches!(summaries.begin(beginning(1), false), Begin::Yours(_)));
}

#[tokio::test(start_paused = true)]
async fn no_more_refusals_are_remembered_than_may_be() {
    let summaries = Summaries::new(None, patience());
    for n in 0..MOST_REFUSED + 10 {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&n.to_le_bytes());
        advance(Duration::from_millis(1)).await;
        summaries.refuse(ChainKey::from_bytes(key), Duration::from_hours(1));
    }
    assert_eq!(summaries.states().len(), MOST_REFUSED);
    assert!(matches!(summaries.recall(beginning(0)), Recollection::Nothing), "the oldest has left");
    advance(Duration::from_hours(2)).await;
    summaries.refuse(beginning(9), Duration::from_secs(1));
    assert_eq!(summaries.states().len(), 1);
}

#[tokio::test]
async fn texts_take_no_more_memory_than_they_may() {
    let summaries = Summaries::new(None, patience());
    assert!(summaries.is_read());
    for n in 0..100 {
        summaries.keep(beginning(n), summary(&"x".repeat(1 << 20))).await.unwrap();
    }
    assert!(summaries.texts.weight() <= TEXTS);
    // Without a store, what has no room is forgotten when it is asked for.
    assert!(matches!(summaries.recall(beginning(0)), Recollection::Stored));
    summaries.load(beginning(0)).await;
    assert!(matches!(summaries.recall(beginning(0)), Recollection::Nothing));
}

#[tokio::test(start_paused = true)]
async fn what_is_used_is_kept_with_its_transcript() {
    let (summaries, store, hands) = with_store();
    let transcript = PayloadKey::from_bytes([9; 16]);
    store.put_all(vec![(transcript, dense(9, 10))]).await.unwrap();
    let used = Summary { transcript: Some(transcript), ..summary("one") };
    summaries.keep(beginning(1), used).await.unwrap();
    summaries.keep(beginning(2), summary("two")).await.unwrap();
    hands.forward(6 * 86_400);
    advance(NOTE_AFTER).await;
    for _ in 0..3 {
        assert!(text(&summaries, 1).is_some());
        summaries.note_uses().await;
    }
    hands.forward(2 * 86_400);
    let swept = store.sweep().await.unwrap();
    assert_eq!((swept.aged, swept.summaries), (0, 1));
    assert_eq!(store.summaries().await.unwrap(), [beginning(1)]);
}
