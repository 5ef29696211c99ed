//! Calls of Redis: steps and their answers. An answer of another form is damaged.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::FromRedisValue;

use super::Redis;
use super::client::{Client, Confirmation, Step, read};
use crate::payload::PayloadKey;
use crate::store::engine::{EngineError, EngineResult};
use crate::store::shared::SeenState;
use crate::store::{Op, PayloadInfo, StoreResult, Time};

/// A body, if there is one, and whether its use is to be written.
pub(super) type BodyAndMark = (Option<Vec<u8>>, bool);

impl Redis {
    /// Runs a step.
    pub(super) async fn one<T: FromRedisValue>(&self, op: Op, step: Step) -> StoreResult<T> {
        self.whole(self.all(op, &[step]).await?.pop())
    }

    /// Runs steps. Those that write wait for the replicas.
    pub(super) async fn all<T: FromRedisValue>(&self, op: Op, steps: &[Step]) -> StoreResult<Vec<T>> {
        let confirmation = self.confirmation.filter(|_| op != Op::Read);
        self.links.call(op, |client| self.run(client, steps, confirmation)).await
    }

    /// Runs steps over a connection, and reads their answers.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        client: Arc<Client>,
        steps: &[Step],
        confirmation: Option<Confirmation>,
    ) -> EngineResult<Vec<T>> {
        client.run(steps, self.terms.now(), confirmation).await?.into_iter().map(read).collect()
    }

    /// An answer as it was read; one that could not be read is damaged.
    pub(super) fn whole<T>(&self, read: Option<T>) -> StoreResult<T> {
        read.ok_or_else(|| self.links.fails(Op::Read, EngineError::Damaged))
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

/// A payload, by its key, its last use, the line before its body, and the body's length.
pub(super) fn info((key, used, line, stored_bytes): ([u8; 16], u64, String, u64)) -> Option<PayloadInfo> {
    let mut numbers = line.split_whitespace().map_while(|n| n.parse().ok());
    let (created, bytes) = (Time(numbers.next()?), numbers.next()?);
    Some(PayloadInfo { key: PayloadKey::from_bytes(key), bytes, stored_bytes, created, used: Time(used) })
}

/// The state of a beginning, by its name and for how long it goes on.
pub(super) fn state(state: &str, left: u64) -> SeenState {
    let left = Duration::from_secs(left);
    match state {
        "stored" => SeenState::Stored,
        "held" => SeenState::UnderWay(left),
        _ => SeenState::NotNow(left),
    }
}
