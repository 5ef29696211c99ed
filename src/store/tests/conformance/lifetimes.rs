//! Cases about payloads that are kept longer than others, and notes that are kept for a time.

use std::time::Duration;

use bytes::Bytes;

use super::{DAY, TestClock, dense, key};
use crate::payload::{ChainKey, Lifetime};
use crate::store::{Clock, IN_USE, Note, NoteGroup, NoteKind, Settings, Store};
use crate::units::Period;

/// Runs the cases.
pub(super) async fn suite<S: Store>(open: &impl AsyncFn(Settings, Clock) -> S) {
    let with = async |settings| {
        let clock = TestClock::new();
        (open(settings, clock.clock()).await, clock)
    };
    keeps_the_chained_ones_longer(with(Settings::default()).await).await;
    the_longer_lifetime_counts(with(Settings::default()).await).await;
    a_use_begins_the_lifetime_anew(with(Settings::default()).await).await;
    let long = Settings { keep_for: Period(Duration::from_secs(60 * DAY)), ..Settings::default() };
    never_keeps_the_chained_ones_shorter(with(long).await).await;
    notes_are_kept_until_they_expire(with(Settings::default()).await).await;
}

async fn put(store: &impl Store, payload: &Bytes, lifetime: Lifetime) {
    store.put(vec![(key(payload), payload.clone().into())], lifetime).await.unwrap();
}

/// Which keys are stored. To ask is not a use of them.
async fn stored<const N: usize>(store: &impl Store, payloads: [&Bytes; N]) -> [bool; N] {
    let listed = store.list(usize::MAX).await.unwrap();
    payloads.map(|payload| listed.iter().any(|entry| entry.key == key(payload)))
}

async fn keeps_the_chained_ones_longer((store, clock): (impl Store, TestClock)) {
    let (usual, chained) = (dense(1, 2_000), dense(2, 2_000));
    put(&store, &usual, Lifetime::Usual).await;
    put(&store, &chained, Lifetime::Chained).await;
    clock.forward(7 * DAY + 1);
    assert_eq!(store.sweep().await.unwrap().aged, 1);
    assert_eq!(stored(&store, [&usual, &chained]).await, [false, true]);
    clock.forward(23 * DAY - 1);
    assert_eq!(store.sweep().await.unwrap().aged, 0, "just thirty days");
    clock.forward(1);
    assert_eq!(store.sweep().await.unwrap().aged, 1);
    assert_eq!(stored(&store, [&chained]).await, [false]);
    // Once it is swept, nothing is left of its lifetime.
    put(&store, &chained, Lifetime::Usual).await;
    clock.forward(7 * DAY + 1);
    assert_eq!(store.sweep().await.unwrap().aged, 1);
}

async fn the_longer_lifetime_counts((store, clock): (impl Store, TestClock)) {
    let (first, last, both) = (dense(1, 2_000), dense(2, 2_000), dense(3, 2_000));
    put(&store, &first, Lifetime::Chained).await;
    put(&store, &first, Lifetime::Usual).await;
    put(&store, &last, Lifetime::Usual).await;
    put(&store, &last, Lifetime::Chained).await;
    tokio::join!(put(&store, &both, Lifetime::Usual), put(&store, &both, Lifetime::Chained));
    let stats = store.stats().await.unwrap();
    assert_eq!((stats.payloads, stats.written), (3, 3));
    clock.forward(29 * DAY);
    store.sweep().await.unwrap();
    assert_eq!(stored(&store, [&first, &last, &both]).await, [true; 3]);
    // It stays so when only the usual lifetime is asked for again.
    put(&store, &last, Lifetime::Usual).await;
    clock.forward(29 * DAY);
    store.sweep().await.unwrap();
    assert_eq!(stored(&store, [&first, &last, &both]).await, [false, true, false]);
}

async fn a_use_begins_the_lifetime_anew((store, clock): (impl Store, TestClock)) {
    let (read, touched) = (dense(1, 2_000), dense(2, 2_000));
    put(&store, &read, Lifetime::Chained).await;
    put(&store, &touched, Lifetime::Chained).await;
    for _ in 0..3 {
        clock.forward(29 * DAY);
        store.sweep().await.unwrap();
        assert_eq!(store.get(key(&read)).await.unwrap().as_ref(), Some(&read));
        store.touch(vec![key(&touched)]).await.unwrap();
    }
    assert_eq!(stored(&store, [&read, &touched]).await, [true; 2]);
}

async fn never_keeps_the_chained_ones_shorter((store, clock): (impl Store, TestClock)) {
    let chained = dense(1, 2_000);
    put(&store, &chained, Lifetime::Chained).await;
    clock.forward(60 * DAY);
    store.sweep().await.unwrap();
    assert_eq!(stored(&store, [&chained]).await, [true]);
    clock.forward(1);
    assert_eq!(store.sweep().await.unwrap().aged, 1);
}

pub(super) async fn what_expires_first_goes_first((store, clock): (impl Store, TestClock)) {
    let [chained, usual, last] = [dense(1, 1_200), dense(2, 1_200), dense(3, 1_200)];
    put(&store, &chained, Lifetime::Chained).await;
    clock.forward(DAY);
    put(&store, &usual, Lifetime::Usual).await;
    clock.forward(DAY);
    put(&store, &last, Lifetime::Usual).await;
    // A store may have swept by itself before.
    assert!(store.sweep().await.unwrap().crowded_out <= 1);
    assert_eq!(stored(&store, [&chained, &usual, &last]).await, [true, false, true]);
    // What is in use stays, and then the longest lifetime is of no help.
    clock.forward(IN_USE.as_secs() / 2);
    put(&store, &usual, Lifetime::Usual).await;
    store.sweep().await.unwrap();
    assert_eq!(stored(&store, [&chained, &usual, &last]).await, [false, true, true]);
}

async fn notes_are_kept_until_they_expire((store, clock): (impl Store, TestClock)) {
    let note = |kind, n: u8, value: &'static str| Note {
        kind,
        key: ChainKey::from_bytes([n; 16]),
        value: Bytes::from_static(value.as_bytes()),
    };
    let day = Duration::from_secs(DAY);
    assert_eq!(store.notes(NoteGroup::Ledger).await.unwrap(), []);
    store.note(note(NoteKind::Ledger, 1, "before"), day).await.unwrap();
    store.note(note(NoteKind::Ledger, 1, "after"), 2 * day).await.unwrap();
    store.note(note(NoteKind::Ledger, 2, "short"), day).await.unwrap();
    store.note(note(NoteKind::Window, 1, "of the fleet"), 9 * day).await.unwrap();
    let mut kept = store.notes(NoteGroup::Ledger).await.unwrap();
    kept.sort_by_key(|note| note.key);
    assert_eq!(kept, [note(NoteKind::Ledger, 1, "after"), note(NoteKind::Ledger, 2, "short")]);
    assert_eq!(store.notes(NoteGroup::Fleet).await.unwrap(), [note(NoteKind::Window, 1, "of the fleet")]);
    clock.forward(DAY + 1);
    assert_eq!(store.notes(NoteGroup::Ledger).await.unwrap(), [note(NoteKind::Ledger, 1, "after")]);
}
