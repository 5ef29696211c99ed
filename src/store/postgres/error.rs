//! Why the engine could not be used.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::error::SqlState;

use super::tls::TlsError;
use crate::store::StoreErrorKind;
use crate::units::Period;

/// Why the engine could not be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PostgresError {
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
    /// The tables are those of another version.
    #[error("the engine's tables have version {0}, and this abridge knows version 1; run the same version everywhere")]
    Version(i64),
    /// The tables were made under another secret.
    #[error(
        "the engine's tables belong to another secret than store.secret_env has; set that secret, name it in store.old_secrets_env to replace it, or take another store.namespace"
    )]
    OtherSecret,
    /// The engine keeps the secret, and `store.secret_env` gives one too.
    #[error(
        "the engine's tables have a secret of their own; leave store.secret_env out, or take another store.namespace"
    )]
    OwnSecret,
    /// The data is larger than `store.max_bytes`, and all of it is in use.
    #[error("store.max_bytes is reached, and all that is stored is in use")]
    Full,
    /// A value could not be decoded.
    #[error("what is stored cannot be read")]
    Damaged,
    /// The engine has refused a statement.
    #[error("the engine says {message} ({})", code.code())]
    Engine {
        /// Its code.
        code: SqlState,
        /// What it says.
        message: Arc<str>,
    },
    /// It could not be reached.
    #[error("the engine cannot be reached: {0}")]
    Unreachable(Arc<str>),
}

/// Why the store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is not usable.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The engine could not be used.
    #[error("the store cannot be opened")]
    Engine(#[from] PostgresError),
    /// The system has no random numbers.
    #[error("no secret could be made")]
    Random(#[source] std::io::Error),
}

/// Why a URL is not usable. The URL is not shown, because it may have a password.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum UrlError {
    /// It cannot be read.
    #[error("the URL of the store is not valid; allowed: postgres://USER:PASSWORD@HOST:PORT/DATABASE")]
    Invalid,
    /// It names no host.
    #[error("the URL of the store names no host; allowed: postgres://USER:PASSWORD@HOST:PORT/DATABASE")]
    NoHost,
}

impl PostgresError {
    /// The kind of the failure.
    pub(super) fn kind(&self) -> StoreErrorKind {
        match self {
            Self::Full => StoreErrorKind::Full,
            Self::Engine { code, .. } if *code == SqlState::DISK_FULL => StoreErrorKind::Full,
            Self::Damaged | Self::NotInitialised | Self::Version(_) | Self::OtherSecret | Self::OwnSecret => {
                StoreErrorKind::Corrupt
            }
            _ => StoreErrorKind::Unavailable,
        }
    }

    /// Whether waiting may help at start: the engine is not there, or not yet.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::TimedOut(_) | Self::Lost | Self::Closed | Self::Unreachable(_) => true,
            Self::Engine { code, .. } => {
                // A standby accepts writes once it is promoted.
                let passing = [SqlState::CANNOT_CONNECT_NOW, SqlState::READ_ONLY_SQL_TRANSACTION];
                passing.contains(code) || code.code().starts_with("53")
            }
            _ => false,
        }
    }
}

impl From<tokio_postgres::Error> for PostgresError {
    fn from(error: tokio_postgres::Error) -> Self {
        if let Some(said) = error.as_db_error() {
            if *said.code() == SqlState::UNDEFINED_TABLE {
                return Self::NotInitialised;
            }
            return Self::Engine { code: said.code().clone(), message: said.message().into() };
        }
        if error.is_closed() {
            return Self::Lost;
        }
        let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        Self::Unreachable(cause.into())
    }
}
