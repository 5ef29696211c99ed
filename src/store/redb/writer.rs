//! The one thread that writes: what has come together becomes one transaction.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::redb::{Database, Error};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::file::{self, Opener, Schema, Secret};
use super::packed::Packed;
use super::tables::{Room, Worth};
use super::{Shared, Way, closed, failed, tables};
use crate::payload::{ChainKey, PayloadKey};
use crate::store::ages::Ages;
use crate::store::{Kind, Op, StoreError, Swept, Time};

mod house;

/// Where an answer goes. Who asked may have gone.
pub(super) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// Something to write.
pub(super) enum Job {
    Put {
        payloads: Vec<(PayloadKey, Packed)>,
        answer: Answer<()>,
    },
    Summary {
        beginning: ChainKey,
        packed: Packed,
        answer: Answer<()>,
    },
    Inspected {
        id: String,
        packed: Packed,
        most: usize,
        answer: Answer<()>,
    },
    TrimInspected {
        most: usize,
        answer: Answer<()>,
    },
    Touch {
        keys: Vec<PayloadKey>,
        answer: Answer<()>,
    },
    Sweep {
        answer: Answer<Swept>,
    },
    KeepHouse {
        answer: Answer<()>,
    },
    Compact {
        answer: Answer<()>,
    },
    /// A reader has failed: see whether the file is well, and open it again if not.
    Mend {
        answer: Answer<()>,
    },
    Close {
        answer: Answer<()>,
    },
}

/// The thread's own.
pub(super) struct Writer {
    shared: Arc<Shared>,
    queue: mpsc::Receiver<Job>,
    // Taken out of the queue while it was looked through for payloads.
    next: Option<Job>,
    opener: Opener,
    schema: Schema,
    secret: Zeroizing<Secret>,
    // What all that is kept takes: payloads, summaries, requests; none if it is not known.
    stored_bytes: Option<u64>,
    ages: Ages,
    // Whether the clock was looked at.
    has_looked: bool,
    // The last failure to write, and to open the file. Till `rest` is over there is no use in another try.
    failed: Option<(Instant, StoreError)>,
    rest: Duration,
    swept: Option<Time>,
    // When a sweep left too much.
    in_vain: Option<Time>,
    // The commits that there were when the house was last kept.
    commits: u64,
}

/// Payloads of one transaction take about this much at most, in bytes.
const GROUP: usize = 32 << 20;

// === impl Writer ===

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, queue: mpsc::Receiver<Job>, way: Way, secret: Secret) -> Self {
        let Way { opener, schema, rest } = way;
        let ages = Ages::new(shared.settings.keep_for.0, None);
        Self {
            shared,
            queue,
            next: None,
            opener,
            schema,
            secret: Zeroizing::new(secret),
            stored_bytes: None,
            ages,
            has_looked: false,
            failed: None,
            rest,
            swept: None,
            in_vain: None,
            commits: 0,
        }
    }

    /// Works until it is told to close, or nobody is left to tell.
    pub(super) fn run(mut self) {
        while let Some(job) = self.next.take().or_else(|| self.queue.blocking_recv()) {
            match job {
                Job::Put { payloads, answer } => {
                    self.put(payloads, answer);
                    self.sweep_if_crowded();
                }
                Job::Summary { beginning, packed, answer } => {
                    let kept = self.keep_summary(beginning, &packed);
                    reply(answer, kept);
                    self.sweep_if_crowded();
                }
                Job::Inspected { id, packed, most, answer } => {
                    let kept = self.keep_inspected(&id, &packed, most);
                    reply(answer, kept);
                }
                Job::TrimInspected { most, answer } => {
                    let trimmed = self.trim_inspected(most);
                    reply(answer, trimmed);
                }
                Job::Touch { keys, answer } => reply(answer, self.touch(&keys)),
                Job::Sweep { answer } => {
                    let swept = self.sweep_by_hand();
                    reply(answer, swept);
                }
                Job::KeepHouse { answer } => {
                    let kept = self.keep_house();
                    reply(answer, kept);
                }
                Job::Compact { answer } => {
                    let compacted = self.compact();
                    reply(answer, compacted);
                }
                Job::Mend { answer } => {
                    let mended = self.attempt(Op::Get, |db, _| tables::n_tombstones(db)).map(drop);
                    reply(answer, mended);
                }
                Job::Close { answer } => return reply(answer, self.close()),
            }
        }
        let _closed = self.close();
    }

    /// Keeps the payloads, and those of everybody who waits behind.
    fn put(&mut self, mut payloads: Vec<(PayloadKey, Packed)>, answer: Answer<()>) {
        let mut answers = vec![answer];
        let mut bytes: usize = payloads.iter().map(|(_, packed)| packed.len()).sum();
        while bytes < GROUP && self.next.is_none() {
            match self.queue.try_recv() {
                Ok(Job::Put { payloads: more, answer }) => {
                    bytes += more.iter().map(|(_, packed)| packed.len()).sum::<usize>();
                    payloads.extend(more);
                    answers.push(answer);
                }
                Ok(other) => self.next = Some(other),
                Err(_) => break,
            }
        }
        let kept = match &self.failed {
            Some((at, error)) if at.elapsed() < self.rest => Err(error.clone()),
            _ => self.attempt(Op::Put, |db, now| tables::put(db, &payloads, now)),
        };
        let result = kept.map(|put| {
            let now = self.shared.clock.now();
            if put.written > 0 {
                self.well();
            }
            let mut known = self.shared.known.blocking_lock();
            for (key, used) in put.kept {
                known.learn(key, used, now);
            }
            self.shared.counts.written.fetch_add(put.written, Ordering::Relaxed);
            self.shared.counts.written_bytes.fetch_add(put.bytes, Ordering::Relaxed);
            self.shared.counts.commits.fetch_add(u64::from(put.written > 0), Ordering::Relaxed);
            self.stored_bytes = self.stored_bytes.map(|bytes| bytes + put.stored_bytes);
        });
        for answer in answers {
            reply(answer, result.clone());
        }
    }

    fn keep_summary(&mut self, beginning: ChainKey, packed: &Packed) -> Result<(), StoreError> {
        if let Some((at, error)) = &self.failed
            && at.elapsed() < self.rest
        {
            return Err(error.clone());
        }
        let moved = self.attempt(Op::Put, |db, now| tables::put_summary(db, beginning, packed, now))?;
        self.moved(moved);
        self.well();
        self.shared.counts.commits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn keep_inspected(&mut self, id: &str, packed: &Packed, most: usize) -> Result<(), StoreError> {
        if let Some((at, error)) = &self.failed
            && at.elapsed() < self.rest
        {
            return Err(error.clone());
        }
        let room = self.room(most);
        let moved = self.attempt(Op::Put, |db, now| tables::put_inspected(db, id, packed, now, room))?;
        self.moved(moved);
        self.well();
        self.shared.counts.commits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn trim_inspected(&mut self, most: usize) -> Result<(), StoreError> {
        let room = self.room(most);
        let moved = self.attempt(Op::Sweep, |db, _| tables::trim_inspected(db, room))?;
        self.moved(moved);
        Ok(())
    }

    /// The room for so many requests.
    fn room(&self, most: usize) -> Room {
        let oldest = self.ages.oldest(self.shared.clock.now());
        Room { most, bytes: self.shared.settings.most_of_requests(), oldest }
    }

    /// Notes uses of payloads that were not known here.
    fn touch(&mut self, keys: &[PayloadKey]) -> Result<(), StoreError> {
        let used = self.attempt(Op::Put, |db, _| tables::used(db, keys))?;
        let now = self.shared.clock.now();
        let mut known = self.shared.known.blocking_lock();
        for (key, used) in used {
            known.learn(key, used, now);
        }
        Ok(())
    }

    /// Writes down what waits, and lets go of the file.
    fn close(&mut self) -> Result<(), StoreError> {
        let written = if self.shared.slot.blocking_read().is_some() { self.write_all_uses() } else { Ok(()) };
        drop(self.shared.slot.blocking_write().take());
        written
    }

    fn write_all_uses(&mut self) -> Result<(), StoreError> {
        self.write_uses()?;
        self.sweep_summaries(Worth { most: usize::MAX, bytes: u64::MAX, oldest: Time(0) }).map(drop)
    }

    fn write_uses(&mut self) -> Result<(), StoreError> {
        let uses = self.shared.known.blocking_lock().unwritten();
        self.attempt(Op::Sweep, |db, _| tables::write_uses(db, &uses))
    }
}

// === trouble ===

impl Writer {
    /// Does something with the file. Where that fails the file is opened again, and where that may help it is done again.
    fn attempt<T>(
        &mut self,
        op: Op,
        mut run: impl FnMut(&Database, Time) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        let now = self.shared.clock.now();
        let shared = Arc::clone(&self.shared);
        let mut once = || shared.slot.blocking_read().as_ref().map(|db| run(db, now));
        let first = match once() {
            Some(Ok(done)) => return Ok(done),
            Some(Err(error)) => Some(self.fail(failed(op, error))),
            None => None,
        };
        if let Err(error) = self.reopen() {
            return Err(first.unwrap_or(error));
        }
        if let Some(full) = first.filter(|error| error.kind == Kind::Full) {
            return Err(full);
        }
        match once() {
            Some(Ok(done)) => Ok(done),
            Some(Err(error)) => {
                let error = self.fail(failed(op, error));
                // Reading may go on, whatever is wrong with writing.
                self.reopen().map_or(Err(error.clone()), |()| Err(error))
            }
            None => Err(closed(op)),
        }
    }

    /// Something was made durable: if it could not be before, that is over.
    fn well(&mut self) {
        self.failed = None;
        if self.shared.counts.alarmed.swap(false, Ordering::Relaxed) {
            tracing::warn!(path = %self.shared.path.display(), "the store works again");
        }
    }

    /// One alarm, however often it fails, until it is well again.
    fn fail(&mut self, error: StoreError) -> StoreError {
        self.shared.counts.failures.fetch_add(1, Ordering::Relaxed);
        self.failed = Some((Instant::now(), error.clone()));
        if self.shared.counts.alarmed.swap(true, Ordering::Relaxed) {
            tracing::debug!(kind = error.kind.label(), %error, cause = %error.source, "the store failed again");
        } else {
            tracing::error!(
                path = %self.shared.path.display(),
                kind = error.kind.label(),
                %error,
                cause = %error.source,
                "the store failed: requests go on without the edits that need it, until it works again"
            );
        }
        error
    }

    /// Opens the file again: after a failure redb does nothing else with it.
    fn reopen(&mut self) -> Result<(), StoreError> {
        let shared = Arc::clone(&self.shared);
        let mut slot = shared.slot.blocking_write();
        drop(slot.take());
        // What is in the file now may be less than what was.
        shared.known.blocking_lock().clear();
        self.stored_bytes = None;
        let opened = file::open(&shared.path, &self.opener, self.schema, Some(*self.secret));
        let (db, _) = opened.map_err(|error| self.fail(error.into_store_error(Op::Open)))?;
        *slot = Some(db);
        Ok(())
    }
}

fn reply<T>(answer: Answer<T>, result: Result<T, StoreError>) {
    // A request that was dropped does not wait for its answer.
    let _gone = answer.send(result);
}
