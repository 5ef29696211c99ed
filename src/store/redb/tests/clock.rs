//! The clock, and what a file says of it after a restart.

use super::*;

const DAY: u64 = 86_400;

#[tokio::test]
async fn a_clock_that_is_set_back_does_not_put_sweeping_off() {
    let folder = tempfile::tempdir().unwrap();
    let hands = Hands::new();
    let store = Redb::open(&folder.path().join("store.redb"), Settings::default(), hands.clock()).unwrap();
    store.keep_house().await.unwrap();
    hands.back(365 * DAY);
    store.put_all(one(1)).await.unwrap();
    hands.forward(8 * DAY);
    store.keep_house().await.unwrap();
    assert!(store.was_swept(one(1)[0].0).await.unwrap());
}

#[tokio::test]
async fn a_leap_is_known_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let hands = Hands::new();
    let open = || Redb::open(&path, Settings::default(), hands.clock()).unwrap();
    let store = open();
    store.put_all([one(1), one(2)].concat()).await.unwrap();
    store.close().await.unwrap();
    hands.forward(30 * DAY);
    let store = open();
    store.keep_house().await.unwrap();
    store.put_all(one(1)).await.unwrap();
    assert_eq!(store.stats().await.unwrap().payloads, 2);
    hands.forward(600);
    store.keep_house().await.unwrap();
    assert_eq!(store.list(9).await.unwrap().iter().map(|entry| entry.key).collect::<Vec<_>>(), [one(1)[0].0]);
}

#[tokio::test]
async fn processes_that_end_before_the_pause_does_sweep_by_age_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let hands = Hands::new();
    for n in 0..20 {
        let store = Redb::open(&path, Settings::default(), hands.clock()).unwrap();
        store.keep_house().await.unwrap();
        store.put_all(one(n)).await.unwrap();
        assert!(store.stats().await.unwrap().payloads <= 9, "a week, the day since the last time, and today");
        store.close().await.unwrap();
        hands.forward(DAY);
    }
}

#[tokio::test]
async fn what_is_no_payload_counts_for_the_size_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let (hands, most) = (Hands::new(), 1 << 20);
    let settings = Settings { max_bytes: crate::units::ByteSize(most), ..Settings::default() };
    let store = Redb::open(&path, settings, hands.clock()).unwrap();
    for n in 0..200_u8 {
        store.put_all(vec![(key(&dense(n, 9_000)), dense(n, 9_000))]).await.unwrap();
        store.keep_summary(ChainKey::from_bytes([n; 16]), dense(n, 5_000)).await.unwrap();
        hands.forward(60);
        let stats = store.stats().await.unwrap();
        let all = stats.stored_bytes + stats.summary_bytes;
        assert!(all <= most + most / 16 + 14_000, "{n}: {all}");
    }
    // The file is what is kept, and air that is used again.
    let stats = store.stats().await.unwrap();
    assert!(stats.summaries > 20 && stats.payloads > 60 && stats.file_bytes < 4 * most, "{stats:?}");
}

#[tokio::test]
async fn a_sweep_that_was_in_vain_is_not_tried_again_at_each_put() {
    let folder = tempfile::tempdir().unwrap();
    let hands = Hands::new();
    let settings = Settings { max_bytes: crate::units::ByteSize(10_000), ..Settings::default() };
    let store = Redb::open(&folder.path().join("store.redb"), settings, hands.clock()).unwrap();
    let put = async |n: u8| {
        store.put_all(vec![(key(&dense(n, 9_000)), dense(n, 9_000))]).await.unwrap();
        // A sweep comes behind the answer, and before that of the next job.
        store.touch(vec![key(&dense(255, 9_000))]).await.unwrap();
    };
    // All of it is in use, so nothing can go.
    put(0).await;
    hands.forward(55);
    put(1).await;
    hands.forward(5);
    put(2).await;
    let first = key(&dense(0, 9_000));
    assert_eq!(store.stats().await.unwrap().payloads, 3);
    assert!(!store.was_swept(first).await.unwrap(), "the sweep of five seconds ago found nothing");
    hands.forward(5);
    put(3).await;
    assert!(store.was_swept(first).await.unwrap());
}
