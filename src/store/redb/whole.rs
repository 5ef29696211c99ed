//! Walks over all tables of the file: whether it can be used, what is in it, whether that is whole, and copies of it.

use ::redb::{
    Database, Key, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, Value, WriteTransaction,
};

use super::tables::{META, Outcome, ROWS, Row, SWEPT, VALUES, key_of, named, rows, write};
use crate::store::codec::{NOTE, PAYLOAD, SUMMARY, Unreadable, decode};
use crate::store::{Time, Verified};
use crate::tasks::yield_thread;

/// How many rows of a copy are written in one transaction.
const BATCH: usize = 256;

/// Creates the tables, so that reads need not check whether they exist.
pub(super) fn create(transaction: &WriteTransaction) -> Outcome<()> {
    transaction.open_table(VALUES)?;
    transaction.open_table(ROWS)?;
    transaction.open_table(SWEPT)?;
    Ok(())
}

/// Opens each table and reads its ends, so that most damage shows before the file is used.
pub(super) fn look(db: &Database) -> Outcome<()> {
    let transaction = db.begin_read()?;
    let (values, rows) = (transaction.open_table(VALUES)?, transaction.open_table(ROWS)?);
    let swept = transaction.open_table(SWEPT)?;
    let _ends = (values.first()?, values.last()?, rows.first()?, rows.last()?, swept.first()?, swept.last()?);
    Ok(())
}

/// Reads everything, and checks it.
pub(super) fn verify(db: &Database) -> Outcome<Verified> {
    let (mut verified, transaction) = (Verified::default(), db.begin_read()?);
    let (rows, values) = (transaction.open_table(ROWS)?, transaction.open_table(VALUES)?);
    for row in rows.iter()? {
        let (key, row) = row?;
        let (name, row) = (named(key.value()), Row::read(row.value()));
        let found = match values.get(key.value())? {
            Some(frame) if frame.value().len() as u64 != row.stored_bytes => Some(Unreadable::Damaged),
            Some(frame) => match decode(&name, frame.value()) {
                Ok(value) if value.len() as u64 != row.bytes => Some(Unreadable::Damaged),
                decoded => decoded.err(),
            },
            None => Some(Unreadable::Damaged),
        };
        verified.count(name, found);
    }
    for value in values.iter()? {
        let key = value?.0.value();
        if rows.get(key)?.is_none() {
            verified.count(named(key), Some(Unreadable::Damaged));
        }
    }
    Ok(verified)
}

/// Copies all tables as they are at this moment. The format is copied last: before, the copy is not a store.
pub(super) fn copy(from: &Database, to: &Database) -> Outcome<()> {
    let from = from.begin_read()?;
    copy_table(&from, to, VALUES)?;
    copy_table(&from, to, ROWS)?;
    copy_table(&from, to, SWEPT)?;
    copy_table(&from, to, META)
}

fn copy_table<K: Key + 'static, V: Value + 'static>(
    from: &ReadTransaction,
    to: &Database,
    definition: TableDefinition<'_, K, V>,
) -> Outcome<()> {
    let table = from.open_table(definition)?;
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

// === the clock ===

/// The last use in the file, which is an observation of the clock.
pub(super) fn last_use(db: &Database) -> Outcome<Option<Time>> {
    let mut last = None;
    for row in rows(db, ..)? {
        let (name, row) = row?;
        if matches!(name.kind, PAYLOAD | SUMMARY) {
            last = last.max(Some(row.used));
        }
    }
    Ok(last)
}

/// Sets times that are later than `now` to `now`, after the clock was set back. There is one writer, so the rows do not change
/// before they are written.
pub(super) fn clamp_times(db: &Database, now: Time) -> Outcome<()> {
    let mut wrong = Vec::new();
    for row in rows(db, ..)? {
        let (name, row) = row?;
        // A note has the time until which it is kept.
        if name.kind != NOTE && row.used.max(row.created) > now {
            wrong.push((name, Row { used: row.used.min(now), created: row.created.min(now), ..row }));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    write(db, |transaction| {
        for (name, row) in wrong {
            transaction.open_table(ROWS)?.insert(key_of(name), row.members())?;
        }
        Ok(())
    })
}

/// Flips a bit of each payload, summary and request, in place.
#[cfg(test)]
pub(super) fn flip(db: &Database, bit: usize) {
    let transaction = super::tables::begin(db).unwrap();
    {
        let mut values = transaction.open_table(VALUES).unwrap();
        let all: Vec<_> =
            values.iter().unwrap().map(|row| row.unwrap()).map(|(k, v)| (k.value(), v.value().to_vec())).collect();
        for (key, mut frame) in all.into_iter().filter(|((kind, _), _)| *kind != NOTE) {
            let bit = bit.min(8 * frame.len() - 1);
            frame[bit / 8] ^= 1 << (bit % 8);
            values.insert(key, frame.as_slice()).unwrap();
        }
    }
    transaction.commit().unwrap();
}
