//! The meaning of PostgreSQL's errors.

use std::error::Error;

use tokio_postgres::error::SqlState;

use crate::store::engine::EngineError;
use crate::store::engine::error::Refusal;

impl From<tokio_postgres::Error> for EngineError {
    fn from(error: tokio_postgres::Error) -> Self {
        if let Some(said) = error.as_db_error() {
            if [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_COLUMN].contains(said.code()) {
                return Self::NotInitialised;
            }
            return Self::Refused {
                code: said.code().code().into(),
                message: said.message().into(),
                means: meaning(said.code()),
            };
        }
        if error.is_closed() {
            return Self::Lost;
        }
        let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        Self::Unreachable(cause.into())
    }
}

fn meaning(code: &SqlState) -> Refusal {
    // A standby accepts writes once it is promoted.
    let away = [
        SqlState::READ_ONLY_SQL_TRANSACTION,
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
    ];
    match code {
        code if *code == SqlState::DISK_FULL => Refusal::Full,
        code if away.contains(code) => Refusal::Away,
        code if code.code().starts_with("53") => Refusal::Busy,
        _ => Refusal::Wrong,
    }
}
