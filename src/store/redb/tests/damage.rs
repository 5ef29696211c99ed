//! Damaged files: every read is right or an error, nothing panics, and what is whole can be copied.

use std::collections::BTreeMap;
use std::panic;

use super::*;
use crate::store::NoteKind;

/// A file with payloads of many lengths and summaries, closed well.
struct Whole {
    bytes: Vec<u8>,
    payloads: BTreeMap<PayloadKey, Bytes>,
}

/// Something that is done to the bytes of a file.
enum Damage {
    Flip(usize),
    Cut(usize),
    Zero(usize),
}

const PAGE: usize = 4096;

async fn whole() -> Whole {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let store = open(&path).unwrap();
    let lengths = (0_u8..40).map(|n| (n, [40, 500, 3_000, 20_000][usize::from(n % 4)]));
    let payloads: BTreeMap<_, _> = lengths.map(|(n, len)| (key(&dense(n, len)), dense(n, len))).collect();
    store.put_all(payloads.clone().into_iter().collect()).await.unwrap();
    for n in 0..20 {
        store.offer_summary(place(n), dense(n, 200)).await.unwrap();
    }
    store.close().await.unwrap();
    Whole { bytes: fs::read(&path).unwrap(), payloads }
}

impl Damage {
    fn done_to(&self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        match *self {
            Self::Flip(bit) => bytes[bit / 8] ^= 1 << (bit % 8),
            Self::Cut(at) => bytes.truncate(at),
            Self::Zero(page) => bytes[page * PAGE..(page + 1) * PAGE].fill(0),
        }
        bytes
    }
}

/// Every payload is read as it was, or is missing, or an error that says so.
async fn reads_nothing_wrong(store: &RedbStore, whole: &Whole) -> usize {
    let mut n_read = 0;
    for (key, payload) in &whole.payloads {
        if let Ok(Some(read)) = store.get(*key).await {
            assert_eq!(&read, payload);
            n_read += 1;
        }
    }
    n_read
}

async fn checks(damage: &Damage, whole: &Whole) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    fs::write(&path, damage.done_to(&whole.bytes)).unwrap();
    // Commands open the file as well.
    if let Ok(store) = open(&path) {
        let _listed = (store.list(9).await, store.stats().await, store.verify().await);
        store.close().await.ok();
    }
    let out = RedbStore::open(&folder.path().join("out"), Settings::default(), Clock::system()).unwrap();
    salvage(&path, &out).await.unwrap();
    let n_salvaged = reads_nothing_wrong(&out, whole).await;
    out.close().await.unwrap();

    let store = RedbStore::open_or_set_aside(&path, Settings::default(), Clock::system()).unwrap();
    reads_nothing_wrong(&store, whole).await;
    // A client sends everything again.
    let all = || store.put_all(whole.payloads.clone().into_iter().collect());
    if all().await.is_err() {
        all().await.unwrap();
    }
    assert_eq!(reads_nothing_wrong(&store, whole).await, whole.payloads.len());
    store.sweep().await.unwrap();
    assert_eq!(reads_nothing_wrong(&store, whole).await, whole.payloads.len());
    assert_eq!(aside_of(&path).is_empty(), store.notice().is_none());
    store.close().await.unwrap();
    n_salvaged
}

/// Runs the checks for each damage, and says which one it was if they fail.
async fn all_hold(damages: impl Iterator<Item = (String, Damage, usize)>) {
    let whole = Arc::new(whole().await);
    for (name, damage, n_lost) in damages {
        let whole = Arc::clone(&whole);
        #[expect(clippy::disallowed_methods, reason = "what panics is to be named")]
        let checked = tokio::spawn(async move { (checks(&damage, &whole).await, whole.payloads.len()) }).await;
        let (n_salvaged, n) = checked.unwrap_or_else(|failed| panic!("{name}: {failed}"));
        assert!(n_salvaged + n_lost >= n, "{name}: {n_salvaged} of {n} are copied");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bit_that_is_flipped_anywhere_costs_one_payload_at_most() {
    let n_bits = whole().await.bytes.len() * 8;
    // The header, and places all over the file.
    let header = (0..320).map(|byte| byte * 8 + byte % 8);
    let all_over = (0..30).map(move |n| (n * 7_919_317 + 4096 * 8) % n_bits);
    let flips = header.step_by(16).chain(all_over);
    all_hold(flips.map(|bit| (format!("bit {bit}"), Damage::Flip(bit), 1))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_cut_anywhere_or_has_pages_of_zeros_is_no_obstacle() {
    let len = whole().await.bytes.len();
    let cuts = [1, 320, PAGE, PAGE + 1, len / 2, len - 1];
    let cuts = cuts.into_iter().map(|at| (format!("cut at {at}"), Damage::Cut(at), usize::MAX / 2));
    let n_pages = (len / PAGE).min(12);
    let zeros = (0..n_pages).map(|page| (format!("page {page} is zero"), Damage::Zero(page), 40));
    all_hold(cuts.chain(zeros)).await;
}

#[tokio::test]
async fn a_damaged_redb_store_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("store.redb")).unwrap();
    let flip = async |bit| whole::flip(store.shared.database.read().await.as_ref().unwrap(), bit);
    conformance::damage::suite(&store, flip).await;
}

#[tokio::test]
async fn a_payload_that_was_damaged_while_no_process_ran_is_written_anew_before_anybody_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let store = open(&path).unwrap();
    store.put_all(one(1)).await.unwrap();
    whole::flip(store.shared.database.read().await.as_ref().unwrap(), 400);
    store.close().await.unwrap();
    let store = open(&path).unwrap();
    store.put_all(one(1)).await.unwrap();
    assert_eq!(store.get(one(1)[0].0).await.unwrap(), Some(dense(1, 2000)));
    assert_eq!(store.counts().damaged.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_file_that_is_set_aside_keeps_its_secret_its_bytes_and_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let store = open(&path).unwrap();
    store.put_all(one(1)).await.unwrap();
    let secret = store.secret();
    store.close().await.unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[..320].fill(0);
    for n in 1..4 {
        fs::write(&path, &bytes).unwrap();
        let required = Settings { required: true, ..Settings::default() };
        let refused = RedbStore::open_or_set_aside(&path, required, Clock::system()).unwrap_err();
        assert!(refused.is_unusable(), "{refused:?}");
        let clock = Clock::new(|| Time(1_795_577_472));
        let store = RedbStore::open_or_set_aside(&path, Settings::default(), clock).unwrap();
        assert_eq!(store.secret(), secret, "the same texts get the same handles");
        assert_eq!(store.get(one(1)[0].0).await.unwrap(), None);
        assert_eq!(aside_of(&path).len(), n, "one more each time");
        store.close().await.unwrap();
    }
    let aside = aside_of(&path);
    assert_eq!(aside[0].file_name().unwrap(), "store.redb.aside-20261125T033112Z");
    assert!(aside.iter().all(|aside| fs::read(aside).unwrap() == bytes));
    let out = RedbStore::create(&folder.path().join("out"), Settings::default(), Clock::system(), secret).unwrap();
    assert_eq!(salvage(&aside[0], &out).await.unwrap().payloads, 1);
    assert_eq!(out.get(one(1)[0].0).await.unwrap(), Some(dense(1, 2000)));
}

#[tokio::test]
async fn a_file_of_another_format_is_set_aside_and_one_in_use_or_a_folder_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let start = || RedbStore::open_or_set_aside(&path, Settings::default(), Clock::system());
    let store = open(&path).unwrap();
    let error = start().unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error:?}");
    store.close().await.unwrap();
    let db = file::opener(&path)().unwrap();
    let transaction = db.begin_write().unwrap();
    transaction.open_table(tables::META).unwrap().insert("version", 99_u32.to_le_bytes().as_slice()).unwrap();
    transaction.commit().unwrap();
    drop(db);
    let error = open(&path).unwrap_err();
    assert!(matches!(error, OpenError::OtherFormat { found: 99, .. }), "{error:?}");
    let store = start().unwrap();
    assert!(store.notice().unwrap().contains("has format 99"), "{:?}", store.notice());
    store.close().await.unwrap();
    assert_eq!(aside_of(&path).len(), 1);

    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let error = start().unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }), "{error:?}");
    assert!(path.is_dir() && aside_of(&path).len() == 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_note_is_counted_and_hides_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("store.redb")).unwrap();
    let note = |n| Note { kind: NoteKind::Forms, key: place(n).beginning, value: dense(n, 100) };
    for n in 0..2 {
        store.note(note(n), Duration::from_hours(1)).await.unwrap();
    }
    let Note { kind, key, value } = note(0);
    let new = NewValue::new(Name::of_note(kind, key), &value.into(), Lifetime::Usual);
    let wrong = NewValue { frame: dense(0, 100).into(), ..new };
    let database = store.shared.database.read().await;
    others::put_note(database.as_ref().unwrap(), &wrong, &kind.name_of(key), Time(0), Time(u64::MAX)).unwrap();
    drop(database);
    assert_eq!(store.notes(NoteGroup::Fleet).await.unwrap(), [note(1)]);
    assert_eq!(store.stats().await.unwrap().damaged, 1);
}
