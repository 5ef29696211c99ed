//! What every store does. A new one is a store when [`suite`] passes on it.
#![expect(clippy::unwrap_used, reason = "a panic is a test's answer")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use super::{Clock, Doing, IN_USE, Kind, Settings, Store, Time};
use crate::payload::{Caller, Keys, PayloadKey};
use crate::units::{ByteSize, Period};

/// A day, in seconds.
const DAY: u64 = 86_400;

/// A clock that a test sets.
#[derive(Clone, Debug)]
pub struct Hands(Arc<AtomicU64>);

/// Keeps payloads that are there as they are, as tests have them.
pub trait PutAll: Store {
    /// Keeps all of them, or none.
    fn put_all(&self, payloads: Vec<(PayloadKey, Bytes)>) -> Doing<'_, ()> {
        self.keep_all(payloads.into_iter().map(|(key, payload)| (key, payload.into())).collect())
    }
}

impl<S: Store> PutAll for S {}

/// Runs all cases, each on an empty store of its own that `open` makes. Panics where one behaves otherwise.
pub async fn suite<S: Store>(open: impl Fn(Settings, Clock) -> S) {
    let default = |open: &dyn Fn(Settings, Clock) -> S| {
        let hands = Hands::new();
        (open(Settings::default(), hands.clock()), hands)
    };
    gives_back_what_was_put(&default(&open).0).await;
    again_is_nothing(&default(&open).0).await;
    many_at_once(&default(&open).0).await;
    lists_newest_first(default(&open)).await;
    sweeps_by_age(default(&open)).await;
    remembers_what_was_swept(default(&open)).await;
    let hands = Hands::new();
    let small = Settings { max_bytes: ByteSize(3000), keep_for: Period::secs(DAY), ..Settings::default() };
    sweeps_by_size((open(small, hands.clock()), hands)).await;
    compacts(&default(&open).0).await;
    refuses_all_once_closed(&default(&open).0).await;
}

async fn gives_back_what_was_put(store: &impl Store) {
    let payloads = [
        Bytes::new(),
        Bytes::from_static(b"short"),
        Bytes::from(vec![b' '; 100_000]),
        dense(1, 5_000),
        dense(2, 3 << 20),
        Bytes::from_static(&[0, 255, 254, 0]),
    ];
    assert_eq!(store.get(key(&payloads[1])).await.unwrap(), None);
    store.put_all(payloads.iter().map(|payload| (key(payload), payload.clone())).collect()).await.unwrap();
    for payload in &payloads {
        assert_eq!(store.get(key(payload)).await.unwrap().as_ref(), Some(payload));
    }
    let stats = store.stats().await.unwrap();
    assert_eq!(stats.payloads, payloads.len() as u64);
    assert_eq!(stats.bytes, payloads.iter().map(|payload| payload.len() as u64).sum::<u64>());
    assert_eq!((stats.written, stats.recalled, stats.failures), (stats.payloads, stats.payloads, 0));
    store.put_all(Vec::new()).await.unwrap();
}

async fn again_is_nothing(store: &impl Store) {
    let payload = dense(1, 2_000);
    let put = vec![(key(&payload), payload.clone()), (key(&payload), payload.clone())];
    store.put_all(put.clone()).await.unwrap();
    let before = store.stats().await.unwrap();
    assert_eq!(before.payloads, 1);
    for _ in 0..3 {
        store.put_all(put.clone()).await.unwrap();
    }
    let after = store.stats().await.unwrap();
    assert_eq!((after.payloads, after.written), (1, before.written));
    assert_eq!(after.known, before.known + 6);
    assert_eq!(store.get(key(&payload)).await.unwrap(), Some(payload));
}

async fn many_at_once(store: &impl Store) {
    let put = |n: u8| {
        let payloads: Vec<_> = (0..8).map(|m| dense(n.wrapping_add(m * 13), 3_000)).collect();
        store.put_all(payloads.into_iter().map(|payload| (key(&payload), payload)).collect())
    };
    tokio::try_join!(put(1), put(2), put(3), put(4), put(5), put(6), put(7), put(8)).unwrap();
    for n in (1..=8).flat_map(|n| (0..8).map(move |m: u8| m * 13 + n)) {
        let payload = dense(n, 3_000);
        assert_eq!(store.get(key(&payload)).await.unwrap(), Some(payload));
    }
}

async fn lists_newest_first((store, hands): (impl Store, Hands)) {
    for n in 0..5 {
        let payload = dense(n, 100);
        store.put_all(vec![(key(&payload), payload)]).await.unwrap();
        hands.forward(DAY / 4);
    }
    let newest = store.list(3).await.unwrap();
    let expected: Vec<_> = [4, 3, 2].into_iter().map(|n| key(&dense(n, 100))).collect();
    assert_eq!(newest.iter().map(|entry| entry.key).collect::<Vec<_>>(), expected);
    assert!(newest.iter().all(|entry| entry.bytes == 100 && entry.created == entry.used));
    assert_eq!(store.list(100).await.unwrap().len(), 5);
}

async fn sweeps_by_age((store, hands): (impl Store, Hands)) {
    let (old, touched, read, put) = (dense(1, 2_000), dense(2, 2_000), dense(3, 2_000), dense(4, 2_000));
    let all = [&old, &touched, &read, &put];
    store.put_all(all.iter().map(|payload| (key(payload), (*payload).clone())).collect()).await.unwrap();
    hands.forward(6 * DAY);
    assert_eq!(store.sweep().await.unwrap().aged, 0);
    store.touch(vec![key(&touched), key(b"never put")]).await.unwrap();
    store.get(key(&read)).await.unwrap();
    store.put_all(vec![(key(&put), put.clone())]).await.unwrap();
    hands.forward(DAY + 1);
    let swept = store.sweep().await.unwrap();
    assert_eq!((swept.aged, swept.crowded_out), (1, 0));
    assert_eq!(store.get(key(&old)).await.unwrap(), None);
    assert!(store.touch(vec![key(&old)]).await.is_ok());
    for payload in &all[1..] {
        assert_eq!(store.get(key(payload)).await.unwrap().as_ref(), Some(*payload));
    }
    assert_eq!(store.stats().await.unwrap().payloads, 3);
}

async fn remembers_what_was_swept((store, hands): (impl Store, Hands)) {
    let payload = dense(1, 2_000);
    let key = key(&payload);
    store.put_all(vec![(key, payload.clone())]).await.unwrap();
    assert!(!store.was_swept(key).await.unwrap());
    hands.forward(8 * DAY);
    store.keep_house().await.unwrap();
    assert_eq!(store.get(key).await.unwrap(), None);
    assert!(store.was_swept(key).await.unwrap());
    assert_eq!(store.stats().await.unwrap().tombstones, 1);
    // What was swept can come again: its conversation has.
    store.put_all(vec![(key, payload.clone())]).await.unwrap();
    assert_eq!(store.get(key).await.unwrap(), Some(payload));
    assert!(!store.was_swept(key).await.unwrap());
}

async fn sweeps_by_size((store, hands): (impl Store, Hands)) {
    let put = |n| {
        let payload = dense(n, 900);
        store.put_all(vec![(key(&payload), payload)])
    };
    for n in 0..3 {
        put(n).await.unwrap();
        hands.forward(100);
    }
    assert_eq!(store.sweep().await.unwrap().crowded_out, 0);
    assert_eq!(store.get(key(&dense(0, 900))).await.unwrap(), Some(dense(0, 900)));
    put(3).await.unwrap();
    let swept = store.sweep().await.unwrap();
    assert!(swept.aged == 0 && swept.crowded_out <= 1);
    assert_eq!(store.get(key(&dense(1, 900))).await.unwrap(), None, "the one unused for longest");
    for n in [0, 2, 3] {
        assert_eq!(store.get(key(&dense(n, 900))).await.unwrap(), Some(dense(n, 900)));
    }
    // What requests on their way may name stays, even if it is too much.
    hands.forward(IN_USE.as_secs());
    for n in 10..20 {
        put(n).await.unwrap();
    }
    store.sweep().await.unwrap();
    for n in 10..20 {
        assert_eq!(store.get(key(&dense(n, 900))).await.unwrap(), Some(dense(n, 900)));
    }
}

async fn compacts(store: &impl Store) {
    let payload = dense(1, 100_000);
    store.put_all(vec![(key(&payload), payload.clone())]).await.unwrap();
    store.compact().await.unwrap();
    assert_eq!(store.get(key(&payload)).await.unwrap(), Some(payload));
}

async fn refuses_all_once_closed(store: &impl Store) {
    let payload = dense(1, 2_000);
    store.close().await.unwrap();
    store.close().await.unwrap();
    let error = store.put_all(vec![(key(&payload), payload)]).await.unwrap_err();
    assert_eq!(error.kind, Kind::Unavailable);
    let error = store.get(key(b"")).await.unwrap_err();
    assert_eq!(error.kind, Kind::Unavailable);
}

// === helpers ===

impl Hands {
    /// Some time in this century.
    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(1_800_000_000)))
    }

    /// The clock that they are on.
    pub fn clock(&self) -> Clock {
        let hands = Arc::clone(&self.0);
        Clock::new(move || Time(hands.load(Ordering::Relaxed)))
    }

    /// Moves them by so many seconds.
    pub fn forward(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }
}

impl Default for Hands {
    fn default() -> Self {
        Self::new()
    }
}

/// The key that tests put a payload under.
pub fn key(payload: &[u8]) -> PayloadKey {
    let keys = Keys::new([7; 32]);
    let caller: Caller = keys.caller(b"Bearer someone");
    keys.payload(caller, payload)
}

/// Bytes that no compression makes shorter.
pub fn dense(seed: u8, len: usize) -> Bytes {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut bytes);
    bytes.into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::memory::Memory;

    #[tokio::test]
    async fn memory_is_a_store() {
        suite(Memory::new).await;
        assert!(Duration::from_secs(DAY) > IN_USE);
    }
}
