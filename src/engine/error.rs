//! Why there is no summary.

use std::sync::Arc;
use std::time::Duration;

use super::patience::Late;
use crate::store::StoreError;
use crate::units::Period;

/// Why there is no summary.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SummaryError {
    /// It could not be made a short time ago.
    #[error("it could not be made a short time ago")]
    NotNow,
    /// It took too long.
    #[error("it was not made within {} ms", .0.as_millis())]
    Slow(Duration),
    /// Nobody who was asked has made it.
    #[error("{0}")]
    Failed(Arc<str>),
    /// It could not be kept.
    #[error("it could not be stored")]
    NotKept(#[source] StoreError),
    /// The store, or the folder that transcripts are also written to, has not answered within this time.
    #[error("it was not stored, since the disk has been silent for more than {} (store.timeout)", Period(*.0))]
    Silent(Duration),
    /// Its transcript could not be written to `recall.export_dir`.
    #[error("its transcript could not be written to recall.export_dir")]
    NotExported(#[source] Arc<std::io::Error>),
    /// Too many are being made, or what they are made from takes too much memory.
    #[error("too many summaries are being made")]
    Busy,
    /// Nobody waits for it any more.
    #[error("nobody waits for it any more")]
    Deserted,
    /// The task that made it has ended.
    #[error("abridge is ending, or has a bug")]
    Ending,
}

impl From<Late> for SummaryError {
    fn from(late: Late) -> Self {
        let (Late::Now(most) | Late::Before(most)) = late;
        Self::Silent(most)
    }
}
