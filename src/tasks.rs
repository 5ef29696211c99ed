//! Background tasks and blocking work. Only this module spawns, so that shutdown can wait for all tasks.

use std::cell::Cell;
use std::future::Future;
use std::thread;

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

/// A set of background tasks. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Tasks(TaskTracker);

/// A blocking function panicked, or the runtime is shutting down.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the blocking task did not finish")]
pub struct BlockingError;

// === impl Tasks ===

impl Tasks {
    /// Starts a task. Without a runtime, nothing is started.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Ok(runtime) = Handle::try_current() {
            self.0.spawn_on(task, &runtime);
        }
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

/// The `nice` value of threads that compute: on a busy processor they get a third of the time of those that serve requests.
///
/// On one processor, a new request would otherwise wait while the tokens of another one are counted.
const NICE: i32 = 5;

thread_local! {
    /// Whether the priority of this thread has been lowered.
    static PRIORITY_LOWERED: Cell<bool> = const { Cell::new(false) };
}

/// Lowers the priority of this thread below those that serve requests. A failure is ignored.
pub fn lower_priority() {
    if !PRIORITY_LOWERED.replace(true) {
        let _present = rustix::process::nice(NICE); // of this thread alone, on Linux
    }
}

/// Yields the processor to other threads, on a thread of low priority: even that otherwise runs for some milliseconds at a
/// time.
pub fn yield_thread() {
    if PRIORITY_LOWERED.get() {
        thread::yield_now();
    }
}

/// Runs a function that computes or blocks for long on a blocking thread, with lowered priority.
pub async fn run_blocking<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Result<T, BlockingError> {
    #[expect(clippy::disallowed_methods, reason = "the only place that spawns blocking work")]
    tokio::task::spawn_blocking(|| {
        lower_priority();
        run()
    })
    .await
    .map_err(|_| BlockingError)
}
