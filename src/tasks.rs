//! Work that outlives the call that started it. The only place that spawns, so that shutdown can wait for all of it.

use std::cell::Cell;
use std::future::Future;
use std::thread;

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

/// The tasks that run beside requests. Clones share one set.
#[derive(Clone, Debug, Default)]
pub struct Tasks(TaskTracker);

/// A blocking function ended by a panic, or the runtime is going down.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the blocking task did not finish")]
pub struct Unfinished;

// === impl Tasks ===

impl Tasks {
    /// Starts a task that nobody awaits but shutdown. Once the runtime is gone, nothing is started any more.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Ok(runtime) = Handle::try_current() {
            self.0.spawn_on(task, &runtime);
        }
    }

    /// How many are running.
    pub fn running(&self) -> usize {
        self.0.len()
    }

    /// Waits until every task has ended. New ones may still be started; they are waited for too.
    pub async fn drained(&self) {
        self.0.close();
        self.0.wait().await;
    }
}

/// How much less of a busy processor threads that compute get than those that serve requests, as `nice` says it: a third.
///
/// On one processor, a request that came while another one was counted would otherwise wait for the system to take turns.
const NICE: i32 = 5;

thread_local! {
    /// Whether this thread has been made to stand back.
    static STANDS_BACK: Cell<bool> = const { Cell::new(false) };
}

/// Makes a thread that computes stand back behind those that serve. Where the system does not let it, nothing is lost.
fn stand_back() {
    if !STANDS_BACK.replace(true) {
        let _present = rustix::process::nice(NICE); // of this thread alone, on Linux
    }
}

/// Offers the processor to whoever waits for it. A thread that stands back still has it for some milliseconds at a time.
pub fn give_way() {
    thread::yield_now();
}

/// Runs a function that computes or blocks for long away from the threads that serve requests.
pub async fn blocking<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Result<T, Unfinished> {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    tokio::task::spawn_blocking(|| {
        stand_back();
        run()
    })
    .await
    .map_err(|_| Unfinished)
}
