//! The tables of the file and the operations on payloads. Each function is one transaction, or a step of one.

use std::collections::HashSet;
use std::ops::{RangeBounds, RangeInclusive};

use ::redb::{
    Database, Error, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition, WriteTransaction,
};

use crate::payload::{Lifetime, Payload, PayloadKey};
use crate::store::codec::{Name, PAYLOAD, Unreadable, check, decode, encode};
use crate::store::{PayloadInfo, TOMBSTONES, Time};
use crate::tasks::yield_thread;

/// The kind and the identifier of a value.
type Key = (u8, [u8; 16]);

/// The members of a [`Row`], in their order.
type RowMembers<'a> = (u64, u64, u64, u64, u64, bool, &'a [u8]);

/// The schema version and the secret.
pub(super) const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta_v1");
/// Encoded payloads, summaries, inspected requests and notes.
pub(super) const VALUES: TableDefinition<'_, Key, &[u8]> = TableDefinition::new("values_v1");
/// A [`Row`] for each of them. Its own table, so that a sweep reads nothing else.
pub(super) const ROWS: TableDefinition<'_, Key, RowMembers<'_>> = TableDefinition::new("rows_v2");
/// When each remembered payload was swept.
pub(super) const SWEPT: TableDefinition<'_, [u8; 16], u64> = TableDefinition::new("swept_v1");

/// A value to be stored.
pub(super) struct NewValue {
    /// Its name.
    pub(super) name: Name,
    /// The bytes that are written.
    pub(super) frame: Vec<u8>,
    /// Its length before encoding.
    pub(super) bytes: u64,
    /// How long it is kept at least.
    pub(super) lifetime: Lifetime,
}

/// A stored value, without its content.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    /// Its last use. Of a note: until when it is kept.
    pub(super) used: Time,
    /// When it was stored.
    pub(super) created: Time,
    /// Its length before encoding.
    pub(super) bytes: u64,
    /// Its length in the file.
    pub(super) stored_bytes: u64,
    /// Numbers inspected requests in the order of arrival; 0 for others.
    pub(super) arrival: u64,
    /// Whether it is a payload with the longer lifetime: one that the conversation of an upstream names.
    pub(super) is_chained: bool,
    /// The id of an inspected request, or the name of a note.
    pub(super) label: Vec<u8>,
}

/// The result of storing payloads.
#[derive(Debug, Default)]
pub(super) struct PutResult {
    /// Each name, a lifetime that it has in the file, and its last use there.
    pub(super) kept: Vec<(Name, Lifetime, Time)>,
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

// === impl NewValue ===

impl NewValue {
    /// Encodes a value.
    pub(super) fn new(name: Name, value: &Payload, lifetime: Lifetime) -> Self {
        Self { name, frame: encode(&name, value), bytes: value.len() as u64, lifetime }
    }

    /// The key of a payload.
    pub(super) fn key(&self) -> PayloadKey {
        PayloadKey::from_bytes(self.name.id)
    }
}

// === impl Row ===

impl Row {
    pub(super) fn new(NewValue { frame, bytes, lifetime, .. }: &NewValue, now: Time) -> Self {
        Self {
            used: now,
            created: now,
            bytes: *bytes,
            stored_bytes: frame.len() as u64,
            is_chained: *lifetime == Lifetime::Chained,
            ..Self::default()
        }
    }

    pub(super) fn read(members: RowMembers<'_>) -> Self {
        let (used, created, bytes, stored_bytes, arrival, is_chained, label) = members;
        let (used, created, label) = (Time(used), Time(created), label.to_vec());
        Self { used, created, bytes, stored_bytes, arrival, is_chained, label }
    }

    pub(super) fn members(&self) -> RowMembers<'_> {
        let Self { used, created, bytes, stored_bytes, arrival, is_chained, label } = self;
        (used.0, created.0, *bytes, *stored_bytes, *arrival, *is_chained, label)
    }
}

// === all kinds ===

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

/// The key of a value in the tables.
pub(super) fn key_of(name: Name) -> Key {
    (name.kind, name.id)
}

/// The name of a value with this key in the tables.
pub(super) fn named((kind, id): Key) -> Name {
    Name { kind, id }
}

/// All values of a kind.
pub(super) fn of_kind(kind: u8) -> RangeInclusive<Key> {
    (kind, [0; 16])..=(kind, [u8::MAX; 16])
}

/// The rows of values, in the order of their names.
pub(super) fn rows(db: &Database, keys: impl RangeBounds<Key>) -> Outcome<impl Iterator<Item = Outcome<(Name, Row)>>> {
    let rows = db.begin_read()?.open_table(ROWS)?.range::<Key>(keys)?;
    Ok(rows.map(|row| {
        let (key, row) = row?;
        Ok((named(key.value()), Row::read(row.value())))
    }))
}

/// Reads a value.
pub(super) fn get(db: &Database, name: Name) -> Outcome<Option<Stored>> {
    // The value is read before the table is dropped: without it the writer may free the page.
    let transaction = db.begin_read()?;
    if let Some(stored) = transaction.open_table(VALUES)?.get(key_of(name))? {
        return Ok(Some(decode(&name, stored.value())));
    }
    // Both tables have a name, or neither.
    let is_known = transaction.open_table(ROWS)?.get(key_of(name))?.is_some();
    Ok(is_known.then_some(Err(Unreadable::Damaged)))
}

/// Stores a value in place of the one with its name: the bytes of that one.
pub(super) fn replace(transaction: &WriteTransaction, new: &NewValue, row: &Row) -> Outcome<u64> {
    transaction.open_table(VALUES)?.insert(key_of(new.name), new.frame.as_slice())?;
    let mut rows = transaction.open_table(ROWS)?;
    let replaced = rows.insert(key_of(new.name), row.members())?;
    Ok(replaced.map_or(0, |row| Row::read(row.value()).stored_bytes))
}

/// Removes values: their bytes.
pub(super) fn remove(transaction: &WriteTransaction, names: impl IntoIterator<Item = Name>) -> Outcome<u64> {
    let (mut values, mut rows) = (transaction.open_table(VALUES)?, transaction.open_table(ROWS)?);
    let mut bytes = 0_u64;
    for name in names {
        values.remove(key_of(name))?;
        let removed = rows.remove(key_of(name))?;
        bytes = bytes.saturating_add(removed.map_or(0, |row| Row::read(row.value()).stored_bytes));
    }
    Ok(bytes)
}

/// Writes uses.
pub(super) fn write_uses(db: &Database, uses: &[(Name, Time)]) -> Outcome<()> {
    if uses.is_empty() {
        return Ok(());
    }
    write(db, |transaction| {
        let mut rows = transaction.open_table(ROWS)?;
        for &(name, used) in uses {
            let row = rows.get(key_of(name))?.map(|row| Row::read(row.value()));
            if let Some(row) = row.filter(|row| row.used < used) {
                rows.insert(key_of(name), Row { used, ..row }.members())?;
            }
        }
        Ok(())
    })
}

// === payloads ===

/// Stores all payloads, or none. Payloads that are stored already, for as long, need no transaction.
pub(super) fn put(db: &Database, payloads: &[NewValue], now: Time) -> Outcome<PutResult> {
    let mut put = PutResult::default();
    // Payloads to write, and whether their bytes are written, too, or only their lifetime.
    let mut changes = Vec::new();
    {
        let transaction = db.begin_read()?;
        let (rows, values) = (transaction.open_table(ROWS)?, transaction.open_table(VALUES)?);
        for new in payloads {
            let Some(row) = rows.get(key_of(new.name))? else {
                changes.push((new, true));
                continue;
            };
            let row = Row::read(row.value());
            // This process has not put it before, so it may have been damaged meanwhile.
            let frame = values.get(key_of(new.name))?;
            let damaged = Err(Unreadable::Damaged);
            let is_damaged = frame.is_none_or(|frame| check(&new.name, frame.value()) == damaged);
            if is_damaged {
                put.mended.push(new.key());
            } else {
                put.kept.push((new.name, new.lifetime, row.used));
            }
            if is_damaged || (new.lifetime == Lifetime::Chained && !row.is_chained) {
                changes.push((new, is_damaged));
            }
        }
    }
    if !changes.is_empty() {
        write(db, |transaction| insert(transaction, &changes, now, &mut put))?;
        put.committed = true;
    }
    Ok(put)
}

fn insert(
    transaction: &WriteTransaction,
    changes: &[(&NewValue, bool)],
    now: Time,
    put: &mut PutResult,
) -> Outcome<()> {
    let (mut values, mut rows) = (transaction.open_table(VALUES)?, transaction.open_table(ROWS)?);
    let mut swept = transaction.open_table(SWEPT)?;
    let mut seen = HashSet::new();
    for (new, is_missing) in changes {
        let is_new = *is_missing && seen.insert(new.name);
        let stored = rows.get(key_of(new.name))?.map(|row| Row::read(row.value()));
        let is_chained = new.lifetime == Lifetime::Chained || stored.as_ref().is_some_and(|row| row.is_chained);
        let row = stored.filter(|_| !is_new).unwrap_or_else(|| Row::new(new, now));
        rows.insert(key_of(new.name), Row { is_chained, ..row }.members())?;
        if is_new {
            values.insert(key_of(new.name), new.frame.as_slice())?;
            swept.remove(new.name.id)?;
            put.kept.push((new.name, new.lifetime, now));
            put.written += 1;
            put.bytes += new.bytes;
            put.stored_bytes += row.stored_bytes;
            yield_thread();
        }
    }
    Ok(())
}

/// Whether a payload was swept.
pub(super) fn was_swept(db: &Database, key: PayloadKey) -> Outcome<bool> {
    Ok(db.begin_read()?.open_table(SWEPT)?.get(key.as_bytes())?.is_some())
}

/// The stored ones of the keys, with their last use in the file.
pub(super) fn last_uses(db: &Database, keys: &[PayloadKey]) -> Outcome<Vec<(Name, Time)>> {
    let rows = db.begin_read()?.open_table(ROWS)?;
    let used = |name| Ok(rows.get(key_of(name))?.map(|row| (name, Row::read(row.value()).used)));
    keys.iter().map(|key| used(Name::of_payload(*key))).filter_map(Result::transpose).collect()
}

/// Each payload, without its content, and its lifetime, in the order of the keys.
pub(super) fn payloads(db: &Database) -> Outcome<impl Iterator<Item = Outcome<(PayloadInfo, Lifetime)>>> {
    Ok(rows(db, of_kind(PAYLOAD))?.map(|row| {
        let (name, Row { used, created, bytes, stored_bytes, is_chained, .. }) = row?;
        let key = PayloadKey::from_bytes(name.id);
        let lifetime = if is_chained { Lifetime::Chained } else { Lifetime::Usual };
        Ok((PayloadInfo { key, bytes, stored_bytes, created, used }, lifetime))
    }))
}

/// Removes payloads, and remembers them as swept.
pub(super) fn remove_payloads(db: &Database, keys: &[PayloadKey], now: Time) -> Outcome<()> {
    write(db, |transaction| {
        remove(transaction, keys.iter().map(|key| Name::of_payload(*key)))?;
        let mut swept = transaction.open_table(SWEPT)?;
        for key in keys {
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
