//! Which payloads are kept longer than others.

use std::collections::HashSet;

use ::redb::{Database, Error, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use super::{NewPayload, ROWS};
use crate::payload::{Lifetime, PayloadKey};

/// The payloads that the conversation of an upstream names.
pub(super) const CHAINED: TableDefinition<'_, [u8; 16], ()> = TableDefinition::new("chained_v1");

/// All payloads with the longer lifetime.
pub(in crate::store::redb) fn chained(db: &Database) -> Result<HashSet<PayloadKey>, Error> {
    let chained = db.begin_read()?.open_table(CHAINED)?;
    chained.iter()?.map(|row| Ok(PayloadKey::from_bytes(row?.0.value()))).collect()
}

/// The payloads that are stored, or are about to be, with a shorter lifetime than they are put with now.
pub(super) fn shorter(db: &Database, payloads: &[NewPayload]) -> Result<Vec<PayloadKey>, Error> {
    let mut chained = payloads.iter().filter(|put| put.lifetime == Lifetime::Chained).peekable();
    let mut shorter = Vec::new();
    if chained.peek().is_none() {
        return Ok(shorter);
    }
    let table = db.begin_read()?.open_table(CHAINED)?;
    for NewPayload { key, .. } in chained {
        if table.get(key.as_bytes())?.is_none() {
            shorter.push(*key);
        }
    }
    Ok(shorter)
}

/// Gives stored payloads the longer lifetime.
pub(super) fn prolong(transaction: &WriteTransaction, keys: &[PayloadKey]) -> Result<(), Error> {
    if keys.is_empty() {
        return Ok(());
    }
    let (rows, mut chained) = (transaction.open_table(ROWS)?, transaction.open_table(CHAINED)?);
    for key in keys {
        if rows.get(key.as_bytes())?.is_some() {
            chained.insert(key.as_bytes(), ())?;
        }
    }
    Ok(())
}
