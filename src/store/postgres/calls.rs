//! Calls of PostgreSQL: statements with the names of this fleet's tables, failures counted and logged, cells read.

use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql, Type};

use super::connect::Connector;
use super::{Postgres, sql};
use crate::store::engine::EngineError;
use crate::store::engine::link::Link;
use crate::store::{Op, StoreResult};

/// The parameters of a statement.
pub(super) type Parameters<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

impl Link<Connector> {
    /// Runs a statement that returns rows. Statements are not prepared under a name, so that a pooler may be between.
    pub(super) async fn query(&self, statement: &str, parameters: Parameters<'_>) -> Result<Vec<Row>, EngineError> {
        let open = self.open()?;
        self.within(&open, async { Ok(open.client.query_typed(statement, parameters).await?) }).await
    }

    /// Runs a statement, and returns how many rows it has changed.
    async fn execute(&self, statement: &str, parameters: Parameters<'_>) -> Result<u64, EngineError> {
        let open = self.open()?;
        self.within(&open, async { Ok(open.client.execute_typed(statement, parameters).await?) }).await
    }
}

impl Postgres {
    /// Reads rows.
    pub(super) async fn rows(&self, op: Op, text: &str, parameters: Parameters<'_>) -> StoreResult<Vec<Row>> {
        let read = self.links.for_reads().query(&sql::statement(text, &self.prefix), parameters).await;
        self.links.has_read(op, read)
    }

    /// Reads the first cell of the first row.
    pub(super) async fn first<T: for<'a> FromSql<'a>>(
        &self,
        op: Op,
        text: &str,
        parameters: Parameters<'_>,
    ) -> StoreResult<T> {
        let rows = self.rows(op, text, parameters).await?;
        self.cell(rows.first().ok_or_else(|| self.links.damaged())?, 0)
    }

    /// Writes, and returns the rows.
    pub(super) async fn write(&self, op: Op, text: &str, parameters: Parameters<'_>) -> StoreResult<Vec<Row>> {
        let written = self.links.writes.query(&sql::statement(text, &self.prefix), parameters).await;
        self.links.has_written(op, written)
    }

    /// Asks what is to be written, on the connection for writes. That it can be asked for says nothing about writes.
    pub(super) async fn ask_for_write(&self, op: Op, text: &str, parameters: Parameters<'_>) -> StoreResult<Vec<Row>> {
        let asked = self.links.writes.query(&sql::statement(text, &self.prefix), parameters).await;
        self.links.has_read(op, asked)
    }

    /// Writes, and returns how many rows were changed.
    pub(super) async fn execute(&self, op: Op, text: &str, parameters: Parameters<'_>) -> StoreResult<u64> {
        let written = self.links.writes.execute(&sql::statement(text, &self.prefix), parameters).await;
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
