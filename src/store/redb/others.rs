//! The tables of summaries, inspected requests and notes, and the operations on them. Each function is one transaction, or a
//! step of one.

use std::collections::HashMap;

use ::redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use super::tables::{Outcome, Stored, count_tombstones, existing, payloads, write};
use crate::inspect;
use crate::payload::ChainKey;
use crate::store::codec::{Name, Unreadable, decode};
use crate::store::shares::fairest_first;
use crate::store::{Note, NoteGroup, NoteKind, PayloadInfo, Stats, Time};

/// Encoded summaries, by the beginnings that they replace.
pub(super) const SUMMARIES: TableDefinition<'_, [u8; 16], &[u8]> = TableDefinition::new("summaries_v1");
/// For each summary: last use, and length in the file.
pub(super) const SUMMARY_ROWS: TableDefinition<'_, [u8; 16], (u64, u64)> = TableDefinition::new("summary_rows_v1");

/// Encoded inspected requests, in the order of arrival.
pub(super) const INSPECTED: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("inspected_v1");
/// For each inspected request: its id, when it was stored, and its length in the file.
pub(super) const INSPECTED_ROWS: TableDefinition<'_, u64, (&[u8], u64, u64)> =
    TableDefinition::new("inspected_rows_v1");

/// Until when a note is kept, and what it says, encoded.
type NoteRow<'a> = (u64, &'a [u8]);

/// Notes by kind and key. A file without notes has no such table.
pub(super) const NOTES: TableDefinition<'_, (&str, [u8; 16]), NoteRow<'_>> = TableDefinition::new("notes_v1");

// === summaries ===

/// Stores a summary, unless there is one that is not damaged, which is returned. There is one writer, so none comes
/// between.
pub(super) fn offer_summary(db: &Database, beginning: ChainKey, frame: &[u8], now: Time) -> Outcome<Option<Stored>> {
    if let Some(theirs) = summary(db, beginning)?.filter(|theirs| *theirs != Err(Unreadable::Damaged)) {
        return Ok(Some(theirs));
    }
    write(db, |transaction| {
        transaction.open_table(SUMMARIES)?.insert(beginning.as_bytes(), frame)?;
        transaction.open_table(SUMMARY_ROWS)?.insert(beginning.as_bytes(), (now.0, frame.len() as u64))?;
        Ok(None)
    })
}

/// Reads a summary.
pub(super) fn summary(db: &Database, beginning: ChainKey) -> Outcome<Option<Stored>> {
    let summaries = db.begin_read()?.open_table(SUMMARIES)?;
    let stored = summaries.get(beginning.as_bytes())?;
    Ok(stored.map(|stored| decode(&Name::of_summary(beginning), stored.value())))
}

/// The beginning of each summary, its last use, and its length in the file.
pub(super) fn summaries(db: &Database) -> Outcome<impl Iterator<Item = Outcome<(ChainKey, Time, u64)>>> {
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

    /// The entries beyond the quota, with their bytes. Those that are kept rather come first.
    fn beyond<K>(self, entries: impl Iterator<Item = Outcome<(K, Time, u64)>>) -> Outcome<Vec<(K, u64)>> {
        let (mut n_kept, mut bytes) = (0, 0_u64);
        let mut going = Vec::new();
        for entry in entries {
            let (key, used, stored_bytes) = entry?;
            let is_old = used < self.oldest;
            bytes = if is_old { bytes } else { bytes.saturating_add(stored_bytes) };
            if is_old || n_kept >= self.max_entries || bytes > self.max_bytes {
                going.push((key, stored_bytes));
            } else {
                n_kept += 1;
            }
        }
        Ok(going)
    }
}

/// The bytes of entries.
fn sum<K>(entries: &[(K, u64)]) -> u64 {
    entries.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add)
}

/// Writes noted uses of summaries, and removes those beyond the quota, the least recently used ones of whoever has most: how many,
/// and their bytes.
pub(super) fn sweep_summaries(db: &Database, noted: &HashMap<ChainKey, Time>, quota: Quota) -> Outcome<(u64, u64)> {
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
    // An entry takes its share of the bytes, too, if there may be few.
    let of_each = quota.max_bytes / (quota.max_entries as u64).max(1);
    let rows = fairest_first(rows, |(_, beginning, bytes)| (beginning.owner(), bytes.saturating_add(of_each)));
    let going = quota.beyond(rows.into_iter().map(|(used, beginning, bytes)| Ok((beginning, used, bytes))))?;
    if going.is_empty() && changed.is_empty() {
        return Ok((0, 0));
    }
    write(db, |transaction| {
        let mut summaries = transaction.open_table(SUMMARIES)?;
        let mut rows = transaction.open_table(SUMMARY_ROWS)?;
        for (beginning, used, stored_bytes) in changed {
            rows.insert(beginning.as_bytes(), (used.0, stored_bytes))?;
        }
        for (beginning, _) in &going {
            summaries.remove(beginning.as_bytes())?;
            rows.remove(beginning.as_bytes())?;
        }
        Ok(())
    })?;
    Ok((going.len() as u64, sum(&going)))
}

// === requests ===

/// Stores an inspected request, and removes the oldest beyond the quota: their bytes.
pub(super) fn put_inspected(db: &Database, id: &str, frame: &[u8], now: Time, quota: Quota) -> Outcome<u64> {
    write(db, |transaction| {
        {
            let mut rows = transaction.open_table(INSPECTED_ROWS)?;
            let next = rows.last()?.map_or(0, |(last, _)| last.value().saturating_add(1));
            transaction.open_table(INSPECTED)?.insert(next, frame)?;
            rows.insert(next, (id.as_bytes(), now.0, frame.len() as u64))?;
        }
        trim(transaction, quota)
    })
}

/// Reads the newest inspected request that this is a name of, with the name of its row.
pub(super) fn inspected(db: &Database, id: &str) -> Outcome<Option<(Name, Stored)>> {
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

/// Removes the oldest inspected requests beyond the quota: their bytes.
pub(super) fn trim_inspected(db: &Database, quota: Quota) -> Outcome<u64> {
    if over_quota(&db.begin_read()?.open_table(INSPECTED_ROWS)?, quota)?.is_empty() {
        return Ok(0);
    }
    write(db, |transaction| trim(transaction, quota))
}

fn trim(transaction: &WriteTransaction, quota: Quota) -> Outcome<u64> {
    let mut texts = transaction.open_table(INSPECTED)?;
    let mut rows = transaction.open_table(INSPECTED_ROWS)?;
    let going = over_quota(&rows, quota)?;
    for (n, _) in &going {
        texts.remove(n)?;
        rows.remove(n)?;
    }
    Ok(sum(&going))
}

fn over_quota(rows: &impl ReadableTable<u64, (&'static [u8], u64, u64)>, quota: Quota) -> Outcome<Vec<(u64, u64)>> {
    quota.beyond(rows.iter()?.rev().map(|row| {
        let (n, row) = row?;
        let (_, kept, stored_bytes) = row.value();
        Ok((n.value(), Time(kept), stored_bytes))
    }))
}

// === notes ===

/// Stores a note, whose value is encoded, in place of the one with its kind and key.
pub(super) fn put_note(db: &Database, Note { kind, key, value }: &Note, until: Time) -> Outcome<()> {
    write(db, |transaction| {
        transaction.open_table(NOTES)?.insert((<&str>::from(kind), *key.as_bytes()), (until.0, &**value))?;
        Ok(())
    })
}

/// The notes of a group that have not expired.
pub(super) fn notes(db: &Database, group: NoteGroup, now: Time) -> Outcome<Vec<(NoteKind, ChainKey, Stored)>> {
    let mut all = Vec::new();
    let Some(notes) = existing(&db.begin_read()?, NOTES)? else { return Ok(all) };
    for kind in NoteKind::of(group) {
        for row in notes.range((<&str>::from(kind), [0; 16])..=(<&str>::from(kind), [u8::MAX; 16]))? {
            let (name, row) = row?;
            let (key, (until, frame)) = (ChainKey::from_bytes(name.value().1), row.value());
            if until > now.0 {
                all.push((kind, key, decode(&Name::of_note(kind, key), frame)));
            }
        }
    }
    Ok(all)
}

/// Removes the notes that were kept until before this time.
pub(super) fn sweep_notes(db: &Database, oldest: Time) -> Outcome<()> {
    let Some(notes) = existing(&db.begin_read()?, NOTES)? else { return Ok(()) };
    for row in notes.iter()? {
        if row?.1.value().0 < oldest.0 {
            return write(db, |transaction| {
                Ok(transaction.open_table(NOTES)?.retain(|_, (until, _)| until >= oldest.0)?)
            });
        }
    }
    Ok(())
}

// === totals ===

/// Totals of all that is stored.
pub(super) fn totals(db: &Database) -> Outcome<Stats> {
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
    for request in db.begin_read()?.open_table(INSPECTED_ROWS)?.iter()? {
        stats.inspected += 1;
        stats.inspected_bytes = stats.inspected_bytes.saturating_add(request?.1.value().2);
    }
    Ok(stats)
}
