//! Why a summary could not be made.

use std::sync::Arc;
use std::time::Duration;

use super::breaker::BreakerError;
use super::persist::PersistError;
use crate::store::StoreError;
use crate::units::Period;

/// Why a summary could not be made.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SummaryError {
    /// An earlier attempt failed, and `summarize.cooldown` has not passed yet.
    #[error("an earlier attempt failed less than summarize.cooldown ago")]
    CoolingDown,
    /// It was not made within this time.
    #[error("it was not made within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// No model produced it; the last error as text.
    #[error("{0}")]
    Failed(Arc<str>),
    /// The store refused it.
    #[error("it could not be stored")]
    NotStored(#[source] StoreError),
    /// The store or the export directory has not answered within this time.
    #[error("it was not stored, since the disk has not answered for more than {} (store.timeout)", Period(*.0))]
    BreakerOpen(Duration),
    /// Its transcript could not be written to `recall.export_dir`.
    #[error("its transcript could not be written to recall.export_dir")]
    NotExported(#[source] Arc<std::io::Error>),
    /// Too many summaries are being made, or their input exceeds the memory budget.
    #[error("too many summaries are being made")]
    Busy,
    /// No request waits for it any more.
    #[error("no request waits for it any more")]
    Abandoned,
    /// The task that made it has ended without a result.
    #[error("abridge is shutting down, or has a bug")]
    ShuttingDown,
}

impl From<BreakerError> for SummaryError {
    fn from(error: BreakerError) -> Self {
        let (BreakerError::TimedOut(timeout) | BreakerError::Open(timeout)) = error;
        Self::BreakerOpen(timeout)
    }
}

impl From<PersistError> for SummaryError {
    fn from(error: PersistError) -> Self {
        match error {
            PersistError::Store(error) => Self::NotStored(error),
            PersistError::Breaker(error) => error.into(),
            PersistError::Export(error) => Self::NotExported(error),
            PersistError::ShuttingDown => Self::ShuttingDown,
        }
    }
}
