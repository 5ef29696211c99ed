//! Removes what is not to be kept: by age once a minute, by size every ten minutes, by one process at a time.

use std::collections::BinaryHeap;
use std::sync::atomic::Ordering;

use super::{Engine, Inner, Stale};
use crate::store::{Stats, StoreResult, SweepResult};

/// The names of turns, and how many seconds one takes.
const BY_AGE: (&str, i64) = ("sweep", 50);
const BY_SIZE: (&str, i64) = ("size", 600);

/// Callers who have stored equally much make room in turns, each for this part of what is over.
const STEPS: u64 = 16;

impl<E: Engine> Inner<E> {
    /// Sweeps if it is this process's turn, and learns whether the store is full.
    pub(super) async fn maintain(&self) -> StoreResult<()> {
        if self.engine.take_turn(BY_AGE).await? {
            self.sweep_by_age(&mut SweepResult::default()).await?;
        }
        if self.engine.take_turn(BY_SIZE).await? {
            self.sweep_by_size(&mut SweepResult::default()).await?;
        }
        let is_full = self.engine.is_full().await?;
        self.set_full(is_full);
        Ok(())
    }

    pub(super) async fn sweep_all(&self) -> StoreResult<SweepResult> {
        let mut swept = SweepResult::default();
        self.sweep_by_age(&mut swept).await?;
        self.sweep_by_size(&mut swept).await?;
        Ok(swept)
    }

    async fn sweep_by_age(&self, swept: &mut SweepResult) -> StoreResult<()> {
        loop {
            let (n, bytes) = self.engine.sweep(Stale::Expired).await?;
            swept.aged += n;
            swept.stored_bytes += bytes;
            if n == 0 {
                break;
            }
        }
        swept.summaries += self.engine.sweep_others().await?;
        self.engine.trim_inspected(usize::MAX).await
    }

    /// Removes what was unused for two grains, as no process counts it as known, first of the caller who has the most. If that
    /// is not enough the store is full.
    async fn sweep_by_size(&self, swept: &mut SweepResult) -> StoreResult<()> {
        swept.summaries += self.engine.crowd_others().await?;
        let all = Stats::of_totals(self.engine.totals().await?).file_bytes;
        let mut over = all.saturating_sub(self.terms.settings.max_bytes.0);
        let mut owners = BinaryHeap::from(if over > 0 { self.engine.owners().await? } else { Vec::new() });
        while over > 0 {
            // After all owners, what an earlier version has stored, which names none.
            let (heaviest, next) = (owners.pop(), owners.peek().map_or(0, |(has, _)| *has));
            let more = heaviest.map_or(over, |(has, _)| has.saturating_sub(next));
            let (owner, wanted) = (heaviest.map(|(_, owner)| owner), more.max(over / STEPS).clamp(1, over));
            let (n, bytes) = self.engine.sweep(Stale::Unused { owner, bytes: wanted }).await?;
            swept.crowded_out += n;
            swept.stored_bytes += bytes;
            over = over.saturating_sub(bytes);
            match heaviest {
                Some((has, owner)) if n > 0 => owners.push((has.saturating_sub(bytes), owner)),
                None if n == 0 => break,
                Some(_) | None => {}
            }
        }
        self.set_full(over > 0);
        self.engine.set_full(over > 0).await
    }

    fn set_full(&self, is_full: bool) {
        if self.is_full.swap(is_full, Ordering::Relaxed) == is_full {
            return;
        }
        if is_full {
            tracing::error!(
                "the store is full of what is in use: new texts stay in their requests; raise store.max_bytes, or lower store.keep_for"
            );
        } else {
            tracing::warn!("the store has room again");
        }
    }
}
