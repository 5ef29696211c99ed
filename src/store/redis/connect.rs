//! Connects to Redis: to the primary, or to each primary of a cluster, and checks that what is there is this fleet's and
//! stays; and the promise of a Redis about confirmed writes, by its settings.

use std::net::IpAddr;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, InfoDict, RedisConnectionInfo, Value, from_redis_value_ref};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;

use super::calls::each_bucket;
use super::client::{BUCKETS, Client, Confirmation, Step, read, refused};
use super::url::{Host, Kind, Target};
use crate::store::engine::link::{Connect, Driver, first_of};
use crate::store::engine::tls::{Io, Tls};
use crate::store::engine::{EngineError, EngineResult};
use crate::store::engine_error::Refusal;
use crate::store::secret::{Identity, Meta as _, random};

/// The parameters of a connection.
#[derive(Clone)]
pub(in crate::store) struct Connector {
    pub(super) target: Target,
    pub(super) tls: Tls,
    pub(super) identity: Arc<Identity>,
    pub(super) prefix: String,
    pub(super) timeout: Duration,
    /// For a connection for writes.
    pub(super) confirmation: Option<Confirmation>,
}

/// Connections to nodes, what drives them, and the node of each bucket.
type Nodes = (Vec<MultiplexedConnection>, Vec<Driver>, Vec<usize>);

/// All that is done in one step.
const STEPS: &str = include_str!("steps.lua");

/// The version of what is stored.
const VERSION: &str = "2";

/// How many slots a cluster has.
const SLOTS: u16 = 16_384;

// === impl Connector ===

impl Connect for Connector {
    type Client = Client;

    async fn connect(&self) -> EngineResult<(Client, Driver)> {
        first_of(self.timeout, self.target.hosts.iter().map(|host| self.connect_through(host))).await
    }
}

impl Connector {
    async fn connect_through(&self, host: &Host) -> EngineResult<(Client, Driver)> {
        let (nodes, drivers, homes) = match &self.target.kind {
            Kind::Servers => self.nodes(slice::from_ref(host), vec![0; BUCKETS]).await?,
            Kind::Sentinel(service) => self.nodes(&[self.watched(host, service).await?], vec![0; BUCKETS]).await?,
            Kind::Cluster => self.cluster(host).await?,
        };
        let mut client = Client { prefix: self.prefix.clone(), nodes, homes, marks: Vec::new(), script: String::new() };
        // When one node is lost, the connection is, too.
        let mut ended: Driver = Box::pin(async move { drop(select_all(drivers).await) });
        tokio::select! {
            checked = self.check(&mut client) => checked?,
            () = &mut ended => return Err(EngineError::Lost),
        }
        Ok((client, ended))
    }

    /// Connects to servers. `homes` has the number of the one that has each bucket.
    async fn nodes(&self, hosts: &[Host], homes: Vec<usize>) -> EngineResult<Nodes> {
        let (mut nodes, mut drivers) = (Vec::new(), Vec::new());
        for host in hosts {
            let (connection, driver) = self.open(host, &self.target.login).await?;
            nodes.push(connection);
            drivers.push(driver);
        }
        Ok((nodes, drivers, homes))
    }

    /// Asks a sentinel for the primary.
    async fn watched(&self, sentinel: &Host, service: &str) -> EngineResult<Host> {
        let command = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", service];
        // A sentinel that does not know the name says nil.
        let named: Option<_> = self.ask(sentinel, &self.target.sentinel_login, &command).await?;
        named.ok_or_else(|| refused("SENTINEL", "no primary is known by the name in the URL", Refusal::Away))
    }

    /// Connects to each primary that one node of the cluster names.
    async fn cluster(&self, seed: &Host) -> EngineResult<Nodes> {
        let ranges: Vec<Value> = self.ask(seed, &self.target.login, &["CLUSTER", "SLOTS"]).await?;
        let ranges: Option<Vec<_>> = ranges.iter().map(|range| slots_of(range, &seed.0)).collect();
        let ranges = ranges.ok_or(EngineError::Damaged)?;
        let mut hosts: Vec<_> = ranges.iter().map(|(_, host)| host.clone()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let mut homes = Vec::new();
        for bucket in 0..BUCKETS {
            let slot = slot_of(&format!("{bucket:02x}"));
            let home = ranges.iter().find(|(range, _)| (range[0]..=range[1]).contains(&slot));
            let home = home.and_then(|(_, host)| hosts.binary_search(host).ok());
            homes.push(home.ok_or_else(|| refused("CLUSTERDOWN", "a slot has no node", Refusal::Away))?);
        }
        self.nodes(&hosts, homes).await
    }

    /// The answer to one command, on its own connection.
    async fn ask<T: FromRedisValue>(
        &self,
        host: &Host,
        login: &RedisConnectionInfo,
        command: &[&str],
    ) -> EngineResult<T> {
        let (mut connection, driver) = self.open(host, login).await?;
        let mut call = Cmd::new();
        call.arg(command);
        tokio::select! {
            answer = connection.send_packed_command(&call) => read(answer?.extract_error()?),
            () = driver => Err(EngineError::Lost),
        }
    }

    async fn open(
        &self,
        (host, port): &Host,
        login: &RedisConnectionInfo,
    ) -> EngineResult<(MultiplexedConnection, Driver)> {
        let unreachable = |error: std::io::Error| EngineError::Unreachable(error.to_string().into());
        let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        // The calls have their own time-outs.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let stream: Box<dyn Io> = if self.target.encrypts(host) {
            let name = ServerName::try_from(host.clone())
                .map_err(|_| EngineError::Unreachable("the host's name is not valid".into()))?;
            self.tls.connect(name, stream).await.map_err(unreachable)?
        } else {
            Box::new(stream)
        };
        let (connection, driver) = MultiplexedConnection::new_with_config(login, stream, config).await?;
        Ok((connection, Box::pin(driver)))
    }

    /// Checks that all nodes are primaries that keep what they are told, and that what they hold is this fleet's. Marks it,
    /// so that a loss is noticed.
    async fn check(&self, client: &mut Client) -> EngineResult<()> {
        for node in 0..client.nodes.len() {
            let replication: InfoDict = client.ask(node, &["INFO", "replication"]).await?;
            if replication.get("role") != Some("master".to_owned()) {
                return Err(EngineError::ReadOnly);
            }
            let memory: InfoDict = client.ask(node, &["INFO", "memory"]).await?;
            let policy: String = memory.get("maxmemory_policy").unwrap_or_default();
            // No key has a lifetime, so the other policies remove none.
            if policy.starts_with("allkeys") {
                return Err(EngineError::Evicts(policy.into()));
            }
            client.script = client.ask(node, &["SCRIPT", "LOAD", STEPS]).await?;
        }
        client.put_if_absent("version", VERSION.as_bytes()).await?;
        let version = client.value("version").await?.unwrap_or_default();
        if version != VERSION.as_bytes() {
            return Err(EngineError::Version(String::from_utf8_lossy(&version).parse().unwrap_or_default()));
        }
        self.identity.check(client).await?;
        let own: [u8; 16] = random().map_err(|error| EngineError::Unreachable(error.to_string().into()))?;
        let steps = each_bucket(|bucket| Step::new(bucket, "mark").with(&own));
        for mark in client.run(&steps, None, self.confirmation).await? {
            client.marks.push(read(mark)?);
        }
        Ok(())
    }
}

// === helpers ===

/// A range of slots, and its primary. A node that does not know its own address is where it was asked.
fn slots_of(range: &Value, seed: &str) -> Option<([u16; 2], Host)> {
    let Value::Array(parts) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = parts.as_slice() else { return None };
    let [host, port, ..] = primary.as_slice() else { return None };
    let (host, port): (String, _) = (from_redis_value_ref(host).ok()?, from_redis_value_ref(port).ok()?);
    let is_unknown = host.is_empty() || host.parse().is_ok_and(|address: IpAddr| address.is_unspecified());
    let host = if is_unknown { seed.to_owned() } else { host };
    Some(([u16::try_from(*first).ok()?, u16::try_from(*last).ok()?], (host, port)))
}

/// The slot of a name, or of what is in its braces: CRC-16 with the polynomial 0x1021.
fn slot_of(tag: &str) -> u16 {
    let of_byte = |crc: u16, byte: u8| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 })
    };
    tag.bytes().fold(0, of_byte) % SLOTS
}

// === the promise ===

/// The promise of a Redis that does not tell its settings.
pub(super) const UNKNOWN: &str = "it does not say what survives a crash";

/// Says which confirmed writes a crash loses.
pub(super) async fn describe_crash(client: &Client) -> &'static str {
    let Ok(persistence) = client.ask::<InfoDict>(0, &["INFO", "persistence"]).await else { return UNKNOWN };
    if persistence.get("aof_enabled") != Some(1) {
        return "its append-only file is off, so a crash loses what was stored since its last snapshot";
    }
    // An operator may forbid the command.
    let said: Vec<String> = client.ask(0, &["CONFIG", "GET", "appendfsync"]).await.unwrap_or_default();
    match said.get(1).map(String::as_str) {
        Some("always") => "what it has confirmed survives a crash",
        Some("everysec") => "a crash of its machine may lose the last second (appendfsync everysec)",
        Some("no") => "a crash of its machine may lose the last half minute (appendfsync no)",
        _ => UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!([slot_of("123456789"), slot_of("foo"), slot_of("")], [0x31C3, 12182, 0]);
    }
}
