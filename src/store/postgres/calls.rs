//! Calls of PostgreSQL: statements with the names of this fleet's tables, failures counted and logged, cells read.

use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql, Type};

use super::connect::Connector;
use super::{Postgres, blob, int, sql};
use crate::store::engine::EngineError;
use crate::store::engine::link::Link;
use crate::store::{Op, StoreResult};

/// A parameter of a statement, with its type.
pub(super) type Parameter<'a> = (Box<dyn ToSql + Send + Sync + 'a>, Type);

impl Link<Connector> {
    /// Runs a statement that returns rows. Statements are not prepared under a name, so that a pooler may be between.
    pub(super) async fn query(&self, statement: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, EngineError> {
        let open = self.open()?;
        self.within(&open, async { Ok(open.client.query_typed(statement, &borrowed(parameters)).await?) }).await
    }

    /// Runs a statement, and returns how many rows it has changed.
    async fn execute(&self, statement: &str, parameters: &[Parameter<'_>]) -> Result<u64, EngineError> {
        let open = self.open()?;
        self.within(&open, async { Ok(open.client.execute_typed(statement, &borrowed(parameters)).await?) }).await
    }
}

impl Postgres {
    /// Reads rows.
    pub(super) async fn rows(&self, op: Op, name: &str, parameters: &[Parameter<'_>]) -> StoreResult<Vec<Row>> {
        let read = self.links.for_reads().query(&sql::statement(name, &self.prefix), parameters).await;
        self.links.has_read(op, read)
    }

    /// The first of rows of which there is to be one.
    pub(super) fn first<'r>(&self, rows: &'r [Row]) -> StoreResult<&'r Row> {
        rows.first().ok_or_else(|| self.links.damaged())
    }

    /// Reads a body, if there is one, and whether its use is to be written.
    pub(super) async fn body_and_mark(&self, statement: &str, key: &[u8; 16]) -> StoreResult<Option<(Vec<u8>, bool)>> {
        let found = self.rows(Op::Get, statement, &[int(self.now()), blob(key), int(self.grain())]).await?;
        found.first().map(|row| Ok((self.cell(row, 0)?, self.cell(row, 1)?))).transpose()
    }

    /// Writes, and returns the rows.
    pub(super) async fn write(&self, op: Op, name: &str, parameters: &[Parameter<'_>]) -> StoreResult<Vec<Row>> {
        let written = self.links.writes.query(&sql::statement(name, &self.prefix), parameters).await;
        self.links.has_written(op, written)
    }

    /// Asks what is to be written, on the connection for writes. That it can be asked for says nothing about writes.
    pub(super) async fn ask_for_write(
        &self,
        op: Op,
        name: &str,
        parameters: &[Parameter<'_>],
    ) -> StoreResult<Vec<Row>> {
        let asked = self.links.writes.query(&sql::statement(name, &self.prefix), parameters).await;
        self.links.has_read(op, asked)
    }

    /// Writes, and returns how many rows were changed.
    pub(super) async fn execute(&self, op: Op, name: &str, parameters: &[Parameter<'_>]) -> StoreResult<u64> {
        let written = self.links.writes.execute(&sql::statement(name, &self.prefix), parameters).await;
        self.links.has_written(op, written)
    }

    pub(super) fn cell<T: for<'a> FromSql<'a>>(&self, row: &Row, n: usize) -> StoreResult<T> {
        row.try_get(n).map_err(|_| self.links.damaged())
    }

    /// A number in a row; a negative one is none.
    pub(super) fn number(&self, row: &Row, n: usize) -> StoreResult<u64> {
        Ok(u64::try_from(self.cell::<i64>(row, n)?).unwrap_or_default())
    }

    /// A name in a row.
    pub(super) fn key(&self, row: &Row, n: usize) -> StoreResult<[u8; 16]> {
        let bytes: Vec<u8> = self.cell(row, n)?;
        bytes.try_into().map_err(|_| self.links.damaged())
    }
}

/// Parameters as the client takes them.
fn borrowed<'a>(parameters: &'a [Parameter<'_>]) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    parameters.iter().map(|(value, of)| (&**value as _, of.clone())).collect()
}
