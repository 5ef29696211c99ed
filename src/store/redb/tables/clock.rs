//! The clock in the file: its last observation, and times in the future.

use ::redb::{Database, Error, Key, ReadableDatabase, ReadableTable, Value};

use super::{INSPECTED_ROWS, ROWS, SUMMARY_ROWS, SWEPT, write};
use crate::store::Time;

/// The last use in the file, which is an observation of the clock.
pub(in crate::store::redb) fn last_use(db: &Database) -> Result<Option<Time>, Error> {
    let mut last = None;
    for payload in super::payloads(db)? {
        last = last.max(Some(payload?.used));
    }
    for summary in super::summaries(db)? {
        last = last.max(Some(summary?.1));
    }
    Ok(last)
}

/// Sets times that are later than `now` to `now`, after the clock was set back.
pub(in crate::store::redb) fn clamp_times(db: &Database, Time(now): Time) -> Result<(), Error> {
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
) -> Result<Vec<T>, Error> {
    let mut wrong = Vec::new();
    for row in rows.iter()? {
        let (key, value) = row?;
        wrong.extend(corrected(key.value(), value.value()));
    }
    Ok(wrong)
}
