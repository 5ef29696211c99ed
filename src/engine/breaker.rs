//! Circuit breaker for disk writes. After an operation has timed out, later ones do not wait until that operation has
//! finished: a disk that hangs delays one request, and not each step of an agent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use crate::tasks::Tasks;
use crate::units::Period;

/// Limits how long requests wait for a disk. Clones share one state.
#[derive(Clone, Debug)]
pub(super) struct DiskBreaker {
    /// How long an operation is waited for at the longest.
    pub(super) timeout: Duration,
    // Whether an operation that timed out is still running.
    is_open: Arc<AtomicBool>,
    tasks: Tasks,
}

/// Why the result of an operation is not known.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum BreakerError {
    /// This operation took longer than this.
    #[error("the payloads were not stored within {} (store.timeout)", Period(*.0))]
    TimedOut(Duration),
    /// An earlier operation took longer than this and is still running.
    #[error("the payloads were not stored, since the disk has not answered for more than {} (store.timeout)", Period(*.0))]
    Open(Duration),
}

/// How long an operation is waited for while the breaker is open: one that needs no disk access ends within this time.
const OPEN_TIMEOUT: Duration = Duration::from_millis(20);

// === impl DiskBreaker ===

impl DiskBreaker {
    /// Creates a closed breaker; operations are waited for for `timeout` at the longest.
    pub(super) fn new(timeout: Duration, tasks: Tasks) -> Self {
        Self { timeout, is_open: Arc::default(), tasks }
    }

    /// An error while the breaker is open.
    pub(super) fn check(&self) -> Result<(), BreakerError> {
        if self.is_open.load(Ordering::Relaxed) { Err(BreakerError::Open(self.timeout)) } else { Ok(()) }
    }

    /// Waits for an operation. One that times out goes on in the background and closes the breaker when it ends.
    pub(super) async fn call<T: Send>(
        &self,
        operation: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, BreakerError> {
        let mut operation = Box::pin(operation);
        if let Err(error) = self.check() {
            return timeout(OPEN_TIMEOUT.min(self.timeout), operation).await.map_err(|_| error);
        }
        if let Ok(done) = timeout(self.timeout, &mut operation).await {
            return Ok(done);
        }
        // Of several operations that time out together, one opens the breaker and closes it.
        if !self.is_open.swap(true, Ordering::Relaxed) {
            let is_open = Arc::clone(&self.is_open);
            self.tasks.spawn(async move {
                operation.await;
                is_open.store(false, Ordering::Relaxed);
            });
        }
        Err(BreakerError::TimedOut(self.timeout))
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::sync::oneshot;
    use tokio::time::Instant;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn after_a_timeout_the_breaker_is_open_until_the_operation_ends() {
        let breaker = DiskBreaker::new(TIMEOUT, Tasks::default());
        let (done, operation) = oneshot::channel::<()>();
        let began = Instant::now();
        assert_eq!(breaker.call(operation).await, Err(BreakerError::TimedOut(TIMEOUT)));
        assert_eq!(began.elapsed(), TIMEOUT);
        for _ in 0..3 {
            let began = Instant::now();
            assert_eq!(breaker.call(pending::<()>()).await, Err(BreakerError::Open(TIMEOUT)));
            assert_eq!(began.elapsed(), OPEN_TIMEOUT);
            assert_eq!(breaker.call(ready(1)).await, Ok(1), "what needs no disk is done");
            assert_eq!(breaker.check(), Err(BreakerError::Open(TIMEOUT)));
        }
        done.send(()).unwrap();
        tokio::time::sleep(OPEN_TIMEOUT).await;
        assert_eq!(breaker.check(), Ok(()));
        let began = Instant::now();
        assert_eq!(breaker.call(pending::<()>()).await, Err(BreakerError::TimedOut(TIMEOUT)));
        assert_eq!(began.elapsed(), TIMEOUT, "it was quick again, so this one waits");
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_in_time_does_not_open_the_breaker() {
        let breaker = DiskBreaker::new(TIMEOUT, Tasks::default());
        let failing = async {
            tokio::time::sleep(TIMEOUT / 2).await;
            Err::<(), _>("the disk is full")
        };
        assert_eq!(breaker.call(failing).await, Ok(Err("the disk is full")));
        assert_eq!(breaker.call(pending::<()>()).await, Err(BreakerError::TimedOut(TIMEOUT)));
    }
}
