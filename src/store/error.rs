//! Why an operation of a store failed.

use std::error::Error;
use std::fmt;
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

/// An operation of a store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Op {
    /// Open the file.
    Open,
    /// Write payloads or summaries.
    Put,
    /// Read.
    Get,
    /// Remove what has expired.
    Sweep,
    /// Shrink the file.
    Compact,
    /// Close the file.
    Close,
}

/// The kind of a store failure.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
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

/// The row of this name is damaged.
#[derive(Debug, thiserror::Error)]
#[error("the {0} is damaged; it is written anew when a request sends it again")]
struct DamagedError(Name);

/// A later version has stored something in a way that this one does not know.
#[derive(Debug, thiserror::Error)]
#[error("a later version of abridge has stored it in a way that this one does not know")]
struct LaterError;

/// It was stored under another secret.
#[derive(Debug, thiserror::Error)]
#[error("it was stored under another secret than store.secret_env has; name that one in store.old_secrets_env")]
struct ForeignError;

// === impl StoreError ===

impl StoreError {
    /// Creates an error with this cause.
    pub(crate) fn new(op: Op, kind: StoreErrorKind, source: impl Error + Send + Sync + 'static) -> Self {
        Self { op, kind, source: Arc::new(source) }
    }

    /// The row of this name is damaged.
    pub(super) fn damaged(name: Name) -> Self {
        Self::new(Op::Get, StoreErrorKind::Damaged, DamagedError(name))
    }

    fn describe(&self) -> String {
        match self.kind {
            StoreErrorKind::Damaged => self.source.to_string(),
            kind => format!("the store is {kind} and cannot {}", self.op),
        }
    }

    /// It was stored under another secret.
    pub(super) fn foreign() -> Self {
        Self::new(Op::Get, StoreErrorKind::Corrupt, ForeignError)
    }

    /// A later version has stored it.
    pub(super) fn later() -> Self {
        Self::new(Op::Get, StoreErrorKind::Corrupt, LaterError)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "be opened",
            Self::Put => "keep a payload",
            Self::Get => "be read",
            Self::Sweep => "be swept",
            Self::Compact => "be compacted",
            Self::Close => "be closed",
        })
    }
}

impl StoreErrorKind {
    /// The kind as one word, for labels.
    pub fn label(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Corrupt => "corrupt",
            Self::Full => "full",
            Self::Damaged => "damaged",
        }
    }
}

impl fmt::Display for StoreErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}
