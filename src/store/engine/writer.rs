//! The writer: one statement stores what has come together, and two statements are under way at most.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{Semaphore, mpsc, oneshot};

use super::{Engine, Inner, closed};
use crate::payload::{Lifetime, PayloadKey};
use crate::store::{Op, StoreResult};
use crate::tasks::Tasks;

/// A payload to be stored.
pub(in crate::store) struct NewRow {
    pub(super) key: PayloadKey,
    /// What its row is named.
    pub(in crate::store) row: PayloadKey,
    /// As it is stored.
    pub(in crate::store) body: Vec<u8>,
    /// Its length before that.
    pub(in crate::store) bytes: i64,
    pub(in crate::store) lifetime: Lifetime,
    /// Whose it is, as `seal` tells it.
    pub(in crate::store) owner: u16,
}

/// Payloads to be stored, and where the outcome goes.
pub(super) struct Job {
    rows: Vec<NewRow>,
    reply: oneshot::Sender<StoreResult<()>>,
}

/// A statement gets no further job once it has so many rows or bytes.
const MAX_GROUP: (usize, usize) = (64, 1 << 20);

/// How many statements are under way.
const MAX_STATEMENTS: usize = 2;

/// Hands rows to the writer, and waits until they are durable.
pub(super) async fn submit(jobs: &mpsc::Sender<Job>, rows: Vec<NewRow>) -> StoreResult<()> {
    let (reply, outcome) = oneshot::channel();
    jobs.send(Job { rows, reply }).await.map_err(|_| closed(Op::Put))?;
    outcome.await.map_err(|_| closed(Op::Put))?
}

/// Writes until the store is dropped.
pub(super) async fn run<E: Engine>(inner: Arc<Inner<E>>, mut queue: mpsc::Receiver<Job>, tasks: Tasks) {
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

impl<E: Engine> Inner<E> {
    /// Stores the rows of all jobs with one statement, and tells them the outcome.
    async fn store(&self, group: Vec<Job>) {
        let (mut rows, mut replies) = (BTreeMap::new(), Vec::new());
        for Job { rows: of_job, reply } in group {
            replies.push(reply);
            // A statement takes each row once. In the order of the rows, two statements never wait for each other.
            for row in of_job {
                match rows.entry(row.row) {
                    Entry::Vacant(free) => _ = free.insert(row),
                    Entry::Occupied(mut kept) => kept.get_mut().lifetime = kept.get().lifetime.max(row.lifetime),
                }
            }
        }
        let outcome = self.insert(&rows).await;
        for reply in replies {
            // A request that was given up waits no more.
            let _sent = reply.send(outcome.clone());
        }
    }

    async fn insert(&self, rows: &BTreeMap<PayloadKey, NewRow>) -> StoreResult<()> {
        let epoch = self.epoch();
        let (n_written, n_bytes) = self.engine.put(rows).await?;
        let counts = &self.engine.links().counts;
        counts.commits.fetch_add(1, Ordering::Relaxed);
        counts.written.fetch_add(n_written, Ordering::Relaxed);
        counts.written_bytes.fetch_add(n_bytes, Ordering::Relaxed);
        let now = self.terms.local_time();
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
