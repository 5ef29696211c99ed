//! One connection to the engine, which a task opens again whenever it is lost.
//!
//! A call never connects: without a connection it fails at once. A call that takes too long gives the connection
//! up, since an engine that hangs answers no later call either. So an engine that hangs is waited for once.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::error::EngineError;
use crate::store::counts::Counts;
use crate::store::{Op, StoreError, StoreResult};
use crate::tasks::Tasks;

/// Opens connections to an engine.
pub(in crate::store) trait Connect: Send + Sync + 'static {
    /// What calls need of an open connection.
    type Client: Send + Sync + 'static;

    /// Connects, and checks that what is there is this fleet's. Returns what drives the connection, too, until it ends.
    fn connect(&self) -> impl Future<Output = Result<(Self::Client, Driver), EngineError>> + Send;
}

/// Drives a connection until it ends.
pub(in crate::store) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Returns what the first of the attempts gives that succeeds within this time; otherwise the error of the last one.
pub(in crate::store) async fn first_of<T>(
    within: Duration,
    attempts: impl Iterator<Item = impl Future<Output = Result<T, EngineError>>>,
) -> Result<T, EngineError> {
    let mut last = EngineError::Closed;
    for attempt in attempts {
        match timeout(within, attempt).await {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(error)) => last = error,
            Err(_) => last = EngineError::TimedOut(within),
        }
    }
    Err(last)
}

/// A connection.
pub(in crate::store) struct Link<C: Connect> {
    connector: C,
    timeout: Duration,
    open: ArcSwapOption<Open<C::Client>>,
    // The outcome of the last attempt to connect; `None` before the first.
    outcome: watch::Sender<Option<Result<(), EngineError>>>,
    connected: AtomicU64,
    stop: CancellationToken,
}

/// An open connection.
pub(in crate::store) struct Open<T> {
    pub(in crate::store) client: T,
    /// Cancelled when a call has given the connection up.
    given_up: CancellationToken,
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
        let link = Arc::new(Self {
            connector,
            timeout,
            open: ArcSwapOption::empty(),
            outcome: watch::channel(None).0,
            connected: AtomicU64::new(0),
            stop: CancellationToken::new(),
        });
        let keeper = Arc::clone(&link);
        tasks.spawn(async move {
            let stop = keeper.stop.clone();
            stop.run_until_cancelled(keeper.keep()).await;
            keeper.open.store(None);
        });
        link
    }

    /// Waits until the first attempt to connect has ended.
    pub(super) async fn first_attempt(&self) -> Result<(), EngineError> {
        let mut outcome = self.outcome.subscribe();
        let first = outcome.wait_for(Option::is_some).await;
        first.ok().and_then(|first| first.clone()).unwrap_or(Err(EngineError::Closed))
    }

    /// Waits until there is a connection, for `store.timeout` at the longest.
    pub(super) async fn connected(&self) {
        let mut outcome = self.outcome.subscribe();
        // The sender lives as long as `self`.
        let _connected = timeout(self.timeout, outcome.wait_for(|outcome| matches!(outcome, Some(Ok(()))))).await;
    }

    /// Why the connection is missing; `Ok` if there is one.
    pub(super) fn state(&self) -> Result<(), EngineError> {
        if self.open.load().is_some() {
            return Ok(());
        }
        match &*self.outcome.borrow() {
            Some(Err(error)) => Err(error.clone()),
            _ => Err(EngineError::Closed),
        }
    }

    /// How often it was connected.
    pub(super) fn epoch(&self) -> u64 {
        self.connected.load(Ordering::Relaxed)
    }

    /// The connection.
    pub(in crate::store) fn open(&self) -> Result<Arc<Open<C::Client>>, EngineError> {
        self.open.load_full().ok_or_else(|| self.state().err().unwrap_or(EngineError::Closed))
    }

    /// Waits for a call of this connection for `store.timeout` at the longest.
    pub(in crate::store) async fn within<T>(
        &self,
        open: &Arc<Open<C::Client>>,
        call: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        let done = timeout(self.timeout, call).await.unwrap_or(Err(EngineError::TimedOut(self.timeout)));
        if let Err(error) = &done
            && error.ends_connection()
        {
            self.give_up(open, error);
        }
        done
    }

    /// Closes the connection, and connects no more.
    pub(super) fn close(&self) {
        self.stop.cancel();
        self.open.store(None);
        self.outcome.send_replace(Some(Err(EngineError::Closed)));
    }

    /// Gives a connection up.
    fn give_up(&self, open: &Arc<Open<C::Client>>, error: &EngineError) {
        // Of several calls that fail together, one gives it up.
        if open.given_up.is_cancelled() || self.stop.is_cancelled() {
            return;
        }
        open.given_up.cancel();
        self.outcome.send_replace(Some(Err(error.clone())));
        self.open.store(None);
    }

    /// Connects, and connects again whenever the connection is lost.
    async fn keep(&self) {
        loop {
            match self.connector.connect().await {
                Ok((client, ended)) => {
                    let open = Arc::new(Open { client, given_up: CancellationToken::new() });
                    self.connected.fetch_add(1, Ordering::Relaxed);
                    self.open.store(Some(Arc::clone(&open)));
                    self.outcome.send_replace(Some(Ok(())));
                    tokio::select! {
                        () = ended => self.give_up(&open, &EngineError::Lost),
                        () = open.given_up.cancelled() => {}
                    }
                }
                Err(error) => _ = self.outcome.send_replace(Some(Err(error))),
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

    /// The connection for reads, or the one for writes while that is being opened again.
    pub(in crate::store) fn for_reads(&self) -> &Link<C> {
        if self.reads.state().is_ok() { &self.reads } else { &self.writes }
    }

    /// The outcome of a read.
    pub(in crate::store) fn has_read<T>(&self, op: Op, outcome: Result<T, EngineError>) -> StoreResult<T> {
        outcome.map_err(|error| self.fails(op, error))
    }

    /// The outcome of a write. The first one that succeeds ends a failure: reads may work while no write does.
    pub(in crate::store) fn has_written<T>(&self, op: Op, outcome: Result<T, EngineError>) -> StoreResult<T> {
        let is_failing = &self.counts.is_failing;
        if outcome.is_ok() && is_failing.load(Ordering::Relaxed) && is_failing.swap(false, Ordering::Relaxed) {
            tracing::warn!("the store works again");
        }
        self.has_read(op, outcome)
    }

    /// Counts and logs a failure.
    pub(in crate::store) fn fails(&self, op: Op, error: EngineError) -> StoreError {
        self.counts.failures.fetch_add(1, Ordering::Relaxed);
        let kind = error.kind();
        if self.counts.is_failing.swap(true, Ordering::Relaxed) {
            tracing::debug!(kind = kind.label(), %error, "the store failed again");
        } else {
            tracing::error!(
                kind = kind.label(),
                %error,
                "the store failed: requests go on without the edits that need it, until it works again"
            );
        }
        StoreError::new(op, kind, error)
    }

    /// Returns what is stored cannot be read.
    pub(in crate::store) fn damaged(&self) -> StoreError {
        self.fails(Op::Get, EngineError::Damaged)
    }
}
