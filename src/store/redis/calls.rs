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

impl Redis {
    /// Runs a step.
    pub(super) async fn one<T: FromRedisValue>(&self, op: Op, step: Step) -> StoreResult<T> {
        self.whole(self.all(op, &[step]).await?.pop())
    }

    /// Runs steps. Those that write wait for the replicas.
    pub(super) async fn all<T: FromRedisValue>(&self, op: Op, steps: &[Step]) -> StoreResult<Vec<T>> {
        let (now, confirmation) = (self.terms.now(), self.confirmation.filter(|_| op != Op::Get));
        let done = self.links.call(op, |client| async move { client.run(steps, now, confirmation).await });
        self.answers(done.await?)
    }

    /// Asks what is to be written, and waits for the replicas. That it can be asked for says nothing about writes.
    pub(super) async fn ask_for_write<T: FromRedisValue>(&self, steps: &[Step]) -> StoreResult<Vec<T>> {
        let (now, confirmation) = (self.terms.now(), self.confirmation);
        let asked = self.links.writes.call(|client| async move { client.run(steps, now, confirmation).await });
        self.answers(asked.await.map_err(|error| self.links.fails(Op::Put, error))?)
    }

    fn answers<T: FromRedisValue>(&self, answers: Vec<Value>) -> StoreResult<Vec<T>> {
        self.whole(answers.into_iter().map(|answer| T::from_redis_value(answer).ok()).collect())
    }

    /// What was read from an answer.
    pub(super) fn whole<T>(&self, read: Option<T>) -> StoreResult<T> {
        read.ok_or_else(|| self.links.damaged())
    }
}

// === steps ===

/// A step of each bucket that some keys are in; `add` adds the arguments of a key.
pub(super) fn by_bucket<'k, T>(
    name: &'static str,
    grain: i64,
    keys: impl IntoIterator<Item = (&'k PayloadKey, T)>,
    add: impl Fn(&mut Step, T),
) -> Vec<Step> {
    let mut steps = BTreeMap::new();
    for (key, arguments) in keys {
        let bucket = bucket(key.as_bytes());
        add(steps.entry(bucket).or_insert_with(|| Step::new(bucket, name).with(grain)), arguments);
    }
    steps.into_values().collect()
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
