//! Each engine is a store, and two processes on it are one.

use std::sync::atomic::{AtomicUsize, Ordering};

use abridge_proxy::store::conformance::{PutAll as _, TestClock, dense, fleet, key, suite_of_engines};
use abridge_proxy::store::postgres::{EngineClock, Options};
use abridge_proxy::store::secret::Secrets;
use abridge_proxy::store::{Clock, PostgresStore, Settings, Store as _, StoreErrorKind};
use abridge_proxy::units::ByteSize;

use crate::engine::{Postgres, settings};

/// Opens stores over empty tables.
struct Opener<'a> {
    postgres: &'a Postgres,
    url: String,
    opened: AtomicUsize,
}

impl<'a> Opener<'a> {
    fn new(postgres: &'a Postgres) -> Self {
        Self::at(postgres, postgres.url())
    }

    /// Through this URL.
    fn at(postgres: &'a Postgres, url: String) -> Self {
        Self { postgres, url, opened: AtomicUsize::new(0) }
    }

    /// Stores that share tables.
    async fn open<const N: usize>(&self, given: Settings, clock: Clock) -> [PostgresStore; N] {
        let namespace = format!("n{}", self.opened.fetch_add(1, Ordering::Relaxed));
        self.postgres.init(&namespace).await;
        let settings = Settings { namespace: Some(namespace), ..given };
        let mut stores = Vec::new();
        for _ in 0..N {
            let options = Options {
                url: self.url.clone(),
                settings: settings.clone(),
                secrets: Secrets::default(),
                clock: EngineClock::Test(clock.clone()),
                fresh: None,
            };
            stores.push(PostgresStore::open(options).await.unwrap());
        }
        stores.try_into().unwrap()
    }
}

#[tokio::test]
async fn a_store_in_postgres_conforms() {
    let Some(postgres) = Postgres::start().await else { return };
    let opener = Opener::new(&postgres);
    suite_of_engines(async |settings, clock| {
        let [store] = opener.open(settings, clock).await;
        store
    })
    .await;
}

#[tokio::test]
async fn two_stores_in_one_postgres_conform() {
    let Some(postgres) = Postgres::start().await else { return };
    let opener = Opener::new(&postgres);
    fleet::suite(async |settings, clock| opener.open(settings, clock).await).await;
}

#[tokio::test]
async fn stores_behind_a_pooler_in_transaction_mode_conform() {
    let Some(postgres) = Postgres::start().await else { return };
    let Some(pooler) = postgres.pooler().await else { return };
    let opener = Opener::at(&postgres, pooler.url());
    fleet::suite(async |settings, clock| opener.open(settings, clock).await).await;
}

#[tokio::test]
async fn beyond_its_size_what_is_unused_goes_and_what_is_in_use_fills_the_store() {
    let Some(postgres) = Postgres::start().await else { return };
    let clock = TestClock::new();
    let small = Settings { max_bytes: ByteSize(100_000), ..settings("") };
    let [one, other] = Opener::new(&postgres).open(small, clock.clock()).await;
    let put =
        async |store: &PostgresStore, n: u8| store.put_all(vec![(key(&dense(n, 20_000)), dense(n, 20_000))]).await;
    for n in 0..3 {
        put(&one, n).await.unwrap();
    }
    clock.forward(3 * 86_400);
    for n in 3..6 {
        put(&one, n).await.unwrap();
    }
    assert!(one.sweep().await.unwrap().crowded_out >= 1);
    for n in 3..6 {
        assert_eq!(other.get(key(&dense(n, 20_000))).await.unwrap(), Some(dense(n, 20_000)));
    }
    // All of it is in use now.
    for n in 6..9 {
        put(&one, n).await.unwrap();
    }
    assert_eq!(one.sweep().await.unwrap().aged, 0);
    other.maintain().await.unwrap();
    for store in [&one, &other] {
        assert_eq!(put(store, 9).await.unwrap_err().kind, StoreErrorKind::Full);
        assert_eq!(store.get(key(&dense(8, 20_000))).await.unwrap(), Some(dense(8, 20_000)));
    }
    // What one of them has just written needs no room.
    put(&one, 8).await.unwrap();
    clock.forward(3 * 86_400);
    other.sweep().await.unwrap();
    one.maintain().await.unwrap();
    put(&one, 9).await.unwrap();
}

#[tokio::test]
async fn names_of_a_namespace_are_apart_from_others() {
    let Some(postgres) = Postgres::start().await else { return };
    let opener = Opener::new(&postgres);
    let clock = TestClock::new();
    let [one] = opener.open(Settings::default(), clock.clock()).await;
    let [other] = opener.open(Settings::default(), clock.clock()).await;
    one.put_all(vec![(key(&dense(1, 100)), dense(1, 100))]).await.unwrap();
    assert_eq!(other.get(key(&dense(1, 100))).await.unwrap(), None);
    assert_ne!(one.secret(), other.secret());
}
