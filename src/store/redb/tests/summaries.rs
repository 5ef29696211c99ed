//! Summaries in the file: after a restart, in files of older versions, and beyond their limits.

use super::*;

fn beginning(n: u8) -> ChainKey {
    ChainKey::from_bytes([n; 16])
}

#[tokio::test]
async fn a_version_1_file_is_migrated_and_takes_summaries() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let store = open(&path).unwrap();
    store.put_all(one(1)).await.unwrap();
    store.close().await.unwrap();
    let db = file::opener(&path, 1 << 20)().unwrap();
    tables::downgrade_to_v1(&db).unwrap();
    drop(db);
    for expected in [None, Some(dense(2, 10))] {
        let store = open(&path).unwrap();
        assert_eq!(store.get(one(1)[0].0).await.unwrap(), Some(dense(1, 2000)));
        assert_eq!(store.summary(beginning(1)).await.unwrap(), expected);
        assert_eq!(store.inspected("req_1".to_owned()).await.unwrap(), expected);
        store.offer_summary(place(1), dense(2, 10)).await.unwrap();
        store.put_inspected("req_1".to_owned(), dense(2, 10), 3).await.unwrap();
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn summaries_and_their_uses_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let (clock, day) = (TestClock::new(), 86_400);
    let open = || RedbStore::open(&path, Settings::default(), clock.clock()).unwrap();
    let store = open();
    for n in 0..3 {
        store.offer_summary(place(n), dense(n, 2000)).await.unwrap();
    }
    clock.forward(6 * day);
    store.touch_summaries(vec![beginning(2)]).await.unwrap();
    store.close().await.unwrap();
    clock.forward(2 * day);
    let store = open();
    assert_eq!(store.sweep().await.unwrap().summaries, 2);
    assert_eq!(store.summaries().await.unwrap(), [beginning(2)]);
    assert_eq!(store.summary(beginning(2)).await.unwrap(), Some(dense(2, 2000)));
}

#[test]
fn the_least_recently_used_summaries_are_removed_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let (db, _) = file::open(&path, &file::opener(&path, 1 << 20), SCHEMA, None).unwrap();
    for n in 0..5 {
        tables::offer_summary(&db, beginning(n), &Encoded::new(dense(n, 100)), Time(u64::from(n))).unwrap();
    }
    let uses = HashMap::from([(beginning(0), Time(9))]);
    let quota = tables::SummaryQuota { max_entries: 3, max_bytes: u64::MAX, oldest: Time(0) };
    assert_eq!(tables::sweep_summaries(&db, &uses, quota).unwrap().n_removed, 2);
    let mut left = Vec::new();
    tables::for_each_summary(&db, |beginning, used, _| left.push((beginning, used))).unwrap();
    assert_eq!(left, [(beginning(0), Time(9)), (beginning(3), Time(3)), (beginning(4), Time(4))]);
    assert_eq!(tables::summary(&db, beginning(1)).unwrap(), None);
}
