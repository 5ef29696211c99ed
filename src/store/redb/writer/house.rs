//! The house: what is too old and too much is removed, and a file that is mostly air is compacted.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ::redb::Error;

use super::{Job, Writer};
use crate::store::redb::{closed, failed, tables};
use crate::store::{Entry, IN_USE, MOST_SUMMARIES, Op, StoreError, Swept, Time};

/// Payloads that one transaction of a sweep removes. Between two of them, others get their turn.
const SWEEP_GROUP: usize = 1000;

/// The store may grow by this part of its limit beyond it before a sweep is due at once.
const SLACK: u64 = 16;

/// The house is swept no more often, and at least eight times while a payload is kept.
const SWEEP_PAUSE: Duration = Duration::from_mins(10);

/// A smaller file is not worth compacting.
const COMPACT_FROM: u64 = 64 << 20;

impl Writer {
    pub(super) fn keep_house(&mut self) -> Result<(), StoreError> {
        let now = self.shared.clock.now();
        let pause = SWEEP_PAUSE.min(self.shared.settings.keep_for.0 / 8);
        // A clock that was set back says nothing of how long ago that was.
        if self.swept.is_none_or(|swept| now < swept || now.since(swept) >= pause) {
            self.sweep()?;
        } else {
            self.write_uses()?;
        }
        let commits = self.shared.counts.commits.load(Ordering::Relaxed);
        let idle = std::mem::replace(&mut self.commits, commits) == commits;
        let len = self.shared.file_len();
        if idle && len >= COMPACT_FROM && len / 2 > self.stored_bytes()?.saturating_add(self.other_bytes()?) {
            self.compact()?;
        }
        Ok(())
    }

    pub(super) fn sweep_if_crowded(&mut self) {
        let most = self.shared.settings.max_bytes.0;
        let crowded = self.stored_bytes().is_ok_and(|bytes| bytes > most.saturating_add(most / SLACK));
        if crowded {
            // Its failure is in the log and in the counters; who put something has it.
            let _swept = self.sweep();
        }
    }

    fn stored_bytes(&mut self) -> Result<u64, StoreError> {
        if let Some(bytes) = self.stored_bytes {
            return Ok(bytes);
        }
        let mut bytes = 0;
        self.attempt(Op::Sweep, |db, _| {
            bytes = 0;
            tables::each(db, |entry| bytes += entry.stored_bytes)
        })?;
        self.stored_bytes = Some(bytes);
        Ok(bytes)
    }

    /// What all takes that is no payload.
    fn other_bytes(&mut self) -> Result<u64, StoreError> {
        let mut bytes = 0;
        self.attempt(Op::Sweep, |db, _| {
            bytes = tables::n_inspected(db)?.1;
            tables::each_summary(db, |_, _, stored_bytes| bytes += stored_bytes)
        })?;
        Ok(bytes)
    }

    /// Writes down when summaries were used, and removes those that were not for so long, or are too many.
    pub(super) fn sweep_summaries(&mut self, keep_for: Duration, most: usize) -> Result<u64, StoreError> {
        let uses = self.shared.summaries_used.blocking_lock().clone();
        let swept = self.attempt(Op::Sweep, |db, now| {
            let oldest = Time(now.0.saturating_sub(keep_for.as_secs()));
            tables::sweep_summaries(db, &uses, oldest, most)
        })?;
        self.shared.summaries_used.blocking_lock().retain(|beginning, used| uses.get(beginning) != Some(used));
        Ok(swept)
    }

    pub(super) fn sweep(&mut self) -> Result<Swept, StoreError> {
        self.write_uses()?;
        self.swept = Some(self.shared.clock.now());
        let mut swept = Swept::default();
        for entries in self.victims()?.chunks(SWEEP_GROUP) {
            self.remove(entries, &mut swept)?;
            if self.next.is_none()
                && let Ok(job) = self.queue.try_recv()
            {
                match job {
                    Job::Put { payloads, answer } => self.put(payloads, answer),
                    other => self.next = Some(other),
                }
            }
        }
        self.attempt(Op::Sweep, tables::trim_tombstones)?;
        swept.summaries = self.sweep_summaries(self.shared.settings.keep_for.0, MOST_SUMMARIES)?;
        self.trim_inspected(usize::MAX)?;
        if swept != Swept::default() {
            let Swept { aged, crowded_out, stored_bytes, summaries } = swept;
            tracing::debug!(aged, crowded_out, stored_bytes, summaries, "the store was swept");
        }
        Ok(swept)
    }

    /// What is too old, and then what is too much: oldest first.
    fn victims(&mut self) -> Result<Vec<Entry>, StoreError> {
        let (keep_for, most) = (self.shared.settings.keep_for.0, self.shared.settings.max_bytes.0);
        let mut left = self.stored_bytes()?;
        let now = self.shared.clock.now();
        let crowded = left > most;
        let mut entries = Vec::new();
        self.attempt(Op::Sweep, |db, now| {
            entries.clear();
            tables::each(db, |entry| {
                if crowded || now.since(entry.used) > keep_for {
                    entries.push(entry);
                }
            })
        })?;
        {
            let known = self.shared.known.blocking_lock();
            for entry in &mut entries {
                entry.used = known.used(entry.key).unwrap_or_default().max(entry.used);
            }
        }
        entries.sort_unstable_by_key(|entry| (entry.used, entry.key));
        let n = entries.iter().take_while(|entry| {
            let unused = now.since(entry.used);
            let goes = unused > keep_for || left > most && unused >= IN_USE;
            left = left.saturating_sub(entry.stored_bytes);
            goes
        });
        let n = n.count();
        entries.truncate(n);
        Ok(entries)
    }

    /// Removes those that were not used in the meantime.
    fn remove(&mut self, entries: &[Entry], swept: &mut Swept) -> Result<(), StoreError> {
        let entries: Vec<_> = {
            let mut known = self.shared.known.blocking_lock();
            let unused = |entry: &&Entry| known.used(entry.key).is_none_or(|used| used <= entry.used);
            let entries: Vec<_> = entries.iter().filter(unused).copied().collect();
            // Forgotten before they are gone: a request that comes now puts them again, behind this.
            for entry in &entries {
                known.forget(entry.key);
            }
            entries
        };
        let keys: Vec<_> = entries.iter().map(|entry| entry.key).collect();
        self.attempt(Op::Sweep, |db, now| tables::remove(db, &keys, now))?;
        let (now, keep_for) = (self.shared.clock.now(), self.shared.settings.keep_for.0);
        let bytes: u64 = entries.iter().map(|entry| entry.stored_bytes).sum();
        let aged = entries.iter().filter(|entry| now.since(entry.used) > keep_for).count() as u64;
        swept.aged += aged;
        swept.crowded_out += entries.len() as u64 - aged;
        swept.stored_bytes += bytes;
        self.stored_bytes = self.stored_bytes.map(|before| before.saturating_sub(bytes));
        Ok(())
    }

    pub(super) fn compact(&mut self) -> Result<(), StoreError> {
        let mut slot = self.shared.slot.blocking_write();
        let db = slot.as_mut().ok_or_else(|| closed(Op::Compact))?;
        let compacted = db.compact().map_err(Error::from);
        drop(slot);
        compacted.map(drop).map_err(|error| self.fail(failed(Op::Compact, error)))
    }
}
