//! The writer thread: puts all queued payloads into one transaction.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::redb::{Database, Error};
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::file::{self, OpenError, unwound};
use super::others::{self, Quota};
use super::tables::{self, NewValue, Outcome};
use super::{DatabaseOptions, Shared, closed, failed, kind_of};
use crate::payload::{Lifetime, PayloadKey};
use crate::store::codec::INSPECTED;
use crate::store::engine_error::EngineError;
use crate::store::time::cutoff;
use crate::store::{Op, StoreError, StoreErrorKind, StoreResult, Time};
use crate::tasks::lower_priority;

mod maintenance;

/// Where the result of a job goes. The receiver may be gone.
pub(super) type Reply<T> = oneshot::Sender<StoreResult<T>>;

/// A job for the writer.
pub(super) enum Job {
    /// Stores payloads, together with those of all such jobs in the queue.
    Put { payloads: Vec<NewValue>, reply: Reply<()> },
    /// Does something else, and replies.
    Run(Box<dyn FnOnce(&mut Writer) + Send>),
    /// Closes the store, and ends.
    Close { reply: Reply<()> },
}

/// The state of the writer thread.
pub(super) struct Writer {
    shared: Arc<Shared>,
    queue: mpsc::Receiver<Job>,
    // A job that was taken out of the queue while it was searched for payloads.
    next: Option<Job>,
    options: DatabaseOptions,
    // The bytes of all payloads, summaries and inspected requests; `None` if not known.
    stored_bytes: Option<u64>,
    // The last failure to write or to open the file. No write is tried again until the pause of the options has passed.
    failed: Option<(Instant, StoreError)>,
    last_sweep: Option<Time>,
    // The callers who have more than their share while all that they have is in use and the store is full.
    over_share: HashSet<[u8; 2]>,
    // The number of commits at the last maintenance.
    commits: u64,
}

/// The payloads of one transaction take about this many bytes at most.
const MAX_GROUP_BYTES: usize = 32 << 20;

// === impl Writer ===

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, queue: mpsc::Receiver<Job>, options: DatabaseOptions) -> Self {
        Self {
            shared,
            queue,
            next: None,
            options,
            stored_bytes: None,
            failed: None,
            last_sweep: None,
            over_share: HashSet::new(),
            commits: 0,
        }
    }

    /// Runs until a job closes the store, or all senders are gone.
    pub(super) fn run(mut self) {
        lower_priority();
        while let Some(job) = self.next.take().or_else(|| self.queue.blocking_recv()) {
            match job {
                Job::Put { payloads, reply } => {
                    self.sweep_if_crowded();
                    self.put(payloads, reply);
                    self.sweep_if_crowded();
                }
                Job::Run(run) => run(&mut self),
                Job::Close { reply } => return send_reply(reply, self.close()),
            }
        }
        let _closed = self.close();
    }

    /// Stores the payloads, and those of all puts that are queued, except those that have no room.
    fn put(&mut self, payloads: Vec<NewValue>, reply: Reply<()>) {
        let (mut all, mut replies, mut bytes) = (Vec::new(), Vec::new(), 0);
        let (checked, mut next) = (self.check(), Some(Job::Put { payloads, reply }));
        while let Some(Job::Put { payloads, reply }) = next {
            if checked.is_ok() && self.is_full_for(&payloads, bytes) {
                send_reply(reply, Err(self.full()));
            } else {
                bytes += payloads.iter().map(|new| new.frame.len()).sum::<usize>();
                all.extend(payloads);
                replies.push(reply);
            }
            next = (bytes < MAX_GROUP_BYTES && self.next.is_none()).then(|| self.queue.try_recv().ok()).flatten();
        }
        self.next = self.next.take().or(next);
        let kept = checked.and_then(|()| self.attempt(Op::Write, |db, now| tables::put(db, &all, now)));
        let result = kept.map(|put| {
            let now = self.shared.clock.now();
            if put.committed {
                self.note_recovery();
            }
            self.resize(put.stored_bytes, 0);
            let mut known = self.shared.known.blocking_lock();
            for (name, lifetime, used) in put.kept {
                known.insert(name, lifetime, used, now);
            }
            self.shared.counts.written.fetch_add(put.written, Ordering::Relaxed);
            self.shared.counts.written_bytes.fetch_add(put.bytes, Ordering::Relaxed);
            self.shared.counts.commits.fetch_add(u64::from(put.committed), Ordering::Relaxed);
            for handle in put.mended {
                tracing::warn!(%handle, "a damaged payload was written anew");
                // Its bytes were counted before.
                self.stored_bytes = None;
            }
        });
        for reply in replies {
            send_reply(reply, result.clone());
        }
    }

    pub(super) fn offer_summary(&mut self, new: &NewValue) -> StoreResult<Option<Bytes>> {
        self.check()?;
        if self.is_over(0) {
            return Err(self.full());
        }
        let theirs = self.attempt(Op::Write, |db, now| others::offer_summary(db, new, now))?;
        if let Some(theirs) = theirs {
            return self.shared.counts.value(new.name, theirs).map(Some);
        }
        self.note_commit(new.frame.len(), 0);
        Ok(None)
    }

    pub(super) fn put_inspected(&mut self, new: &NewValue, id: &str, most: usize) -> StoreResult<()> {
        self.check()?;
        let quota = self.inspected_quota(most);
        let removed = self.attempt(Op::Write, |db, now| others::put_inspected(db, new, id, now, quota))?;
        self.note_commit(new.frame.len(), removed);
        Ok(())
    }

    pub(super) fn note(&mut self, new: &NewValue, label: &[u8], keep: Duration) -> StoreResult<()> {
        self.check()?;
        self.attempt(Op::Write, |db, now| others::put_note(db, new, label, now, now.later(keep)))
    }

    pub(super) fn trim_inspected(&mut self, most: usize) -> StoreResult<()> {
        self.trim(INSPECTED, self.inspected_quota(most)).map(drop)
    }

    /// The quota for `most` inspected requests.
    fn inspected_quota(&self, most: usize) -> Quota {
        Quota { max_entries: most, max_bytes: self.shared.settings.max_inspected_bytes(), oldest: self.oldest() }
    }

    /// What was last used before this time has expired.
    fn oldest(&self) -> Time {
        cutoff(self.shared.clock.now(), self.last_sweep, self.shared.settings.keep_for.0)
    }

    /// Notes uses of payloads that are not in [`Shared::known`].
    pub(super) fn touch(&mut self, keys: &[PayloadKey]) -> StoreResult<()> {
        let used = self.attempt(Op::Write, |db, _| tables::last_uses(db, keys))?;
        let now = self.shared.clock.now();
        let mut known = self.shared.known.blocking_lock();
        for (name, used) in used {
            known.insert(name, Lifetime::Usual, used, now);
        }
        Ok(())
    }

    /// Writes pending uses and closes the file.
    fn close(&mut self) -> StoreResult<()> {
        let is_open = self.shared.database.blocking_read().is_some();
        let written = if is_open { self.write_uses() } else { Ok(()) };
        let database = self.shared.database.blocking_write().take();
        if database.is_some() {
            file::remove_holder(&self.shared.path);
        }
        // This unlocks the file.
        drop(database);
        written
    }

    fn write_uses(&mut self) -> StoreResult<()> {
        let uses = self.shared.known.blocking_lock().take_unwritten();
        self.attempt(Op::Write, |db, _| tables::write_uses(db, &uses))
    }
}

// === trouble ===

impl Writer {
    /// Runs an operation on the database. If it fails, the file is reopened, and the operation is run again unless the
    /// disk is full.
    pub(super) fn attempt<T>(&mut self, op: Op, mut run: impl FnMut(&Database, Time) -> Outcome<T>) -> StoreResult<T> {
        let now = self.shared.clock.now();
        let shared = Arc::clone(&self.shared);
        let mut once = || shared.database.blocking_read().as_ref().map(|db| unwound(|| run(db, now)));
        let first = match once() {
            Some(Ok(done)) => return Ok(done),
            Some(Err(error)) => Some(self.note_failure(failed(op, error))),
            None => None,
        };
        if let Err(error) = self.reopen() {
            return Err(first.unwrap_or(error));
        }
        if let Some(full) = first.filter(|error| error.kind == StoreErrorKind::Full) {
            return Err(full);
        }
        match once() {
            Some(Ok(done)) => Ok(done),
            Some(Err(error)) => {
                let damage = (kind_of(&error) == StoreErrorKind::Corrupt).then(|| error.to_string());
                let error = self.note_failure(failed(op, error));
                if let Some(damage) = damage
                    && self.begin_anew(damage).is_ok()
                    && let Some(done) = once()
                {
                    return done.map_err(|error| failed(op, error));
                }
                // Reads may work even if writes do not.
                let _reopened = self.reopen();
                Err(error)
            }
            None => Err(closed(op)),
        }
    }

    /// Sets a file aside whose damage has shown only now, and begins a new one with the same secret.
    fn begin_anew(&mut self, damage: String) -> StoreResult<()> {
        let shared = Arc::clone(&self.shared);
        if !self.options.sets_aside {
            return Err(closed(Op::Read));
        }
        let error = OpenError::Damaged { path: shared.path.clone(), source: Arc::new(Error::Corrupted(damage)) };
        {
            let mut database = shared.database.blocking_write();
            file::close(database.take());
            let aside = file::set_aside(&shared.path, shared.clock.now(), &error);
            let aside = aside.map_err(|error| failed(Op::Read, error.into()))?;
            shared.notice.with(|notice| *notice = Some(aside.notice));
        }
        self.reopen()
    }

    /// The error of a full store, in which the file itself works.
    fn full(&self) -> StoreError {
        self.shared.counts.failures.fetch_add(1, Ordering::Relaxed);
        StoreError::new(Op::Write, StoreErrorKind::Full, EngineError::Full)
    }

    /// The last failure, as long as no write is to be tried again.
    fn check(&self) -> StoreResult<()> {
        let failed = self.failed.as_ref().filter(|(at, _)| at.elapsed() < self.options.retry_pause);
        failed.map_or(Ok(()), |(_, error)| Err(error.clone()))
    }

    fn note_commit(&mut self, added: usize, removed: u64) {
        self.resize(added as u64, removed);
        self.note_recovery();
        self.shared.counts.commits.fetch_add(1, Ordering::Relaxed);
    }

    /// Called after a durable write: ends the failing state, and logs that.
    fn note_recovery(&mut self) {
        self.failed = None;
        self.shared.counts.works();
    }

    /// Counts and logs a failure: as an error once, until a write succeeds again.
    fn note_failure(&mut self, error: StoreError) -> StoreError {
        self.shared.counts.fails(&error);
        self.failed = Some((Instant::now(), error.clone()));
        error
    }

    /// Reopens the file: after a failed write redb refuses everything else.
    fn reopen(&mut self) -> StoreResult<()> {
        let shared = Arc::clone(&self.shared);
        let mut database = shared.database.blocking_write();
        file::close(database.take());
        // The file may have lost what was in it.
        shared.known.blocking_lock().clear();
        self.stored_bytes = None;
        let opened = file::open(&shared.path, &self.options.opener, Some(*shared.secret));
        let (db, _) = opened.map_err(|error| self.note_failure(error.into_store_error(Op::Read)))?;
        *database = Some(db);
        Ok(())
    }
}

pub(super) fn send_reply<T>(reply: Reply<T>, result: StoreResult<T>) {
    // The receiver is gone if the request was dropped.
    let _gone = reply.send(result);
}
