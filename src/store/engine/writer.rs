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
    jobs.send(Job { rows, reply }).await.map_err(|_| closed(Op::Write))?;
    outcome.await.map_err(|_| closed(Op::Write))?
}

/// Writes until the store is dropped: what has come together, with one statement.
pub(super) async fn run<E: Engine>(inner: Arc<Inner<E>>, mut queue: mpsc::Receiver<Job>, tasks: Tasks) {
    let statements = Arc::new(Semaphore::new(MAX_STATEMENTS));
    while let Some(first) = queue.recv().await {
        // The semaphore is never closed.
        let place = Arc::clone(&statements).acquire_owned().await;
        let (mut rows, mut replies, mut n_bytes) = (BTreeMap::new(), Vec::new(), 0);
        let mut next = Some(first);
        while let Some(Job { rows: of_job, reply }) = next {
            replies.push(reply);
            // A statement takes each row once. In the order of the rows, two statements never wait for each other.
            for row in of_job {
                n_bytes += row.body.len();
                match rows.entry(row.row) {
                    Entry::Vacant(free) => _ = free.insert(row),
                    Entry::Occupied(mut kept) => kept.get_mut().lifetime = kept.get().lifetime.max(row.lifetime),
                }
            }
            let has_room = rows.len() < MAX_GROUP.0 && n_bytes < MAX_GROUP.1;
            next = if has_room { queue.try_recv().ok() } else { None };
        }
        let inner = Arc::clone(&inner);
        tasks.spawn(async move {
            let outcome = inner.insert(&rows).await;
            for reply in replies {
                // A request that was given up waits no more.
                let _sent = reply.send(outcome.clone());
            }
            drop(place);
        });
    }
}

impl<E: Engine> Inner<E> {
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
