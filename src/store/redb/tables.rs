//! The tables of payloads in the file and the operations on them. Each function is one transaction, or a step of one.

use std::collections::HashSet;

use ::redb::{
    Database, Error, Key, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata,
    TableDefinition, TableError, Value, WriteTransaction,
};

use crate::payload::{Lifetime, Payload, PayloadKey};
use crate::store::codec::{Name, Unreadable, check, decode};
use crate::store::{PayloadInfo, TOMBSTONES, Time};
use crate::tasks::yield_thread;

/// The schema version and the secret.
pub(super) const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta_v1");
/// Encoded payloads.
pub(super) const PAYLOADS: TableDefinition<'_, [u8; 16], &[u8]> = TableDefinition::new("payloads_v1");
/// For each payload: last use, creation, length, length in the file. Its own table, so that a sweep reads nothing
/// else.
pub(super) const ROWS: TableDefinition<'_, [u8; 16], (u64, u64, u64, u64)> = TableDefinition::new("rows_v1");
/// When each remembered payload was swept.
pub(super) const SWEPT: TableDefinition<'_, [u8; 16], u64> = TableDefinition::new("swept_v1");
/// The payloads with the longer lifetime: those that the conversation of an upstream names.
pub(super) const CHAINED: TableDefinition<'_, [u8; 16], ()> = TableDefinition::new("chained_v1");

/// A payload to be stored.
pub(super) struct NewPayload {
    /// Its name.
    pub(super) key: PayloadKey,
    /// The bytes that are written.
    pub(super) frame: Vec<u8>,
    /// Its length before encoding.
    pub(super) bytes: u64,
    /// How long it is kept at least.
    pub(super) lifetime: Lifetime,
}

/// The result of storing payloads.
#[derive(Debug, Default)]
pub(super) struct PutResult {
    /// Each key, a lifetime that it has in the file, and its last use there.
    pub(super) kept: Vec<(PayloadKey, Lifetime, Time)>,
    /// Whether there was anything to write.
    pub(super) committed: bool,
    /// How many payloads were new.
    pub(super) written: u64,
    /// The length of the new ones.
    pub(super) bytes: u64,
    /// The length of the new ones in the file.
    pub(super) stored_bytes: u64,
    /// Those that were damaged, and are written anew.
    pub(super) mended: Vec<PayloadKey>,
}

/// The outcome of an operation on the file.
pub(super) type Outcome<T> = Result<T, Error>;

/// A decoded row.
pub(super) type Stored = Result<Payload, Unreadable>;

/// Begins a transaction that is durable once committed, and quick to reopen after a crash.
pub(super) fn begin(db: &Database) -> Outcome<WriteTransaction> {
    let mut transaction = db.begin_write()?;
    transaction.set_quick_repair(true);
    Ok(transaction)
}

/// Writes in one transaction.
pub(super) fn write<T>(db: &Database, write: impl FnOnce(&WriteTransaction) -> Outcome<T>) -> Outcome<T> {
    let transaction = begin(db)?;
    let written = write(&transaction)?;
    transaction.commit()?;
    Ok(written)
}

/// A table, if it is there.
pub(super) fn existing<K: Key + 'static, V: Value + 'static>(
    transaction: &ReadTransaction,
    table: TableDefinition<'_, K, V>,
) -> Outcome<Option<ReadOnlyTable<K, V>>> {
    match transaction.open_table(table) {
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        opened => Ok(Some(opened?)),
    }
}

/// Stores all payloads, or none. Payloads that are stored already, for as long, need no transaction.
pub(super) fn put(db: &Database, payloads: &[NewPayload], now: Time) -> Outcome<PutResult> {
    let mut put = PutResult::default();
    let (mut missing, mut prolonged) = (Vec::new(), Vec::new());
    {
        let transaction = db.begin_read()?;
        let (rows, stored) = (transaction.open_table(ROWS)?, transaction.open_table(PAYLOADS)?);
        let chained = transaction.open_table(CHAINED)?;
        for new in payloads {
            let key = new.key.as_bytes();
            if new.lifetime == Lifetime::Chained && chained.get(key)?.is_none() {
                prolonged.push(key);
            }
            let Some(row) = rows.get(key)? else {
                missing.push(new);
                continue;
            };
            // This process has not put it before, so it may have been damaged meanwhile.
            let checked = match stored.get(key)? {
                Some(frame) => check(&Name::of_payload(new.key), frame.value()),
                None => Err(Unreadable::Damaged),
            };
            if checked == Err(Unreadable::Damaged) {
                put.mended.push(new.key);
                missing.push(new);
            } else {
                put.kept.push((new.key, new.lifetime, Time(row.value().0)));
            }
        }
    }
    if missing.is_empty() && prolonged.is_empty() {
        return Ok(put);
    }
    write(db, |transaction| {
        insert(transaction, &missing, now, &mut put)?;
        let mut chained = transaction.open_table(CHAINED)?;
        for key in prolonged {
            chained.insert(key, ())?;
        }
        Ok(())
    })?;
    put.committed = true;
    Ok(put)
}

fn insert(transaction: &WriteTransaction, missing: &[&NewPayload], now: Time, put: &mut PutResult) -> Outcome<()> {
    let mut payloads = transaction.open_table(PAYLOADS)?;
    let mut rows = transaction.open_table(ROWS)?;
    let mut swept = transaction.open_table(SWEPT)?;
    let mut seen = HashSet::new();
    for NewPayload { key, frame, bytes, lifetime } in missing {
        if !seen.insert(*key) {
            continue;
        }
        let stored_bytes = frame.len() as u64;
        payloads.insert(key.as_bytes(), frame.as_slice())?;
        rows.insert(key.as_bytes(), (now.0, now.0, *bytes, stored_bytes))?;
        swept.remove(key.as_bytes())?;
        put.kept.push((*key, *lifetime, now));
        put.written += 1;
        put.bytes += bytes;
        put.stored_bytes += stored_bytes;
        yield_thread();
    }
    Ok(())
}

/// Reads a payload.
pub(super) fn get(db: &Database, key: PayloadKey) -> Outcome<Option<Stored>> {
    // The value is read before the table is dropped: without it the writer may free the page.
    let transaction = db.begin_read()?;
    if let Some(stored) = transaction.open_table(PAYLOADS)?.get(key.as_bytes())? {
        return Ok(Some(decode(&Name::of_payload(key), stored.value())));
    }
    // Both tables have a key, or neither.
    let is_known = transaction.open_table(ROWS)?.get(key.as_bytes())?.is_some();
    Ok(is_known.then_some(Err(Unreadable::Damaged)))
}

/// Whether a payload was swept.
pub(super) fn was_swept(db: &Database, key: PayloadKey) -> Outcome<bool> {
    Ok(db.begin_read()?.open_table(SWEPT)?.get(key.as_bytes())?.is_some())
}

/// The stored ones of the keys, with their last use in the file.
pub(super) fn last_uses(db: &Database, keys: &[PayloadKey]) -> Outcome<Vec<(PayloadKey, Time)>> {
    let rows = db.begin_read()?.open_table(ROWS)?;
    let mut used = Vec::new();
    for key in keys {
        if let Some(row) = rows.get(key.as_bytes())? {
            used.push((*key, Time(row.value().0)));
        }
    }
    Ok(used)
}

/// Writes uses of payloads.
pub(super) fn write_uses(db: &Database, uses: &[(PayloadKey, Time)]) -> Outcome<()> {
    if uses.is_empty() {
        return Ok(());
    }
    write(db, |transaction| {
        let mut rows = transaction.open_table(ROWS)?;
        for (key, used) in uses {
            let row = rows.get(key.as_bytes())?.map(|row| row.value());
            if let Some((before, created, bytes, stored_bytes)) = row.filter(|row| row.0 < used.0) {
                rows.insert(key.as_bytes(), (before.max(used.0), created, bytes, stored_bytes))?;
            }
        }
        Ok(())
    })
}

/// Each payload, without its content, in the order of the keys.
pub(super) fn payloads(db: &Database) -> Outcome<impl Iterator<Item = Outcome<PayloadInfo>>> {
    let rows = db.begin_read()?.open_table(ROWS)?.range::<[u8; 16]>(..)?;
    Ok(rows.map(|row| {
        let (key, row) = row?;
        let (used, created, bytes, stored_bytes) = row.value();
        let key = PayloadKey::from_bytes(key.value());
        Ok(PayloadInfo { key, bytes, stored_bytes, created: Time(created), used: Time(used) })
    }))
}

/// All payloads with the longer lifetime.
pub(super) fn chained(db: &Database) -> Outcome<HashSet<PayloadKey>> {
    let chained = db.begin_read()?.open_table(CHAINED)?;
    chained.iter()?.map(|row| Ok(PayloadKey::from_bytes(row?.0.value()))).collect()
}

/// Removes payloads, and remembers them as swept.
pub(super) fn remove(db: &Database, keys: &[PayloadKey], now: Time) -> Outcome<()> {
    write(db, |transaction| {
        let mut payloads = transaction.open_table(PAYLOADS)?;
        let mut rows = transaction.open_table(ROWS)?;
        let mut chained = transaction.open_table(CHAINED)?;
        let mut swept = transaction.open_table(SWEPT)?;
        for key in keys {
            payloads.remove(key.as_bytes())?;
            rows.remove(key.as_bytes())?;
            chained.remove(key.as_bytes())?;
            swept.insert(key.as_bytes(), now.0)?;
        }
        Ok(())
    })
}

/// How many swept payloads are remembered.
pub(super) fn count_tombstones(db: &Database) -> Outcome<u64> {
    Ok(db.begin_read()?.open_table(SWEPT)?.len()?)
}

/// Forgets swept payloads that are too old or too many.
pub(super) fn trim_tombstones(db: &Database, now: Time) -> Outcome<()> {
    let (most, age) = TOMBSTONES;
    let swept = db.begin_read()?.open_table(SWEPT)?;
    let mut times = swept.iter()?.map(|row| Ok(row?.1.value())).collect::<Outcome<Vec<u64>>>()?;
    drop(swept);
    times.sort_unstable_by(|one, other| other.cmp(one));
    let first_too_many = usize::try_from(most).ok().and_then(|most| times.get(most));
    let oldest_of_most = first_too_many.map_or(0, |time| time.saturating_add(1));
    let oldest = now.0.saturating_sub(age.as_secs()).max(oldest_of_most);
    if times.last().is_none_or(|time| *time >= oldest) {
        return Ok(());
    }
    write(db, |transaction| Ok(transaction.open_table(SWEPT)?.retain(|_, time| time >= oldest)?))
}
