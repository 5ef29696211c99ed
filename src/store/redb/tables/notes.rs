//! Notes, which this process keeps for itself.

use ::redb::{Database, Error, ReadableDatabase, TableDefinition, TableError};

use super::write;
use crate::payload::ChainKey;
use crate::store::codec::{Encoded, Name, decode};
use crate::store::{Note, NoteGroup, NoteKind, Time};

/// The kind and the key of a note.
type NoteName<'a> = (&'a str, [u8; 16]);

/// Until when each note is kept, and what it says, encoded.
const NOTES: TableDefinition<'_, NoteName<'_>, (u64, &[u8])> = TableDefinition::new("notes_v1");

/// Stores a note in place of the one with its kind and key, and removes those that have expired.
pub(in crate::store::redb) fn put(db: &Database, note: &Note, until: Time, now: Time) -> Result<(), Error> {
    let Note { kind, key, value } = note;
    let encoded = Encoded::new(&Name::of_note(*kind, *key), value.clone()).to_vec();
    write(db, |transaction| {
        let mut notes = transaction.open_table(NOTES)?;
        notes.insert((kind.label(), *key.as_bytes()), (until.0, encoded.as_slice()))?;
        notes.retain(|_, (until, _)| until > now.0)?;
        Ok(())
    })
}

/// The notes of a group that have not expired. Damaged ones are left out.
pub(in crate::store::redb) fn all(db: &Database, group: NoteGroup, now: Time) -> Result<Vec<Note>, Error> {
    let mut all = Vec::new();
    let notes = match db.begin_read()?.open_table(NOTES) {
        // Nothing was noted yet.
        Err(TableError::TableDoesNotExist(_)) => return Ok(all),
        opened => opened?,
    };
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
