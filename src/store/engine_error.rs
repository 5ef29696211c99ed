//! Why an engine could not be used.

use std::sync::Arc;
use std::time::Duration;

use super::StoreErrorKind;
use crate::setup_error::SetupError;
use crate::units::Period;

/// Why an engine could not be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineError {
    /// The engine has not answered within this time.
    #[error("the engine has not answered within {} (store.timeout)", Period(*.0))]
    TimedOut(Duration),
    /// The connection has ended.
    #[error("the connection to the engine was lost")]
    Lost,
    /// The store is closed, or has not connected yet.
    #[error("there is no connection to the engine")]
    Closed,
    /// The tables do not exist.
    #[error("the engine has no tables of abridge; make them with `abridge store init`")]
    NotInitialised,
    /// It is a standby, or writes are off.
    #[error("the engine is read-only; turn writes on there, or name the primary, or all hosts, in store.url_env")]
    ReadOnly,
    /// The rows are those of another version.
    #[error(
        "what the engine holds has version {0}, and this abridge knows version 2; run the same version everywhere, or take another store.namespace"
    )]
    Version(i64),
    /// The rows were named under another secret.
    #[error(
        "what the engine holds belongs to another secret than store.secret_env has; set that secret, name it in store.old_secrets_env to replace it, or take another store.namespace"
    )]
    OtherSecret,
    /// The engine keeps the secret, and `store.secret_env` gives one too.
    #[error("the engine holds a secret of its own; leave store.secret_env out, or take another store.namespace")]
    OwnSecret,
    /// The rows are encrypted, and are not to be.
    #[error("what the engine holds is encrypted; set store.seal = true, or take another store.namespace")]
    Sealed,
    /// The rows are not encrypted, and are to be.
    #[error(
        "what the engine holds is not encrypted, and store.seal is on; take another store.namespace, where the next requests write their texts again under the same handles"
    )]
    NotSealed,
    /// A text cannot be encrypted.
    #[error("the text is too long to be encrypted")]
    TooLong,
    /// The data is larger than `store.max_bytes`, what is above it is in use, and the caller has stored more than others.
    #[error("store.max_bytes is reached, what this caller has above its share is in use, and it stores no more")]
    Full,
    /// A value could not be decoded.
    #[error("what is stored cannot be read")]
    Damaged,
    /// The engine removes what it was told to keep.
    #[error(
        "the engine removes any key when its memory is full (maxmemory-policy {0}), so what requests name would be lost; set noeviction there"
    )]
    Evicts(Arc<str>),
    /// Too few replicas have what was written.
    #[error("{confirmed} replicas have confirmed what was written, and store.replicas_acknowledge is {wanted}")]
    TooFewReplicas {
        /// How many have.
        confirmed: i64,
        /// How many are to.
        wanted: usize,
    },
    /// The engine has refused a call.
    #[error("the engine says {message} ({code})")]
    Refused {
        /// Its code.
        code: Arc<str>,
        /// Its message.
        message: Arc<str>,
        /// What that means.
        means: Refusal,
    },
    /// It could not be reached.
    #[error("the engine cannot be reached: {0}")]
    Unreachable(Arc<str>),
}

/// The outcome of a call of an engine.
pub type EngineResult<T> = Result<T, EngineError>;

/// The meaning of a refusal by an engine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// It has no room.
    Full,
    /// It serves no one on this connection: it stops, starts, or is not the primary.
    Away,
    /// It is busy.
    Busy,
    /// It cannot do what it was asked for.
    Wrong,
}

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is not usable.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// TLS could not be set up.
    #[error("TLS to the store could not be set up; store.ca_file names certificates")]
    Tls(#[from] SetupError),
    /// The engine could not be used.
    #[error("the store cannot be opened")]
    Engine(#[from] EngineError),
    /// Texts are to be encrypted, and there is no secret.
    #[error("store.seal is on without a secret; set store.secret_env")]
    NoSecret,
    /// The system has no random numbers.
    #[error("no secret could be made")]
    Random(#[source] std::io::Error),
}

/// A URL that is not usable, and the allowed form. The URL is not shown, because it may have a password.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the URL of the store is not valid, or names no host; allowed: {0}")]
pub struct UrlError(pub(super) &'static str);

// === impl EngineError ===

impl EngineError {
    /// The kind of the failure.
    pub(super) fn kind(&self) -> StoreErrorKind {
        match self {
            Self::Full | Self::Refused { means: Refusal::Full, .. } => StoreErrorKind::Full,
            Self::Damaged
            | Self::NotInitialised
            | Self::Version(_)
            | Self::OtherSecret
            | Self::OwnSecret
            | Self::Sealed
            | Self::NotSealed => StoreErrorKind::Corrupt,
            _ => StoreErrorKind::Unavailable,
        }
    }

    /// Whether waiting may help at start: the engine is not there, or not yet.
    pub fn may_pass(&self) -> bool {
        let may_be_served = matches!(self, Self::Refused { means, .. } if *means != Refusal::Wrong);
        may_be_served || self.ends_connection() || matches!(self, Self::Closed)
    }

    /// Whether the engine will answer no other call on this connection either.
    pub(super) fn ends_connection(&self) -> bool {
        match self {
            Self::TimedOut(_) | Self::Lost | Self::Unreachable(_) | Self::ReadOnly | Self::TooFewReplicas { .. } => {
                true
            }
            Self::Refused { means, .. } => *means == Refusal::Away,
            _ => false,
        }
    }
}
