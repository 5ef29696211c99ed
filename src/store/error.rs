//! Why an operation of a store failed.

use std::error::Error;
use std::sync::Arc;

use super::codec::Name;

/// Why a store operation failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", self.describe())]
pub struct StoreError {
    /// The operation.
    pub op: Op,
    /// The kind of failure.
    pub kind: StoreErrorKind,
    /// The underlying error.
    #[source]
    pub source: Arc<dyn Error + Send + Sync>,
}

/// The outcome of a store operation.
pub type StoreResult<T> = Result<T, StoreError>;

/// An operation of a store.
#[derive(Clone, Copy, Debug, Eq, PartialEq, strum::Display)]
pub enum Op {
    /// Open the file.
    #[strum(to_string = "be opened")]
    Open,
    /// Write payloads or summaries.
    #[strum(to_string = "keep a payload")]
    Put,
    /// Read.
    #[strum(to_string = "be read")]
    Get,
    /// Remove what has expired.
    #[strum(to_string = "be swept")]
    Sweep,
    /// Shrink the file.
    #[strum(to_string = "be compacted")]
    Compact,
    /// Copy the file.
    #[strum(to_string = "be copied")]
    Backup,
    /// Close the file.
    #[strum(to_string = "be closed")]
    Close,
}

/// The kind of a store failure.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum StoreErrorKind {
    /// The file cannot be accessed, or the store is closed; it may work again later.
    Unavailable,
    /// The content of the file is invalid.
    Corrupt,
    /// The disk is full.
    Full,
    /// One row is damaged; everything else works.
    Damaged,
}

/// A fault of the store itself.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The row of this name is damaged.
    #[error("the {0} is damaged; it is written anew when a request sends it again")]
    Damaged(Name),
    /// A later version has stored something in a way that this one does not know.
    #[error("a later version of abridge has stored it in a way that this one does not know")]
    Later,
    /// It was stored under another secret.
    #[error("it was stored under another secret than store.secret_env has; name that one in store.old_secrets_env")]
    Foreign,
    /// The store is not a file.
    #[error("it is a database: back it up by its own means, with the secret of `store.secret_env`")]
    NotAFile,
    /// The store was closed, or its writer thread has ended.
    #[error("it is closed")]
    Closed,
}

// === impl StoreError ===

impl StoreError {
    /// Creates an error with this cause.
    pub(crate) fn new(op: Op, kind: StoreErrorKind, source: impl Error + Send + Sync + 'static) -> Self {
        Self { op, kind, source: Arc::new(source) }
    }

    fn describe(&self) -> String {
        match self.kind {
            StoreErrorKind::Damaged => self.source.to_string(),
            kind => format!("the store is {kind} and cannot {}", self.op),
        }
    }
}

impl StoreErrorKind {
    /// The kind as one word, for labels.
    pub fn label(self) -> &'static str {
        self.into()
    }
}
