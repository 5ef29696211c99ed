//! Jumps of the clock, and what a restart knows about them.

use super::*;
use crate::payload::Keys;

const DAY: u64 = 86_400;

/// A store of so many bytes.
fn open_within(most: u64, folder: &Path, clock: &TestClock) -> RedbStore {
    let settings = Settings { max_bytes: crate::units::ByteSize(most), ..Settings::default() };
    RedbStore::open(&folder.join("store.redb"), settings, clock.clock()).unwrap()
}

/// Stores the text of this number, and waits for the sweep that follows: it runs after the put was answered, and before the next
/// job.
async fn put_and_sweep(store: &RedbStore, name: PayloadKey, n: u8) {
    store.put_all(vec![(name, dense(n, 9_000))]).await.unwrap();
    store.touch(vec![key(&dense(255, 9_000))]).await.unwrap();
}

#[tokio::test]
async fn sweeps_continue_after_the_clock_was_set_back() {
    let folder = tempfile::tempdir().unwrap();
    let clock = TestClock::new();
    let store = RedbStore::open(&folder.path().join("store.redb"), Settings::default(), clock.clock()).unwrap();
    store.maintain().await.unwrap();
    clock.back(365 * DAY);
    store.put_all(one(1)).await.unwrap();
    clock.forward(8 * DAY);
    store.maintain().await.unwrap();
    assert!(store.was_swept(one(1)[0].0).await.unwrap());
}

#[tokio::test]
async fn a_clock_jump_is_recognised_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let clock = TestClock::new();
    let open = || RedbStore::open(&path, Settings::default(), clock.clock()).unwrap();
    let store = open();
    store.put_all([one(1), one(2)].concat()).await.unwrap();
    store.close().await.unwrap();
    clock.forward(30 * DAY);
    let store = open();
    store.maintain().await.unwrap();
    store.put_all(one(1)).await.unwrap();
    assert_eq!(store.stats().await.unwrap().payloads, 2);
    clock.forward(600);
    store.maintain().await.unwrap();
    assert_eq!(store.list(9).await.unwrap().iter().map(|entry| entry.key).collect::<Vec<_>>(), [one(1)[0].0]);
}

#[tokio::test]
async fn short_lived_processes_sweep_by_age_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let clock = TestClock::new();
    for n in 0..20 {
        let store = RedbStore::open(&path, Settings::default(), clock.clock()).unwrap();
        store.maintain().await.unwrap();
        store.put_all(one(n)).await.unwrap();
        assert!(store.stats().await.unwrap().payloads <= 9, "a week, the day since the last time, and today");
        store.close().await.unwrap();
        clock.forward(DAY);
    }
}

#[tokio::test]
async fn summaries_and_inspected_requests_count_towards_the_size_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (clock, most) = (TestClock::new(), 1 << 20);
    let store = open_within(most, folder.path(), &clock);
    for n in 0..200_u8 {
        store.put_all(vec![(key(&dense(n, 9_000)), dense(n, 9_000))]).await.unwrap();
        store.offer_summary(place(n), dense(n, 5_000)).await.unwrap();
        clock.forward(60);
        let stats = store.stats().await.unwrap();
        let all = stats.stored_bytes + stats.summary_bytes;
        assert!(all <= most + most / 16 + 14_000, "{n}: {all}");
    }
    // The file consists of the stored data and of free space that is used again.
    let stats = store.stats().await.unwrap();
    assert!(stats.summaries > 20 && stats.payloads > 60 && stats.file_bytes < 4 * most, "{stats:?}");
}

#[tokio::test]
async fn an_ineffective_sweep_is_not_repeated_at_each_put() {
    let folder = tempfile::tempdir().unwrap();
    let clock = TestClock::new();
    let store = open_within(10_000, folder.path(), &clock);
    let put = async |n: u8| put_and_sweep(&store, key(&dense(n, 9_000)), n).await;
    let is_refused = async |n: u8| {
        let refused = store.put_all(vec![(key(&dense(n, 9_000)), dense(n, 9_000))]).await.unwrap_err();
        assert_eq!(refused.kind, StoreErrorKind::Full);
        store.touch(vec![key(&dense(255, 9_000))]).await.unwrap();
    };
    // All of it is in use, so nothing can be removed, and no more is taken.
    put(0).await;
    clock.forward(55);
    put(1).await;
    clock.forward(5);
    is_refused(2).await;
    let first = key(&dense(0, 9_000));
    assert_eq!(store.stats().await.unwrap().payloads, 2);
    assert!(!store.was_swept(first).await.unwrap(), "the sweep of five seconds ago found nothing");
    clock.forward(5);
    put(3).await;
    assert!(store.was_swept(first).await.unwrap());
}

#[tokio::test]
async fn the_caller_who_has_stored_most_makes_room() {
    let folder = tempfile::tempdir().unwrap();
    let clock = TestClock::new();
    let store = open_within(100_000, folder.path(), &clock);
    let keys = Keys::well_known();
    let put = async |caller: &[u8], n: u8| {
        let key = keys.payload(keys.caller(caller), &dense(n, 9_000));
        put_and_sweep(&store, key, n).await;
        clock.forward(60);
        key
    };
    let (ann, also_ann) = (put(b"ann", 0).await, put(b"ann", 1).await);
    let mut greedy = Vec::new();
    for n in 2..40 {
        greedy.push(put(b"bob", n).await);
    }
    assert!(store.was_swept(greedy[0]).await.unwrap());
    for kept in [ann, also_ann, greedy[37], greedy[32]] {
        assert!(!store.was_swept(kept).await.unwrap());
    }
    // Of one caller, the oldest leave first.
    let n_left = store.list(99).await.unwrap().iter().filter(|entry| entry.key.owner() == greedy[0].owner()).count();
    for (n, key) in greedy.iter().enumerate() {
        assert_eq!(store.was_swept(*key).await.unwrap(), n + n_left < greedy.len(), "{n} of {n_left} that are left");
    }
    // Texts in use are spared, also of the caller who has the most, and others make no room for them.
    store.touch(greedy.clone()).await.unwrap();
    let cleo = put(b"cleo", 40).await;
    for kept in [ann, also_ann, greedy[37], cleo] {
        assert!(!store.was_swept(kept).await.unwrap());
    }
}

#[tokio::test]
async fn what_is_in_use_exceeds_the_limit_by_a_quarter_and_one_request_at_most_and_leaves_room_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let clock = TestClock::new();
    let store = open_within(100_000, folder.path(), &clock);
    let keys = Keys::well_known();
    let name = |caller: u8, n: u8| keys.payload(keys.caller(&[caller]), &dense(n, 5_000));
    let put = async |caller: u8, n: u8| {
        let put = store.put_all(vec![(name(caller, n), dense(n, 5_000))]).await.map_err(|error| error.kind);
        // Waits for the sweep that follows.
        store.touch(vec![key(&dense(255, 9_000))]).await.unwrap();
        let Stats { stored_bytes, summary_bytes, .. } = store.stats().await.unwrap();
        assert!(stored_bytes + summary_bytes <= 125_000 + 5_100, "{stored_bytes} {summary_bytes}");
        put
    };
    put(1, 0).await.unwrap();
    let mut n_stored = 0;
    for n in 0..60 {
        n_stored += usize::from(put(2, n).await.is_ok());
    }
    assert!((18..=24).contains(&n_stored), "{n_stored}");
    assert!(!store.is_failing());
    // Who has less than its share stores more; what is stored is put again; facts have the same limit.
    assert_eq!(put(2, 100).await, Err(StoreErrorKind::Full));
    put(1, 1).await.unwrap();
    put(2, 0).await.unwrap();
    assert!(store.get(name(1, 0)).await.unwrap().is_some() && store.get(name(2, 1)).await.unwrap().is_some());
    // Many callers at once, none of whom has much.
    let mut all = Vec::new();
    for caller in 10..40 {
        all.push(put(caller, caller).await);
    }
    assert!(all[0].is_ok() && all[29] == Err(StoreErrorKind::Full), "{all:?}");
    let offered = store.offer_summary(place(1), dense(1, 9_000)).await;
    assert_eq!(offered.unwrap_err().kind, StoreErrorKind::Full);
    // A minute later, what is no longer in use makes room.
    clock.forward(60);
    put(2, 101).await.unwrap();
    put(1, 2).await.unwrap();
    assert_eq!(store.offer_summary(place(1), dense(1, 9_000)).await.unwrap(), None);
}
