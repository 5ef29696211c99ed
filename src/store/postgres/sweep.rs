//! Removes what is not to be kept: by age once a minute, by size every ten minutes, by one process at a time.

use std::sync::atomic::Ordering;

use tokio_postgres::types::Type;

use super::{Inner, count, int, sql};
use crate::store::{Op, Stats, StoreError, SweepResult, TOMBSTONES};

/// How many rows one statement removes.
const BATCH: i64 = 500;

/// The names of turns, and how many seconds one takes.
const BY_AGE: (&str, i64) = ("sweep", 50);
const BY_SIZE: (&str, i64) = ("size", 600);

impl Inner {
    /// Sweeps if it is this process's turn, and learns whether the store is full.
    pub(super) async fn maintain(&self) -> Result<(), StoreError> {
        if self.take_turn(BY_AGE).await? {
            self.sweep_by_age(&mut SweepResult::default()).await?;
        }
        if self.take_turn(BY_SIZE).await? {
            self.sweep_by_size(&mut SweepResult::default()).await?;
        }
        let full = self.rows(Op::Get, sql::META, &[(&"full", Type::TEXT)]).await?;
        let full: Option<i64> = full.first().map(|row| self.cell(row, 1)).transpose()?.flatten();
        self.set_full(full == Some(1));
        Ok(())
    }

    pub(super) async fn sweep_all(&self) -> Result<SweepResult, StoreError> {
        let mut swept = SweepResult::default();
        self.sweep_by_age(&mut swept).await?;
        self.sweep_by_size(&mut swept).await?;
        Ok(swept)
    }

    async fn take_turn(&self, (name, seconds): (&str, i64)) -> Result<bool, StoreError> {
        let now = self.clock.parameter();
        let parameters = [int(&now), (&name as _, Type::TEXT), int(&seconds)];
        Ok(self.execute(Op::Sweep, sql::TAKE_TURN, &parameters).await? > 0)
    }

    async fn sweep_by_age(&self, swept: &mut SweepResult) -> Result<(), StoreError> {
        let (now, age) = (self.clock.parameter(), count(self.settings.keep_for.0.as_secs()));
        loop {
            let (n, bytes) = self.remove(sql::SWEEP, age).await?;
            swept.aged += n;
            swept.stored_bytes += bytes;
            if n < BATCH.unsigned_abs() {
                break;
            }
        }
        let gone = self.write(Op::Sweep, sql::SWEEP_SUMMARIES, &[int(&now), int(&age)]).await?;
        for row in &gone {
            swept.summaries += u64::from(self.cell::<bool>(row, 0)?);
        }
        self.execute(Op::Sweep, sql::SWEEP_NOTES, &[int(&now)]).await?;
        self.trim_inspected(usize::MAX).await
    }

    /// Removes what was unused for two grains, as no process counts it as known. If that is not enough the store is full.
    async fn sweep_by_size(&self, swept: &mut SweepResult) -> Result<(), StoreError> {
        let (now, unused) = (self.clock.parameter(), 4 * self.half_grain());
        let most = count(self.settings.max_summary_bytes());
        let crowded = self.write(Op::Sweep, sql::CROWD_SUMMARIES, &[int(&now), int(&unused), int(&most)]).await?;
        swept.summaries += crowded.len() as u64;
        let (most, age) = TOMBSTONES;
        let (most, age) = (count(most), count(age.as_secs()));
        self.execute(Op::Sweep, sql::TRIM_SWEPT, &[int(&now), int(&age), int(&most)]).await?;
        let Stats { stored_bytes, summary_bytes, inspected_bytes, .. } = self.totals().await?;
        let all = stored_bytes + summary_bytes + inspected_bytes;
        let mut over = all.saturating_sub(self.settings.max_bytes.0);
        while over > 0 {
            let (n, bytes) = self.remove(sql::SWEEP_UNUSED, unused).await?;
            swept.crowded_out += n;
            swept.stored_bytes += bytes;
            over = over.saturating_sub(bytes);
            if n == 0 {
                break;
            }
        }
        let full = i64::from(over > 0);
        self.set_full(over > 0);
        self.execute(Op::Sweep, sql::SET_FULL, &[int(&full)]).await.map(drop)
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

    /// Removes a batch of payloads: how many, and their bytes.
    async fn remove(&self, text: &str, seconds: i64) -> Result<(u64, u64), StoreError> {
        let now = self.clock.parameter();
        let gone = self.write(Op::Sweep, text, &[int(&now), int(&seconds), int(&BATCH)]).await?;
        let Some(row) = gone.first() else { return Ok((0, 0)) };
        let number = |n| Ok::<u64, StoreError>(u64::try_from(self.cell::<i64>(row, n)?).unwrap_or_default());
        Ok((number(0)?, number(1)?))
    }

    pub(super) async fn trim_inspected(&self, most: usize) -> Result<(), StoreError> {
        let (now, most) = (self.clock.parameter(), i64::try_from(most).unwrap_or(i64::MAX));
        let (bytes, age) = (count(self.settings.max_inspected_bytes()), count(self.settings.keep_for.0.as_secs()));
        let parameters = [int(&now), int(&most), int(&bytes), int(&age)];
        self.execute(Op::Sweep, sql::TRIM_INSPECTED, &parameters).await.map(drop)
    }
}
