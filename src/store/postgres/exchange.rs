//! Summaries, claims and notes in PostgreSQL.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::{Postgres, blob, blobs, int};
use crate::payload::{ChainKey, Place};
use crate::store::engine::{Exchange, count};
use crate::store::shared::{Claim, Claimant, MAX_SEEN, Note, NoteGroup, NoteKind, Seen, SeenState};
use crate::store::{Op, StoreResult};

impl Exchange for Postgres {
    async fn offer(&self, place: Place, body: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        let now = self.terms.clock.told();
        let (beginning, root) = (place.beginning.as_bytes().as_slice(), place.root.as_bytes().as_slice());
        let parameters = [int(&now), blob(&beginning), blob(&root), blob(&body)];
        loop {
            if self.execute(Op::Put, "offer", &parameters).await? > 0 {
                return Ok(None);
            }
            // It is not there if it was swept meanwhile.
            if let Some((theirs, _)) = self.summary(place.beginning).await? {
                return Ok(Some(theirs));
            }
        }
    }

    async fn summary(&self, beginning: ChainKey) -> StoreResult<Option<(Vec<u8>, bool)>> {
        let (now, grain) = (self.terms.clock.told(), self.terms.half_grain());
        let key = beginning.as_bytes().as_slice();
        let found = self.rows(Op::Get, "summary", &[int(&now), blob(&key), int(&grain)]).await?;
        found.first().map(|row| Ok((self.cell(row, 0)?, self.cell(row, 1)?))).transpose()
    }

    async fn remove_summary(&self, beginning: ChainKey, body: &[u8]) -> StoreResult<()> {
        let key = beginning.as_bytes().as_slice();
        self.execute(Op::Put, "remove_summary", &[blob(&key), blob(&body)]).await.map(drop)
    }

    async fn summaries(&self) -> StoreResult<Vec<ChainKey>> {
        let found = self.rows(Op::Get, "summaries", &[]).await?;
        found.iter().map(|row| Ok(ChainKey::from_bytes(self.key(row, 0)?))).collect()
    }

    async fn touch_summaries(&self, beginnings: &[ChainKey]) -> StoreResult<()> {
        let (now, grain) = (self.terms.clock.told(), self.terms.half_grain());
        let keys: Vec<_> = beginnings.iter().map(|beginning| beginning.as_bytes().as_slice()).collect();
        self.execute(Op::Put, "touch_summaries", &[int(&now), blobs(&keys), int(&grain)]).await.map(drop)
    }

    async fn look(&self, root: ChainKey) -> StoreResult<Vec<Seen>> {
        let (now, most) = (self.terms.clock.told(), count(MAX_SEEN as u64));
        let root = root.as_bytes().as_slice();
        let found = self.rows(Op::Get, "look", &[int(&now), blob(&root), int(&most)]).await?;
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
        let (now, lease) = (self.terms.clock.told(), count(lease.as_secs()));
        let (beginning, root) = (place.beginning.as_bytes().as_slice(), place.root.as_bytes().as_slice());
        let parameters = [int(&now), blob(&beginning), blob(&root), int(&token), int(&lease)];
        if self.execute(Op::Put, "claim", &parameters).await? > 0 {
            return Ok(Claim::Yours);
        }
        self.claimed(beginning).await
    }

    async fn release(&self, place: Place, claimant: Claimant, not_before: Option<Duration>) -> StoreResult<()> {
        let (now, pause) = (self.terms.clock.told(), count(not_before.unwrap_or_default().as_secs()));
        let beginning = place.beginning.as_bytes().as_slice();
        let parameters = [int(&now), blob(&beginning), int(&claimant.token), int(&pause)];
        self.execute(Op::Put, "release", &parameters).await.map(drop)
    }

    async fn note(&self, Note { kind, key, value }: Note, keep: Duration) -> StoreResult<()> {
        let (now, keep) = (self.terms.clock.told(), count(keep.as_secs()));
        let (kind, key, value) = (kind.label(), key.as_bytes().as_slice(), &*value);
        let parameters = [int(&now), (&kind as _, Type::TEXT), blob(&key), blob(&value), int(&keep)];
        self.execute(Op::Put, "note", &parameters).await.map(drop)
    }

    async fn notes(&self, group: NoteGroup) -> StoreResult<Vec<Note>> {
        let (now, most) = (self.terms.clock.told(), count(group.most() as u64));
        let kinds: Vec<_> = NoteKind::of(group).map(NoteKind::label).collect();
        let found = self.rows(Op::Get, "notes", &[int(&now), int(&most), (&kinds as _, Type::TEXT_ARRAY)]).await?;
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

impl Postgres {
    /// Returns what is known of a beginning that a claim did not get.
    async fn claimed(&self, beginning: &[u8]) -> StoreResult<Claim> {
        let now = self.terms.clock.told();
        let found = self.rows(Op::Get, "claimed", &[int(&now), blob(&beginning)]).await?;
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

/// How long a lease or a pause goes on; a past one is over.
fn seconds(left: i64) -> Duration {
    Duration::from_secs(u64::try_from(left).unwrap_or_default())
}
