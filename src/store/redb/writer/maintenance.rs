//! Maintenance: removes what has expired or exceeds the limits, and compacts a file that is mostly free space.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::redb::Error;

use super::{Job, Writer};
use crate::store::codec::{INSPECTED, NOTE, Name, SUMMARY};
use crate::store::redb::others::{self, Quota};
use crate::store::redb::tables::{NewValue, Outcome};
use crate::store::redb::{closed, failed, tables, whole};
use crate::store::shares::{fairest_first, note_full};
use crate::store::time::sweep_interval;
use crate::store::{IN_USE, MAX_SUMMARIES, Op, PayloadInfo, Stats, StoreResult, SweepResult, Time};

/// How many payloads one transaction of a sweep removes. Between two transactions, queued puts are done.
const SWEEP_GROUP: usize = 1000;

/// The store may exceed its limit by this fraction before a sweep is due at once.
const SLACK: u64 = 16;

/// When the store exceeds its limit by this fraction, it takes nothing new.
const HEADROOM: u64 = 4;

/// How long an immediate sweep is not repeated after one that could not free enough, because all payloads are in use: a
/// sweep visits every payload, and payloads leave use within a minute.
const INEFFECTIVE_SWEEP_PAUSE: Duration = Duration::from_secs(10);

/// A shorter file is not compacted.
const COMPACT_FROM: u64 = 64 << 20;

/// A payload that a sweep may remove.
struct Candidate {
    entry: PayloadInfo,
    /// Its last use, later by as much as it is kept longer than others.
    due: Time,
}

impl Writer {
    pub(in crate::store::redb) fn maintain(&mut self) -> StoreResult<()> {
        let (now, pause) = (self.shared.clock.now(), sweep_interval(self.shared.settings.keep_for.0));
        // If the clock was set back, the time since the last sweep is not known.
        if self.last_sweep.is_none_or(|swept| now < swept || now.since(swept) >= pause) {
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

    pub(in crate::store::redb) fn sweep_if_crowded(&mut self) {
        let (most, now) = (self.shared.settings.max_bytes.0, self.shared.clock.now());
        let rests = self.last_sweep.is_some_and(|swept| now >= swept && now.since(swept) < INEFFECTIVE_SWEEP_PAUSE);
        let is_crowded = self.stored_bytes().is_ok_and(|bytes| bytes > most.saturating_add(most / SLACK));
        let is_due = if self.over_share.is_empty() { is_crowded } else { !rests };
        // After a failure, as long as no write is to be tried again, no sweep is either: it visits every payload.
        if is_due && self.check().is_ok() {
            // The failure is logged and counted; the put has had its own reply.
            let _swept = self.sweep();
        }
    }

    /// Whether payloads are refused that come after so many bytes: while the store is full, those of callers who have more than
    /// their share; above the headroom, all. Those that are stored need no room.
    pub(super) fn is_full_for(&mut self, payloads: &[NewValue], bytes: usize) -> bool {
        let is_over = self.is_over(bytes);
        let needs_room = |new: &&NewValue| is_over || self.over_share.contains(&new.key().owner());
        let keys: Vec<_> = payloads.iter().filter(needs_room).map(NewValue::key).collect();
        let mut stored = || self.attempt(Op::Write, |db, _| tables::last_uses(db, &keys));
        !keys.is_empty() && stored().is_ok_and(|stored| stored.len() < keys.len())
    }

    /// Whether the store exceeds its headroom with so many more bytes.
    pub(super) fn is_over(&mut self, bytes: usize) -> bool {
        let most = self.shared.settings.max_bytes.0;
        let with_more = self.stored_bytes().map(|stored| stored.saturating_add(bytes as u64));
        with_more.is_ok_and(|bytes| bytes > most.saturating_add(most / HEADROOM))
    }

    /// The bytes of all that is stored.
    fn stored_bytes(&mut self) -> StoreResult<u64> {
        if let Some(bytes) = self.stored_bytes {
            return Ok(bytes);
        }
        let Stats { stored_bytes, summary_bytes, inspected_bytes, .. } =
            self.attempt(Op::Write, |db, _| others::totals(db))?;
        Ok(*self.stored_bytes.insert(stored_bytes.saturating_add(summary_bytes).saturating_add(inspected_bytes)))
    }

    /// Notes that transactions have added and removed so many bytes.
    pub(super) fn resize(&mut self, added: u64, removed: u64) {
        self.stored_bytes = self.stored_bytes.map(|bytes| bytes.saturating_add(added).saturating_sub(removed));
    }

    /// Removes what a kind has beyond the quota: how many.
    pub(super) fn trim(&mut self, kind: u8, quota: Quota) -> StoreResult<u64> {
        let (n_removed, bytes) = self.attempt(Op::Write, |db, _| others::trim(db, kind, quota))?;
        // Notes do not count.
        self.resize(0, if kind == NOTE { 0 } else { bytes });
        Ok(n_removed)
    }

    /// Sets times that are later than now to now, after the clock was set back.
    fn clamp_times(&mut self) -> StoreResult<()> {
        let now = self.shared.clock.now();
        self.shared.known.blocking_lock().clamp_times(now);
        self.attempt(Op::Write, |db, _| whole::clamp_times(db, now))
    }

    /// Sweeps on an operator's request, which says that the clock is right.
    pub(in crate::store::redb) fn sweep_now(&mut self) -> StoreResult<SweepResult> {
        self.last_sweep = Some(self.shared.clock.now());
        self.sweep()
    }

    fn sweep(&mut self) -> StoreResult<SweepResult> {
        self.clamp_times()?;
        self.write_uses()?;
        if self.last_sweep.is_none() {
            // The last use in the file says when another process has seen the clock.
            self.last_sweep = self.attempt(Op::Write, |db, _| whole::last_use(db))?;
        }
        let (oldest, max_bytes) = (self.oldest(), self.shared.settings.max_summary_bytes());
        self.last_sweep = Some(self.shared.clock.now());
        self.attempt(Op::Write, tables::trim_tombstones)?;
        let summaries = self.trim(SUMMARY, Quota { max_entries: MAX_SUMMARIES, max_bytes, oldest })?;
        self.trim(NOTE, Quota { max_entries: usize::MAX, max_bytes: u64::MAX, oldest })?;
        let mut swept = SweepResult { summaries, ..SweepResult::default() };
        self.trim(INSPECTED, Quota { oldest, ..self.inspected_quota(usize::MAX) })?;
        for entries in self.eviction_candidates(oldest)?.chunks(SWEEP_GROUP) {
            self.remove(entries, oldest, &mut swept)?;
            if self.next.is_none()
                && let Ok(job) = self.queue.try_recv()
            {
                match job {
                    Job::Put { payloads, reply } => self.put(payloads, reply),
                    other => self.next = Some(other),
                }
            }
        }
        if swept != SweepResult::default() {
            tracing::debug!(?swept, "the store was swept");
        }
        Ok(swept)
    }

    /// The payloads that have expired and, while the store exceeds its limit, those beyond their caller's share that are not
    /// in use. Of one caller, those that would expire first go first.
    fn eviction_candidates(&mut self, oldest: Time) -> StoreResult<Vec<Candidate>> {
        let most = self.shared.settings.max_bytes.0;
        let stored = self.stored_bytes()?;
        let now = self.shared.clock.now();
        let may_go = |entry: &Outcome<(PayloadInfo, _)>| {
            entry.as_ref().map_or(true, |(entry, _)| stored > most || entry.used < oldest)
        };
        let mut entries =
            self.attempt(Op::Write, |db, _| tables::payloads(db)?.filter(may_go).collect::<Outcome<Vec<_>>>())?;
        {
            let known = self.shared.known.blocking_lock();
            for (entry, _) in &mut entries {
                entry.used = known.last_use(Name::of_payload(entry.key)).unwrap_or_default().max(entry.used);
            }
        }
        let settings = &self.shared.settings;
        let candidate = |(entry, lifetime): (PayloadInfo, _)| Candidate {
            due: entry.used.later(settings.extra_time(lifetime)),
            entry,
        };
        let candidates = entries.into_iter().map(candidate);
        let (mut goes, mut stays): (Vec<_>, Vec<_>) = candidates.partition(|candidate| candidate.due < oldest);
        let left = goes.iter().fold(stored, |left, candidate| left.saturating_sub(candidate.entry.stored_bytes));
        let mut over = HashSet::new();
        if left > most {
            let is_in_use = |entry: &PayloadInfo| now.since(entry.used) < IN_USE;
            stays.sort_unstable_by_key(|Candidate { due, entry }| Reverse((is_in_use(entry), *due, entry.key)));
            let of_payloads: u64 = stays.iter().map(|candidate| candidate.entry.stored_bytes).sum();
            let room = of_payloads.saturating_sub(left - most);
            let mut kept = 0;
            for candidate in fairest_first(stays, |Candidate { entry, .. }| (entry.key.owner(), entry.stored_bytes)) {
                kept += candidate.entry.stored_bytes;
                if kept > room && is_in_use(&candidate.entry) {
                    over.insert(candidate.entry.key.owner());
                } else if kept > room {
                    goes.push(candidate);
                }
            }
        }
        note_full(&mut self.over_share, over);
        Ok(goes)
    }

    /// Removes those that were not used in the meantime.
    fn remove(&mut self, candidates: &[Candidate], oldest: Time, swept: &mut SweepResult) -> StoreResult<()> {
        let candidates: Vec<_> = {
            let mut known = self.shared.known.blocking_lock();
            let last_use = |entry: &PayloadInfo| known.last_use(Name::of_payload(entry.key));
            let unused = |Candidate { entry, .. }: &&Candidate| last_use(entry).is_none_or(|used| used <= entry.used);
            let candidates: Vec<_> = candidates.iter().filter(unused).collect();
            // They are forgotten before they are removed: a concurrent request puts them again, after this job.
            for Candidate { entry, .. } in &candidates {
                known.forget(Name::of_payload(entry.key));
            }
            candidates
        };
        let keys: Vec<_> = candidates.iter().map(|candidate| candidate.entry.key).collect();
        self.attempt(Op::Write, |db, now| tables::remove_payloads(db, &keys, now))?;
        let bytes: u64 = candidates.iter().map(|candidate| candidate.entry.stored_bytes).sum();
        let aged = candidates.iter().filter(|candidate| candidate.due < oldest).count() as u64;
        swept.aged += aged;
        swept.crowded_out += candidates.len() as u64 - aged;
        swept.stored_bytes = swept.stored_bytes.saturating_add(bytes);
        self.resize(0, bytes);
        Ok(())
    }

    pub(in crate::store::redb) fn compact(&mut self) -> StoreResult<()> {
        let mut database = self.shared.database.blocking_write();
        let db = database.as_mut().ok_or_else(|| closed(Op::Write))?;
        let compacted = db.compact().map_err(Error::from);
        drop(database);
        compacted.map(drop).map_err(|error| self.note_failure(failed(Op::Write, error)))
    }
}
