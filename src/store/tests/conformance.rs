//! The conformance tests of stores: an implementation is correct if [`suite`] and [`damage::suite`] pass on it.
#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a panic is a test's answer")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::payload::{Caller, ChainKey, Keys, Lifetime, MediaType, Payload, PayloadKey, Place};
use crate::store::{Clock, IN_USE, Owner, Page, PageQuery, Settings, Store, StoreErrorKind, StoreFuture, Time};
use crate::units::{ByteSize, Period};

pub mod damage;
mod facts;
pub mod fleet;
mod lifetimes;

/// A day, in seconds. It is longer than [`IN_USE`].
const DAY: u64 = 86_400;

/// The size limit of a small store, in bytes.
const SMALL: u64 = 100_000;

/// A clock that a test sets.
#[derive(Clone, Debug)]
pub struct TestClock(Arc<AtomicU64>);

/// Stores plain bytes as payloads, for tests.
pub trait PutAll: Store {
    /// Stores all of them, or none.
    fn put_all(&self, payloads: Vec<(PayloadKey, Bytes)>) -> StoreFuture<'_, ()> {
        self.put(payloads.into_iter().map(|(key, payload)| (key, payload.into())).collect(), Lifetime::Usual)
    }
}

impl<S: Store> PutAll for S {}

/// Runs all cases, each on an empty store that `open` makes. Panics if one fails.
pub async fn suite<S: Store>(open: impl Fn(Settings, Clock) -> S) {
    suite_of_engines(async |settings, clock| open(settings, clock)).await;
    let with = |settings| {
        let clock = TestClock::new();
        (open(settings, clock.clock()), clock)
    };
    let small = |bytes| Settings { max_bytes: ByteSize(bytes), keep_for: Period::secs(DAY), ..Settings::default() };
    lifetimes::what_expires_first_goes_first(with(Settings { max_bytes: ByteSize(3000), ..Settings::default() })).await;
    sweeps_by_size(with(small(3000))).await;
    loses_nothing_when_the_clock_is_set_back(with(Settings::default())).await;
    keeps_nothing_for_ever_when_the_clock_is_set_back(with(small(3000))).await;
    a_leap_of_the_clock_is_not_believed_at_once(with(Settings::default())).await;
    all_that_is_kept_is_within_its_size(with(Settings { max_bytes: ByteSize(SMALL), ..Settings::default() })).await;
}

/// Runs the cases that hold for stores of several processes too, whose clock is the engine's and which remove nothing to
/// save space that was used a short time ago.
pub async fn suite_of_engines<S: Store>(open: impl AsyncFn(Settings, Clock) -> S) {
    let default = async || {
        let clock = TestClock::new();
        (open(Settings::default(), clock.clock()).await, clock)
    };
    gives_back_what_was_put(&default().await.0).await;
    gives_back_the_type_with_the_payload(&default().await.0).await;
    putting_again_changes_nothing(&default().await.0).await;
    takes_concurrent_puts(&default().await.0).await;
    lists_newest_first(default().await).await;
    sweeps_by_age(default().await).await;
    lifetimes::suite(&open).await;
    remembers_what_was_swept(default().await).await;
    facts::keeps_summaries(default().await).await;
    let clock = TestClock::new();
    let small = open(Settings { max_bytes: ByteSize(SMALL), ..Settings::default() }, clock.clock()).await;
    facts::who_has_most_facts_makes_room((small, clock)).await;
    keeps_the_last_requests(default().await).await;
    lists_page_by_page(default().await).await;
    compacts(&default().await.0).await;
    refuses_all_once_closed(&default().await.0).await;
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

async fn gives_back_the_type_with_the_payload(store: &impl Store) {
    let types = [None, Some(MediaType::Png), Some(MediaType::Text), Some(MediaType::Flac)];
    let payloads = [Bytes::from_static(b"short"), Bytes::from(vec![b' '; 5_000]), dense(1, 5_000), Bytes::new()];
    let payloads = payloads.into_iter().zip(types).map(|(bytes, media)| (key(&bytes), Payload::stored(bytes, media)));
    let payloads: Vec<_> = payloads.collect();
    store.put(payloads.clone(), Lifetime::Usual).await.unwrap();
    for (key, payload) in payloads {
        assert_eq!(store.load(key).await.unwrap(), Some(payload));
    }
}

async fn putting_again_changes_nothing(store: &impl Store) {
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

async fn takes_concurrent_puts(store: &impl Store) {
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

async fn lists_newest_first((store, clock): (impl Store, TestClock)) {
    for n in 0..5 {
        let payload = dense(n, 100);
        store.put_all(vec![(key(&payload), payload)]).await.unwrap();
        clock.forward(DAY / 4);
    }
    let newest = store.list(3).await.unwrap();
    let expected: Vec<_> = [4, 3, 2].into_iter().map(|n| key(&dense(n, 100))).collect();
    assert_eq!(newest.iter().map(|entry| entry.key).collect::<Vec<_>>(), expected);
    assert!(newest.iter().all(|entry| entry.bytes == 100 && entry.created == entry.used));
    assert_eq!(store.list(100).await.unwrap().len(), 5);
}

async fn sweeps_by_age((store, clock): (impl Store, TestClock)) {
    let (old, touched, read, put) = (dense(1, 2_000), dense(2, 2_000), dense(3, 2_000), dense(4, 2_000));
    let all = [&old, &touched, &read, &put];
    store.put_all(all.iter().map(|payload| (key(payload), (*payload).clone())).collect()).await.unwrap();
    clock.forward(6 * DAY);
    assert_eq!(store.sweep().await.unwrap().aged, 0);
    store.touch(vec![key(&touched), key(b"never put")]).await.unwrap();
    store.get(key(&read)).await.unwrap();
    store.put_all(vec![(key(&put), put.clone())]).await.unwrap();
    clock.forward(DAY + 1);
    let swept = store.sweep().await.unwrap();
    assert_eq!((swept.aged, swept.crowded_out), (1, 0));
    assert_eq!(store.get(key(&old)).await.unwrap(), None);
    assert!(store.touch(vec![key(&old)]).await.is_ok());
    for payload in &all[1..] {
        assert_eq!(store.get(key(payload)).await.unwrap().as_ref(), Some(*payload));
    }
    assert_eq!(store.stats().await.unwrap().payloads, 3);
}

async fn remembers_what_was_swept((store, clock): (impl Store, TestClock)) {
    let payload = dense(1, 2_000);
    let key = key(&payload);
    store.put_all(vec![(key, payload.clone())]).await.unwrap();
    assert!(!store.was_swept(key).await.unwrap());
    clock.forward(8 * DAY);
    store.sweep().await.unwrap();
    assert_eq!(store.get(key).await.unwrap(), None);
    assert!(store.was_swept(key).await.unwrap());
    assert_eq!(store.stats().await.unwrap().tombstones, 1);
    // A swept payload can be stored again.
    store.put_all(vec![(key, payload.clone())]).await.unwrap();
    assert_eq!(store.get(key).await.unwrap(), Some(payload));
    assert!(!store.was_swept(key).await.unwrap());
}

async fn sweeps_by_size((store, clock): (impl Store, TestClock)) {
    let put = |n| {
        let payload = dense(n, 900);
        store.put_all(vec![(key(&payload), payload)])
    };
    for n in 0..3 {
        put(n).await.unwrap();
        clock.forward(100);
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
    // Everything that was used within the last minute stays, even above the size limit.
    clock.forward(IN_USE.as_secs());
    let mut stored = Vec::new();
    for n in 10..20 {
        match put(n).await {
            Ok(()) => stored.push(n),
            Err(error) => assert_eq!(error.kind, StoreErrorKind::Full, "{n}"),
        }
    }
    store.sweep().await.unwrap();
    assert!(stored.len() >= 3, "{stored:?}");
    for n in stored {
        assert_eq!(store.get(key(&dense(n, 900))).await.unwrap(), Some(dense(n, 900)));
    }
}

async fn loses_nothing_when_the_clock_is_set_back((store, clock): (impl Store, TestClock)) {
    let (before, behind) = (dense(1, 2_000), dense(2, 2_000));
    store.put_all(vec![(key(&before), before.clone())]).await.unwrap();
    clock.back(365 * DAY);
    store.put_all(vec![(key(&behind), behind.clone())]).await.unwrap();
    store.maintain().await.unwrap();
    clock.forward(6 * DAY);
    store.maintain().await.unwrap();
    for payload in [&before, &behind] {
        assert_eq!(store.get(key(payload)).await.unwrap().as_ref(), Some(payload));
    }
    // After the clock is set right, what was used in the meantime looks old. It is removed if it stays unused for one
    // sweep interval, and is remembered.
    clock.forward(359 * DAY);
    store.maintain().await.unwrap();
    assert_eq!(store.get(key(&before)).await.unwrap(), Some(before.clone()));
    clock.forward(600);
    store.maintain().await.unwrap();
    assert_eq!(store.get(key(&before)).await.unwrap(), Some(before));
    assert_eq!(store.get(key(&behind)).await.unwrap(), None);
    assert!(store.was_swept(key(&behind)).await.unwrap());
}

async fn keeps_nothing_for_ever_when_the_clock_is_set_back((store, clock): (impl Store, TestClock)) {
    let put = async |n: u8| store.put_all(vec![(key(&dense(n, 900)), dense(n, 900))]).await.unwrap();
    for n in 0..3 {
        put(n).await;
    }
    store.offer_summary(place(1), dense(9, 100)).await.unwrap();
    store.put_inspected("req_1".to_owned(), dense(9, 100), 9).await.unwrap();
    clock.back(365 * DAY);
    store.sweep().await.unwrap();
    clock.forward(IN_USE.as_secs());
    // By size: the old ones first.
    for n in 3..6 {
        put(n).await;
    }
    store.sweep().await.unwrap();
    for n in 0..3 {
        assert!(store.was_swept(key(&dense(n, 900))).await.unwrap(), "{n}");
    }
    for n in 3..6 {
        assert_eq!(store.get(key(&dense(n, 900))).await.unwrap(), Some(dense(n, 900)));
    }
    // By age: everything.
    clock.forward(2 * DAY);
    let swept = store.sweep().await.unwrap();
    assert_eq!((swept.aged, swept.summaries), (3, 1));
    assert_eq!(store.inspected("req_1".to_owned()).await.unwrap(), None);
}

async fn a_leap_of_the_clock_is_not_believed_at_once((store, clock): (impl Store, TestClock)) {
    let (idle, busy) = (dense(1, 900), dense(2, 900));
    let beginnings = [1, 2].map(|n| beginning(n, 0));
    store.put_all([&idle, &busy].map(|payload| (key(payload), payload.clone())).to_vec()).await.unwrap();
    for n in [1, 2] {
        store.offer_summary(place(n), dense(3, 100)).await.unwrap();
    }
    store.maintain().await.unwrap();
    clock.forward(365 * DAY);
    for _ in 0..2 {
        store.maintain().await.unwrap();
        clock.forward(299);
    }
    assert_eq!(store.stats().await.unwrap().payloads, 2);
    store.touch(vec![key(&busy)]).await.unwrap();
    store.touch_summaries(vec![beginnings[1]]).await.unwrap();
    clock.forward(2);
    store.maintain().await.unwrap();
    assert_eq!((store.get(key(&idle)).await.unwrap(), store.get(key(&busy)).await.unwrap()), (None, Some(busy)));
    assert_eq!(store.summaries().await.unwrap(), [beginnings[1]]);
}

async fn all_that_is_kept_is_within_its_size((store, clock): (impl Store, TestClock)) {
    let n_bytes = async || {
        let stats = store.stats().await.unwrap();
        (stats.stored_bytes, stats.summary_bytes, stats.inspected_bytes)
    };
    for n in 0..40 {
        store.put_all(vec![(key(&dense(n, 4_000)), dense(n, 4_000))]).await.unwrap();
        store.offer_summary(place(n), dense(n, 1_000)).await.unwrap();
        store.put_inspected(format!("req_{n}"), dense(n, 1_000), usize::MAX).await.unwrap();
        clock.forward(IN_USE.as_secs());
    }
    store.sweep().await.unwrap();
    let (payloads, summaries, requests) = n_bytes().await;
    assert!(payloads + summaries + requests <= SMALL, "{payloads} {summaries} {requests}");
    assert!(summaries <= SMALL / 8 && requests <= SMALL / 8, "{summaries} {requests}");
    assert!(summaries > 0 && requests > 0 && payloads > SMALL / 2, "no more goes than has to");
    let newest = beginning(39, 0);
    assert!(
        store.summary(newest).await.unwrap().is_some() && store.inspected("req_39".to_owned()).await.unwrap().is_some()
    );
    assert_eq!(store.get(key(&dense(39, 4_000))).await.unwrap(), Some(dense(39, 4_000)));
    assert_eq!(store.summary(beginning(0, 0)).await.unwrap(), None, "the oldest");
}

async fn keeps_the_last_requests((store, clock): (impl Store, TestClock)) {
    let keep = |n: u8, most| store.put_inspected(format!("req_{n}"), dense(n, 3_000), most);
    let has = async |n: u8| {
        let seen = store.inspected(format!("req_{n}")).await.unwrap();
        assert!(seen.is_none() || seen == Some(dense(n, 3_000)), "{n}");
        seen.is_some()
    };
    assert!(!has(1).await);
    for n in 1..=4 {
        keep(n, 3).await.unwrap();
    }
    assert_eq!([has(1).await, has(2).await, has(3).await, has(4).await], [false, true, true, true]);
    let stats = store.stats().await.unwrap();
    assert_eq!((stats.inspected, stats.payloads, stats.summaries), (3, 0, 0), "they are neither");
    assert!(stats.inspected_bytes >= 9_000);
    store.trim_inspected(1).await.unwrap();
    assert_eq!([has(3).await, has(4).await], [false, true]);

    // By age, as payloads are.
    clock.forward(6 * DAY);
    keep(5, 9).await.unwrap();
    clock.forward(DAY + 1);
    store.sweep().await.unwrap();
    assert_eq!([has(4).await, has(5).await], [false, true]);
    store.trim_inspected(0).await.unwrap();
    assert_eq!((has(5).await, store.stats().await.unwrap().inspected), (false, 0));
}

async fn lists_page_by_page((store, clock): (impl Store, TestClock)) {
    let payloads: Vec<_> = (0..7).map(|n| Bytes::from(format!("payload {n}: {}", "x".repeat(2_000)))).collect();
    for payload in &payloads {
        store.put_all(vec![(key(payload), payload.clone())]).await.unwrap();
        clock.forward(DAY / 4);
    }
    let newest: Vec<_> = payloads.iter().rev().map(|payload| key(payload)).collect();
    let keys = |page: &Page| page.entries.iter().map(|entry| entry.key).collect::<Vec<_>>();
    let first = store.page(PageQuery { limit: 3, ..PageQuery::default() }).await.unwrap();
    assert_eq!(keys(&first), newest[..3]);
    let second = store.page(PageQuery { limit: 4, after: first.next, ..PageQuery::default() }).await.unwrap();
    assert_eq!((keys(&second), second.next), (newest[3..].to_vec(), None));

    let named = newest[2].to_string();
    let prefix = Some(named.get(..20).unwrap().to_owned());
    let found = store.page(PageQuery { limit: 9, prefix, ..PageQuery::default() }).await.unwrap();
    assert_eq!((keys(&found), found.next), (vec![newest[2]], None));
    let text = Some("payload 5:".to_owned());
    let found = store.page(PageQuery { limit: 9, text, ..PageQuery::default() }).await.unwrap();
    assert_eq!((keys(&found), found.next), (vec![newest[1]], None));
    let text = Some("payload 5:".to_owned());
    let either = PageQuery { limit: 9, text, prefix: Some(named), ..PageQuery::default() };
    assert_eq!(keys(&store.page(either).await.unwrap()), newest[1..3]);

    let keys_of_all = Keys::new([7; 32]);
    let another = keys_of_all.payload(keys_of_all.caller(b"Bearer another"), b"payload 9: of another caller");
    store.put_all(vec![(another, Bytes::from_static(b"payload 9: of another caller"))]).await.unwrap();
    for (shown, text, found) in [
        ("Bearer someone", None, newest.as_slice()),
        ("Bearer someone", Some("payload 5:"), &newest[1..2]),
        ("Bearer someone", Some("payload 9:"), &[]),
        ("Bearer another", None, &[another]),
        ("Bearer another", Some("payload "), &[another]),
        ("Bearer nobody", None, &[]),
    ] {
        let owner = Owner { keys: keys_of_all.clone(), caller: keys_of_all.caller(shown.as_bytes()) };
        let query = PageQuery { limit: 9, text: text.map(str::to_owned), owner: Some(owner), ..PageQuery::default() };
        assert_eq!(keys(&store.page(query).await.unwrap()), found, "{shown} {text:?}");
    }
    assert_eq!(store.stats().await.unwrap().recalled, 0, "scan is not using");
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
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    let error = store.get(key(b"")).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    let beginning = beginning(1, 0);
    assert_eq!(store.offer_summary(place(1), dense(1, 9)).await.unwrap_err().kind, StoreErrorKind::Unavailable);
    assert_eq!(store.summary(beginning).await.unwrap_err().kind, StoreErrorKind::Unavailable);
}

// === helpers ===

impl TestClock {
    /// Starts at some time in this century.
    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(1_800_000_000)))
    }

    /// The clock for a store.
    pub fn clock(&self) -> Clock {
        let clock = Arc::clone(&self.0);
        Clock::new(move || Time(clock.load(Ordering::Relaxed)))
    }

    /// Moves the clock forward by so many seconds.
    pub fn forward(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }

    /// Sets the clock back by so many seconds, as on a machine that gets the right time late.
    pub fn back(&self, seconds: u64) {
        self.0.fetch_sub(seconds, Ordering::Relaxed);
    }
}

impl Default for TestClock {
    fn default() -> Self {
        Self::new()
    }
}

/// A place of a summary.
pub fn place(n: u8) -> Place {
    Place { root: ChainKey::from_bytes([255; 16]), beginning: beginning(n, 0) }
}

/// A beginning of one of the callers.
fn beginning(n: u8, caller: u8) -> ChainKey {
    ChainKey::from_bytes([n, n, n, n, n, n, n, n, n, n, n, n, n, n, 0, caller])
}

/// The key that tests use for a payload.
pub fn key(payload: &[u8]) -> PayloadKey {
    let keys = Keys::new([7; 32]);
    let caller: Caller = keys.caller(b"Bearer someone");
    keys.payload(caller, payload)
}

/// Incompressible bytes.
pub fn dense(seed: u8, len: usize) -> Bytes {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut bytes);
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::memory::MemoryStore;

    #[tokio::test]
    async fn the_memory_store_conforms() {
        suite(MemoryStore::new).await;
    }

    #[tokio::test]
    async fn memory_stores_that_share_what_they_hold_conform() {
        fleet::suite(async |settings, clock| MemoryStore::pair(settings, clock)).await;
    }
}
