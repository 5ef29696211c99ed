//! An open connection: what runs steps, each in the node that has its bucket; and the meaning of errors.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::try_join_all;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, ToRedisArgs, Value, cmd};

use crate::store::engine::{EngineError, EngineResult};
use crate::store::engine_error::Refusal;
use crate::store::secret::Meta;

/// How many buckets there are: a bucket is the part of the data that is named by keys with the same first byte. It lies in
/// one slot of a cluster.
pub(super) const BUCKETS: usize = 256;

/// The bucket of what the fleet keeps about itself.
pub(super) const FLEET: u8 = 0;

/// A connection to each node.
pub(in crate::store) struct Client {
    /// How the names of this fleet's keys begin.
    pub(super) prefix: String,
    pub(super) nodes: Vec<MultiplexedConnection>,
    /// For each bucket the number of its node.
    pub(super) homes: Vec<usize>,
    /// For each bucket the mark that it is to have.
    pub(super) marks: Vec<Vec<u8>>,
    /// The name of the script.
    pub(super) script: String,
}

/// One step in one bucket.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) bucket: u8,
    name: &'static str,
    arguments: Vec<Vec<u8>>,
}

/// How many replicas are to have what is written, and how long that may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Confirmation {
    pub(super) replicas: usize,
    pub(super) within: Duration,
}

/// How long a key lives that is given this lifetime over and over: it is written so that `WAIT` waits for all before it.
const LONG: u64 = 1_000_000_000;

// === impl Step ===

impl Step {
    pub(super) fn new(bucket: u8, name: &'static str) -> Self {
        Self { bucket, name, arguments: Vec::new() }
    }

    pub(super) fn of_fleet(name: &'static str) -> Self {
        Self::new(FLEET, name)
    }

    /// The step with one more argument.
    pub(super) fn with(mut self, argument: impl ToRedisArgs) -> Self {
        self.add(argument);
        self
    }

    pub(super) fn add(&mut self, argument: impl ToRedisArgs) {
        argument.write_redis_args(&mut self.arguments);
    }
}

// === impl Client ===

impl Client {
    /// Runs steps, and returns what each one gives. With a confirmation it waits for the replicas of each node.
    pub(super) async fn run(
        &self,
        steps: &[Step],
        now: Option<i64>,
        confirmation: Option<Confirmation>,
    ) -> EngineResult<Vec<Value>> {
        let mut by_node = BTreeMap::<usize, (Vec<usize>, Vec<&Step>)>::new();
        for (n, step) in steps.iter().enumerate() {
            let node = self.homes.get(usize::from(step.bucket)).copied().unwrap_or_default();
            let (places, steps) = by_node.entry(node).or_default();
            places.push(n);
            steps.push(step);
        }
        let runs = by_node.into_iter().map(|(node, (places, steps))| async move {
            let values = self.run_at(node, &steps, now, confirmation).await?;
            EngineResult::Ok(places.into_iter().zip(values))
        });
        let mut values: Vec<_> = try_join_all(runs).await?.into_iter().flatten().collect();
        values.sort_unstable_by_key(|(n, _)| *n);
        Ok(values.into_iter().map(|(_, value)| value).collect())
    }

    /// Runs steps whose buckets one node has.
    async fn run_at(
        &self,
        node: usize,
        steps: &[&Step],
        now: Option<i64>,
        confirmation: Option<Confirmation>,
    ) -> EngineResult<Vec<Value>> {
        let now = now.map(|now| now.to_string()).unwrap_or_default();
        let mut calls = Pipeline::with_capacity(steps.len() + 2);
        for step in steps {
            let mark = self.marks.get(usize::from(step.bucket)).map_or(&b""[..], Vec::as_slice);
            let mut call = cmd("EVALSHA");
            call.arg(&self.script).arg(1).arg(self.name(step.bucket, "")).arg(step.name).arg(mark).arg(&now);
            calls.add_command(call.arg(&step.arguments).clone());
        }
        if let (Some(Confirmation { replicas, within }), Some(step)) = (confirmation, steps.first()) {
            calls.cmd("EXPIRE").arg(self.name(step.bucket, "written")).arg(LONG);
            calls.cmd("WAIT").arg(replicas).arg(u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
        }
        let mut values = self.send(node, &calls).await?;
        if let Some(Confirmation { replicas: wanted, .. }) = confirmation {
            let confirmed: i64 = read(values.pop().unwrap_or_default())?;
            if usize::try_from(confirmed).unwrap_or_default() < wanted {
                return Err(EngineError::TooFewReplicas { confirmed, wanted });
            }
        }
        values.truncate(steps.len());
        Ok(values)
    }

    /// Sends commands to a node. The first error is the outcome.
    pub(super) async fn send(&self, node: usize, calls: &Pipeline) -> EngineResult<Vec<Value>> {
        let mut connection = self.nodes.get(node).cloned().ok_or(EngineError::Closed)?;
        let n_calls = calls.cmd_iter().count();
        let values = connection.send_packed_commands(calls, 0, n_calls).await?;
        Ok(values.into_iter().map(Value::extract_error).collect::<Result<_, _>>()?)
    }

    /// A command's answer from a node.
    pub(super) async fn ask<T: FromRedisValue>(&self, node: usize, command: &[&str]) -> EngineResult<T> {
        let mut connection = self.nodes.get(node).cloned().ok_or(EngineError::Closed)?;
        read(connection.send_packed_command(Cmd::new().arg(command)).await?.extract_error()?)
    }

    /// The name of a key in a bucket. Everything that is in braces decides on its slot.
    pub(super) fn name(&self, bucket: u8, rest: &str) -> String {
        format!("{}{{{bucket:02x}}}:{rest}", self.prefix)
    }

    /// Runs one step of the fleet's bucket.
    async fn of_fleet<T: FromRedisValue>(&self, step: Step) -> EngineResult<T> {
        read(self.run(&[step], None, None).await?.pop().unwrap_or_default())
    }
}

impl Meta for Client {
    async fn value(&self, name: &str) -> EngineResult<Option<Vec<u8>>> {
        self.of_fleet(Step::of_fleet("meta").with(name)).await
    }

    async fn put_if_absent(&self, name: &str, value: &[u8]) -> EngineResult<()> {
        self.of_fleet(Step::of_fleet("put_meta").with(name).with(value)).await
    }

    async fn replace(&self, name: &str, old: &[u8], value: &[u8]) -> EngineResult<()> {
        self.of_fleet(Step::of_fleet("replace").with(name).with(old).with(value)).await
    }
}

/// Reads an answer.
pub(super) fn read<T: FromRedisValue>(answer: Value) -> EngineResult<T> {
    T::from_redis_value(answer).map_err(|_| EngineError::Damaged)
}

// === the meaning of errors ===

/// Who says so serves no one on this connection: it is a replica, starts, is no part of a cluster that works, has other
/// slots than before, or has lost the scripts or the data.
const AWAY: [&str; 7] = ["READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "MOVED", "NOSCRIPT", "ABRIDGELOST"];

/// Who says so has no room, in memory or on its disk.
const FULL: [&str; 2] = ["OOM", "MISCONF"];

const BUSY: [&str; 4] = ["BUSY", "ASK", "TRYAGAIN", "NOREPLICAS"];

impl From<RedisError> for EngineError {
    fn from(error: RedisError) -> Self {
        let Some(code) = error.code() else {
            return match error.kind() {
                _ if error.is_connection_dropped() => Self::Lost,
                ErrorKind::AuthenticationFailed => refused("AUTH", &error.to_string(), Refusal::Wrong),
                _ => Self::Unreachable(error.to_string().into()),
            };
        };
        let message = error.detail().unwrap_or_default();
        // Earlier versions name the error of a step in the text.
        let is = |codes: &[&str]| codes.iter().any(|known| code == *known || message.contains(&format!("-{known} ")));
        let means = match () {
            () if is(&FULL) => Refusal::Full,
            () if is(&AWAY) => Refusal::Away,
            () if is(&BUSY) => Refusal::Busy,
            () => Refusal::Wrong,
        };
        refused(code, message, means)
    }
}

/// A refusal with a code and what it means.
pub(super) fn refused(code: &str, message: &str, means: Refusal) -> EngineError {
    EngineError::Refused { code: code.into(), message: message.into(), means }
}
