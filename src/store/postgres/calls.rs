//! Calls of PostgreSQL: statements with the names of this fleet's tables, and the rows that they return.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, Row};

use super::{Postgres, blob, int};
use crate::payload::PayloadKey;
use crate::store::engine::{EngineError, EngineResult};
use crate::store::engine_error::Refusal;
use crate::store::shared::SeenState;
use crate::store::{Op, PayloadInfo, StoreResult, Time};

/// A parameter of a statement, with its type.
pub(super) type Parameter<'a> = (Box<dyn ToSql + Send + Sync + 'a>, Type);

/// The version of the tables.
pub(super) const VERSION: i64 = 2;

/// The time of a statement, in seconds since 1970.
const NOW: &str = "coalesce($1, floor(extract(epoch FROM now()))::bigint)";

/// The texts after each name, without what explains them.
static STATEMENTS: LazyLock<HashMap<&str, String>> = LazyLock::new(|| {
    let named = include_str!("statements.sql").split("-- name: ").skip(1).filter_map(|named| named.split_once('\n'));
    let said = |text: &str| text.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n");
    named.map(|(name, text)| (name, said(text))).collect()
});

/// The statements of a name, with the prefix of the tables and the clock.
pub(super) fn statements(name: &str, prefix: &str) -> Vec<String> {
    let text = STATEMENTS.get(name).map_or(name, String::as_str);
    let texts = text.split(';').map(str::trim).filter(|text| !text.is_empty());
    texts.map(|text| text.replace("abridge_", prefix).replace(":now", NOW)).collect()
}

/// The statement of a name.
pub(super) fn statement(name: &str, prefix: &str) -> String {
    statements(name, prefix).concat()
}

/// Runs a statement, and reads each row that it returns. Statements are not prepared under a name, so that a pooler may be
/// between.
pub(super) async fn query<T>(
    client: Arc<Client>,
    statement: String,
    parameters: &[Parameter<'_>],
    read: impl Fn(&Row) -> EngineResult<T>,
) -> EngineResult<Vec<T>> {
    client.query_typed(&statement, &borrowed(parameters)).await?.iter().map(read).collect()
}

/// Parameters as the client takes them.
fn borrowed<'a>(parameters: &'a [Parameter<'_>]) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    parameters.iter().map(|(value, of)| (&**value as _, of.clone())).collect()
}

impl Postgres {
    /// Runs a statement that reads, or writes, and reads each row that it returns.
    pub(super) async fn rows<T>(
        &self,
        op: Op,
        name: &str,
        parameters: &[Parameter<'_>],
        read: impl Fn(&Row) -> EngineResult<T>,
    ) -> StoreResult<Vec<T>> {
        self.links.call(op, |client| query(client, statement(name, &self.prefix), parameters, read)).await
    }

    /// The same of a statement that returns one row.
    pub(super) async fn row<T>(
        &self,
        op: Op,
        name: &str,
        parameters: &[Parameter<'_>],
        read: impl Fn(&Row) -> EngineResult<T>,
    ) -> StoreResult<T> {
        self.rows(op, name, parameters, read)
            .await?
            .pop()
            .ok_or_else(|| self.links.fails(Op::Read, EngineError::Damaged))
    }

    /// Reads a body, if there is one, and whether its use is to be written.
    pub(super) async fn body_and_mark(&self, statement: &str, key: &[u8; 16]) -> StoreResult<Option<(Vec<u8>, bool)>> {
        let parameters = [int(self.terms.now()), blob(key), int(self.terms.half_grain())];
        Ok(self.rows(Op::Read, statement, &parameters, |row| Ok((cell(row, 0)?, cell(row, 1)?))).await?.pop())
    }

    /// Writes, and returns how many rows were changed.
    pub(super) async fn execute(&self, op: Op, name: &str, parameters: &[Parameter<'_>]) -> StoreResult<u64> {
        let execute = async |client: Arc<Client>| {
            Ok(client.execute_typed(&statement(name, &self.prefix), &borrowed(parameters)).await?)
        };
        self.links.call(op, execute).await
    }
}

// === cells ===

pub(super) fn cell<T: for<'a> FromSql<'a>>(row: &Row, n: usize) -> EngineResult<T> {
    row.try_get(n).map_err(|_| EngineError::Damaged)
}

/// A number in a row; a negative one is none.
pub(super) fn number(row: &Row, n: usize) -> EngineResult<u64> {
    Ok(u64::try_from(cell::<i64>(row, n)?).unwrap_or_default())
}

/// A name in a row.
pub(super) fn key(row: &Row, n: usize) -> EngineResult<[u8; 16]> {
    cell::<Vec<u8>>(row, n)?.try_into().map_err(|_| EngineError::Damaged)
}

pub(super) fn payload(row: &Row) -> EngineResult<PayloadKey> {
    key(row, 0).map(PayloadKey::from_bytes)
}

pub(super) fn info(row: &Row) -> EngineResult<PayloadInfo> {
    let [bytes, stored_bytes, created, used] = numbers(row, 1)?;
    Ok(PayloadInfo { key: payload(row)?, bytes, stored_bytes, created: Time(created), used: Time(used) })
}

/// So many numbers from a column on.
pub(super) fn numbers<const N: usize>(row: &Row, from: usize) -> EngineResult<[u64; N]> {
    let mut numbers = [0; N];
    for (n, place) in numbers.iter_mut().enumerate() {
        *place = number(row, from + n)?;
    }
    Ok(numbers)
}

/// The state of a beginning, in the columns from the `n`th on. A lease or a pause that is past is over.
pub(super) fn state(row: &Row, n: usize) -> EngineResult<SeenState> {
    let left = Duration::from_secs(number(row, n + 2)?);
    Ok(match (cell(row, n)?, cell(row, n + 1)?) {
        (true, _) => SeenState::Stored,
        (false, true) => SeenState::UnderWay(left),
        (false, false) => SeenState::NotNow(left),
    })
}

// === the meaning of errors ===

impl From<tokio_postgres::Error> for EngineError {
    fn from(error: tokio_postgres::Error) -> Self {
        if let Some(said) = error.as_db_error() {
            if [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_COLUMN].contains(said.code()) {
                return Self::NotInitialised;
            }
            if *said.code() == SqlState::READ_ONLY_SQL_TRANSACTION {
                return Self::ReadOnly;
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
        // The client's error, of the system's kind, for a server that does not accept writes.
        if cause == "database does not allow writes" { Self::ReadOnly } else { Self::Unreachable(cause.into()) }
    }
}

fn meaning(code: &SqlState) -> Refusal {
    let away = [SqlState::ADMIN_SHUTDOWN, SqlState::CRASH_SHUTDOWN, SqlState::CANNOT_CONNECT_NOW];
    match code {
        code if *code == SqlState::DISK_FULL => Refusal::Full,
        code if away.contains(code) => Refusal::Away,
        // A limit on time, connections or memory, a lock, or another statement has ended it.
        code if ["53", "40", "57014", "55P03"].iter().any(|busy| code.code().starts_with(busy)) => Refusal::Busy,
        _ => Refusal::Wrong,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_but_one_has_one_statement() {
        for name in STATEMENTS.keys() {
            let n = statements(name, "mine_").len();
            assert_eq!(n, if *name == "create" { 14 } else { 1 }, "{name}");
        }
        assert_eq!(STATEMENTS.len(), 40);
        assert_eq!(
            statement("store_plain", "mine_"),
            "ALTER TABLE mine_payloads ALTER COLUMN body SET STORAGE EXTERNAL"
        );
    }
}
