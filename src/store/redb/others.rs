//! The operations on summaries, inspected requests and notes. Each function is one transaction, or a step of one.

use std::cmp::Reverse;

use ::redb::Database;

use super::tables::{NewValue, Outcome, Row, Stored, count_tombstones, get, of_kind, remove, replace, rows, write};
use crate::inspect;
use crate::payload::ChainKey;
use crate::store::codec::{INSPECTED, NOTE, Name, PAYLOAD, SUMMARY, Unreadable};
use crate::store::shares::fairest_first;
use crate::store::{NoteGroup, NoteKind, Stats, Time};

// === limits ===

/// The limits of summaries, of inspected requests, or of notes.
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
    /// The entries beyond the quota: the first and the least recently used ones of whoever has most.
    fn beyond(self, mut entries: Vec<(Name, Row)>) -> Vec<Name> {
        entries.sort_unstable_by_key(|(name, row)| Reverse((row.arrival, row.used, *name)));
        // An entry takes its share of the bytes, too, if there may be few.
        let of_each = self.max_bytes / (self.max_entries as u64).max(1);
        let entries = fairest_first(entries, |(name, row)| {
            (name.summary().map(ChainKey::owner), row.stored_bytes.saturating_add(of_each))
        });
        let (mut n_kept, mut bytes) = (0, 0_u64);
        let mut going = Vec::new();
        for (name, row) in entries {
            let is_old = row.used < self.oldest;
            bytes = if is_old { bytes } else { bytes.saturating_add(row.stored_bytes) };
            if is_old || n_kept >= self.max_entries || bytes > self.max_bytes {
                going.push(name);
            } else {
                n_kept += 1;
            }
        }
        going
    }
}

/// Removes what a kind has beyond the quota: how many, and their bytes.
pub(super) fn trim(db: &Database, kind: u8, quota: Quota) -> Outcome<(u64, u64)> {
    let going = quota.beyond(rows(db, of_kind(kind))?.collect::<Outcome<_>>()?);
    if going.is_empty() {
        return Ok((0, 0));
    }
    Ok((going.len() as u64, write(db, |transaction| remove(transaction, going))?))
}

// === summaries ===

/// Stores a summary, unless there is one that is not damaged, which is returned. There is one writer, so none comes
/// between.
pub(super) fn offer_summary(db: &Database, new: &NewValue, now: Time) -> Outcome<Option<Stored>> {
    if let Some(theirs) = get(db, new.name)?.filter(|theirs| *theirs != Err(Unreadable::Damaged)) {
        return Ok(Some(theirs));
    }
    write(db, |transaction| replace(transaction, new, &Row::new(new, now)))?;
    Ok(None)
}

// === requests ===

/// Stores an inspected request, and removes the oldest beyond the quota: their bytes.
pub(super) fn put_inspected(db: &Database, new: &NewValue, id: &str, now: Time, quota: Quota) -> Outcome<u64> {
    let mut all = rows(db, of_kind(INSPECTED))?.collect::<Outcome<Vec<_>>>()?;
    let last = all.iter().map(|(_, row)| row.arrival).max().unwrap_or_default();
    let row = Row { arrival: last.saturating_add(1), label: id.as_bytes().to_vec(), ..Row::new(new, now) };
    all.retain(|(name, _)| *name != new.name);
    all.push((new.name, row.clone()));
    let going = quota.beyond(all);
    write(db, |transaction| Ok(replace(transaction, new, &row)?.saturating_add(remove(transaction, going)?)))
}

/// Reads the newest inspected request that this is a name of, with its own name.
pub(super) fn inspected(db: &Database, id: &str) -> Outcome<Option<(Name, Stored)>> {
    let mut newest: Option<(u64, Name)> = None;
    for row in rows(db, of_kind(INSPECTED))? {
        let (name, row) = row?;
        if inspect::names(id, &String::from_utf8_lossy(&row.label)) {
            newest = newest.max(Some((row.arrival, name)));
        }
    }
    let Some((_, name)) = newest else { return Ok(None) };
    Ok(get(db, name)?.map(|stored| (name, stored)))
}

// === notes ===

/// Stores a note in place of the one with its kind and key.
pub(super) fn put_note(db: &Database, new: &NewValue, label: &[u8], now: Time, until: Time) -> Outcome<()> {
    let row = Row { used: until, label: label.to_vec(), ..Row::new(new, now) };
    write(db, |transaction| replace(transaction, new, &row))?;
    Ok(())
}

/// The notes of a group that have not expired.
pub(super) fn notes(db: &Database, group: NoteGroup, now: Time) -> Outcome<Vec<(NoteKind, ChainKey, Stored)>> {
    let mut all = Vec::new();
    for row in rows(db, of_kind(NOTE))? {
        let (name, row) = row?;
        // Kinds of a later version are left out.
        if let Some((Some(kind), key)) = NoteKind::named(&row.label)
            && kind.group() == group
            && row.used > now
            && let Some(stored) = get(db, name)?
        {
            all.push((kind, key, stored));
        }
    }
    Ok(all)
}

// === totals ===

/// Totals of all that is stored.
pub(super) fn totals(db: &Database) -> Outcome<Stats> {
    let mut stats = Stats { tombstones: count_tombstones(db)?, ..Stats::default() };
    for row in rows(db, ..)? {
        let (name, row) = row?;
        let (n, bytes) = match name.kind {
            PAYLOAD => (&mut stats.payloads, &mut stats.stored_bytes),
            SUMMARY => (&mut stats.summaries, &mut stats.summary_bytes),
            INSPECTED => (&mut stats.inspected, &mut stats.inspected_bytes),
            _ => continue,
        };
        *n += 1;
        *bytes = bytes.saturating_add(row.stored_bytes);
        if name.kind == PAYLOAD {
            stats.bytes = stats.bytes.saturating_add(row.bytes);
        }
    }
    Ok(stats)
}
