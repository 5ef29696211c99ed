//! Makes payloads durable before a text names them: in the store, and as files in `recall.export_dir`.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::breaker::{BreakerError, DiskBreaker};
use super::export;
use crate::payload::Lifetime;
use crate::plan::OffloadedPayload;
use crate::store::{Clock, NamedPayloads, Store, StoreError};
use crate::tasks::{Tasks, run_blocking};

/// The circuit breakers for writes, which requests and summaries wait for. Clones share their states.
#[derive(Clone, Debug)]
pub(super) struct DiskBreakers {
    pub(super) store: DiskBreaker,
    // The export directory is usually on another file system than the store.
    export: DiskBreaker,
}

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
    /// The runtime no longer runs blocking tasks because the process is shutting down.
    #[error("the payloads were not stored, because abridge is shutting down")]
    ShuttingDown,
}

// === impl DiskBreakers ===

impl DiskBreakers {
    /// Closed breakers; a disk is waited for for `timeout` at the longest.
    pub(super) fn new(timeout: Duration, tasks: &Tasks) -> Self {
        Self { store: DiskBreaker::new(timeout, tasks.clone()), export: DiskBreaker::new(timeout, tasks.clone()) }
    }

    /// Stores payloads, and then writes them as files if there is an export directory. After an error, no text may name
    /// any of them.
    pub(super) async fn persist(
        &self,
        store: Arc<dyn Store>,
        export_dir: Option<PathBuf>,
        offloads: Vec<OffloadedPayload>,
        lifetime: Lifetime,
    ) -> Result<(), PersistError> {
        let exported = export_dir.map(|dir| (dir, named(offloads.clone())));
        self.store.call(async move { put(&*store, offloads, lifetime).await }).await?.map_err(PersistError::Store)?;
        let Some((dir, payloads)) = exported else { return Ok(()) };
        // A call while the breaker is open would occupy a blocking thread.
        self.export.check()?;
        let exporting = run_blocking(move || export::write_all(&dir, &payloads, Clock::system().now()));
        let written = self.export.call(exporting).await?;
        written.map_err(|_| PersistError::ShuttingDown)?.map_err(|error| PersistError::Export(Arc::new(error)))
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

#[cfg(test)]
mod tests {
    use std::future::pending;

    use bytes::Bytes;

    use super::*;
    use crate::payload::{Payload, PayloadKey};
    use crate::store::{self, tests::memory::MemoryStore};

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn payload() -> (PayloadKey, Payload) {
        (PayloadKey::from_bytes([1; 16]), Payload::from(Bytes::from_static(b"a result")))
    }

    #[tokio::test(start_paused = true)]
    async fn payloads_are_stored_and_exported_and_nothing_is_written_to_a_directory_that_hangs() {
        let folder = tempfile::tempdir().unwrap();
        let (key, payload) = payload();
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(store::Settings::default(), Clock::system()));
        let breakers = DiskBreakers::new(TIMEOUT, &Tasks::default());
        let persist = |name: &str| {
            let dir = folder.path().join(name);
            let offload = OffloadedPayload { key, payload: payload.clone(), likely_stored: false };
            breakers.persist(Arc::clone(&store), Some(dir), vec![offload], Lifetime::Usual)
        };
        persist("before").await.unwrap();
        assert_eq!(std::fs::read(folder.path().join(format!("before/{key}.txt"))).unwrap(), payload.bytes());
        assert_eq!(store.get(key).await.unwrap().as_deref(), Some(&*payload.bytes()));

        assert_eq!(breakers.export.call(pending::<()>()).await, Err(BreakerError::TimedOut(TIMEOUT)));
        let error = persist("after").await.unwrap_err();
        assert!(matches!(error, PersistError::Breaker(BreakerError::Open(TIMEOUT))), "{error:?}");
        assert!(!folder.path().join("after").exists(), "a blocking thread wrote");
    }
}
