//! Keeps the ledger in the store: the rows of this process under its own keys, and those of others to read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use crate::ledger::{Ledger, Rows, date, today};
use crate::payload::ChainKey;
use crate::store::secret::random;
use crate::store::{Note, NoteGroup, NoteKind, Store, StoreError};

/// Stores the ledger of this process, and reads those of all.
#[derive(Debug)]
pub struct Bookkeeper {
    /// What is counted.
    pub(crate) ledger: Ledger,
    store: Option<Arc<dyn Store>>,
    // A number of twelve bytes.
    process: u128,
    /// Held while rows are being stored, so that older ones never take the place of newer ones.
    saving: Mutex<()>,
}

/// The counts of one day.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Day {
    /// The day, as `2026-11-25`, in UTC.
    pub day: String,
    /// The counts.
    pub rows: Rows,
}

/// How long the rows of a day are kept.
pub const KEPT: Duration = Duration::from_hours(400 * 24);

// === impl Bookkeeper ===

impl Bookkeeper {
    /// Keeps this ledger.
    pub(super) fn new(ledger: Ledger, store: Option<Arc<dyn Store>>) -> Self {
        // Without random numbers, two processes of a fleet overwrite each other's rows.
        let process = u128::from_be_bytes(random().unwrap_or_default()) >> 32;
        Self { ledger, store, process, saving: Mutex::default() }
    }

    /// Stores the rows that have changed. Rows that are not stored, because the store fails or the caller is cancelled, are stored
    /// the next time.
    pub async fn save(&self) {
        let Some(store) = &self.store else { return };
        let _saving = self.saving.lock().await;
        for (day, unsaved) in self.ledger.unsaved() {
            // Rows are text and numbers.
            let value = Bytes::from(serde_json::to_vec(&unsaved.rows).unwrap_or_default());
            let note = Note { kind: NoteKind::Ledger, key: self.key(day, unsaved.n_dropped), value };
            if store.note(note, KEPT).await.is_ok() {
                self.ledger.mark_saved(day, &unsaved);
            }
        }
    }

    fn key(&self, day: u32, n_dropped: u32) -> ChainKey {
        // A day that is begun anew has another key.
        ChainKey::from_bytes((u128::from(day) << 96 | (self.process ^ u128::from(n_dropped))).to_be_bytes())
    }

    /// The last days of the ledger, the first one first; without a store, what this process has counted.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn days(&self, n_days: u32) -> Result<Vec<Day>, StoreError> {
        match &self.store {
            Some(store) => {
                self.save().await;
                stored_days(&**store, n_days).await
            }
            None => Ok(vec![Day { day: date(today()), rows: self.ledger.since_start() }]),
        }
    }
}

/// The last days of the ledger in a store, the first one first. Rows that cannot be read are left out.
///
/// # Errors
///
/// When the store fails.
pub async fn stored_days(store: &dyn Store, n_days: u32) -> Result<Vec<Day>, StoreError> {
    let first = today().saturating_sub(n_days.saturating_sub(1));
    let mut days = BTreeMap::<u32, Rows>::new();
    for Note { key, value, .. } in store.notes(NoteGroup::Ledger).await? {
        let [a, b, c, d, ..] = *key.as_bytes();
        let day = u32::from_be_bytes([a, b, c, d]);
        if day >= first
            && let Ok(rows) = serde_json::from_slice(&value)
        {
            days.entry(day).or_default().merge(&rows);
        }
    }
    Ok(days.into_iter().map(|(day, rows)| Day { day: date(day), rows }).collect())
}
