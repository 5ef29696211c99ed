//! Calls of the engine: statements with the names of this fleet's tables, failures counted and logged, cells read.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::error::PostgresError;
use super::link::Parameters;
use super::{Inner, sql};
use crate::payload::Payload;
use crate::store::codec::decode;
use crate::store::{Op, StoreError};

impl Inner {
    /// Reads rows, on the connection for writes while the other one is being opened again.
    pub(super) async fn rows(&self, op: Op, text: &str, parameters: Parameters<'_>) -> Result<Vec<Row>, StoreError> {
        let link = if self.reads.state().is_ok() { &self.reads } else { &self.writes };
        let read = link.query(&sql::statement(text, &self.prefix), parameters).await;
        read.map_err(|error| self.fails(op, error))
    }

    /// Reads the first cell of the first row.
    pub(super) async fn first<T: for<'a> FromSql<'a>>(
        &self,
        op: Op,
        text: &str,
        parameters: Parameters<'_>,
    ) -> Result<T, StoreError> {
        let rows = self.rows(op, text, parameters).await?;
        self.cell(rows.first().ok_or_else(|| self.fails(op, PostgresError::Damaged))?, 0)
    }

    /// Writes, and returns the rows.
    pub(super) async fn write(&self, op: Op, text: &str, parameters: Parameters<'_>) -> Result<Vec<Row>, StoreError> {
        self.note(op, self.writes.query(&sql::statement(text, &self.prefix), parameters).await)
    }

    /// Writes, and returns how many rows were changed.
    pub(super) async fn execute(&self, op: Op, text: &str, parameters: Parameters<'_>) -> Result<u64, StoreError> {
        self.note(op, self.writes.execute(&sql::statement(text, &self.prefix), parameters).await)
    }

    /// The outcome of a write. The first one that succeeds ends a failure: reads may work while no write does.
    fn note<T>(&self, op: Op, outcome: Result<T, PostgresError>) -> Result<T, StoreError> {
        match outcome {
            Ok(done) => {
                if self.counts.is_failing.load(Ordering::Relaxed)
                    && self.counts.is_failing.swap(false, Ordering::Relaxed)
                {
                    tracing::warn!("the store works again");
                }
                Ok(done)
            }
            Err(error) => Err(self.fails(op, error)),
        }
    }

    pub(super) fn fails(&self, op: Op, error: PostgresError) -> StoreError {
        self.counts.failures.fetch_add(1, Ordering::Relaxed);
        let kind = error.kind();
        if self.counts.is_failing.swap(true, Ordering::Relaxed) {
            tracing::debug!(kind = kind.label(), %error, "the store failed again");
        } else {
            tracing::error!(
                kind = kind.label(),
                %error,
                "the store failed: requests go on without the edits that need it, until it works again"
            );
        }
        StoreError::new(op, kind, error)
    }

    pub(super) fn cell<T: for<'a> FromSql<'a>>(&self, row: &Row, n: usize) -> Result<T, StoreError> {
        row.try_get(n).map_err(|_| self.fails(Op::Get, PostgresError::Damaged))
    }

    /// A name in a row.
    pub(super) fn key(&self, row: &Row, n: usize) -> Result<[u8; 16], StoreError> {
        let bytes: Vec<u8> = self.cell(row, n)?;
        bytes.try_into().map_err(|_| self.fails(Op::Get, PostgresError::Damaged))
    }

    /// An encoded payload in a row.
    pub(super) fn payload(&self, row: &Row, n: usize) -> Result<Payload, StoreError> {
        let stored: Vec<u8> = self.cell(row, n)?;
        decode(&stored).ok_or_else(|| self.fails(Op::Get, PostgresError::Damaged))
    }

    /// The bytes of an encoded body in a row.
    pub(super) fn body(&self, row: &Row, n: usize) -> Result<Bytes, StoreError> {
        Ok(self.payload(row, n)?.bytes())
    }
}
