//! How long requests wait for a disk. While one has waited in vain, the others do not wait, until what that one wanted is done:
//! a disk that hangs delays one request, and not each step of an agent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use crate::tasks::Tasks;

/// How long they wait. Clones share what is late.
#[derive(Clone, Debug)]
pub(super) struct Patience {
    most: Duration,
    // Whether something is not done that should be.
    late: Arc<AtomicBool>,
    tasks: Tasks,
}

/// Nobody waited until it was done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Late {
    /// It took longer than this.
    Now(Duration),
    /// Something else has taken longer than this, and is not done yet.
    Before(Duration),
}

/// What needs no disk, as all of it is known, is done within this time however slow the disk is.
const GLANCE: Duration = Duration::from_millis(20);

// === impl Patience ===

impl Patience {
    /// They wait so long at most.
    pub(super) fn new(most: Duration, tasks: Tasks) -> Self {
        Self { most, late: Arc::default(), tasks }
    }

    /// How long they wait at most.
    pub(super) fn most(&self) -> Duration {
        self.most
    }

    /// An error while something is late.
    pub(super) fn is_not_late(&self) -> Result<(), Late> {
        if self.late.load(Ordering::Relaxed) { Err(Late::Before(self.most)) } else { Ok(()) }
    }

    /// What comes of it. If nobody waits any longer, the first such goes on behind the requests.
    pub(super) async fn wait<T: Send>(&self, doing: impl Future<Output = T> + Send + 'static) -> Result<T, Late> {
        let mut doing = Box::pin(doing);
        if let Err(late) = self.is_not_late() {
            return timeout(GLANCE.min(self.most), doing).await.map_err(|_| late);
        }
        if let Ok(done) = timeout(self.most, &mut doing).await {
            return Ok(done);
        }
        // Of those that began to wait together, one tells when it is over.
        if !self.late.swap(true, Ordering::Relaxed) {
            let late = Arc::clone(&self.late);
            self.tasks.spawn(async move {
                doing.await;
                late.store(false, Ordering::Relaxed);
            });
        }
        Err(Late::Now(self.most))
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::sync::oneshot;
    use tokio::time::Instant;

    use super::*;

    const MOST: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn one_waits_and_the_others_do_not_until_it_is_done() {
        let patience = Patience::new(MOST, Tasks::default());
        let (done, doing) = oneshot::channel::<()>();
        let began = Instant::now();
        assert_eq!(patience.wait(doing).await, Err(Late::Now(MOST)));
        assert_eq!(began.elapsed(), MOST);
        for _ in 0..3 {
            let began = Instant::now();
            assert_eq!(patience.wait(pending::<()>()).await, Err(Late::Before(MOST)));
            assert_eq!(began.elapsed(), GLANCE);
            assert_eq!(patience.wait(ready(1)).await, Ok(1), "what needs no disk is done");
            assert_eq!(patience.is_not_late(), Err(Late::Before(MOST)));
        }
        done.send(()).unwrap();
        tokio::time::sleep(GLANCE).await;
        assert_eq!(patience.is_not_late(), Ok(()));
        let began = Instant::now();
        assert_eq!(patience.wait(pending::<()>()).await, Err(Late::Now(MOST)));
        assert_eq!(began.elapsed(), MOST, "it was quick again, so this one waits");
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_in_time_is_nothing_to_be_impatient_about() {
        let patience = Patience::new(MOST, Tasks::default());
        let failing = async {
            tokio::time::sleep(MOST / 2).await;
            Err::<(), _>("the disk is full")
        };
        assert_eq!(patience.wait(failing).await, Ok(Err("the disk is full")));
        assert_eq!(patience.wait(pending::<()>()).await, Err(Late::Now(MOST)));
    }
}
