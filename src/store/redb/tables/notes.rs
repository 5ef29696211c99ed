//! Notes, which a process keeps for itself and for the next one.

use ::redb::{
    Database, Error, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, TableError,
};

use super::write;
use crate::payload::ChainKey;
use crate::store::codec::{Encoded, Name, decode};
use crate::store::{Note, NoteGroup, NoteKind, Time, Verified};

/// The kind and the key of a note.
type NoteName<'a> = (&'a str, [u8; 16]);

/// Until when a note is kept, and what it says, encoded.
type Row<'a> = (u64, &'a [u8]);

pub(super) const NOTES: TableDefinition<'_, NoteName<'_>, Row<'_>> = TableDefinition::new("notes_v1");

/// The table, if something was noted.
fn table(transaction: &ReadTransaction) -> Result<Option<ReadOnlyTable<NoteName<'static>, Row<'static>>>, Error> {
    match transaction.open_table(NOTES) {
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        opened => Ok(Some(opened?)),
    }
}

/// Stores a note in place of the one with its kind and key.
pub(in crate::store::redb) fn put(db: &Database, note: &Note, until: Time) -> Result<(), Error> {
    let Note { kind, key, value } = note;
    let encoded = Encoded::new(&Name::of_note(*kind, *key), value.clone()).to_vec();
    write(db, |transaction| {
        transaction.open_table(NOTES)?.insert((kind.label(), *key.as_bytes()), (until.0, encoded.as_slice()))?;
        Ok(())
    })
}

/// The notes of a group that have not expired. Damaged ones are left out.
pub(in crate::store::redb) fn all(db: &Database, group: NoteGroup, now: Time) -> Result<Vec<Note>, Error> {
    let mut all = Vec::new();
    let Some(notes) = table(&db.begin_read()?)? else { return Ok(all) };
    for kind in NoteKind::of(group) {
        for row in notes.range((kind.label(), [0; 16])..=(kind.label(), [u8::MAX; 16]))? {
            let (name, row) = row?;
            let (key, (until, frame)) = (ChainKey::from_bytes(name.value().1), row.value());
            if until > now.0
                && let Ok(value) = decode(&Name::of_note(kind, key), frame)
            {
                all.push(Note { kind, key, value: value.bytes() });
            }
        }
    }
    Ok(all)
}

/// Removes the notes that were kept until before this time.
pub(in crate::store::redb) fn sweep(db: &Database, oldest: Time) -> Result<(), Error> {
    let Some(notes) = table(&db.begin_read()?)? else { return Ok(()) };
    for row in notes.iter()? {
        if row?.1.value().0 < oldest.0 {
            return write(db, |transaction| {
                Ok(transaction.open_table(NOTES)?.retain(|_, (until, _)| until >= oldest.0)?)
            });
        }
    }
    Ok(())
}

/// Counts those that are whole, and the others. Kinds of a later version are left out.
pub(super) fn verify(transaction: &ReadTransaction, verified: &mut Verified) -> Result<(), Error> {
    let Some(notes) = table(transaction)? else { return Ok(()) };
    for row in notes.iter()? {
        let (name, row) = row?;
        let (label, key) = name.value();
        if let Some(kind) = NoteKind::ALL.into_iter().find(|kind| kind.label() == label) {
            let name = Name::of_note(kind, ChainKey::from_bytes(key));
            verified.count(name, decode(&name, row.value().1).err());
        }
    }
    Ok(())
}
