//! The disks that requests wait for: the store, and the directory `recall.export_dir`. A circuit breaker guards each: after an
//! operation has timed out, later ones do not wait until that operation has finished, so a disk that hangs delays one
//! request, and not each step of an agent.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use super::export;
use crate::payload::{Lifetime, OffloadedPayload};
use crate::store::{Clock, NamedPayloads, Store, StoreError};
use crate::tasks::{Tasks, run_blocking};
use crate::units::Period;

/// The disks. Clones share their states.
#[derive(Clone, Debug)]
pub(super) struct Disks {
    pub(super) store: Option<Arc<dyn Store>>,
    pub(super) breaker: DiskBreaker,
    // The export directory is usually on another file system than the store.
    export: DiskBreaker,
}

/// Limits how long requests wait for a disk. Clones share one state.
#[derive(Clone, Debug)]
pub(super) struct DiskBreaker {
    /// How long an operation is waited for at the longest.
    pub(super) timeout: Duration,
    // Whether an operation that timed out is still running.
    is_open: Arc<AtomicBool>,
    tasks: Tasks,
}

/// Why the result of an operation is not known.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum BreakerError {
    /// This operation took longer than this.
    #[error("the payloads were not stored within {} (store.timeout)", Period(*.0))]
    TimedOut(Duration),
    /// An earlier operation took longer than this and is still running.
    #[error("the payloads were not stored, since the disk has not answered for more than {} (store.timeout)", Period(*.0))]
    Open(Duration),
}

/// How long an operation is waited for while the breaker is open: one that needs no disk access ends within this time.
const OPEN_TIMEOUT: Duration = Duration::from_millis(20);

/// Why payloads are not durable.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PersistError {
    /// The store refused them.
    #[error("the payloads could not be stored")]
    Store(#[source] StoreError),
    /// A disk did not answer in time.
    #[error(transparent)]
    Breaker(#[from] BreakerError),
    /// They could not be written to `recall.export_dir`.
    #[error("the payloads could not be written to recall.export_dir")]
    Export(#[source] Arc<io::Error>),
}

// === impl Disks ===

impl Disks {
    /// Closed breakers; a disk is waited for for `timeout` at the longest.
    pub(super) fn new(store: Option<Arc<dyn Store>>, timeout: Duration, tasks: &Tasks) -> Self {
        let breaker = || DiskBreaker::new(timeout, tasks.clone());
        Self { store, breaker: breaker(), export: breaker() }
    }

    /// Waits for an operation of the store; `None` without a store.
    pub(super) async fn ask<T: Send, F>(
        &self,
        operation: impl FnOnce(Arc<dyn Store>) -> F,
    ) -> Result<Option<T>, PersistError>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let Some(store) = self.store.clone() else { return Ok(None) };
        self.breaker.call(operation(store)).await?.map(Some).map_err(PersistError::Store)
    }

    /// Stores payloads, if there is a store, and then writes them as files if there is an export directory. After an error,
    /// no text may name any of them.
    pub(super) async fn persist(
        &self,
        export_dir: Option<PathBuf>,
        offloads: Vec<OffloadedPayload>,
        lifetime: Lifetime,
    ) -> Result<(), PersistError> {
        if self.store.is_none() || offloads.is_empty() {
            return Ok(());
        }
        let exported = export_dir.map(|dir| (dir, named(offloads.clone())));
        self.ask(|store| async move { put(&*store, offloads, lifetime).await }).await?;
        let Some((dir, payloads)) = exported else { return Ok(()) };
        // A call while the breaker is open would occupy a blocking thread.
        self.export.check()?;
        let exporting = run_blocking(move || export::write_all(&dir, &payloads, Clock::system().now()));
        let written = self.export.call(exporting).await?;
        written.map_err(io::Error::other).flatten().map_err(|error| PersistError::Export(Arc::new(error)))
    }
}

/// Stores payloads. In a store that is shared, an earlier request has likely stored some through another process.
async fn put(store: &dyn Store, offloads: Vec<OffloadedPayload>, lifetime: Lifetime) -> Result<(), StoreError> {
    let Some(shared) = store.shared() else { return store.put(named(offloads), lifetime).await };
    let (old, new): (Vec<_>, Vec<_>) = offloads.into_iter().partition(|offload| offload.likely_stored);
    tokio::try_join!(store.put(named(new), lifetime), shared.put_again(named(old), lifetime)).map(drop)
}

fn named(offloads: Vec<OffloadedPayload>) -> NamedPayloads {
    offloads.into_iter().map(|offload| (offload.key, offload.payload)).collect()
}

// === impl DiskBreaker ===

impl DiskBreaker {
    /// Creates a closed breaker; operations are waited for for `timeout` at the longest.
    pub(super) fn new(timeout: Duration, tasks: Tasks) -> Self {
        Self { timeout, is_open: Arc::default(), tasks }
    }

    /// An error while the breaker is open.
    pub(super) fn check(&self) -> Result<(), BreakerError> {
        if self.is_open.load(Ordering::Relaxed) { Err(BreakerError::Open(self.timeout)) } else { Ok(()) }
    }

    /// Waits for an operation. One that times out goes on in the background and closes the breaker when it ends.
    pub(super) async fn call<T: Send>(
        &self,
        operation: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, BreakerError> {
        let mut operation = Box::pin(operation);
        if let Err(error) = self.check() {
            return timeout(OPEN_TIMEOUT.min(self.timeout), operation).await.map_err(|_| error);
        }
        if let Ok(done) = timeout(self.timeout, &mut operation).await {
            return Ok(done);
        }
        // Of several operations that time out together, one opens the breaker and closes it.
        if !self.is_open.swap(true, Ordering::Relaxed) {
            let is_open = Arc::clone(&self.is_open);
            self.tasks.spawn(async move {
                operation.await;
                is_open.store(false, Ordering::Relaxed);
            });
        }
        Err(BreakerError::TimedOut(self.timeout))
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use bytes::Bytes;
    use tokio::sync::oneshot;
    use tokio::time::Instant;

    use super::*;
    use crate::payload::{Payload, PayloadKey};
    use crate::store::{self, tests::memory::MemoryStore};

    const TIMEOUT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn after_a_timeout_the_breaker_is_open_until_the_operation_ends() {
        let breaker = DiskBreaker::new(TIMEOUT, Tasks::default());
        let (done, operation) = oneshot::channel::<()>();
        let began = Instant::now();
        assert_eq!(breaker.call(operation).await, Err(BreakerError::TimedOut(TIMEOUT)));
        assert_eq!(began.elapsed(), TIMEOUT);
        for _ in 0..3 {
            let began = Instant::now();
            assert_eq!(breaker.call(pending::<()>()).await, Err(BreakerError::Open(TIMEOUT)));
            assert_eq!(began.elapsed(), OPEN_TIMEOUT);
            assert_eq!(breaker.call(ready(1)).await, Ok(1), "what needs no disk is done");
            assert_eq!(breaker.check(), Err(BreakerError::Open(TIMEOUT)));
        }
        done.send(()).unwrap();
        tokio::time::sleep(OPEN_TIMEOUT).await;
        assert_eq!(breaker.check(), Ok(()));
        let began = Instant::now();
        assert_eq!(breaker.call(pending::<()>()).await, Err(BreakerError::TimedOut(TIMEOUT)));
        assert_eq!(began.elapsed(), TIMEOUT, "it was quick again, so this one waits");
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_in_time_does_not_open_the_breaker() {
        let breaker = DiskBreaker::new(TIMEOUT, Tasks::default());
        let failing = async {
            tokio::time::sleep(TIMEOUT / 2).await;
            Err::<(), _>("the disk is full")
        };
        assert_eq!(breaker.call(failing).await, Ok(Err("the disk is full")));
        assert_eq!(breaker.call(pending::<()>()).await, Err(BreakerError::TimedOut(TIMEOUT)));
    }

    fn payload() -> (PayloadKey, Payload) {
        (PayloadKey::from_bytes([1; 16]), Payload::from(Bytes::from_static(b"a result")))
    }

    #[tokio::test(start_paused = true)]
    async fn payloads_are_stored_and_exported_and_nothing_is_written_to_a_directory_that_hangs() {
        let folder = tempfile::tempdir().unwrap();
        let (key, payload) = payload();
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(store::Settings::default(), Clock::system()));
        let disks = Disks::new(Some(Arc::clone(&store)), TIMEOUT, &Tasks::default());
        let persist = |name: &str| {
            let dir = folder.path().join(name);
            let offload = OffloadedPayload { key, payload: payload.clone(), likely_stored: false };
            disks.persist(Some(dir), vec![offload], Lifetime::Usual)
        };
        persist("before").await.unwrap();
        assert_eq!(std::fs::read(folder.path().join(format!("before/{key}.txt"))).unwrap(), payload.bytes());
        assert_eq!(store.get(key).await.unwrap().as_deref(), Some(&*payload.bytes()));

        assert_eq!(disks.export.call(pending::<()>()).await, Err(BreakerError::TimedOut(TIMEOUT)));
        let error = persist("after").await.unwrap_err();
        assert!(matches!(error, PersistError::Breaker(BreakerError::Open(TIMEOUT))), "{error:?}");
        assert!(!folder.path().join("after").exists(), "a blocking thread wrote");
    }
}
