//! The writer: one statement stores what has come together, and two statements are under way at most.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_postgres::types::Type;

use super::{Inner, blobs, closed, int, sql};
use crate::payload::{Lifetime, PayloadKey};
use crate::store::{Op, StoreError};
use crate::tasks::Tasks;

/// A payload to be stored.
pub(super) struct NewRow {
    pub(super) key: PayloadKey,
    /// As it is stored.
    pub(super) body: Vec<u8>,
    /// Its length before that.
    pub(super) bytes: i64,
    pub(super) extra: i64,
    pub(super) lifetime: Lifetime,
}

/// Payloads to be stored, and where the outcome goes.
pub(super) struct Job {
    rows: Vec<NewRow>,
    reply: oneshot::Sender<Result<(), StoreError>>,
}

/// A statement gets no further job once it has so many rows or bytes.
const MAX_GROUP: (usize, usize) = (64, 1 << 20);

/// How many statements are under way.
const MAX_STATEMENTS: usize = 2;

/// Hands rows to the writer, and waits until they are durable.
pub(super) async fn submit(jobs: &mpsc::Sender<Job>, rows: Vec<NewRow>) -> Result<(), StoreError> {
    let (reply, outcome) = oneshot::channel();
    jobs.send(Job { rows, reply }).await.map_err(|_| closed(Op::Put))?;
    outcome.await.map_err(|_| closed(Op::Put))?
}

/// Writes until the store is dropped.
pub(super) async fn run(inner: Arc<Inner>, mut queue: mpsc::Receiver<Job>, tasks: Tasks) {
    let statements = Arc::new(Semaphore::new(MAX_STATEMENTS));
    while let Some(first) = queue.recv().await {
        // The semaphore is never closed.
        let place = Arc::clone(&statements).acquire_owned().await;
        let group = gather(first, &mut queue);
        let inner = Arc::clone(&inner);
        tasks.spawn(async move {
            inner.store(group).await;
            drop(place);
        });
    }
}

/// A job, and those that have come meanwhile.
fn gather(first: Job, queue: &mut mpsc::Receiver<Job>) -> Vec<Job> {
    let size = |job: &Job| (job.rows.len(), job.rows.iter().map(|row| row.body.len()).sum::<usize>());
    let (mut n_rows, mut n_bytes) = size(&first);
    let mut group = vec![first];
    while n_rows < MAX_GROUP.0 && n_bytes < MAX_GROUP.1 {
        let Ok(job) = queue.try_recv() else { break };
        let (rows, bytes) = size(&job);
        (n_rows, n_bytes) = (n_rows + rows, n_bytes + bytes);
        group.push(job);
    }
    group
}

impl NewRow {
    fn keep_as_long_as(&mut self, other: &Self) {
        (self.extra, self.lifetime) = (self.extra.max(other.extra), self.lifetime.max(other.lifetime));
    }
}

impl Inner {
    /// Stores the rows of all jobs with one statement, and tells them the outcome.
    async fn store(&self, group: Vec<Job>) {
        let (mut rows, mut replies) = (BTreeMap::new(), Vec::new());
        for Job { rows: of_job, reply } in group {
            replies.push(reply);
            // A statement takes each key once. In the order of the keys, two statements never wait for each other.
            for row in of_job {
                match rows.entry(row.key) {
                    Entry::Vacant(free) => _ = free.insert(row),
                    Entry::Occupied(mut kept) => kept.get_mut().keep_as_long_as(&row),
                }
            }
        }
        let outcome = self.insert(&rows).await;
        for reply in replies {
            // A request that was given up waits no more.
            let _sent = reply.send(outcome.clone());
        }
    }

    async fn insert(&self, rows: &BTreeMap<PayloadKey, NewRow>) -> Result<(), StoreError> {
        let (now, grain) = (self.clock.parameter(), self.half_grain());
        let keys: Vec<_> = rows.keys().map(|key| key.as_bytes().as_slice()).collect();
        let bodies: Vec<_> = rows.values().map(|row| row.body.as_slice()).collect();
        let lengths: Vec<_> = rows.values().map(|row| row.bytes).collect();
        let extras: Vec<_> = rows.values().map(|row| row.extra).collect();
        let (lengths, extras) = ((&lengths as _, Type::INT8_ARRAY), (&extras as _, Type::INT8_ARRAY));
        let epoch = self.writes.epoch();
        let parameters = [int(&now), blobs(&keys), blobs(&bodies), lengths, extras, int(&grain)];
        let written = self.write(Op::Put, sql::PUT, &parameters).await?;
        let row = written.first().ok_or_else(|| closed(Op::Put))?;
        let number = |n| Ok::<u64, StoreError>(u64::try_from(self.cell::<i64>(row, n)?).unwrap_or_default());
        self.counts.commits.fetch_add(1, Ordering::Relaxed);
        self.counts.written.fetch_add(number(0)?, Ordering::Relaxed);
        self.counts.written_bytes.fetch_add(number(1)?, Ordering::Relaxed);
        let now = self.clock.local();
        let mut known = self.known().await;
        // A connection that was opened meanwhile may lead to another engine.
        if known.epoch == epoch {
            for row in rows.values() {
                // It may have been swept since, and with it the lifetime that it had.
                known.keys.forget(row.key);
                known.keys.insert(row.key, row.lifetime, now, now);
            }
        }
        Ok(())
    }
}
