//! Summaries, claims and notes in Redis. What is known of a conversation is in the bucket of its name; where the summary of
//! a beginning is, in the bucket of the beginning.

use std::cmp::Reverse;
use std::time::Duration;

use redis::Value;

use super::answers::Answer as _;
use super::client::Step;
use super::{Redis, each_bucket};
use crate::payload::{ChainKey, Place};
use crate::store::engine::{EngineError, Exchange, count};
use crate::store::shared::{Claim, Claimant, MAX_SEEN, Note, NoteGroup, NoteKind, Seen, SeenState};
use crate::store::{Op, StoreResult};

impl Exchange for Redis {
    async fn offer(&self, place: Place, body: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        self.point(place).await?;
        let answer = self.write_one(Op::Put, at(place, "offer").with(body)).await?;
        self.read_as(answer.bytes())
    }

    async fn summary(&self, beginning: ChainKey) -> StoreResult<Option<(Vec<u8>, bool)>> {
        let Some(root) = self.root_of(beginning).await? else { return Ok(None) };
        let answer = self.read(Op::Get, self.with_grain("summary", Place { root, beginning })).await?;
        self.read_as(answer.body_and_mark())
    }

    async fn remove_summary(&self, beginning: ChainKey, body: &[u8]) -> StoreResult<()> {
        let Some(root) = self.root_of(beginning).await? else { return Ok(()) };
        let step = at(Place { root, beginning }, "remove_summary").with(body);
        self.write_one(Op::Put, step).await.map(drop)
    }

    async fn summaries(&self) -> StoreResult<Vec<ChainKey>> {
        let answers = self.read_all(Op::Get, &each_bucket(|bucket| Step::new(bucket, "summaries"))).await?;
        self.items(&answers, |beginning| Ok(ChainKey::from_bytes(beginning.key()?)))
    }

    async fn touch_summaries(&self, beginnings: &[ChainKey]) -> StoreResult<()> {
        let mut steps = Vec::new();
        for beginning in beginnings {
            let root = self.root_of(*beginning).await?;
            steps.extend(root.map(|root| self.with_grain("touch_summary", Place { root, beginning: *beginning })));
        }
        self.write(Op::Put, &steps).await.map(drop)
    }

    async fn look(&self, root: ChainKey) -> StoreResult<Vec<Seen>> {
        let step = Step::new(bucket(root), "look").with(root.as_bytes()).with(count(MAX_SEEN as u64));
        self.items(&self.read_all(Op::Get, &[step]).await?, seen_in)
    }

    async fn claim(&self, place: Place, Claimant { token, lease }: Claimant) -> StoreResult<Claim> {
        let step = at(place, "claim").with(token).with(count(lease.as_secs()));
        let answer = self.write_one(Op::Put, step).await?;
        let (state, left) = self.read_as(answer.items().and_then(state_in))?;
        Ok(match state.as_slice() {
            b"yours" => Claim::Yours,
            b"held" => Claim::Theirs,
            b"paused" => Claim::NotNow(left),
            _ => {
                // Whoever looks for it by its beginning is to find it.
                self.point(place).await?;
                Claim::Stored
            }
        })
    }

    async fn release(&self, place: Place, claimant: Claimant, not_before: Option<Duration>) -> StoreResult<()> {
        let pause = count(not_before.unwrap_or_default().as_secs());
        self.write_one(Op::Put, at(place, "release").with(claimant.token).with(pause)).await.map(drop)
    }

    async fn note(&self, Note { kind, key, value }: Note, keep: Duration) -> StoreResult<()> {
        let name = [key.as_bytes(), kind.label().as_bytes()].concat();
        let step = Step::of_fleet("note").with(name.as_slice()).with(&*value).with(count(keep.as_secs()));
        let step = step.with(kind.group().label());
        self.write_one(Op::Put, step).await.map(drop)
    }

    async fn notes(&self, group: NoteGroup) -> StoreResult<Vec<Note>> {
        let answers = self.read_all(Op::Get, &[Step::of_fleet("notes").with(group.label())]).await?;
        let mut notes: Vec<_> = self.items(&answers, note_in)?.into_iter().flatten().collect();
        notes.sort_by_key(|(written, note)| (Reverse(*written), note.key));
        Ok(notes.into_iter().take(group.most()).map(|(_, note)| note).collect())
    }
}

impl Redis {
    /// Notes where the summary of a beginning is.
    async fn point(&self, Place { root, beginning }: Place) -> StoreResult<()> {
        let step = Step::new(bucket(beginning), "point").with(beginning.as_bytes()).with(root.as_bytes());
        self.write_one(Op::Put, step).await.map(drop)
    }

    /// The conversation of a beginning.
    async fn root_of(&self, beginning: ChainKey) -> StoreResult<Option<ChainKey>> {
        let answer = self.read(Op::Get, Step::new(bucket(beginning), "root").with(beginning.as_bytes())).await?;
        let root = self.read_as(answer.bytes())?;
        let root = root.map(|root| root.try_into().map_err(|_| EngineError::Damaged)).transpose();
        Ok(self.read_as(root)?.map(ChainKey::from_bytes))
    }

    fn with_grain(&self, name: &'static str, Place { root, beginning }: Place) -> Step {
        let step = Step::new(bucket(root), name).with(self.terms.half_grain());
        step.with(root.as_bytes()).with(beginning.as_bytes())
    }

    /// Removes summaries of this age, so many of each bucket at most; how many, and their bytes.
    pub(super) async fn remove_summaries(&self, age: i64, most: i64) -> StoreResult<(u64, u64)> {
        let steps = each_bucket(|bucket| Step::new(bucket, "sweep_summaries").with(age).with(most));
        let answers = self.write(Op::Sweep, &steps).await?;
        let removed = self.pairs(&answers)?;
        let gone = |answer: &Value| Ok(answer.items()?.get(2).ok_or(EngineError::Damaged)?.clone());
        let gone = self.read_as(answers.iter().map(gone).collect::<Result<Vec<_>, _>>())?;
        let pointers = self.items(&gone, |beginning| {
            let beginning = ChainKey::from_bytes(beginning.key()?);
            Ok(Step::new(bucket(beginning), "unpoint").with(beginning.as_bytes()))
        })?;
        self.write(Op::Sweep, &pointers).await?;
        Ok(removed)
    }
}

// === helpers ===

fn bucket(key: ChainKey) -> u8 {
    key.as_bytes()[0]
}

/// A step at a place.
fn at(Place { root, beginning }: Place, name: &'static str) -> Step {
    Step::new(bucket(root), name).with(root.as_bytes()).with(beginning.as_bytes())
}

/// A state, and how long it goes on.
fn state_in(items: &[Value]) -> Result<(Vec<u8>, Duration), EngineError> {
    let [state, left] = items else { return Err(EngineError::Damaged) };
    Ok((state.bytes()?.unwrap_or_default(), Duration::from_secs(left.number()?)))
}

fn seen_in(answer: &Value) -> Result<Seen, EngineError> {
    let (beginning, state) = answer.items()?.split_first().ok_or(EngineError::Damaged)?;
    let (state, left) = state_in(state)?;
    let state = match state.as_slice() {
        b"stored" => SeenState::Stored,
        b"held" => SeenState::UnderWay(left),
        _ => SeenState::NotNow(left),
    };
    Ok(Seen { beginning: ChainKey::from_bytes(beginning.key()?), state })
}

/// A note, and when it was written; none if its kind is that of a later version.
fn note_in(answer: &Value) -> Result<Option<(u64, Note)>, EngineError> {
    let [name, written, value] = answer.items()? else { return Err(EngineError::Damaged) };
    let (name, written, value) = (name.bytes()?, written.number()?, value.bytes()?.unwrap_or_default());
    let name = name.unwrap_or_default();
    let (key, kind) = name.split_first_chunk().ok_or(EngineError::Damaged)?;
    let kind = NoteKind::ALL.into_iter().find(|known| known.label().as_bytes() == kind);
    Ok(kind.map(|kind| (written, Note { kind, key: ChainKey::from_bytes(*key), value: value.into() })))
}
