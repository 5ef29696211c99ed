//! The house: what is too old and too much is removed, and a file that is mostly air is compacted.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ::redb::Error;

use super::{Job, Writer};
use crate::store::ages::Ages;
use crate::store::redb::tables::{Moved, Worth};
use crate::store::redb::{closed, failed, tables};
use crate::store::{Entry, IN_USE, MOST_SUMMARIES, Op, StoreError, Swept, Time};

/// Payloads that one transaction of a sweep removes. Between two of them, others get their turn.
const SWEEP_GROUP: usize = 1000;

/// The store may grow by this part of its limit beyond it before a sweep is due at once.
const SLACK: u64 = 16;

/// When a sweep leaves too much, since all of it is in use, the next one that is due at once waits this long: it looks at
/// every payload, and the next minute frees what this one used.
const IN_VAIN: Duration = Duration::from_secs(10);

/// A smaller file is not worth compacting.
const COMPACT_FROM: u64 = 64 << 20;

impl Writer {
    pub(super) fn keep_house(&mut self) -> Result<(), StoreError> {
        self.look()?;
        let (now, pause) = (self.shared.clock.now(), self.ages.pause());
        // A clock that was set back says nothing of how long ago that was.
        if self.swept.is_none_or(|swept| now < swept || now.since(swept) >= pause) {
            self.sweep()?;
        } else {
            self.write_uses()?;
        }
        let commits = self.shared.counts.commits.load(Ordering::Relaxed);
        let idle = std::mem::replace(&mut self.commits, commits) == commits;
        let len = self.shared.file_len();
        if idle && len >= COMPACT_FROM && len / 2 > self.stored_bytes()? {
            self.compact()?;
        }
        Ok(())
    }

    pub(super) fn sweep_if_crowded(&mut self) {
        let most = self.shared.settings.max_bytes.0;
        let crowded = |bytes| bytes > most.saturating_add(most / SLACK);
        let now = self.shared.clock.now();
        let rests = self.in_vain.is_some_and(|swept| now >= swept && now.since(swept) < IN_VAIN);
        if !rests && self.stored_bytes().is_ok_and(crowded) {
            // Its failure is in the log and in the counters; who put something has it.
            let _swept = self.sweep();
            self.in_vain = self.stored_bytes().is_ok_and(crowded).then_some(now);
        }
    }

    /// Looks at the clock. Before this process began, that was done at the last use in the file at the latest.
    fn look(&mut self) -> Result<(), StoreError> {
        if !self.has_looked {
            let seen = self.attempt(Op::Sweep, |db, _| tables::clock::last_use(db))?;
            self.ages = Ages::new(self.shared.settings.keep_for.0, seen);
            self.has_looked = true;
        }
        self.ages.look(self.shared.clock.now());
        Ok(())
    }

    /// What all that is kept takes in the file.
    fn stored_bytes(&mut self) -> Result<u64, StoreError> {
        if let Some(bytes) = self.stored_bytes {
            return Ok(bytes);
        }
        let mut bytes = 0;
        self.attempt(Op::Sweep, |db, _| {
            bytes = tables::n_inspected(db)?.1;
            tables::each_summary(db, |_, _, stored_bytes| bytes += stored_bytes)?;
            tables::each(db, |entry| bytes += entry.stored_bytes)
        })?;
        self.stored_bytes = Some(bytes);
        Ok(bytes)
    }

    /// Something came, or went.
    pub(super) fn moved(&mut self, moved: Moved) {
        let Moved { bytes_in, bytes_out, .. } = moved;
        self.stored_bytes = self.stored_bytes.map(|bytes| (bytes + bytes_in).saturating_sub(bytes_out));
    }

    /// Writes down when summaries were used, and removes those that are not worth their place.
    pub(super) fn sweep_summaries(&mut self, worth: Worth) -> Result<u64, StoreError> {
        let uses = self.shared.summaries_used.blocking_lock().clone();
        let moved = self.attempt(Op::Sweep, |db, _| tables::sweep_summaries(db, &uses, worth))?;
        self.shared.summaries_used.blocking_lock().retain(|beginning, used| uses.get(beginning) != Some(used));
        self.moved(moved);
        Ok(moved.n_out)
    }

    /// What was used later than now was used before the clock was set back.
    fn set_back(&mut self) -> Result<(), StoreError> {
        let now = self.shared.clock.now();
        self.shared.known.blocking_lock().set_back(now);
        for used in self.shared.summaries_used.blocking_lock().values_mut() {
            *used = now.min(*used);
        }
        self.attempt(Op::Sweep, |db, _| tables::clock::set_back(db, now))
    }

    /// Somebody wants what is too old to be gone now, and so says that the clock is right.
    pub(super) fn sweep_by_hand(&mut self) -> Result<Swept, StoreError> {
        self.ages.trust(self.shared.clock.now());
        self.has_looked = true;
        self.sweep()
    }

    fn sweep(&mut self) -> Result<Swept, StoreError> {
        self.set_back()?;
        self.write_uses()?;
        let now = self.shared.clock.now();
        self.swept = Some(now);
        self.attempt(Op::Sweep, tables::trim_tombstones)?;
        let (oldest, bytes) = (self.ages.oldest(now), self.shared.settings.most_of_summaries());
        let summaries = self.sweep_summaries(Worth { most: MOST_SUMMARIES, bytes, oldest })?;
        let mut swept = Swept { summaries, ..Swept::default() };
        self.trim_inspected(usize::MAX)?;
        for entries in self.victims(oldest)?.chunks(SWEEP_GROUP) {
            self.remove(entries, oldest, &mut swept)?;
            if self.next.is_none()
                && let Ok(job) = self.queue.try_recv()
            {
                match job {
                    Job::Put { payloads, answer } => self.put(payloads, answer),
                    other => self.next = Some(other),
                }
            }
        }
        if swept != Swept::default() {
            let Swept { aged, crowded_out, stored_bytes, summaries } = swept;
            tracing::debug!(aged, crowded_out, stored_bytes, summaries, "the store was swept");
        }
        Ok(swept)
    }

    /// What is too old, and then what is too much: oldest first.
    fn victims(&mut self, oldest: Time) -> Result<Vec<Entry>, StoreError> {
        let most = self.shared.settings.max_bytes.0;
        let mut left = self.stored_bytes()?;
        let now = self.shared.clock.now();
        let crowded = left > most;
        let mut entries = Vec::new();
        self.attempt(Op::Sweep, |db, _| {
            entries.clear();
            tables::each(db, |entry| {
                if crowded || entry.used < oldest {
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
            let goes = entry.used < oldest || left > most && now.since(entry.used) >= IN_USE;
            left = left.saturating_sub(entry.stored_bytes);
            goes
        });
        let n = n.count();
        entries.truncate(n);
        Ok(entries)
    }

    /// Removes those that were not used in the meantime.
    fn remove(&mut self, entries: &[Entry], oldest: Time, swept: &mut Swept) -> Result<(), StoreError> {
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
        let bytes: u64 = entries.iter().map(|entry| entry.stored_bytes).sum();
        let aged = entries.iter().filter(|entry| entry.used < oldest).count() as u64;
        swept.aged += aged;
        swept.crowded_out += entries.len() as u64 - aged;
        swept.stored_bytes += bytes;
        self.moved(Moved { bytes_out: bytes, ..Moved::default() });
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
