//! Each engine is a store, and two processes on it are one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use abridge_proxy::payload::{ChainKey, Keys, Lifetime};
use abridge_proxy::store::engine::{OpenError, Options};
use abridge_proxy::store::secret::Secrets;
use abridge_proxy::store::tests::conformance::{PutAll as _, TestClock, damage, dense, fleet, key, suite_of_engines};
use abridge_proxy::store::{
    Clock, Note, NoteGroup, NoteKind, PostgresStore, RedisStore, Settings, SharedStore, StoreErrorKind,
};
use abridge_proxy::units::ByteSize;

use crate::engine::{Engine, Postgres, cluster, on_each_engine};

/// A store that can be opened.
trait Open: SharedStore + Sized {
    const NAME: &'static str;

    async fn open(options: Options) -> Result<Self, OpenError>;
}

impl Open for PostgresStore {
    const NAME: &'static str = "PostgreSQL";

    async fn open(options: Options) -> Result<Self, OpenError> {
        Self::open(options).await
    }
}

impl Open for RedisStore {
    const NAME: &'static str = "Redis";

    async fn open(options: Options) -> Result<Self, OpenError> {
        Self::open(options).await
    }
}

/// Opens stores over nothing.
struct Opener<'a> {
    engine: &'a Engine,
    url: String,
    secret: Option<String>,
    opened: AtomicUsize,
}

impl<'a> Opener<'a> {
    fn new(engine: &'a Engine) -> Self {
        Self::at(engine, engine.url())
    }

    /// Through this URL.
    fn at(engine: &'a Engine, url: String) -> Self {
        Self { engine, url, secret: None, opened: AtomicUsize::new(0) }
    }

    /// Stores that are encrypted.
    fn sealed(engine: &'a Engine) -> Self {
        Self { secret: Some("0a".repeat(32)), ..Self::new(engine) }
    }

    /// Stores that share what they hold.
    async fn open<S: Open, const N: usize>(&self, given: Settings, clock: Clock) -> [S; N] {
        let namespace = format!("n{}", self.opened.fetch_add(1, Ordering::Relaxed));
        self.engine.init(&namespace).await;
        let Settings { engine, namespace, .. } = self.engine.settings(&namespace);
        let settings = Settings { engine, namespace, seal: self.secret.is_some(), ..given };
        let mut stores = Vec::new();
        for _ in 0..N {
            let options = Options {
                url: self.url.clone(),
                settings: settings.clone(),
                secrets: Secrets::parse(self.secret.as_deref(), None).unwrap(),
                clock: Some(clock.clone()),
                fresh: None,
            };
            stores.push(S::open(options).await.unwrap());
        }
        stores.try_into().unwrap_or_else(|_| unreachable!())
    }

    async fn suite<S: Open>(&self) {
        suite_of_engines(async |settings, clock| {
            let [store] = self.open::<S, 1>(settings, clock).await;
            store
        })
        .await;
    }

    /// Of the first namespace.
    async fn suite_of_damage(&self) {
        let (settings, clock, flip) =
            (Settings::default(), TestClock::new().clock(), async |bit| self.engine.flip("n0", bit).await);
        match self.engine {
            Engine::Postgres(_) => {
                let [store] = self.open::<PostgresStore, 1>(settings, clock).await;
                damage::suite(&store, flip).await;
            }
            Engine::Redis(_) => {
                let [store] = self.open::<RedisStore, 1>(settings, clock).await;
                damage::suite(&store, flip).await;
            }
        }
    }

    async fn suite_of_two<S: Open>(&self) {
        fleet::suite(async |settings, clock| self.open::<S, 2>(settings, clock).await).await;
    }
}

async fn a_store_in_an_engine_conforms(engine: Engine) {
    let opener = Opener::new(&engine);
    match engine {
        Engine::Postgres(_) => opener.suite::<PostgresStore>().await,
        Engine::Redis(_) => opener.suite::<RedisStore>().await,
    }
}

async fn two_stores_in_one_engine_conform(engine: Engine) {
    let opener = Opener::new(&engine);
    match engine {
        Engine::Postgres(_) => opener.suite_of_two::<PostgresStore>().await,
        Engine::Redis(_) => opener.suite_of_two::<RedisStore>().await,
    }
}

async fn sealed_stores_in_an_engine_conform(engine: Engine) {
    let opener = Opener::sealed(&engine);
    match engine {
        Engine::Postgres(_) => {
            opener.suite::<PostgresStore>().await;
            opener.suite_of_two::<PostgresStore>().await;
        }
        Engine::Redis(_) => {
            opener.suite::<RedisStore>().await;
            opener.suite_of_two::<RedisStore>().await;
        }
    }
}

async fn damaged_stores_in_an_engine_conform(engine: Engine) {
    Opener::new(&engine).suite_of_damage().await;
}

async fn damaged_sealed_stores_in_an_engine_conform(engine: Engine) {
    Opener::sealed(&engine).suite_of_damage().await;
}

#[tokio::test]
async fn stores_behind_a_pooler_in_transaction_mode_conform() {
    let Some(postgres) = Postgres::start().await else { return };
    let Some(pooler) = postgres.pooler().await else { return };
    Opener::at(&Engine::Postgres(postgres), pooler.url()).suite_of_two::<PostgresStore>().await;
}

#[tokio::test]
async fn stores_in_a_cluster_conform() {
    let Some(mut nodes) = cluster().await else { return };
    let url = nodes[1].url().replace("redis:", "redis+cluster:");
    let engine = Engine::Redis(nodes.remove(0));
    let opener = Opener::at(&engine, url);
    opener.suite::<RedisStore>().await;
    opener.suite_of_two::<RedisStore>().await;
}

async fn beyond_its_size_what_is_unused_goes_and_what_is_in_use_fills_the_store(engine: Engine) {
    match engine {
        Engine::Postgres(_) => beyond_its_size::<PostgresStore>(&engine).await,
        Engine::Redis(_) => beyond_its_size::<RedisStore>(&engine).await,
    }
}

async fn the_caller_who_has_stored_most_makes_room(engine: Engine) {
    makes_room_in(&engine, &Opener::new(&engine)).await;
}

async fn the_caller_who_has_sealed_most_makes_room(engine: Engine) {
    makes_room_in(&engine, &Opener::sealed(&engine)).await;
}

async fn makes_room_in(engine: &Engine, opener: &Opener<'_>) {
    match engine {
        Engine::Postgres(_) => makes_room::<PostgresStore>(opener).await,
        Engine::Redis(_) => makes_room::<RedisStore>(opener).await,
    }
}

async fn names_of_a_namespace_are_apart_from_others(engine: Engine) {
    match engine {
        Engine::Postgres(_) => are_apart::<PostgresStore>(&engine).await,
        Engine::Redis(_) => are_apart::<RedisStore>(&engine).await,
    }
}

async fn a_note_with_a_damaged_name_is_told_and_hides_no_other(engine: Engine) {
    match engine {
        Engine::Postgres(_) => damaged_note::<PostgresStore>(&engine).await,
        Engine::Redis(_) => damaged_note::<RedisStore>(&engine).await,
    }
}

on_each_engine!(
    a_note_with_a_damaged_name_is_told_and_hides_no_other,
    a_store_in_an_engine_conforms,
    two_stores_in_one_engine_conform,
    sealed_stores_in_an_engine_conform,
    damaged_stores_in_an_engine_conform,
    damaged_sealed_stores_in_an_engine_conform,
    beyond_its_size_what_is_unused_goes_and_what_is_in_use_fills_the_store,
    the_caller_who_has_stored_most_makes_room,
    the_caller_who_has_sealed_most_makes_room,
    names_of_a_namespace_are_apart_from_others,
);

async fn beyond_its_size<S: Open>(engine: &Engine) {
    let clock = TestClock::new();
    let small = Settings { max_bytes: ByteSize(100_000), ..Settings::default() };
    let [one, other] = Opener::new(engine).open::<S, 2>(small, clock.clock()).await;
    let put = async |store: &S, n: u8| store.put_all(vec![(key(&dense(n, 20_000)), dense(n, 20_000))]).await;
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
    // Texts that one of them has just written need no room, nor do those that only the other has written.
    put(&one, 8).await.unwrap();
    let again =
        async |n: u8| other.put_again(vec![(key(&dense(n, 20_000)), dense(n, 20_000).into())], Lifetime::Usual).await;
    again(7).await.unwrap();
    assert_eq!(again(9).await.unwrap_err().kind, StoreErrorKind::Full);
    clock.forward(3 * 86_400);
    other.sweep().await.unwrap();
    one.maintain().await.unwrap();
    put(&one, 9).await.unwrap();
}

async fn makes_room<S: Open>(opener: &Opener<'_>) {
    let clock = TestClock::new();
    let small = Settings { max_bytes: ByteSize(100_000), ..Settings::default() };
    let [one, other] = opener.open::<S, 2>(small, clock.clock()).await;
    let keys = Keys::new(one.secret().unwrap());
    let key = |caller: &[u8], n: u8| keys.payload(keys.caller(caller), &dense(n, 9_000));
    let put = async |store: &S, caller: &[u8], n: u8| {
        let key = key(caller, n);
        store.put_all(vec![(key, dense(n, 9_000))]).await.unwrap();
        clock.forward(60);
        key
    };
    let ann = [put(&one, b"ann", 0).await, put(&other, b"ann", 1).await];
    let mut greedy = Vec::new();
    for n in 2..14 {
        greedy.push(put(&one, b"bob", n).await);
    }
    clock.forward(3 * 86_400);
    let cleo = put(&other, b"cleo", 14).await;
    let left = async || {
        let mut is_left = Vec::new();
        for key in &greedy {
            is_left.push(!one.was_swept(*key).await.unwrap());
        }
        is_left
    };
    let crowded_out = other.sweep().await.unwrap().crowded_out;
    // Redis sweeps several buckets at a time, which may have some more.
    assert!(crowded_out == 4 || S::NAME == "Redis" && (5..9).contains(&crowded_out), "{crowded_out}");
    let is_left = left().await;
    assert_eq!(is_left.iter().filter(|is_left| !**is_left).count() as u64, crowded_out);
    // In PostgreSQL the oldest leave first, and in Redis the oldest of a bucket.
    assert!(S::NAME == "Redis" || is_left[..4] == [false; 4], "{is_left:?}");
    for kept in ann.into_iter().chain([cleo]) {
        assert!(one.get(kept).await.unwrap().is_some());
    }
    // Payloads in use stay, also those of the caller who has the most. Others make no room for them, and store more.
    clock.forward(3 * 86_400);
    for n in 2..14 {
        put(&one, b"bob", n).await;
    }
    assert_eq!(other.sweep().await.unwrap().crowded_out, 0);
    one.maintain().await.unwrap();
    for (store, n) in [(&one, 20), (&other, 21)] {
        put(store, b"ann", n).await;
        put(store, b"dora", n).await;
        let greedy = store.put_all(vec![(key(b"bob", n), dense(n, 9_000))]).await;
        assert_eq!(greedy.unwrap_err().kind, StoreErrorKind::Full);
    }
    assert!(left().await.iter().all(|is_left| *is_left) && !one.was_swept(ann[0]).await.unwrap());
    // Once what the greedy one has is unused, it makes room, and may store more.
    clock.forward(3 * 86_400);
    put(&one, b"dora", 20).await;
    assert!(other.sweep().await.unwrap().crowded_out >= 7);
    one.maintain().await.unwrap();
    put(&one, b"bob", 20).await;
    assert!(one.get(ann[0]).await.unwrap().is_some());
    assert!(S::NAME == "Redis" || one.was_swept(greedy[0]).await.unwrap());
}

async fn damaged_note<S: Open>(engine: &Engine) {
    let [store] = Opener::new(engine).open::<S, 1>(Settings::default(), TestClock::new().clock()).await;
    let note = Note { kind: NoteKind::Window, key: ChainKey::from_bytes([1; 16]), value: dense(1, 100) };
    store.note(note.clone(), Duration::from_hours(1)).await.unwrap();
    engine.damage_note("n0").await;
    assert_eq!(store.notes(NoteGroup::Fleet).await.unwrap(), [note]);
    assert_eq!((store.stats().await.unwrap().damaged, store.is_failing()), (1, false));
    let verified = store.verify().await.unwrap();
    assert_eq!((verified.notes, verified.damaged.len()), (1, 1));
}

async fn are_apart<S: Open>(engine: &Engine) {
    let opener = Opener::new(engine);
    let clock = TestClock::new();
    let [one] = opener.open::<S, 1>(Settings::default(), clock.clock()).await;
    let [other] = opener.open::<S, 1>(Settings::default(), clock.clock()).await;
    one.put_all(vec![(key(&dense(1, 100)), dense(1, 100))]).await.unwrap();
    assert_eq!(other.get(key(&dense(1, 100))).await.unwrap(), None);
    assert_ne!(one.secret(), other.secret());
}
