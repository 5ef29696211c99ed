//! Summaries in the file: after a restart, and beyond their limits.

use super::*;

fn beginning(n: u8) -> ChainKey {
    place(n).beginning
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
    let (db, _) = file::open(&path, &file::opener(&path), None).unwrap();
    for n in 0..5 {
        let new = NewValue::new(Name::of_summary(beginning(n)), &dense(n, 100).into(), Lifetime::Usual);
        others::offer_summary(&db, &new, Time(u64::from(n))).unwrap();
    }
    tables::write_uses(&db, &[(Name::of_summary(beginning(0)), Time(9))]).unwrap();
    let quota = others::Quota { max_entries: 3, max_bytes: u64::MAX, oldest: Time(0) };
    assert_eq!(others::trim(&db, SUMMARY, quota).unwrap().0, 2);
    let mut left = Vec::new();
    for summary in tables::rows(&db, tables::of_kind(SUMMARY)).unwrap() {
        let (name, row) = summary.unwrap();
        left.push((ChainKey::from_bytes(name.id), row.used));
    }
    assert_eq!(left, [(beginning(0), Time(9)), (beginning(3), Time(3)), (beginning(4), Time(4))]);
    assert_eq!(tables::get(&db, Name::of_summary(beginning(1))).unwrap(), None);
}
