//! Summaries, claims and notes in PostgreSQL.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::{Postgres, blob, blobs, int, text};
use crate::payload::{ChainKey, Place};
use crate::store::engine::{Exchange, count};
use crate::store::shared::{Claim, Claimant, MAX_SEEN, Note, NoteGroup, NoteKind, Seen, SeenState};
use crate::store::{Op, StoreResult};

impl Exchange for Postgres {
    async fn offer(&self, place: Place, body: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        let (beginning, root) = (place.beginning.as_bytes(), place.root.as_bytes());
        loop {
            if self.execute(Op::Put, "offer", &[int(self.now()), blob(beginning), blob(root), blob(body)]).await? > 0 {
                return Ok(None);
            }
            // It is not there if it was swept meanwhile.
            if let Some((theirs, _)) = self.summary(place.beginning).await? {
                return Ok(Some(theirs));
            }
        }
    }

    async fn summary(&self, beginning: ChainKey) -> StoreResult<Option<(Vec<u8>, bool)>> {
        self.body_and_mark("summary", beginning.as_bytes()).await
    }

    async fn remove_summary(&self, beginning: ChainKey, body: &[u8]) -> StoreResult<()> {
        self.execute(Op::Put, "remove_summary", &[blob(beginning.as_bytes()), blob(body)]).await.map(drop)
    }

    async fn summaries(&self) -> StoreResult<Vec<ChainKey>> {
        let found = self.rows(Op::Get, "summaries", &[]).await?;
        found.iter().map(|row| Ok(ChainKey::from_bytes(self.key(row, 0)?))).collect()
    }

    async fn touch_summaries(&self, beginnings: &[ChainKey]) -> StoreResult<()> {
        let keys: Vec<_> = beginnings.iter().map(|beginning| beginning.as_bytes().as_slice()).collect();
        let parameters = [int(self.now()), blobs(keys), int(self.grain())];
        self.execute(Op::Put, "touch_summaries", &parameters).await.map(drop)
    }

    async fn look(&self, root: ChainKey) -> StoreResult<Vec<Seen>> {
        let parameters = [int(self.now()), blob(root.as_bytes()), int(count(MAX_SEEN as u64))];
        let found = self.rows(Op::Get, "look", &parameters).await?;
        let seen = found.iter().map(|row| {
            let left = seconds(self.cell(row, 3)?);
            let state = match (self.cell(row, 1)?, self.cell(row, 2)?) {
                (true, _) => SeenState::Stored,
                (false, true) => SeenState::UnderWay(left),
                (false, false) => SeenState::NotNow(left),
            };
            Ok(Seen { beginning: ChainKey::from_bytes(self.key(row, 0)?), state })
        });
        seen.collect()
    }

    async fn claim(&self, place: Place, Claimant { token, lease }: Claimant) -> StoreResult<Claim> {
        let (beginning, root) = (place.beginning.as_bytes(), place.root.as_bytes());
        let lease = count(lease.as_secs());
        let parameters = [int(self.now()), blob(beginning), blob(root), int(token), int(lease)];
        if self.execute(Op::Put, "claim", &parameters).await? > 0 {
            return Ok(Claim::Yours);
        }
        // The claim has failed: is the beginning summarised, or claimed by another process?
        let found = self.rows(Op::Get, "claimed", &[int(self.now()), blob(beginning)]).await?;
        let Some(row) = found.first() else { return Ok(Claim::Theirs) };
        Ok(match (self.cell(row, 0)?, self.cell(row, 1)?) {
            (true, _) => Claim::Stored,
            (false, true) => Claim::Theirs,
            (false, false) => Claim::NotNow(seconds(self.cell(row, 2)?)),
        })
    }

    async fn release(&self, place: Place, claimant: Claimant, not_before: Option<Duration>) -> StoreResult<()> {
        let pause = count(not_before.unwrap_or_default().as_secs());
        let beginning = blob(place.beginning.as_bytes());
        let parameters = [int(self.now()), beginning, int(claimant.token), int(pause)];
        self.execute(Op::Put, "release", &parameters).await.map(drop)
    }

    async fn note(&self, Note { kind, key, value }: Note, keep: Duration) -> StoreResult<()> {
        let (kind, value, keep) = (kind.label(), &*value, count(keep.as_secs()));
        let parameters = [int(self.now()), text(kind), blob(key.as_bytes()), blob(value), int(keep)];
        self.execute(Op::Put, "note", &parameters).await.map(drop)
    }

    async fn notes(&self, group: NoteGroup) -> StoreResult<Vec<Note>> {
        let kinds: Vec<_> = NoteKind::of(group).map(NoteKind::label).collect();
        let parameters = [int(self.now()), int(count(group.most() as u64)), (Box::new(kinds) as _, Type::TEXT_ARRAY)];
        let found = self.rows(Op::Get, "notes", &parameters).await?;
        let mut notes = Vec::new();
        for row in &found {
            let kind: String = self.cell(row, 0)?;
            // A later version may know other kinds.
            let Some(kind) = NoteKind::ALL.into_iter().find(|known| known.label() == kind) else { continue };
            let value: Vec<u8> = self.cell(row, 2)?;
            notes.push(Note { kind, key: ChainKey::from_bytes(self.key(row, 1)?), value: value.into() });
        }
        Ok(notes)
    }
}

/// How long a lease or a pause goes on; a past one is over.
fn seconds(left: i64) -> Duration {
    Duration::from_secs(u64::try_from(left).unwrap_or_default())
}
