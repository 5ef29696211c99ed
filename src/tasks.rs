//! Background tasks and blocking work. Only this module spawns, so that shutdown can wait for all tasks.

use std::any::Any;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::platform::process::lower_thread_priority;

/// A set of background tasks. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Tasks(TaskTracker);

/// A task. The runtime's code for a task is generated for each type of future, so all tasks have one type.
type BoxedTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A blocking function, of one type for the same reason.
type BoxedRun = Box<dyn FnOnce() -> Box<dyn Any + Send> + Send>;

/// A blocking function panicked, or the runtime is shutting down.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the blocking task did not finish")]
pub struct BlockingError;

// === impl Tasks ===

impl Tasks {
    /// Starts a task. Without a runtime, nothing is started.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_boxed(Box::pin(task));
    }

    fn spawn_boxed(&self, task: BoxedTask) {
        if let Ok(runtime) = Handle::try_current() {
            self.0.spawn_on(task, &runtime);
        }
    }

    /// Starts a task that is stopped when the returned guard is dropped.
    pub fn spawn_guarded(&self, task: impl Future<Output = ()> + Send + 'static) -> DropGuard {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        self.spawn(async move {
            stopped.run_until_cancelled(task).await;
        });
        stop.drop_guard()
    }

    /// The number of running tasks.
    pub fn running(&self) -> usize {
        self.0.len()
    }

    /// Waits until every task has ended, including tasks that are started meanwhile.
    pub async fn wait(&self) {
        self.0.close();
        self.0.wait().await;
    }
}

thread_local! {
    /// Whether the priority of this thread has been lowered.
    static PRIORITY_LOWERED: Cell<bool> = const { Cell::new(false) };
    /// When this thread has yielded last.
    static LAST_YIELD: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// How long a thread of low priority runs before it yields: many times what yielding takes.
const TIME_SLICE: Duration = Duration::from_micros(20);

/// Lowers the priority of this thread, once. On one processor, a new request would otherwise wait while the tokens of another
/// one are counted.
pub fn lower_priority() {
    if !PRIORITY_LOWERED.replace(true) {
        lower_thread_priority();
    }
}

/// Yields the processor to other threads, on a thread of low priority that has run for a time slice: even that otherwise
/// runs for some milliseconds at a time.
pub fn yield_thread() {
    if PRIORITY_LOWERED.get() && LAST_YIELD.get().is_none_or(|last| last.elapsed() >= TIME_SLICE) {
        thread::yield_now();
        LAST_YIELD.set(Some(Instant::now()));
    }
}

/// Runs a function that computes for as long as its input of `n_bytes` bytes is: here, or on a blocking thread from so many
/// bytes on.
pub async fn run_blocking_from<T: Send + 'static>(
    least: usize,
    n_bytes: usize,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, BlockingError> {
    if n_bytes < least { Ok(run()) } else { run_blocking(run).await }
}

/// Runs a function that computes or blocks for long on a blocking thread, with lowered priority.
pub async fn run_blocking<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Result<T, BlockingError> {
    let done = run_boxed(Box::new(|| Box::new(run()))).await?;
    done.downcast().map(|done| *done).map_err(|_| BlockingError)
}

async fn run_boxed(run: BoxedRun) -> Result<Box<dyn Any + Send>, BlockingError> {
    #[expect(clippy::disallowed_methods, reason = "the only place that spawns blocking work")]
    tokio::task::spawn_blocking(|| {
        lower_priority();
        run()
    })
    .await
    .map_err(|_| BlockingError)
}
