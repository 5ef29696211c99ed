//! What is in the file, and what is done to it. Every function is one transaction, or a step of one.

use std::collections::{HashMap, HashSet};

use ::redb::{
    Database, Error, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition, TableError,
    WriteTransaction,
};
use bytes::Bytes;

use super::packed::{Packed, unpack};
use crate::payload::{ChainKey, PayloadKey};
use crate::store::{Entry, TOMBSTONES, Time};

pub(super) mod clock;

/// The version of the tables, and the secret.
pub(super) const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta_v1");
/// Packed payloads.
const PAYLOADS: TableDefinition<'_, [u8; 16], &[u8]> = TableDefinition::new("payloads_v1");
/// Beside each payload: last use, first write, its length, its length in the file. Apart from the payloads, so that a sweep
/// reads nothing else.
const ROWS: TableDefinition<'_, [u8; 16], (u64, u64, u64, u64)> = TableDefinition::new("rows_v1");
/// When a payload was swept.
const SWEPT: TableDefinition<'_, [u8; 16], u64> = TableDefinition::new("swept_v1");

/// Packed summaries, by the beginnings that they stand for.
const SUMMARIES: TableDefinition<'_, [u8; 16], &[u8]> = TableDefinition::new("summaries_v1");
/// Beside each summary: last use, and its length in the file.
const SUMMARY_ROWS: TableDefinition<'_, [u8; 16], (u64, u64)> = TableDefinition::new("summary_rows_v1");

/// What was kept of requests, packed, in the order it came in.
const INSPECTED: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("inspected_v1");
/// Beside each: the request's id, when it was kept, and its length in the file.
const INSPECTED_ROWS: TableDefinition<'_, u64, (&str, u64, u64)> = TableDefinition::new("inspected_rows_v1");

/// What became of payloads that were to be kept.
#[derive(Debug, Default)]
pub(super) struct Put {
    /// Each key, and the last use that the file has of it.
    pub(super) kept: Vec<(PayloadKey, Time)>,
    /// How many were not there before.
    pub(super) written: u64,
    /// Their length.
    pub(super) bytes: u64,
    /// What those take.
    pub(super) stored_bytes: u64,
}

/// What a transaction did to the length of all that is kept.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Moved {
    /// How many were removed.
    pub(super) n_out: u64,
    /// The bytes that came.
    pub(super) bytes_in: u64,
    /// The bytes that went.
    pub(super) bytes_out: u64,
}

/// A transaction that is durable once it is committed, and quick to reopen after a crash.
pub(super) fn begin(db: &Database) -> Result<WriteTransaction, Error> {
    let mut transaction = db.begin_write()?;
    transaction.set_quick_repair(true);
    Ok(transaction)
}

/// Makes the tables that are not there, so that nobody who reads has to ask.
pub(super) fn create(transaction: &WriteTransaction) -> Result<(), TableError> {
    transaction.open_table(PAYLOADS)?;
    transaction.open_table(ROWS)?;
    transaction.open_table(SWEPT)?;
    transaction.open_table(SUMMARIES)?;
    transaction.open_table(SUMMARY_ROWS)?;
    transaction.open_table(INSPECTED)?;
    transaction.open_table(INSPECTED_ROWS)?;
    Ok(())
}

/// Version 2: there are summaries.
pub(super) fn add_summaries(transaction: &WriteTransaction) -> Result<(), Error> {
    transaction.open_table(SUMMARIES)?;
    transaction.open_table(SUMMARY_ROWS)?;
    Ok(())
}

/// Version 3: there is what was kept of requests.
pub(super) fn add_inspected(transaction: &WriteTransaction) -> Result<(), Error> {
    transaction.open_table(INSPECTED)?;
    transaction.open_table(INSPECTED_ROWS)?;
    Ok(())
}

/// Keeps payloads: all, or none. Those that are there already cost no transaction.
pub(super) fn put(db: &Database, payloads: &[(PayloadKey, Packed)], now: Time) -> Result<Put, Error> {
    let mut put = Put::default();
    let missing: Vec<_> = {
        let rows = db.begin_read()?.open_table(ROWS)?;
        let mut missing = Vec::new();
        for (key, packed) in payloads {
            match rows.get(key.as_bytes())? {
                Some(row) => put.kept.push((*key, Time(row.value().0))),
                None => missing.push((*key, packed)),
            }
        }
        missing
    };
    if missing.is_empty() {
        return Ok(put);
    }
    let transaction = begin(db)?;
    insert(&transaction, &missing, now, &mut put)?;
    transaction.commit()?;
    Ok(put)
}

fn insert(
    transaction: &WriteTransaction,
    missing: &[(PayloadKey, &Packed)],
    now: Time,
    put: &mut Put,
) -> Result<(), Error> {
    let mut payloads = transaction.open_table(PAYLOADS)?;
    let mut rows = transaction.open_table(ROWS)?;
    let mut swept = transaction.open_table(SWEPT)?;
    let mut seen = HashSet::new();
    for (key, packed) in missing {
        if !seen.insert(*key) {
            continue;
        }
        let bytes = key.as_bytes();
        packed.write(payloads.insert_reserve(bytes, packed.len())?.as_mut());
        let stored_bytes = packed.len() as u64;
        rows.insert(bytes, (now.0, now.0, packed.plain_len, stored_bytes))?;
        swept.remove(bytes)?;
        put.kept.push((*key, now));
        put.written += 1;
        put.bytes += packed.plain_len;
        put.stored_bytes += stored_bytes;
    }
    Ok(())
}

/// The payload.
pub(super) fn get(db: &Database, key: PayloadKey) -> Result<Option<Bytes>, Error> {
    let Some(stored) = db.begin_read()?.open_table(PAYLOADS)?.get(key.as_bytes())? else { return Ok(None) };
    unpack(stored.value()).map(Some).ok_or_else(|| Error::Corrupted(format!("payload {key}")))
}

/// Whether a payload was swept.
pub(super) fn was_swept(db: &Database, key: PayloadKey) -> Result<bool, Error> {
    Ok(db.begin_read()?.open_table(SWEPT)?.get(key.as_bytes())?.is_some())
}

/// Those of the keys that are kept, and when they were last used as far as the file says.
pub(super) fn used(db: &Database, keys: &[PayloadKey]) -> Result<Vec<(PayloadKey, Time)>, Error> {
    let rows = db.begin_read()?.open_table(ROWS)?;
    let mut used = Vec::new();
    for key in keys {
        if let Some(row) = rows.get(key.as_bytes())? {
            used.push((*key, Time(row.value().0)));
        }
    }
    Ok(used)
}

/// Writes down when payloads were used.
pub(super) fn write_uses(db: &Database, uses: &[(PayloadKey, Time)]) -> Result<(), Error> {
    if uses.is_empty() {
        return Ok(());
    }
    let transaction = begin(db)?;
    {
        let mut rows = transaction.open_table(ROWS)?;
        for (key, used) in uses {
            let row = rows.get(key.as_bytes())?.map(|row| row.value());
            if let Some((before, created, bytes, stored_bytes)) = row.filter(|row| row.0 < used.0) {
                rows.insert(key.as_bytes(), (before.max(used.0), created, bytes, stored_bytes))?;
            }
        }
    }
    transaction.commit()?;
    Ok(())
}

/// Shows each payload to `see`, without its content, in the order of the keys.
pub(super) fn each(db: &Database, mut see: impl FnMut(Entry)) -> Result<(), Error> {
    let rows = db.begin_read()?.open_table(ROWS)?;
    for row in rows.iter()? {
        let (key, row) = row?;
        let (used, created, bytes, stored_bytes) = row.value();
        let key = PayloadKey::from_bytes(key.value());
        see(Entry { key, bytes, stored_bytes, created: Time(created), used: Time(used) });
    }
    Ok(())
}

/// Removes payloads, and remembers that they were there.
pub(super) fn remove(db: &Database, keys: &[PayloadKey], now: Time) -> Result<(), Error> {
    let transaction = begin(db)?;
    {
        let mut payloads = transaction.open_table(PAYLOADS)?;
        let mut rows = transaction.open_table(ROWS)?;
        let mut swept = transaction.open_table(SWEPT)?;
        for key in keys {
            payloads.remove(key.as_bytes())?;
            rows.remove(key.as_bytes())?;
            swept.insert(key.as_bytes(), now.0)?;
        }
    }
    transaction.commit()?;
    Ok(())
}

/// How many swept payloads are remembered.
pub(super) fn n_tombstones(db: &Database) -> Result<u64, Error> {
    Ok(db.begin_read()?.open_table(SWEPT)?.len()?)
}

/// Forgets the swept payloads that are too old or too many.
pub(super) fn trim_tombstones(db: &Database, now: Time) -> Result<(), Error> {
    let (most, age) = TOMBSTONES;
    let mut oldest = now.0.saturating_sub(age.as_secs());
    {
        let swept = db.begin_read()?.open_table(SWEPT)?;
        let mut times = swept.iter()?.map(|row| Ok(row?.1.value())).collect::<Result<Vec<u64>, Error>>()?;
        times.sort_unstable_by(|one, other| other.cmp(one));
        let first_too_many = usize::try_from(most).ok().and_then(|most| times.get(most)).map(|time| time + 1);
        oldest = oldest.max(first_too_many.unwrap_or(0));
        if times.last().is_none_or(|time| *time >= oldest) {
            return Ok(());
        }
    }
    let transaction = begin(db)?;
    transaction.open_table(SWEPT)?.retain(|_, time| time >= oldest)?;
    transaction.commit()?;
    Ok(())
}

impl Moved {
    fn goes(&mut self, bytes: u64) {
        self.n_out += 1;
        self.bytes_out += bytes;
    }
}

// === summaries ===

/// Keeps a summary, in place of one that was kept.
pub(super) fn put_summary(db: &Database, beginning: ChainKey, packed: &Packed, now: Time) -> Result<Moved, Error> {
    let mut moved = Moved { bytes_in: packed.len() as u64, ..Moved::default() };
    let transaction = begin(db)?;
    {
        let mut summaries = transaction.open_table(SUMMARIES)?;
        let mut rows = transaction.open_table(SUMMARY_ROWS)?;
        packed.write(summaries.insert_reserve(beginning.as_bytes(), packed.len())?.as_mut());
        let before = rows.insert(beginning.as_bytes(), (now.0, packed.len() as u64))?;
        moved.bytes_out = before.map_or(0, |before| before.value().1);
    }
    transaction.commit()?;
    Ok(moved)
}

/// The summary.
pub(super) fn summary(db: &Database, beginning: ChainKey) -> Result<Option<Bytes>, Error> {
    let Some(stored) = db.begin_read()?.open_table(SUMMARIES)?.get(beginning.as_bytes())? else { return Ok(None) };
    unpack(stored.value()).map(Some).ok_or_else(|| Error::Corrupted(format!("summary {beginning:?}")))
}

/// Shows each summary to `see`: its beginning, when it was used, and what it takes.
pub(super) fn each_summary(db: &Database, mut see: impl FnMut(ChainKey, Time, u64)) -> Result<(), Error> {
    let rows = db.begin_read()?.open_table(SUMMARY_ROWS)?;
    for row in rows.iter()? {
        let (beginning, row) = row?;
        let (used, stored_bytes) = row.value();
        see(ChainKey::from_bytes(beginning.value()), Time(used), stored_bytes);
    }
    Ok(())
}

/// Which summaries stay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Worth {
    /// How many.
    pub(super) most: usize,
    /// The bytes of all of them in the file.
    pub(super) bytes: u64,
    /// Used since then.
    pub(super) oldest: Time,
}

/// Writes down the noted uses of summaries, and removes those that are not worth their place: what was used last stays.
pub(super) fn sweep_summaries(db: &Database, noted: &HashMap<ChainKey, Time>, worth: Worth) -> Result<Moved, Error> {
    let (mut rows, mut changed) = (Vec::new(), Vec::new());
    each_summary(db, |beginning, written, stored_bytes| {
        let used = noted.get(&beginning).map_or(written, |used| written.max(*used));
        if used > written {
            changed.push((beginning, used, stored_bytes));
        }
        rows.push((used, beginning, stored_bytes));
    })?;
    rows.sort_unstable_by(|one, other| other.cmp(one));
    let mut bytes = 0_u64;
    let stays = |(n, (used, _, stored_bytes)): &(usize, &(Time, ChainKey, u64))| {
        bytes = bytes.saturating_add(*stored_bytes);
        *n < worth.most && bytes <= worth.bytes && *used >= worth.oldest
    };
    let n_stay = rows.iter().enumerate().take_while(stays).count();
    let going = rows.split_off(n_stay);
    if going.is_empty() && changed.is_empty() {
        return Ok(Moved::default());
    }
    let transaction = begin(db)?;
    {
        let mut summaries = transaction.open_table(SUMMARIES)?;
        let mut rows = transaction.open_table(SUMMARY_ROWS)?;
        for (beginning, used, stored_bytes) in changed {
            rows.insert(beginning.as_bytes(), (used.0, stored_bytes))?;
        }
        for (_, beginning, _) in &going {
            summaries.remove(beginning.as_bytes())?;
            rows.remove(beginning.as_bytes())?;
        }
    }
    transaction.commit()?;
    let bytes_out = going.iter().map(|(.., stored_bytes)| stored_bytes).sum();
    Ok(Moved { n_out: going.len() as u64, bytes_out, ..Moved::default() })
}

// === requests ===

/// What may stay of what was kept of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// How many.
    pub(super) most: usize,
    /// The bytes of all of them in the file.
    pub(super) bytes: u64,
    /// Kept since then.
    pub(super) oldest: Time,
}

/// Keeps something of a request, and removes what there is no room for.
pub(super) fn put_inspected(db: &Database, id: &str, packed: &Packed, now: Time, room: Room) -> Result<Moved, Error> {
    let transaction = begin(db)?;
    let mut moved = Moved { bytes_in: packed.len() as u64, ..Moved::default() };
    {
        let mut texts = transaction.open_table(INSPECTED)?;
        let mut rows = transaction.open_table(INSPECTED_ROWS)?;
        let next = rows.last()?.map_or(0, |(last, _)| last.value() + 1);
        packed.write(texts.insert_reserve(next, packed.len())?.as_mut());
        rows.insert(next, (id, now.0, packed.len() as u64))?;
        for n in too_many(&rows, room)? {
            texts.remove(n)?;
            moved.goes(rows.remove(n)?.map_or(0, |row| row.value().2));
        }
    }
    transaction.commit()?;
    Ok(moved)
}

/// What was kept of a request.
pub(super) fn inspected(db: &Database, id: &str) -> Result<Option<Bytes>, Error> {
    let transaction = db.begin_read()?;
    for row in transaction.open_table(INSPECTED_ROWS)?.iter()?.rev() {
        let (n, row) = row?;
        if row.value().0 == id {
            let Some(stored) = transaction.open_table(INSPECTED)?.get(n.value())? else { return Ok(None) };
            return unpack(stored.value()).map(Some).ok_or_else(|| Error::Corrupted(format!("request {id}")));
        }
    }
    Ok(None)
}

/// Removes what there is no room for.
pub(super) fn trim_inspected(db: &Database, room: Room) -> Result<Moved, Error> {
    let mut moved = Moved::default();
    if too_many(&db.begin_read()?.open_table(INSPECTED_ROWS)?, room)?.is_empty() {
        return Ok(moved);
    }
    let transaction = begin(db)?;
    {
        let mut texts = transaction.open_table(INSPECTED)?;
        let mut rows = transaction.open_table(INSPECTED_ROWS)?;
        for n in too_many(&rows, room)? {
            texts.remove(n)?;
            moved.goes(rows.remove(n)?.map_or(0, |row| row.value().2));
        }
    }
    transaction.commit()?;
    Ok(moved)
}

fn too_many(rows: &impl ReadableTable<u64, (&'static str, u64, u64)>, room: Room) -> Result<Vec<u64>, Error> {
    let (mut n_kept, mut bytes) = (0, 0_u64);
    let mut going = Vec::new();
    for row in rows.iter()?.rev() {
        let (n, row) = row?;
        let (_, kept, stored_bytes) = row.value();
        bytes = bytes.saturating_add(stored_bytes);
        if n_kept >= room.most || bytes > room.bytes || kept < room.oldest.0 {
            going.push(n.value());
        } else {
            n_kept += 1;
        }
    }
    Ok(going)
}

/// How many requests something was kept of, and what that takes.
pub(super) fn n_inspected(db: &Database) -> Result<(u64, u64), Error> {
    let rows = db.begin_read()?.open_table(INSPECTED_ROWS)?;
    let mut total = (0, 0);
    for row in rows.iter()? {
        total = (total.0 + 1, total.1 + row?.1.value().2);
    }
    Ok(total)
}

/// Makes the file one of version 1.
#[cfg(test)]
pub(super) fn make_old(db: &Database) -> Result<(), Error> {
    let transaction = begin(db)?;
    transaction.delete_table(SUMMARIES)?;
    transaction.delete_table(SUMMARY_ROWS)?;
    transaction.delete_table(INSPECTED)?;
    transaction.delete_table(INSPECTED_ROWS)?;
    transaction.open_table(META)?.insert("version", 1_u32.to_le_bytes().as_slice())?;
    transaction.commit()?;
    Ok(())
}
