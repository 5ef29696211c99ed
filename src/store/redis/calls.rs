//! Calls of Redis: steps, failures counted and logged, answers read.

use redis::Value;

use super::Redis;
use super::answers::Answer;
use super::client::{Confirmation, Step};
use super::connect::Connector;
use crate::store::engine::EngineError;
use crate::store::engine::link::Link;
use crate::store::{Op, StoreResult};

impl Link<Connector> {
    async fn run(
        &self,
        steps: &[Step],
        now: Option<i64>,
        confirmation: Option<Confirmation>,
    ) -> Result<Vec<Value>, EngineError> {
        let open = self.open()?;
        self.within(&open, open.client.run(steps, now, confirmation)).await
    }
}

impl Redis {
    /// Runs a step that writes nothing.
    pub(super) async fn read(&self, op: Op, step: Step) -> StoreResult<Value> {
        Ok(self.read_all(op, &[step]).await?.pop().unwrap_or_default())
    }

    /// Runs steps that write nothing.
    pub(super) async fn read_all(&self, op: Op, steps: &[Step]) -> StoreResult<Vec<Value>> {
        let read = self.links.for_reads().run(steps, self.terms.clock.told(), None).await;
        self.links.has_read(op, read)
    }

    /// Runs a step that writes.
    pub(super) async fn write_one(&self, op: Op, step: Step) -> StoreResult<Value> {
        Ok(self.write(op, &[step]).await?.pop().unwrap_or_default())
    }

    /// Runs steps that write, and waits for the replicas.
    pub(super) async fn write(&self, op: Op, steps: &[Step]) -> StoreResult<Vec<Value>> {
        let written = self.links.writes.run(steps, self.terms.clock.told(), self.confirmation).await;
        self.links.has_written(op, written)
    }

    /// Asks what is to be written, and waits for the replicas. That it can be asked for says nothing about writes.
    pub(super) async fn ask_for_write(&self, op: Op, steps: &[Step]) -> StoreResult<Vec<Value>> {
        let asked = self.links.writes.run(steps, self.terms.clock.told(), self.confirmation).await;
        self.links.has_read(op, asked)
    }

    /// Returns what was read from an answer.
    pub(super) fn read_as<T>(&self, read: Result<T, EngineError>) -> StoreResult<T> {
        self.links.has_read(Op::Get, read)
    }

    /// The sums of the two numbers that each answer begins with.
    pub(super) fn pairs(&self, answers: &[Value]) -> StoreResult<(u64, u64)> {
        let pair = |sums: (u64, u64), answer: &Value| match answer.items()? {
            [first, second, ..] => Ok((sums.0 + first.number()?, sums.1 + second.number()?)),
            _ => Err(EngineError::Damaged),
        };
        self.read_as(answers.iter().try_fold((0, 0), pair))
    }

    /// The items of all answers.
    pub(super) fn items<T>(
        &self,
        answers: &[Value],
        item: impl Fn(&Value) -> Result<T, EngineError>,
    ) -> StoreResult<Vec<T>> {
        let lists: Result<Vec<_>, _> = answers.iter().map(Answer::items).collect();
        self.read_as(lists.and_then(|lists| lists.into_iter().flatten().map(item).collect()))
    }
}
