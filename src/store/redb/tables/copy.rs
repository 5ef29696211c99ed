//! All tables in another file.

use ::redb::{
    Database, Error, Key, ReadTransaction, ReadableDatabase as _, ReadableTable as _, TableDefinition, TableError,
    Value,
};

use super::lifetimes::CHAINED;
use super::{INSPECTED, INSPECTED_ROWS, META, PAYLOADS, ROWS, SUMMARIES, SUMMARY_ROWS, SWEPT, notes};
use crate::tasks::yield_thread;

/// How many rows of the copy are written in one transaction.
const BATCH: usize = 256;

/// Copies all tables as they are at this moment. The format is copied last: before, the copy is not a store.
pub(in crate::store::redb) fn all(from: &Database, to: &Database) -> Result<(), Error> {
    let from = from.begin_read()?;
    copy_table(&from, to, PAYLOADS)?;
    copy_table(&from, to, ROWS)?;
    copy_table(&from, to, SWEPT)?;
    copy_table(&from, to, SUMMARIES)?;
    copy_table(&from, to, SUMMARY_ROWS)?;
    copy_table(&from, to, INSPECTED)?;
    copy_table(&from, to, INSPECTED_ROWS)?;
    copy_table(&from, to, CHAINED)?;
    copy_table(&from, to, notes::NOTES)?;
    copy_table(&from, to, META)
}

/// Copies the rows of a table, if it is there.
fn copy_table<K: Key + 'static, V: Value + 'static>(
    from: &ReadTransaction,
    to: &Database,
    definition: TableDefinition<'_, K, V>,
) -> Result<(), Error> {
    let table = match from.open_table(definition) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(()),
        table => table?,
    };
    let mut rows = table.iter()?.peekable();
    loop {
        let transaction = to.begin_write()?;
        let mut copy = transaction.open_table(definition)?;
        for row in rows.by_ref().take(BATCH) {
            let (key, value) = row?;
            copy.insert(key.value(), value.value())?;
        }
        drop(copy);
        transaction.commit()?;
        yield_thread();
        if rows.peek().is_none() {
            return Ok(());
        }
    }
}
