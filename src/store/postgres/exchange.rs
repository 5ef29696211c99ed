//! Summaries, claims and notes in the engine.

use std::time::Duration;

use bytes::Bytes;
use tokio_postgres::types::Type;

use super::{Inner, PostgresStore, blob, blobs, count, encode, int, sql};
use crate::payload::{ChainKey, Place};
use crate::store::shared::{Claim, Claimant, MAX_NOTES, MAX_SEEN, Note, NoteKind, Seen, SeenState, SharedStore};
use crate::store::{Offered, Op, StoreError, StoreFuture};

impl Inner {
    pub(super) async fn offer(&self, place: Place, summary: Bytes) -> Result<Offered, StoreError> {
        let (now, body) = (self.clock.parameter(), encode(summary.clone()).await?);
        let (beginning, root) = (place.beginning.as_bytes().as_slice(), place.root.as_bytes().as_slice());
        let parameters = [int(&now), blob(&beginning), blob(&root), blob(&body)];
        loop {
            if self.execute(Op::Put, sql::OFFER, &parameters).await? > 0 {
                return Ok(Offered::Stored);
            }
            // It is not there if it was swept meanwhile.
            if let Some(theirs) = self.summary(place.beginning).await? {
                return Ok(Offered::Theirs(theirs));
            }
        }
    }

    pub(super) async fn summary(&self, beginning: ChainKey) -> Result<Option<Bytes>, StoreError> {
        let (now, grain) = (self.clock.parameter(), self.half_grain());
        let key = beginning.as_bytes().as_slice();
        let found = self.rows(Op::Get, sql::SUMMARY, &[int(&now), blob(&key), int(&grain)]).await?;
        let Some(row) = found.first() else { return Ok(None) };
        let summary = self.body(row, 0)?;
        if self.cell(row, 1)? {
            let _noted = self.touch_summaries(vec![beginning]).await;
        }
        Ok(Some(summary))
    }

    pub(super) async fn touch_summaries(&self, beginnings: Vec<ChainKey>) -> Result<(), StoreError> {
        let (now, grain) = (self.clock.parameter(), self.half_grain());
        let keys: Vec<_> = beginnings.iter().map(|beginning| beginning.as_bytes().as_slice()).collect();
        self.execute(Op::Put, sql::TOUCH_SUMMARIES, &[int(&now), blobs(&keys), int(&grain)]).await.map(drop)
    }

    /// What is known of a beginning that a claim did not get.
    async fn claimed(&self, beginning: &[u8]) -> Result<Claim, StoreError> {
        let now = self.clock.parameter();
        let found = self.rows(Op::Get, sql::CLAIMED, &[int(&now), blob(&beginning)]).await?;
        let Some(row) = found.first() else { return Ok(Claim::Theirs) };
        let (is_stored, is_held, left): (bool, bool, i64) =
            (self.cell(row, 0)?, self.cell(row, 1)?, self.cell(row, 2)?);
        Ok(match (is_stored, is_held) {
            (true, _) => Claim::Stored,
            (false, true) => Claim::Theirs,
            (false, false) => Claim::NotNow(seconds(left)),
        })
    }
}

impl SharedStore for PostgresStore {
    fn look(&self, root: ChainKey) -> StoreFuture<'_, Vec<Seen>> {
        Box::pin(async move {
            let (now, most) = (self.inner.clock.parameter(), count(MAX_SEEN as u64));
            let root = root.as_bytes().as_slice();
            let found = self.inner.rows(Op::Get, sql::LOOK, &[int(&now), blob(&root), int(&most)]).await?;
            let seen = found.iter().map(|row| {
                let left = seconds(self.inner.cell(row, 3)?);
                let state = match (self.inner.cell(row, 1)?, self.inner.cell(row, 2)?) {
                    (true, _) => SeenState::Stored,
                    (false, true) => SeenState::UnderWay(left),
                    (false, false) => SeenState::NotNow(left),
                };
                Ok(Seen { beginning: ChainKey::from_bytes(self.inner.key(row, 0)?), state })
            });
            seen.collect()
        })
    }

    fn claim(&self, place: Place, Claimant { token, lease }: Claimant) -> StoreFuture<'_, Claim> {
        Box::pin(async move {
            let (now, lease) = (self.inner.clock.parameter(), count(lease.as_secs()));
            let (beginning, root) = (place.beginning.as_bytes().as_slice(), place.root.as_bytes().as_slice());
            let parameters = [int(&now), blob(&beginning), blob(&root), int(&token), int(&lease)];
            if self.inner.execute(Op::Put, sql::CLAIM, &parameters).await? > 0 {
                return Ok(Claim::Yours);
            }
            self.inner.claimed(beginning).await
        })
    }

    fn release(&self, place: Place, claimant: Claimant, not_before: Option<Duration>) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let (now, pause) = (self.inner.clock.parameter(), count(not_before.unwrap_or_default().as_secs()));
            let beginning = place.beginning.as_bytes().as_slice();
            let parameters = [int(&now), blob(&beginning), int(&claimant.token), int(&pause)];
            self.inner.execute(Op::Put, sql::RELEASE, &parameters).await.map(drop)
        })
    }

    fn note(&self, Note { kind, key, value }: Note, keep: Duration) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let (now, keep) = (self.inner.clock.parameter(), count(keep.as_secs()));
            let (kind, key, value) = (kind.label(), key.as_bytes().as_slice(), &*value);
            let parameters = [int(&now), (&kind as _, Type::TEXT), blob(&key), blob(&value), int(&keep)];
            self.inner.execute(Op::Put, sql::NOTE, &parameters).await.map(drop)
        })
    }

    fn notes(&self) -> StoreFuture<'_, Vec<Note>> {
        Box::pin(async move {
            let (now, most) = (self.inner.clock.parameter(), count(MAX_NOTES as u64));
            let found = self.inner.rows(Op::Get, sql::NOTES, &[int(&now), int(&most)]).await?;
            let mut notes = Vec::new();
            for row in &found {
                let kind: String = self.inner.cell(row, 0)?;
                // A later version may know other kinds.
                let Some(kind) = NoteKind::ALL.into_iter().find(|known| known.label() == kind) else { continue };
                let value: Vec<u8> = self.inner.cell(row, 2)?;
                notes.push(Note { kind, key: ChainKey::from_bytes(self.inner.key(row, 1)?), value: value.into() });
            }
            Ok(notes)
        })
    }

    fn epoch(&self) -> u64 {
        self.inner.writes.epoch()
    }
}

/// How long a lease or a pause goes on; a past one is over.
fn seconds(left: i64) -> Duration {
    Duration::from_secs(u64::try_from(left).unwrap_or_default())
}
