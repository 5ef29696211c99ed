//! Stores of other versions, and two processes on one file.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;

use abridge_proxy::payload::{ChainKey, Keys, Lifetime, Place};
use abridge_proxy::store::{Clock, RedbStore, Settings, Store as _, Time};
use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use crate::support::offloads::long_text;
use crate::support::{Setup, Upstream};

const STORES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/stores");
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// When the stores of the fixtures are used: while nothing in them has expired.
const NOW: Time = Time(1_795_400_000);
const SUMMARY: &[u8] = b"what a summary says";

fn open(path: &Path) -> RedbStore {
    RedbStore::open(path, Settings::default(), Clock::new(|| NOW)).unwrap()
}

/// Writes what this version leaves behind, for later ones.
async fn write_fixture(fixture: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let store = open(&path);
    let (keys, text) = (Keys::new(store.secret()), Bytes::from(long_text(1)));
    store.put(vec![(keys.payload(keys.anonymous(), &text), text.into())], Lifetime::Usual).await.unwrap();
    let place = Place { root: ChainKey::from_bytes([1; 16]), beginning: ChainKey::from_bytes([2; 16]) };
    store.offer_summary(place, Bytes::from_static(SUMMARY)).await.unwrap();
    store.close().await.unwrap();
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&fs::read(&path).unwrap()).unwrap();
    fs::write(fixture, packed.finish().unwrap()).unwrap();
}

#[tokio::test]
async fn stores_of_earlier_versions_are_opened_and_their_texts_have_the_handles_that_they_had() {
    let own = Path::new(STORES).join(format!("{VERSION}.redb.gz"));
    if !own.exists() && std::env::var_os("UPDATE_FIXTURES").is_some() {
        write_fixture(&own).await;
    }
    assert!(own.exists(), "this version has no store in fixtures/stores; UPDATE_FIXTURES=1 writes one");
    let folder = tempfile::tempdir().unwrap();
    for fixture in fs::read_dir(STORES).unwrap().map(|entry| entry.unwrap().path()) {
        let path = folder.path().join(fixture.file_stem().unwrap());
        let mut file = Vec::new();
        GzDecoder::new(fs::File::open(&fixture).unwrap()).read_to_end(&mut file).unwrap();
        fs::write(&path, file).unwrap();
        for _ in 0..2 {
            let store = open(&path);
            let keys = Keys::new(store.secret());
            let [text, other] = [long_text(1), long_text(2)].map(Bytes::from);
            let handle = |text: &Bytes| keys.payload(keys.anonymous(), text);
            assert_eq!(store.get(handle(&text)).await.unwrap(), Some(text), "{}", fixture.display());
            // The first build whose stores are here made no summary.
            for beginning in store.summaries().await.unwrap() {
                assert_eq!(store.summary(beginning).await.unwrap().as_deref(), Some(SUMMARY));
            }
            store.put(vec![(handle(&other), other.clone().into())], Lifetime::Usual).await.unwrap();
            assert_eq!(store.get(handle(&other)).await.unwrap(), Some(other));
            store.sweep().await.unwrap();
            assert_eq!(store.list(9).await.unwrap().len(), 2);
            store.close().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_store_of_a_newer_version_is_refused_and_stays_as_it_is() {
    const META: redb::TableDefinition<'_, &str, &[u8]> = redb::TableDefinition::new("meta_v1");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    open(&path).close().await.unwrap();
    {
        let database = redb::Database::open(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(META).unwrap().insert("version", 99_u32.to_le_bytes().as_slice()).unwrap();
        transaction.commit().unwrap();
    }
    let upstream = Upstream::start().await;
    for _ in 0..2 {
        let failed = Setup::before(&upstream).with(format!("store.path = {path:?}")).fail().await;
        assert_eq!(failed.status.code(), Some(69));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        for part in ["store.redb has format 99, and this abridge knows formats up to ", "; take the newer abridge, or"]
        {
            assert!(failed.stderr.contains(part) && failed.stderr.lines().count() == 1, "{}", failed.stderr);
        }
    }
}

#[tokio::test]
async fn a_process_that_finds_the_store_in_use_says_who_has_it_even_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("store.path = {:?}", folder.path().join("store.redb"));
    let upstream = Upstream::start().await;
    for end in ["KILL", "TERM"] {
        let first = Setup::before(&upstream).with(&line).start().await;
        let failed = Setup::before(&upstream).with(&line).fail().await;
        assert_eq!(failed.status.code(), Some(69));
        let holder = format!("in use by another abridge (process {}, version {VERSION}, for ", first.pid());
        assert!(failed.stderr.contains(&holder), "{holder}: {}", failed.stderr);
        first.signal(end);
        first.exit().await;
    }
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["store.redb"]);
}
