//! Removes what is not to be kept: by age once a minute, by size every ten minutes, by one process at a time.

use std::collections::HashSet;

use super::{Engine, Inner, Stale};
use crate::store::shares::{fair_level, note_full};
use crate::store::{Stats, StoreResult, SweepResult};

/// The names of turns, and how many seconds one takes.
const BY_AGE: (&str, i64) = ("sweep", 50);
const BY_SIZE: (&str, i64) = ("size", 600);

impl<E: Engine> Inner<E> {
    /// Sweeps if it is this process's turn, and learns whether the store is full, and by whom.
    pub(super) async fn maintain(&self) -> StoreResult<()> {
        if self.engine.take_turn(BY_AGE).await? {
            self.sweep_by_age(&mut SweepResult::default()).await?;
        }
        if self.engine.take_turn(BY_SIZE).await? {
            self.sweep_by_size(&mut SweepResult::default()).await?;
        }
        self.learn_if_full().await
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

    /// Removes what was unused for two grains, as no process counts it as known, first of the caller who has the most, and none
    /// of who has no more than its share. If that is not enough the store is full.
    async fn sweep_by_size(&self, swept: &mut SweepResult) -> StoreResult<()> {
        swept.summaries += self.engine.crowd_others().await?;
        let all = Stats::of_totals(self.engine.totals().await?).file_bytes;
        let mut over = all.saturating_sub(self.terms.settings.max_bytes.0);
        let owners = if over > 0 { self.engine.owners().await? } else { Vec::new() };
        let level = fair_level(owners.iter().map(|(has, _)| *has), over);
        for (has, owner) in owners {
            let mut excess = has.saturating_sub(level);
            while excess.min(over) > 0 {
                let (n, bytes) = self.engine.sweep(Stale::Unused { owner, bytes: excess.min(over) }).await?;
                swept.crowded_out += n;
                swept.stored_bytes += bytes;
                over = over.saturating_sub(bytes);
                excess = if n > 0 { excess.saturating_sub(bytes) } else { 0 };
            }
        }
        self.engine.set_full_above(if over > 0 { level.max(1) } else { 0 }).await?;
        self.learn_if_full().await
    }

    /// Learns who stores no more until there is room.
    async fn learn_if_full(&self) -> StoreResult<()> {
        let level = self.engine.full_above().await?;
        let owners = if level > 0 { self.engine.owners().await? } else { Vec::new() };
        let over: HashSet<_> = owners.into_iter().filter(|(has, _)| *has > level).map(|(_, owner)| owner).collect();
        self.over_share.with(|held| note_full(held, over));
        Ok(())
    }
}
