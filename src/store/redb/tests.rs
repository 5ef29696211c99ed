//! The store in a file: restarts, permissions, failures of the disk, and what is written when.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64};

use ::redb::StorageBackend;
use ::redb::backends::FileBackend;
use tokio::sync::Semaphore;

use super::*;
use crate::platform::testing::{is_private, share};
use crate::store::Time;
use crate::store::tests::conformance::{self, PutAll as _, TestClock, dense, key, place, suite};

mod clock;
mod damage;
mod summaries;

// === what every store does ===

#[tokio::test(flavor = "multi_thread")]
async fn the_redb_store_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let n = AtomicU64::new(0);
    suite(|settings, clock| {
        let path = folder.path().join(n.fetch_add(1, Ordering::Relaxed).to_string());
        RedbStore::open(&path, settings, clock).unwrap()
    })
    .await;
}

// === the file ===

fn open(path: &Path) -> Result<RedbStore, OpenError> {
    RedbStore::open(path, Settings::default(), Clock::system())
}

fn one(n: u8) -> Vec<(PayloadKey, Bytes)> {
    vec![(key(&dense(n, 2000)), dense(n, 2000))]
}

#[tokio::test]
async fn a_restart_keeps_payloads_and_the_secret() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a/b/store.redb");
    let store = open(&path).unwrap();
    store.put_all(one(1)).await.unwrap();
    let secret = store.secret();
    store.close().await.unwrap();
    let store = open(&path).unwrap();
    assert_eq!(store.secret(), secret);
    assert_eq!(store.get(one(1)[0].0).await.unwrap(), Some(dense(1, 2000)));
    assert_ne!(open(&folder.path().join("other")).unwrap().secret(), secret);
}

#[tokio::test]
async fn the_file_is_private_to_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a/b/store.redb");
    let store = open(&path).unwrap();
    assert!(is_private(&path) && is_private(path.parent().unwrap()));
    store.close().await.unwrap();
    share(&path);
    let store = open(&path).unwrap();
    assert!(is_private(&path));
    assert!(!format!("{store:?}").contains(&format!("{:?}", store.secret())));
}

#[tokio::test]
async fn a_file_is_used_by_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let store = open(&path).unwrap();
    let error = open(&path).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error:?}");
    store.close().await.unwrap();
    open(&path).unwrap();
}

#[test]
fn files_that_are_no_store_are_refused_and_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    let text = "not a store ".repeat(1000);
    fs::write(&path, &text).unwrap();
    let error = open(&path).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    let error = open(folder.path()).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }), "{error:?}");
}

#[tokio::test]
async fn uses_are_written_on_close() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let clock = TestClock::new();
    let day = 86_400;
    let open = || RedbStore::open(&path, Settings::default(), clock.clock()).unwrap();
    let store = open();
    store.put_all(one(1)).await.unwrap();
    store.put_all(one(2)).await.unwrap();
    clock.forward(6 * day);
    store.put_all(one(1)).await.unwrap();
    store.close().await.unwrap();
    clock.forward(2 * day);
    let store = open();
    let entries = store.list(9).await.unwrap();
    assert_eq!((entries[0].key, entries[0].used.since(entries[0].created).as_secs()), (one(1)[0].0, 6 * day));
    assert_eq!(store.sweep().await.unwrap().aged, 1);
    assert_eq!(store.get(one(1)[0].0).await.unwrap(), Some(dense(1, 2000)));
}

#[tokio::test]
async fn compacting_returns_free_space_to_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let clock = TestClock::new();
    let store = RedbStore::open(&path, Settings::default(), clock.clock()).unwrap();
    let payload = |n| dense(n, 1 << 20);
    store.put_all((0..40).map(|n| (key(&payload(n)), payload(n))).collect()).await.unwrap();
    let full = store.stats().await.unwrap().file_bytes;
    clock.forward(8 * 86_400);
    assert_eq!(store.sweep().await.unwrap().aged, 40);
    store.compact().await.unwrap();
    let empty = store.stats().await.unwrap().file_bytes;
    assert!(empty < full / 4, "{full} -> {empty}");
    store.put_all(one(1)).await.unwrap();
}

#[tokio::test]
async fn a_mostly_empty_file_is_compacted_when_idle() {
    let folder = tempfile::tempdir().unwrap();
    let clock = TestClock::new();
    let store = RedbStore::open(&folder.path().join("store.redb"), Settings::default(), clock.clock()).unwrap();
    let payload = |n| dense(n, 1_000_000);
    store.put_all((0..80).map(|n| (key(&payload(n)), payload(n))).collect()).await.unwrap();
    let len = async || store.stats().await.unwrap().file_bytes;
    let full = len().await;
    assert!(full > 64 << 20, "{full}");
    clock.forward(8 * 86_400);
    store.put_all(one(41)).await.unwrap();
    store.maintain().await.unwrap();
    assert_eq!(store.stats().await.unwrap().payloads, 1);
    assert_eq!(len().await, full, "there were commits since the last maintenance");
    store.maintain().await.unwrap();
    let compacted = len().await;
    assert!(compacted < full / 8, "{full} -> {compacted}");
    assert_eq!(store.get(one(41)[0].0).await.unwrap(), Some(dense(41, 2000)));
}

// === the disk ===

/// A disk with fault injection: real files, and switches.
#[derive(Debug)]
struct Disk {
    path: PathBuf,
    // No file can grow.
    crowded: AtomicBool,
    // Writes fail.
    full: AtomicBool,
    // Reads fail as well.
    broken: AtomicBool,
    // The next write panics.
    panics: AtomicBool,
    // The file cannot be opened.
    gone: AtomicBool,
    syncs: AtomicU64,
    accesses: AtomicU64,
    // Each sync takes a permit.
    gate: Semaphore,
}

#[derive(Debug)]
struct Faulty {
    disk: Arc<Disk>,
    file: FileBackend,
}

impl Disk {
    fn new(folder: &tempfile::TempDir) -> Arc<Self> {
        Arc::new(Self {
            path: folder.path().join("store.redb"),
            crowded: AtomicBool::new(false),
            full: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            panics: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            syncs: AtomicU64::new(0),
            accesses: AtomicU64::new(0),
            gate: Semaphore::new(1 << 20),
        })
    }

    fn store(self: &Arc<Self>) -> RedbStore {
        let disk = Arc::clone(self);
        let opener: Opener = Arc::new(move || {
            if disk.gone.load(Ordering::SeqCst) {
                return Err(io::Error::from(io::ErrorKind::NotFound).into());
            }
            let file: File = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&disk.path)?;
            Database::builder().create_with_backend(Faulty { disk: Arc::clone(&disk), file: FileBackend::new(file)? })
        });
        let options = DatabaseOptions { opener, retry_pause: Duration::ZERO, sets_aside: false };
        RedbStore::open_with(&self.path, options, Settings::default(), Clock::system()).unwrap()
    }
}

impl Faulty {
    fn access(&self) -> io::Result<()> {
        self.disk.accesses.fetch_add(1, Ordering::SeqCst);
        if self.disk.broken.load(Ordering::SeqCst) { Err(io::Error::other("bad sector")) } else { Ok(()) }
    }

    fn write_access(&self) -> io::Result<()> {
        self.access()?;
        assert!(!self.disk.panics.swap(false, Ordering::SeqCst), "a write panics");
        if self.disk.full.load(Ordering::SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl StorageBackend for Faulty {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.access()?;
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.write_access()?;
        if self.disk.crowded.load(Ordering::SeqCst) && len > self.file.len()? {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.access()?;
        self.disk.syncs.fetch_add(1, Ordering::SeqCst);
        while self.disk.gate.try_acquire().map(tokio::sync::SemaphorePermit::forget).is_err() {
            thread::yield_now();
        }
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_access()?;
        self.file.write(offset, data)
    }
}

#[tokio::test]
async fn a_full_disk_is_reported_and_recovered_from() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::new(&folder);
    let store = disk.store();
    store.put_all(one(1)).await.unwrap();
    let large = vec![(key(b"large"), dense(2, 8 << 20))];
    for switch in [&disk.crowded, &disk.full] {
        switch.store(true, Ordering::SeqCst);
        for _ in 0..3 {
            let error = store.put_all(large.clone()).await.unwrap_err();
            assert_eq!(error.kind, StoreErrorKind::Full, "{error:?}");
            if disk.crowded.load(Ordering::SeqCst) {
                // Stored payloads can be read, and putting them again needs no space.
                assert_eq!(store.get(large[0].0).await.unwrap(), None);
                assert_eq!(store.get(one(1)[0].0).await.unwrap(), Some(dense(1, 2000)));
                store.put_all(one(1)).await.unwrap();
            }
        }
        switch.store(false, Ordering::SeqCst);
    }
    store.put_all(large.clone()).await.unwrap();
    assert_eq!(store.get(large[0].0).await.unwrap(), Some(large[0].1.clone()));
    assert!(store.stats().await.unwrap().failures >= 6);
    store.close().await.unwrap();
    let store = open(&disk.path).unwrap();
    assert_eq!(store.get(large[0].0).await.unwrap(), Some(large[0].1.clone()));
}

#[tokio::test]
async fn after_a_panic_in_redb_the_file_is_reopened_and_the_write_is_run_again() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::new(&folder);
    let store = disk.store();
    store.put_all(one(1)).await.unwrap();
    for n in 2..5 {
        disk.panics.store(true, Ordering::SeqCst);
        store.put_all(one(n)).await.unwrap();
        assert!(!disk.panics.load(Ordering::SeqCst), "no write has panicked");
        for stored in 1..=n {
            assert_eq!(store.get(one(stored)[0].0).await.unwrap(), Some(dense(stored, 2000)));
        }
    }
    assert_eq!(store.stats().await.unwrap().failures, 3);
}

#[tokio::test]
async fn a_value_is_read_while_others_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("store.redb")).unwrap();
    // It takes little room in its page, and long to decode.
    let long = vec![(key(b"long"), Bytes::from(vec![b'a'; 4 << 20]))];
    store.put_all(long.clone()).await.unwrap();
    let is_written = AtomicBool::new(false);
    let read = || async {
        while !is_written.load(Ordering::SeqCst) {
            assert!(store.get(long[0].0).await.unwrap().as_ref() == Some(&long[0].1));
        }
    };
    // Each write frees pages that a reader may have, which redb takes for a fault.
    let write = async {
        for n in 0..60 {
            store.put_all(one(n)).await.unwrap();
        }
        is_written.store(true, Ordering::SeqCst);
    };
    tokio::join!(read(), read(), write);
    assert_eq!(store.stats().await.unwrap().failures, 0);
}

#[tokio::test]
async fn a_broken_disk_is_reported_and_recovered_from() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::new(&folder);
    let store = disk.store();
    store.put_all(one(1)).await.unwrap();
    for switch in [&disk.broken, &disk.gone] {
        switch.store(true, Ordering::SeqCst);
        disk.broken.store(true, Ordering::SeqCst);
        for _ in 0..3 {
            assert_eq!(store.put_all(one(2)).await.unwrap_err().kind, StoreErrorKind::Unavailable);
        }
        disk.broken.store(false, Ordering::SeqCst);
        switch.store(false, Ordering::SeqCst);
        // A read is the first operation to find that the disk works again.
        assert_eq!(store.get(one(1)[0].0).await.unwrap(), Some(dense(1, 2000)));
    }
    store.put_all(one(2)).await.unwrap();
    assert_eq!(store.get(one(2)[0].0).await.unwrap(), Some(dense(2, 2000)));
}

#[tokio::test]
async fn a_replaced_file_is_not_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::new(&folder);
    let store = disk.store();
    store.put_all(one(1)).await.unwrap();
    fs::rename(&disk.path, folder.path().join("change")).unwrap();
    open(&disk.path).unwrap().close().await.unwrap();
    disk.full.store(true, Ordering::SeqCst);
    store.put_all(one(2)).await.unwrap_err();
    disk.full.store(false, Ordering::SeqCst);
    assert_eq!(store.put_all(one(2)).await.unwrap_err().kind, StoreErrorKind::Corrupt);
}

#[tokio::test]
async fn a_removed_file_is_recreated_with_the_same_secret() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::new(&folder);
    let store = disk.store();
    store.put_all(one(1)).await.unwrap();
    fs::remove_file(&disk.path).unwrap();
    disk.full.store(true, Ordering::SeqCst);
    store.put_all(one(2)).await.unwrap_err();
    disk.full.store(false, Ordering::SeqCst);
    // Payloads that were known to be stored are gone, so they are written again.
    store.put_all([one(1), one(2)].concat()).await.unwrap();
    let secret = store.secret();
    store.close().await.unwrap();
    let store = open(&disk.path).unwrap();
    assert_eq!(store.secret(), secret);
    assert_eq!(store.get(one(1)[0].0).await.unwrap(), Some(dense(1, 2000)));
}

#[tokio::test]
async fn known_payloads_do_not_access_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::new(&folder);
    let store = disk.store();
    let all: Vec<_> = (0..60).flat_map(one).collect();
    store.put_all(all.clone()).await.unwrap();
    let accesses = disk.accesses.load(Ordering::SeqCst);
    for _ in 0..10 {
        store.put_all(all.clone()).await.unwrap();
        store.touch(all.iter().map(|(key, _)| *key).collect()).await.unwrap();
    }
    assert_eq!(disk.accesses.load(Ordering::SeqCst), accesses);
    assert_eq!(store.counts().known.load(Ordering::SeqCst), 600, "nor is the writer asked");
    store.close().await.unwrap();
    // After a restart each is looked up, and still none is written.
    let store = disk.store();
    let syncs = disk.syncs.load(Ordering::SeqCst);
    store.put_all(all).await.unwrap();
    assert_eq!(disk.syncs.load(Ordering::SeqCst), syncs);
}

#[tokio::test]
async fn concurrent_puts_share_one_commit() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::new(&folder);
    let store = disk.store();
    let closed = disk.gate.forget_permits(1 << 20);
    // The first put is waiting for the disk while the others arrive.
    let mut first = store.put_all(one(0));
    let syncs = disk.syncs.load(Ordering::SeqCst);
    while disk.syncs.load(Ordering::SeqCst) == syncs {
        let pending = std::future::poll_fn(|cx| std::task::Poll::Ready(first.as_mut().poll(cx).is_pending()));
        assert!(pending.await);
        thread::yield_now();
    }
    let put = |n| store.put_all(one(n));
    let others = async { tokio::try_join!(put(1), put(2), put(3), put(4), put(5), put(6), put(7), put(8)) };
    let mut others = Box::pin(others);
    let pending = std::future::poll_fn(|cx| std::task::Poll::Ready(others.as_mut().poll(cx).is_pending()));
    assert!(pending.await);
    disk.gate.add_permits(closed);
    first.await.unwrap();
    others.await.unwrap();
    assert_eq!(store.stats().await.unwrap().commits, 2);
    assert_eq!(store.stats().await.unwrap().payloads, 9);
}

#[tokio::test]
async fn a_dropped_request_leaves_all_or_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("store.redb")).unwrap();
    for n in 0..20 {
        let all: Vec<_> = (0..4).flat_map(|m| one(n * 4 + m)).collect();
        let mut putting = store.put_all(all.clone());
        for _ in 0..n % 4 {
            let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(putting.as_mut().poll(cx))).await;
            if polled.is_ready() {
                break; // the writer was quicker
            }
        }
        drop(putting);
        // Queued after all earlier jobs.
        store.put_all(one(255)).await.unwrap();
        store.sweep().await.unwrap();
        let mut kept = 0;
        for (key, _) in &all {
            kept += usize::from(store.get(*key).await.unwrap().is_some());
        }
        assert!(kept == 0 || kept == all.len(), "{kept}");
    }
}
