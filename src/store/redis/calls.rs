//! Calls of Redis: steps, and what they answer with. An answer that is none of that is damaged.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::{FromRedisValue, Value};

use super::Redis;
use super::client::Step;
use crate::payload::{ChainKey, PayloadKey};
use crate::store::shared::SeenState;
use crate::store::{Note, NoteKind, Op, PayloadInfo, StoreResult, Time};

/// A body, if there is one, and whether its use is to be written.
pub(super) type BodyAndMark = (Option<Vec<u8>>, bool);

/// A step of each bucket that some keys are in.
pub(super) struct Steps {
    name: &'static str,
    grain: i64,
    by_bucket: BTreeMap<u8, Step>,
}

impl Redis {
    /// Runs a step that writes nothing.
    pub(super) async fn read<T: FromRedisValue>(&self, step: Step) -> StoreResult<T> {
        self.whole(self.read_all(&[step]).await?.pop())
    }

    /// Runs steps that write nothing.
    pub(super) async fn read_all<T: FromRedisValue>(&self, steps: &[Step]) -> StoreResult<Vec<T>> {
        let now = self.terms.now();
        let read = self.links.read(|client| async move { client.run(steps, now, None).await });
        self.answers(read.await?)
    }

    /// Runs a step that writes.
    pub(super) async fn write<T: FromRedisValue>(&self, op: Op, step: Step) -> StoreResult<T> {
        self.whole(self.write_all(op, &[step]).await?.pop())
    }

    /// Runs steps that write, and waits for the replicas.
    pub(super) async fn write_all<T: FromRedisValue>(&self, op: Op, steps: &[Step]) -> StoreResult<Vec<T>> {
        let (now, confirmation) = (self.terms.now(), self.confirmation);
        let written = self.links.write(op, |client| async move { client.run(steps, now, confirmation).await });
        self.answers(written.await?)
    }

    /// Asks what is to be written, and waits for the replicas.
    pub(super) async fn ask_for_write<T: FromRedisValue>(&self, steps: &[Step]) -> StoreResult<Vec<T>> {
        let (now, confirmation) = (self.terms.now(), self.confirmation);
        let asked = self.links.ask_for_write(|client| async move { client.run(steps, now, confirmation).await });
        self.answers(asked.await?)
    }

    fn answers<T: FromRedisValue>(&self, answers: Vec<Value>) -> StoreResult<Vec<T>> {
        self.whole(answers.into_iter().map(|answer| T::from_redis_value(answer).ok()).collect())
    }

    /// What was read from an answer.
    pub(super) fn whole<T>(&self, read: Option<T>) -> StoreResult<T> {
        read.ok_or_else(|| self.links.damaged())
    }
}

// === impl Steps ===

impl Steps {
    pub(super) fn new(name: &'static str, grain: i64) -> Self {
        Self { name, grain, by_bucket: BTreeMap::new() }
    }

    /// The step of a key's bucket.
    pub(super) fn of(&mut self, key: PayloadKey) -> &mut Step {
        let (name, grain, bucket) = (self.name, self.grain, bucket(key.as_bytes()));
        self.by_bucket.entry(bucket).or_insert_with(|| Step::new(bucket, name).with(grain))
    }

    pub(super) fn all(self) -> Vec<Step> {
        self.by_bucket.into_values().collect()
    }
}

pub(super) fn bucket(key: &[u8; 16]) -> u8 {
    key[0]
}

pub(super) fn each_bucket(step: impl Fn(u8) -> Step) -> Vec<Step> {
    (0..=u8::MAX).map(step).collect()
}

// === answers ===

/// A body without the line before it, and whether its use is to be written.
pub(super) fn body((stored, is_stale): BodyAndMark) -> Option<(Vec<u8>, bool)> {
    let mut stored = stored?;
    // Without the line, what is there is damaged, as the frame says.
    let start = memchr::memchr(b'\n', &stored).map_or(0, |end| end + 1);
    stored.drain(..start);
    Some((stored, is_stale))
}

/// A payload of which the key, the last use, the line before its body, and the body's length were read.
pub(super) fn info((key, used, line, stored_bytes): ([u8; 16], u64, String, u64)) -> Option<PayloadInfo> {
    let mut numbers = line.split_whitespace().map_while(|n| n.parse().ok());
    let (created, bytes) = (Time(numbers.next()?), numbers.next()?);
    Some(PayloadInfo { key: PayloadKey::from_bytes(key), bytes, stored_bytes, created, used: Time(used) })
}

/// What is known of a beginning, of which the state and for how long it goes on were read.
pub(super) fn state(state: &str, left: u64) -> SeenState {
    let left = Duration::from_secs(left);
    match state {
        "stored" => SeenState::Stored,
        "held" => SeenState::UnderWay(left),
        _ => SeenState::NotNow(left),
    }
}

/// A note by its name and value; none if its kind is that of a later version.
pub(super) fn note(name: &[u8], value: Vec<u8>) -> Option<Note> {
    let (key, kind) = name.split_first_chunk()?;
    let kind = NoteKind::ALL.into_iter().find(|known| known.label().as_bytes() == kind)?;
    Some(Note { kind, key: ChainKey::from_bytes(*key), value: value.into() })
}
