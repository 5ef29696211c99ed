//! Cases about summaries and other facts.

use bytes::Bytes;

use super::{DAY, SMALL, TestClock, beginning, dense, place};
use crate::payload::Place;
use crate::store::Store;

pub(super) async fn keeps_summaries((store, clock): (impl Store, TestClock)) {
    let beginning = |n| beginning(n, 0);
    assert_eq!(store.summary(beginning(1)).await.unwrap(), None);
    assert_eq!(store.summaries().await.unwrap(), []);
    let long = Bytes::from("a summary ".repeat(1000));
    for (n, summary) in [(1, dense(1, 3_000)), (2, long.clone()), (3, dense(3, 10))] {
        assert_eq!(store.offer_summary(place(n), summary).await.unwrap(), None);
    }
    let later = store.offer_summary(place(1), Bytes::from_static(b"later")).await.unwrap();
    assert_eq!(later, Some(dense(1, 3_000)));
    assert_eq!(store.summary(beginning(1)).await.unwrap(), Some(dense(1, 3_000)), "the first one");
    assert_eq!(store.summary(beginning(2)).await.unwrap(), Some(long));
    let mut all = store.summaries().await.unwrap();
    all.sort_unstable();
    assert_eq!(all, [1, 2, 3].map(beginning));
    let stats = store.stats().await.unwrap();
    assert_eq!((stats.summaries, stats.payloads), (3, 0), "they are no payloads");
    assert!(stats.summary_bytes >= 3_010);
    assert_eq!(store.list(9).await.unwrap(), []);

    // By age, as payloads are.
    clock.forward(6 * DAY);
    store.touch_summaries(vec![beginning(1), beginning(9)]).await.unwrap();
    assert!(store.summary(beginning(3)).await.unwrap().is_some());
    clock.forward(DAY + 1);
    assert_eq!(store.sweep().await.unwrap().summaries, 1);
    assert_eq!(store.summary(beginning(2)).await.unwrap(), None);
    assert!(
        store.summary(beginning(1)).await.unwrap().is_some() && store.summary(beginning(3)).await.unwrap().is_some()
    );
    clock.forward(8 * DAY);
    store.sweep().await.unwrap();
    assert_eq!(store.summaries().await.unwrap(), []);
}

pub(super) async fn who_has_most_facts_makes_room((store, clock): (impl Store, TestClock)) {
    let offer = async |n: u8, caller: u8| {
        let place = Place { beginning: beginning(n, caller), ..place(n) };
        assert_eq!(store.offer_summary(place, dense(n, 1_000)).await.unwrap(), None);
        clock.forward(1);
    };
    let has = async |n, caller| store.summary(beginning(n, caller)).await.unwrap().is_some();
    for n in 0..3 {
        offer(n, 1).await;
    }
    // All within seconds, so most of it is in use.
    for n in 3..60 {
        offer(n, 2).await;
    }
    offer(60, 3).await;
    assert!(store.sweep().await.unwrap().summaries >= 47);
    // Redis keeps one too many.
    assert!(store.stats().await.unwrap().summary_bytes <= SMALL / 8 + 1_100);
    for (n, caller) in [(0, 1), (1, 1), (2, 1), (60, 3)] {
        assert!(has(n, caller).await, "{n}");
    }
    assert!(!has(3, 2).await, "the oldest of whoever has most");
    let mut n_left = 0;
    for n in 3..60 {
        n_left += u64::from(has(n, 2).await);
    }
    assert!(n_left >= 5, "{n_left}: no more goes than has to");
}
