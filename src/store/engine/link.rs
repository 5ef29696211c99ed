//! One connection to the engine, which a task opens again whenever it is lost.
//!
//! A call never connects: without a connection it fails at once. A call that takes too long gives the connection
//! up, since an engine that hangs answers no later call either. So an engine that hangs is waited for once.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::store::engine_error::{EngineError, EngineResult};
use crate::store::{Counts, Op, StoreError, StoreResult};
use crate::tasks::Tasks;

/// Opens connections to an engine.
pub(in crate::store) trait Connect: Send + Sync + 'static {
    /// What calls need of an open connection.
    type Client: Send + Sync + 'static;

    /// Connects, and checks that what is there is this fleet's. Returns what drives the connection, too, until it ends.
    fn connect(&self) -> impl Future<Output = EngineResult<(Self::Client, Driver)>> + Send;
}

/// Drives a connection until it ends.
pub(in crate::store) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Returns what the first of the attempts gives that succeeds within this time; otherwise the error of the last one.
pub(in crate::store) async fn first_of<T>(
    within: Duration,
    attempts: impl Iterator<Item = impl Future<Output = EngineResult<T>>>,
) -> EngineResult<T> {
    let mut last = EngineError::Closed;
    for attempt in attempts {
        match timeout(within, attempt).await.unwrap_or(Err(EngineError::TimedOut(within))) {
            Ok(done) => return Ok(done),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A connection.
pub(in crate::store) struct Link<C: Connect> {
    connector: C,
    timeout: Duration,
    // The connection, or why it is missing; `None` before the first attempt to connect.
    open: watch::Sender<Option<EngineResult<Arc<C::Client>>>>,
    connected: AtomicU64,
    stop: CancellationToken,
}

/// A connection for writes and one for reads, as an engine answers the calls of one connection in turn; and what became
/// of their calls.
pub(in crate::store) struct Links<C: Connect> {
    pub(in crate::store) writes: Arc<Link<C>>,
    pub(in crate::store) reads: Arc<Link<C>>,
    pub(in crate::store) counts: Counts,
}

/// The pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(500);

// === impl Link ===

impl<C: Connect> Link<C> {
    /// Starts to connect, in a task.
    fn start(connector: C, timeout: Duration, tasks: &Tasks) -> Arc<Self> {
        let (open, connected, stop) = (watch::channel(None).0, AtomicU64::new(0), CancellationToken::new());
        let link = Arc::new(Self { connector, timeout, open, connected, stop });
        let keeper = Arc::clone(&link);
        tasks.spawn(async move {
            keeper.stop.run_until_cancelled(keeper.keep()).await;
            keeper.close();
        });
        link
    }

    /// Waits until the first attempt to connect has ended.
    pub(super) async fn first_attempt(&self) -> EngineResult<()> {
        // The sender lives as long as `self`.
        let _ended = self.open.subscribe().wait_for(Option::is_some).await.map(drop);
        self.open().map(drop)
    }

    /// Waits until there is a connection, for `store.timeout` at the longest.
    pub(super) async fn connected(&self) {
        let mut open = self.open.subscribe();
        let _connected = timeout(self.timeout, open.wait_for(|open| matches!(open, Some(Ok(_))))).await;
    }

    /// How often it was connected.
    pub(super) fn epoch(&self) -> u64 {
        self.connected.load(Ordering::Relaxed)
    }

    /// The connection, or why it is missing.
    pub(in crate::store) fn open(&self) -> EngineResult<Arc<C::Client>> {
        self.open.borrow().clone().unwrap_or(Err(EngineError::Closed))
    }

    /// Calls the engine, and waits for `store.timeout` at the longest.
    pub(in crate::store) async fn call<T, F: Future<Output = EngineResult<T>>>(
        &self,
        call: impl FnOnce(Arc<C::Client>) -> F,
    ) -> EngineResult<T> {
        let client = self.open()?;
        let answer = timeout(self.timeout, call(Arc::clone(&client))).await;
        let answer = answer.unwrap_or(Err(EngineError::TimedOut(self.timeout)));
        if let Err(error) = &answer
            && error.ends_connection()
        {
            self.give_up(&client, error);
        }
        answer
    }

    /// Closes the connection, and connects no more.
    pub(super) fn close(&self) {
        self.stop.cancel();
        self.open.send_replace(Some(Err(EngineError::Closed)));
    }

    /// Gives a connection up. Of several calls that fail together, one does.
    fn give_up(&self, client: &Arc<C::Client>, error: &EngineError) {
        self.open.send_if_modified(|open| {
            let is_open = matches!(open, Some(Ok(open)) if Arc::ptr_eq(open, client));
            if is_open {
                *open = Some(Err(error.clone()));
            }
            is_open
        });
    }

    /// Connects, and connects again whenever the connection is lost.
    async fn keep(&self) {
        loop {
            match self.connector.connect().await {
                Ok((client, ended)) => {
                    let client = Arc::new(client);
                    self.connected.fetch_add(1, Ordering::Relaxed);
                    self.open.send_replace(Some(Ok(Arc::clone(&client))));
                    let mut open = self.open.subscribe();
                    tokio::select! {
                        () = ended => self.give_up(&client, &EngineError::Lost),
                        _given_up = open.wait_for(|open| !matches!(open, Some(Ok(_)))) => {}
                    }
                }
                Err(error) => _ = self.open.send_replace(Some(Err(error))),
            }
            sleep(PAUSE).await;
        }
    }
}

// === impl Links ===

impl<C: Connect> Links<C> {
    /// Starts to connect, in tasks.
    pub(in crate::store) fn start(writes: C, reads: C, timeout: Duration, tasks: &Tasks) -> Self {
        let [writes, reads] = [writes, reads].map(|connector| Link::start(connector, timeout, tasks));
        Self { writes, reads, counts: Counts::default() }
    }

    pub(super) fn close(&self) {
        self.writes.close();
        self.reads.close();
    }

    /// Calls the engine. The first write that succeeds ends a failure: reads may work while no write does.
    pub(in crate::store) async fn call<T, F: Future<Output = EngineResult<T>>>(
        &self,
        op: Op,
        call: impl FnOnce(Arc<C::Client>) -> F,
    ) -> StoreResult<T> {
        let done = self.ask(op, call).await?;
        if op != Op::Read {
            self.counts.works();
        }
        Ok(done)
    }

    /// Calls the engine: to read, on the connection for reads, or on the one for writes while that is being opened again.
    pub(in crate::store) async fn ask<T, F: Future<Output = EngineResult<T>>>(
        &self,
        op: Op,
        call: impl FnOnce(Arc<C::Client>) -> F,
    ) -> StoreResult<T> {
        let link = if op == Op::Read && self.reads.open().is_ok() { &self.reads } else { &self.writes };
        link.call(call).await.map_err(|error| self.fails(op, error))
    }

    /// Counts and logs a failure, such as an answer that could not be read.
    pub(in crate::store) fn fails(&self, op: Op, error: EngineError) -> StoreError {
        let error = StoreError::new(op, error.kind(), error);
        self.counts.fails(&error);
        error
    }
}
