//! The tables of the file and the operations on them. Each function is one transaction, or a step of one.

use std::collections::{HashMap, HashSet};

use ::redb::{
    Database, Error, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition, TableError,
    WriteTransaction,
};

use crate::inspect;
use crate::payload::{ChainKey, Lifetime, Payload, PayloadKey};
use crate::store::codec::{Encoded, Name, Unreadable, check, decode};
use crate::store::{PayloadInfo, Stats, TOMBSTONES, Time};
use crate::tasks::yield_thread;

pub(super) mod check;
pub(super) mod clock;
pub(super) mod copy;
pub(super) mod lifetimes;
pub(super) mod notes;

use lifetimes::CHAINED;

/// The schema version and the secret.
pub(super) const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta_v1");
/// Encoded payloads.
const PAYLOADS: TableDefinition<'_, [u8; 16], &[u8]> = TableDefinition::new("payloads_v1");
/// For each payload: last use, creation, length, length in the file. Its own table, so that a sweep reads nothing
/// else.
const ROWS: TableDefinition<'_, [u8; 16], (u64, u64, u64, u64)> = TableDefinition::new("rows_v1");
/// When each remembered payload was swept.
const SWEPT: TableDefinition<'_, [u8; 16], u64> = TableDefinition::new("swept_v1");

/// Encoded summaries, by the beginnings that they replace.
const SUMMARIES: TableDefinition<'_, [u8; 16], &[u8]> = TableDefinition::new("summaries_v1");
/// For each summary: last use, and length in the file.
const SUMMARY_ROWS: TableDefinition<'_, [u8; 16], (u64, u64)> = TableDefinition::new("summary_rows_v1");

/// Encoded inspected requests, in the order of arrival.
const INSPECTED: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("inspected_v1");
/// For each inspected request: its id, when it was stored, and its length in the file.
const INSPECTED_ROWS: TableDefinition<'_, u64, (&[u8], u64, u64)> = TableDefinition::new("inspected_rows_v1");

/// A payload to be stored.
pub(super) struct NewPayload {
    /// Its name.
    pub(super) key: PayloadKey,
    /// The bytes that are written.
    pub(super) encoded: Encoded,
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

/// A decoded row.
type Stored = Result<Payload, Unreadable>;

/// By how much a transaction changed the size of all that is stored.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct SizeChange {
    /// How many entries were removed.
    pub(super) n_removed: u64,
    /// The bytes that were added.
    pub(super) bytes_added: u64,
    /// The bytes that were removed.
    pub(super) bytes_removed: u64,
}

/// Begins a transaction that is durable once committed, and quick to reopen after a crash.
pub(super) fn begin(db: &Database) -> Result<WriteTransaction, Error> {
    let mut transaction = db.begin_write()?;
    transaction.set_quick_repair(true);
    Ok(transaction)
}

/// Writes in one transaction.
pub(super) fn write<T>(db: &Database, write: impl FnOnce(&WriteTransaction) -> Result<T, Error>) -> Result<T, Error> {
    let transaction = begin(db)?;
    let written = write(&transaction)?;
    transaction.commit()?;
    Ok(written)
}

/// Creates the tables, so that reads need not check whether they exist.
pub(super) fn create(transaction: &WriteTransaction) -> Result<(), TableError> {
    transaction.open_table(PAYLOADS)?;
    transaction.open_table(ROWS)?;
    transaction.open_table(SWEPT)?;
    transaction.open_table(SUMMARIES)?;
    transaction.open_table(SUMMARY_ROWS)?;
    transaction.open_table(INSPECTED)?;
    transaction.open_table(INSPECTED_ROWS)?;
    transaction.open_table(CHAINED)?;
    Ok(())
}

/// Stores all payloads, or none. Payloads that are stored already, for as long, need no transaction.
pub(super) fn put(db: &Database, payloads: &[NewPayload], now: Time) -> Result<PutResult, Error> {
    let mut put = PutResult::default();
    let missing: Vec<_> = {
        let transaction = db.begin_read()?;
        let (rows, stored) = (transaction.open_table(ROWS)?, transaction.open_table(PAYLOADS)?);
        let mut missing = Vec::new();
        for new in payloads {
            let Some(row) = rows.get(new.key.as_bytes())? else {
                missing.push(new);
                continue;
            };
            // This process has not put it before, so it may have been damaged meanwhile.
            let frame = stored.get(new.key.as_bytes())?;
            let checked =
                frame.map_or(Err(Unreadable::Damaged), |frame| check(&Name::of_payload(new.key), frame.value()));
            if checked == Err(Unreadable::Damaged) {
                put.mended.push(new.key);
                missing.push(new);
            } else {
                put.kept.push((new.key, new.lifetime, Time(row.value().0)));
            }
        }
        missing
    };
    let shorter = lifetimes::shorter(db, payloads)?;
    if missing.is_empty() && shorter.is_empty() {
        return Ok(put);
    }
    write(db, |transaction| {
        insert(transaction, &missing, now, &mut put)?;
        lifetimes::prolong(transaction, &shorter)
    })?;
    put.committed = true;
    Ok(put)
}

fn insert(
    transaction: &WriteTransaction,
    missing: &[&NewPayload],
    now: Time,
    put: &mut PutResult,
) -> Result<(), Error> {
    let mut payloads = transaction.open_table(PAYLOADS)?;
    let mut rows = transaction.open_table(ROWS)?;
    let mut swept = transaction.open_table(SWEPT)?;
    let mut seen = HashSet::new();
    for NewPayload { key, encoded, lifetime } in missing {
        if !seen.insert(*key) {
            continue;
        }
        let bytes = key.as_bytes();
        encoded.write(payloads.insert_reserve(bytes, encoded.len())?.as_mut());
        let stored_bytes = encoded.len() as u64;
        rows.insert(bytes, (now.0, now.0, encoded.plain_len, stored_bytes))?;
        swept.remove(bytes)?;
        put.kept.push((*key, *lifetime, now));
        put.written += 1;
        put.bytes += encoded.plain_len;
        put.stored_bytes += stored_bytes;
        yield_thread();
    }
    Ok(())
}

/// Reads a payload.
pub(super) fn get(db: &Database, key: PayloadKey) -> Result<Option<Stored>, Error> {
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
pub(super) fn was_swept(db: &Database, key: PayloadKey) -> Result<bool, Error> {
    Ok(db.begin_read()?.open_table(SWEPT)?.get(key.as_bytes())?.is_some())
}

/// The stored ones of the keys, with their last use in the file.
pub(super) fn last_uses(db: &Database, keys: &[PayloadKey]) -> Result<Vec<(PayloadKey, Time)>, Error> {
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
pub(super) fn write_uses(db: &Database, uses: &[(PayloadKey, Time)]) -> Result<(), Error> {
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
pub(super) fn payloads(db: &Database) -> Result<impl Iterator<Item = Result<PayloadInfo, Error>>, Error> {
    let rows = db.begin_read()?.open_table(ROWS)?.range::<[u8; 16]>(..)?;
    Ok(rows.map(|row| {
        let (key, row) = row?;
        let (used, created, bytes, stored_bytes) = row.value();
        let key = PayloadKey::from_bytes(key.value());
        Ok(PayloadInfo { key, bytes, stored_bytes, created: Time(created), used: Time(used) })
    }))
}

/// Removes payloads, and remembers them as swept.
pub(super) fn remove(db: &Database, keys: &[PayloadKey], now: Time) -> Result<(), Error> {
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
pub(super) fn count_tombstones(db: &Database) -> Result<u64, Error> {
    Ok(db.begin_read()?.open_table(SWEPT)?.len()?)
}

/// Forgets swept payloads that are too old or too many.
pub(super) fn trim_tombstones(db: &Database, now: Time) -> Result<(), Error> {
    let (most, age) = TOMBSTONES;
    let mut oldest = now.0.saturating_sub(age.as_secs());
    {
        let swept = db.begin_read()?.open_table(SWEPT)?;
        let mut times = swept.iter()?.map(|row| Ok(row?.1.value())).collect::<Result<Vec<u64>, Error>>()?;
        times.sort_unstable_by(|one, other| other.cmp(one));
        let first_too_many =
            usize::try_from(most).ok().and_then(|most| times.get(most)).map(|time| time.saturating_add(1));
        oldest = oldest.max(first_too_many.unwrap_or(0));
        if times.last().is_none_or(|time| *time >= oldest) {
            return Ok(());
        }
    }
    write(db, |transaction| Ok(transaction.open_table(SWEPT)?.retain(|_, time| time >= oldest)?))
}

// === summaries ===

/// Stores a summary, unless there is one that is not damaged, which is returned. There is one writer, so none comes
/// between.
pub(super) fn offer_summary(
    db: &Database,
    beginning: ChainKey,
    encoded: &Encoded,
    now: Time,
) -> Result<Option<Stored>, Error> {
    if let Some(theirs) = summary(db, beginning)?.filter(|theirs| *theirs != Err(Unreadable::Damaged)) {
        return Ok(Some(theirs));
    }
    write(db, |transaction| {
        let mut summaries = transaction.open_table(SUMMARIES)?;
        encoded.write(summaries.insert_reserve(beginning.as_bytes(), encoded.len())?.as_mut());
        transaction.open_table(SUMMARY_ROWS)?.insert(beginning.as_bytes(), (now.0, encoded.len() as u64))?;
        Ok(None)
    })
}

/// Reads a summary.
pub(super) fn summary(db: &Database, beginning: ChainKey) -> Result<Option<Stored>, Error> {
    let summaries = db.begin_read()?.open_table(SUMMARIES)?;
    let stored = summaries.get(beginning.as_bytes())?;
    Ok(stored.map(|stored| decode(&Name::of_summary(beginning), stored.value())))
}

/// The beginning of each summary, its last use, and its length in the file.
pub(super) fn summaries(db: &Database) -> Result<impl Iterator<Item = Result<(ChainKey, Time, u64), Error>>, Error> {
    let rows = db.begin_read()?.open_table(SUMMARY_ROWS)?.range::<[u8; 16]>(..)?;
    Ok(rows.map(|row| {
        let (beginning, row) = row?;
        let (used, stored_bytes) = row.value();
        Ok((ChainKey::from_bytes(beginning.value()), Time(used), stored_bytes))
    }))
}

/// The limits of summaries, or of inspected requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quota {
    /// The most entries.
    pub(super) max_entries: usize,
    /// The most bytes of all of them in the file.
    pub(super) max_bytes: u64,
    /// Entries that were last used before this time are removed.
    pub(super) oldest: Time,
}

impl Quota {
    /// Removes nothing.
    pub(super) const NONE: Self = Self { max_entries: usize::MAX, max_bytes: u64::MAX, oldest: Time(0) };
}

/// Writes noted uses of summaries, and removes the least recently used ones beyond the quota.
pub(super) fn sweep_summaries(
    db: &Database,
    noted: &HashMap<ChainKey, Time>,
    quota: Quota,
) -> Result<SizeChange, Error> {
    let (mut rows, mut changed) = (Vec::new(), Vec::new());
    for summary in summaries(db)? {
        let (beginning, written, stored_bytes) = summary?;
        let used = noted.get(&beginning).map_or(written, |used| written.max(*used));
        if used > written {
            changed.push((beginning, used, stored_bytes));
        }
        rows.push((used, beginning, stored_bytes));
    }
    rows.sort_unstable_by(|one, other| other.cmp(one));
    let mut bytes = 0_u64;
    let stays = |(n, (used, _, stored_bytes)): &(usize, &(Time, ChainKey, u64))| {
        bytes = bytes.saturating_add(*stored_bytes);
        *n < quota.max_entries && bytes <= quota.max_bytes && *used >= quota.oldest
    };
    let n_stay = rows.iter().enumerate().take_while(stays).count();
    let going = rows.split_off(n_stay);
    if going.is_empty() && changed.is_empty() {
        return Ok(SizeChange::default());
    }
    write(db, |transaction| {
        let mut summaries = transaction.open_table(SUMMARIES)?;
        let mut rows = transaction.open_table(SUMMARY_ROWS)?;
        for (beginning, used, stored_bytes) in changed {
            rows.insert(beginning.as_bytes(), (used.0, stored_bytes))?;
        }
        for (_, beginning, _) in &going {
            summaries.remove(beginning.as_bytes())?;
            rows.remove(beginning.as_bytes())?;
        }
        Ok(())
    })?;
    let bytes_removed = going.iter().map(|(.., stored_bytes)| *stored_bytes).fold(0, u64::saturating_add);
    Ok(SizeChange { n_removed: going.len() as u64, bytes_removed, ..SizeChange::default() })
}

// === requests ===

/// Stores an inspected request, and removes the oldest beyond the quota.
pub(super) fn put_inspected(
    db: &Database,
    id: &str,
    encoded: &Encoded,
    now: Time,
    quota: Quota,
) -> Result<SizeChange, Error> {
    write(db, |transaction| {
        {
            let mut rows = transaction.open_table(INSPECTED_ROWS)?;
            let next = rows.last()?.map_or(0, |(last, _)| last.value().saturating_add(1));
            let mut texts = transaction.open_table(INSPECTED)?;
            encoded.write(texts.insert_reserve(next, encoded.len())?.as_mut());
            rows.insert(next, (id.as_bytes(), now.0, encoded.len() as u64))?;
        }
        let trimmed = trim(transaction, quota)?;
        Ok(SizeChange { bytes_added: encoded.len() as u64, ..trimmed })
    })
}

/// Reads the newest inspected request that this is a name of, with the name of its row.
pub(super) fn inspected(db: &Database, id: &str) -> Result<Option<(Name, Stored)>, Error> {
    let transaction = db.begin_read()?;
    for row in transaction.open_table(INSPECTED_ROWS)?.iter()?.rev() {
        let (n, row) = row?;
        let row_id = String::from_utf8_lossy(row.value().0);
        if inspect::names(id, &row_id) {
            let texts = transaction.open_table(INSPECTED)?;
            let stored = texts.get(n.value())?;
            let name = Name::of_inspected(&row_id);
            let stored = stored.map_or(Err(Unreadable::Damaged), |stored| decode(&name, stored.value()));
            return Ok(Some((name, stored)));
        }
    }
    Ok(None)
}

/// Removes the oldest inspected requests beyond the quota.
pub(super) fn trim_inspected(db: &Database, quota: Quota) -> Result<SizeChange, Error> {
    if over_quota(&db.begin_read()?.open_table(INSPECTED_ROWS)?, quota)?.is_empty() {
        return Ok(SizeChange::default());
    }
    write(db, |transaction| trim(transaction, quota))
}

/// Removes inspected requests that are too old or too many.
fn trim(transaction: &WriteTransaction, quota: Quota) -> Result<SizeChange, Error> {
    let mut change = SizeChange::default();
    let mut texts = transaction.open_table(INSPECTED)?;
    let mut rows = transaction.open_table(INSPECTED_ROWS)?;
    for n in over_quota(&rows, quota)? {
        texts.remove(n)?;
        change.n_removed += 1;
        let removed = rows.remove(n)?.map_or(0, |row| row.value().2);
        change.bytes_removed = change.bytes_removed.saturating_add(removed);
    }
    Ok(change)
}

fn over_quota(rows: &impl ReadableTable<u64, (&'static [u8], u64, u64)>, quota: Quota) -> Result<Vec<u64>, Error> {
    let (mut n_kept, mut bytes) = (0, 0_u64);
    let mut going = Vec::new();
    for row in rows.iter()?.rev() {
        let (n, row) = row?;
        let (_, kept, stored_bytes) = row.value();
        bytes = bytes.saturating_add(stored_bytes);
        if n_kept >= quota.max_entries || bytes > quota.max_bytes || kept < quota.oldest.0 {
            going.push(n.value());
        } else {
            n_kept += 1;
        }
    }
    Ok(going)
}

/// How many inspected requests are stored, and how many bytes they take.
pub(super) fn inspected_totals(db: &Database) -> Result<(u64, u64), Error> {
    let rows = db.begin_read()?.open_table(INSPECTED_ROWS)?;
    let mut total = (0, 0);
    for row in rows.iter()? {
        total = (total.0 + 1, u64::saturating_add(total.1, row?.1.value().2));
    }
    Ok(total)
}

/// Totals of all that is stored.
pub(super) fn totals(db: &Database) -> Result<Stats, Error> {
    let mut stats = Stats { tombstones: count_tombstones(db)?, ..Stats::default() };
    for payload in payloads(db)? {
        let PayloadInfo { bytes, stored_bytes, .. } = payload?;
        stats.payloads += 1;
        stats.bytes = stats.bytes.saturating_add(bytes);
        stats.stored_bytes = stats.stored_bytes.saturating_add(stored_bytes);
    }
    for summary in summaries(db)? {
        stats.summaries += 1;
        stats.summary_bytes = stats.summary_bytes.saturating_add(summary?.2);
    }
    (stats.inspected, stats.inspected_bytes) = inspected_totals(db)?;
    Ok(stats)
}
