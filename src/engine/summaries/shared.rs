//! Summaries in a store that several processes use: what the others know is looked up for each request, and one process
//! makes each summary.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Status, Statuses, Summaries};
use crate::engine::disks::PersistError;
use crate::engine::flight::{Flight, SummaryError};
use crate::payload::{ChainKey, Place};
use crate::store::secret::random;
use crate::store::shared::{Claimant, Seen, SeenState};
use crate::store::{SharedStore, Store, StoreFuture};

/// The steps that are open to a task that is to make a summary.
pub(in crate::engine) enum Turn {
    /// It makes the summary. With a lease, other processes wait.
    Make(Option<Lease>),
    /// Another process has made it.
    Made,
}

/// The right to make a summary, among all processes.
pub(in crate::engine) struct Lease {
    summaries: Arc<Summaries>,
    place: Place,
    claimant: Claimant,
}

/// How long a lease holds without being renewed: as long as others wait for a process that has died.
const LEASE: Duration = Duration::from_secs(15);

/// How often a lease is renewed.
const RENEWAL: Duration = Duration::from_secs(5);

/// How often a task asks for the summary that another process makes.
const POLL: Duration = Duration::from_secs(1);

impl Summaries {
    /// Whether other processes use the store too.
    pub(in crate::engine) fn is_shared(&self) -> bool {
        self.disks.store.as_deref().is_some_and(|store| store.shared().is_some())
    }

    /// Looks up what all processes know of a conversation. If that fails, what this process knows is used.
    pub(in crate::engine) async fn look(&self, root: ChainKey) {
        let Ok(seen) = self.ask(move |shared| shared.look(root)).await else { return };
        let now = Instant::now();
        self.change(|statuses| {
            let mut is_news = false;
            for seen in &seen {
                is_news |= note_seen(statuses, *seen, now);
            }
            if is_news {
                self.learn(root);
            }
        });
        let is_stored = |seen: &&Seen| seen.state == SeenState::Stored;
        let stored: Arc<[ChainKey]> = seen.iter().filter(is_stored).map(|seen| seen.beginning).collect();
        let before = self.looked_up.get(&root);
        self.looked_up.insert(root, Arc::clone(&stored));
        let lost = before.iter().flat_map(|before| before.iter()).filter(|key| !stored.contains(key));
        for beginning in lost {
            self.restore(Place { root, beginning: *beginning }).await;
            self.learn(root);
        }
    }

    /// How often something was learnt of any conversation.
    pub(in crate::engine) fn n_learnt(&self) -> usize {
        self.n_learnt.load(Ordering::Acquire)
    }

    /// Whether something was learnt of this conversation since `n_learnt` was this number, so that a plan may lack it.
    pub(in crate::engine) fn has_learnt_since(&self, n_learnt: usize, root: ChainKey) -> bool {
        self.learnt.get(&root).is_some_and(|last| last > n_learnt)
    }

    fn learn(&self, root: ChainKey) {
        self.learnt.insert(root, self.n_learnt.fetch_add(1, Ordering::AcqRel) + 1);
    }

    /// Offers a summary again that the engine has lost, or forgets it.
    async fn restore(&self, place: Place) {
        match self.texts.peek(&place.beginning) {
            // If it cannot be stored now, the next request tries again.
            Some(summary) => _ = self.put(place, (*summary).clone()).await,
            None => self.forget(place.beginning),
        }
    }

    /// Waits until this process may make a summary, or another one has made it.
    pub(in crate::engine) async fn take_turn(
        self: &Arc<Self>,
        place: Place,
        flight: &Flight,
    ) -> Result<Turn, SummaryError> {
        if !self.is_shared() {
            return Ok(Turn::Make(None));
        }
        // Without the system's random numbers two claimants may both lead, and the first summary is used.
        let claimant = Claimant { token: i64::from_le_bytes(random().unwrap_or_default()), lease: LEASE };
        loop {
            match self.ask(move |shared| shared.claim(place, claimant)).await? {
                None => {
                    return Ok(Turn::Make(Some(Lease { summaries: Arc::clone(self), place, claimant })));
                }
                Some(SeenState::UnderWay(_)) => tokio::select! {
                    () = sleep(POLL) => {}
                    () = flight.abandoned() => return Err(SummaryError::Abandoned),
                },
                Some(SeenState::NotNow(_)) => return Err(SummaryError::CoolingDown),
                Some(SeenState::Stored) => {
                    self.load(place.beginning).await;
                    return Ok(Turn::Made);
                }
            }
        }
    }

    /// Calls the store that several processes use.
    async fn ask<T: Default + Send>(
        &self,
        call: impl FnOnce(&dyn SharedStore) -> StoreFuture<'_, T> + Send + 'static,
    ) -> Result<T, PersistError> {
        let asking = |store: Arc<dyn Store>| async move {
            match store.shared() {
                Some(shared) => call(shared).await,
                None => Ok(T::default()),
            }
        };
        self.disks.ask(asking).await.map(Option::unwrap_or_default)
    }
}

// === impl Lease ===

impl Lease {
    /// Renews the lease for ever.
    pub(in crate::engine) async fn renew(&self) -> Infallible {
        loop {
            sleep(RENEWAL).await;
            let (place, claimant) = (self.place, self.claimant);
            // If it fails the lease may end, and then the first of two summaries is used.
            let _renewed = self.summaries.ask(move |shared| shared.claim(place, claimant)).await;
        }
    }

    /// Gives the lease back: the summary was not made, and is not to be tried for `cooldown`.
    pub(in crate::engine) async fn release(self, cooldown: Option<Duration>) {
        let Self { summaries, place, claimant } = self;
        // If it fails the lease ends by itself.
        let _released = summaries.ask(move |shared| shared.release(place, claimant, cooldown)).await;
    }
}

// === helpers ===

/// Notes what the engine says of a beginning, where this process does not know better. True if plans have it otherwise now.
fn note_seen(statuses: &mut Statuses, Seen { beginning, state }: Seen, now: Instant) -> bool {
    let known = statuses.get(&beginning);
    let is_open = matches!(known, None | Some(Status::Elsewhere(_) | Status::CoolingDown(_)));
    let cools_down = matches!(known, Some(Status::CoolingDown(until)) if *until > now);
    let (status, is_news) = match state {
        SeenState::Stored if !matches!(known, Some(Status::Stored | Status::Unreadable(_))) => (Status::Stored, true),
        SeenState::UnderWay(left) if is_open && !cools_down => {
            (Status::Elsewhere(now + left), !matches!(known, Some(Status::Elsewhere(until)) if *until > now))
        }
        SeenState::NotNow(left) if is_open => {
            (Status::CoolingDown(now + left), !matches!(known, Some(Status::CoolingDown(until)) if *until > now))
        }
        _ => return false,
    };
    statuses.insert(beginning, status);
    is_news
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_that_was_waited_for_in_vain_is_not_waited_for_again_and_used_once_it_is_stored() {
        let (now, minute, beginning) = (Instant::now(), Duration::from_mins(1), ChainKey::from_bytes([7; 16]));
        let mut statuses = Statuses::from([(beginning, Status::CoolingDown(now + minute))]);
        let under_way = Seen { beginning, state: SeenState::UnderWay(minute) };
        assert!(!note_seen(&mut statuses, under_way, now));
        assert!(matches!(statuses[&beginning], Status::CoolingDown(_)));
        assert!(note_seen(&mut statuses, under_way, now + 2 * minute), "the cooldown is over");
        assert!(note_seen(&mut statuses, Seen { beginning, state: SeenState::Stored }, now));
        assert!(matches!(statuses[&beginning], Status::Stored));
    }
}
