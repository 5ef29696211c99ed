//! Walks over all tables of the file: whether it can be used, what is in it, whether that is whole, and copies of it.

use std::collections::HashSet;

use ::redb::{
    Database, Key, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, Value, WriteTransaction,
};

use super::others::{INSPECTED, INSPECTED_ROWS, NOTES, SUMMARIES, SUMMARY_ROWS, summaries};
use super::tables::{CHAINED, META, Outcome, PAYLOADS, ROWS, SWEPT, existing, payloads, write};
use crate::payload::{ChainKey, PayloadKey};
use crate::store::codec::{Name, Unreadable, decode};
use crate::store::{NoteKind, Time, Verified};
use crate::tasks::yield_thread;

/// How many rows of a copy are written in one transaction.
const BATCH: usize = 256;

/// Does something with each table that every file has. Their types differ, so no function can take them all.
macro_rules! for_each_table {
    ($table:ident => $done:expr) => {
        for_each_table!(
            $table => $done;
            PAYLOADS, ROWS, SWEPT, SUMMARIES, SUMMARY_ROWS, INSPECTED, INSPECTED_ROWS, CHAINED
        )
    };
    ($table:ident => $done:expr; $($definition:ident),*) => {
        $({
            let $table = $definition;
            $done;
        })*
    };
}

/// Creates the tables, so that reads need not check whether they exist.
pub(super) fn create(transaction: &WriteTransaction) -> Outcome<()> {
    for_each_table!(table => transaction.open_table(table)?);
    Ok(())
}

/// Opens each table and reads its ends, so that most damage shows before the file is used.
pub(super) fn look(db: &Database) -> Outcome<()> {
    let transaction = db.begin_read()?;
    for_each_table!(table => {
        let table = transaction.open_table(table)?;
        let _ends = (table.first()?, table.last()?);
    });
    Ok(())
}

/// The names of all payloads and summaries.
pub(super) fn names(db: &impl ReadableDatabase) -> Outcome<HashSet<Name>> {
    let (mut names, transaction) = (HashSet::new(), db.begin_read()?);
    for row in transaction.open_table(ROWS)?.iter()? {
        names.insert(Name::of_payload(PayloadKey::from_bytes(row?.0.value())));
    }
    for row in transaction.open_table(PAYLOADS)?.iter()? {
        names.insert(Name::of_payload(PayloadKey::from_bytes(row?.0.value())));
    }
    for row in transaction.open_table(SUMMARIES)?.iter()? {
        names.insert(Name::of_summary(ChainKey::from_bytes(row?.0.value())));
    }
    Ok(names)
}

/// Reads everything, and checks it.
pub(super) fn verify(db: &Database) -> Outcome<Verified> {
    let (mut verified, transaction) = (Verified::default(), db.begin_read()?);
    let (rows, payloads) = (transaction.open_table(ROWS)?, transaction.open_table(PAYLOADS)?);
    for row in rows.iter()? {
        let (key, row) = row?;
        let key = key.value();
        let (.., plain_len, stored_len) = row.value();
        let name = Name::of_payload(PayloadKey::from_bytes(key));
        let found = match payloads.get(key)? {
            Some(frame) if frame.value().len() as u64 != stored_len => Some(Unreadable::Damaged),
            Some(frame) => match decode(&name, frame.value()) {
                Ok(payload) if payload.len() as u64 != plain_len => Some(Unreadable::Damaged),
                decoded => decoded.err(),
            },
            None => Some(Unreadable::Damaged),
        };
        verified.count(name, found);
    }
    for payload in payloads.iter()? {
        let key = payload?.0.value();
        if rows.get(key)?.is_none() {
            verified.count(Name::of_payload(PayloadKey::from_bytes(key)), Some(Unreadable::Damaged));
        }
    }
    for summary in transaction.open_table(SUMMARIES)?.iter()? {
        let (beginning, frame) = summary?;
        let name = Name::of_summary(ChainKey::from_bytes(beginning.value()));
        verified.count(name, decode(&name, frame.value()).err());
    }
    let texts = transaction.open_table(INSPECTED)?;
    for row in transaction.open_table(INSPECTED_ROWS)?.iter()? {
        let (n, row) = row?;
        let name = Name::of_inspected(&String::from_utf8_lossy(row.value().0));
        let frame = texts.get(n.value())?;
        verified.count(name, frame.map_or(Some(Unreadable::Damaged), |frame| decode(&name, frame.value()).err()));
    }
    let Some(notes) = existing(&transaction, NOTES)? else { return Ok(verified) };
    for row in notes.iter()? {
        let (name, row) = row?;
        let (label, key) = name.value();
        // Kinds of a later version are left out.
        if let Ok(kind) = label.parse::<NoteKind>() {
            let name = Name::of_note(kind, ChainKey::from_bytes(key));
            verified.count(name, decode(&name, row.value().1).err());
        }
    }
    Ok(verified)
}

/// Copies all tables as they are at this moment. The format is copied last: before, the copy is not a store.
pub(super) fn copy(from: &Database, to: &Database) -> Outcome<()> {
    let from = from.begin_read()?;
    for_each_table!(table => copy_table(&from, to, table)?);
    copy_table(&from, to, NOTES)?;
    copy_table(&from, to, META)
}

/// Copies the rows of a table, if it is there.
fn copy_table<K: Key + 'static, V: Value + 'static>(
    from: &ReadTransaction,
    to: &Database,
    definition: TableDefinition<'_, K, V>,
) -> Outcome<()> {
    let Some(table) = existing(from, definition)? else { return Ok(()) };
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
    for payload in payloads(db)? {
        last = last.max(Some(payload?.used));
    }
    for summary in summaries(db)? {
        last = last.max(Some(summary?.1));
    }
    Ok(last)
}

/// Sets times that are later than `now` to `now`, after the clock was set back.
pub(super) fn clamp_times(db: &Database, Time(now): Time) -> Outcome<()> {
    let file = db.begin_read()?;
    let payloads = future_rows(&file.open_table(ROWS)?, |key, (used, created, bytes, stored_bytes)| {
        (used.max(created) > now).then(|| (key, (used.min(now), created.min(now), bytes, stored_bytes)))
    })?;
    let swept = future_rows(&file.open_table(SWEPT)?, |key, time| (time > now).then_some(key))?;
    let summaries = future_rows(&file.open_table(SUMMARY_ROWS)?, |key, (used, stored_bytes)| {
        (used > now).then_some((key, stored_bytes))
    })?;
    let requests = future_rows(&file.open_table(INSPECTED_ROWS)?, |n, (id, kept, stored_bytes)| {
        (kept > now).then(|| (n, id.to_vec(), stored_bytes))
    })?;
    drop(file);
    if payloads.is_empty() && swept.is_empty() && summaries.is_empty() && requests.is_empty() {
        return Ok(());
    }
    write(db, |transaction| {
        for (key, row) in payloads {
            transaction.open_table(ROWS)?.insert(key, row)?;
        }
        for key in swept {
            transaction.open_table(SWEPT)?.insert(key, now)?;
        }
        for (key, stored_bytes) in summaries {
            transaction.open_table(SUMMARY_ROWS)?.insert(key, (now, stored_bytes))?;
        }
        for (n, id, stored_bytes) in requests {
            transaction.open_table(INSPECTED_ROWS)?.insert(n, (id.as_slice(), now, stored_bytes))?;
        }
        Ok(())
    })
}

/// Collects what `corrected` returns for the rows. There is one writer, so the rows do not change before they are
/// written.
fn future_rows<K: Key + 'static, V: Value + 'static, T>(
    rows: &impl ReadableTable<K, V>,
    corrected: impl Fn(K::SelfType<'_>, V::SelfType<'_>) -> Option<T>,
) -> Outcome<Vec<T>> {
    let mut wrong = Vec::new();
    for row in rows.iter()? {
        let (key, value) = row?;
        wrong.extend(corrected(key.value(), value.value()));
    }
    Ok(wrong)
}

/// Flips a bit of each payload, summary and request, in place.
#[cfg(test)]
pub(super) fn flip(db: &Database, bit: usize) {
    fn flip_all<K>(transaction: &WriteTransaction, table: TableDefinition<'_, K, &'static [u8]>, bit: usize)
    where
        for<'k> K: Value<SelfType<'k> = K>,
        K: Key + Copy + 'static,
    {
        let mut table = transaction.open_table(table).unwrap();
        let rows: Vec<_> =
            table.iter().unwrap().map(|row| row.unwrap()).map(|(k, v)| (k.value(), v.value().to_vec())).collect();
        for (key, mut frame) in rows {
            let bit = bit.min(8 * frame.len() - 1);
            frame[bit / 8] ^= 1 << (bit % 8);
            table.insert(key, frame.as_slice()).unwrap();
        }
    }
    let transaction = super::tables::begin(db).unwrap();
    flip_all(&transaction, PAYLOADS, bit);
    flip_all(&transaction, SUMMARIES, bit);
    flip_all(&transaction, INSPECTED, bit);
    transaction.commit().unwrap();
}
