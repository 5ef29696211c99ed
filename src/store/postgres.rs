//! A store in PostgreSQL, or in what speaks its protocol.

use std::collections::BTreeMap;

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::engine::link::Links;
use super::engine::tls::Tls;
use super::engine::writer::NewRow;
use super::engine::{Engine, EngineStore, OpenError, Stale, Start, Terms, count};
use super::{Cursor, Op, PayloadInfo, Settings, StoreResult, TOMBSTONES, Time};
use crate::payload::{Lifetime, PayloadKey};

mod calls;
mod connect;
mod error;
mod exchange;
pub mod init;
mod sql;
mod tls;

use calls::Parameters;
use connect::Connector;

/// A store in PostgreSQL.
pub type PostgresStore = EngineStore<Postgres>;

/// The tables of this fleet in PostgreSQL.
#[expect(missing_debug_implementations, reason = "the store itself shows its state")]
pub struct Postgres {
    terms: Terms,
    prefix: String,
    links: Links<Connector>,
}

/// How many rows one statement removes.
const BATCH: i64 = 500;

// === impl Postgres ===

impl Engine for Postgres {
    const NAME: &'static str = "PostgreSQL";

    type Connect = Connector;

    fn start(Start { url, terms, identity, tasks }: Start<'_>) -> Result<Self, OpenError> {
        let (timeout, prefix) = (terms.settings.timeout.0, terms.settings.table_prefix());
        let hosts = connect::hosts(url, timeout)?;
        let tls = Tls::new(terms.settings.ca_file.as_deref(), connect::encrypts(&hosts))?;
        let connector = Connector { hosts, tls, identity, prefix: prefix.clone(), timeout };
        Ok(Self { terms, prefix, links: Links::start(connector.clone(), connector, timeout, tasks) })
    }

    fn links(&self) -> &Links<Connector> {
        &self.links
    }

    async fn promise(&self) -> String {
        let asked = self.links.reads.query(&sql::statement("promise", ""), &[]).await;
        let row = asked.as_ref().ok().and_then(|rows| rows.first());
        let said = row.and_then(|row| Some((row.try_get::<_, String>(0).ok()?, row.try_get::<_, i64>(1).ok()?)));
        match said {
            Some((commit, _)) if commit == "off" => {
                "synchronous_commit is off, so a crash of the engine may lose what it has just confirmed".to_owned()
            }
            Some((commit, 1..)) if commit != "local" => {
                "what it has confirmed is on two machines, and survives the loss of one".to_owned()
            }
            Some(_) => "what it has confirmed survives a crash, and not the loss of its disk".to_owned(),
            None => "it does not say what survives a crash".to_owned(),
        }
    }

    async fn put(&self, rows: &BTreeMap<PayloadKey, NewRow>) -> StoreResult<(u64, u64)> {
        let (now, grain) = (self.terms.clock.told(), self.terms.half_grain());
        let keys: Vec<_> = rows.keys().map(|key| key.as_bytes().as_slice()).collect();
        let bodies: Vec<_> = rows.values().map(|row| row.body.as_slice()).collect();
        let lengths: Vec<_> = rows.values().map(|row| row.bytes).collect();
        let extras: Vec<_> = rows.values().map(|row| self.terms.extra(row.lifetime)).collect();
        let (lengths, extras) = ((&lengths as _, Type::INT8_ARRAY), (&extras as _, Type::INT8_ARRAY));
        let parameters = [int(&now), blobs(&keys), blobs(&bodies), lengths, extras, int(&grain)];
        let mut new = (0, 0);
        for row in self.write(Op::Put, "put", &parameters).await? {
            if self.cell(&row, 1)? {
                new = (new.0 + 1, new.1 + self.number(&row, 0)?);
            }
        }
        Ok(new)
    }

    async fn fresh(&self, keys: &[PayloadKey], lifetime: Lifetime) -> StoreResult<Vec<PayloadKey>> {
        let (now, grain) = (self.terms.clock.told(), self.terms.half_grain());
        let (extra, keys) = (self.terms.extra(lifetime), bytes_of(keys));
        let found = self.ask_for_write(Op::Put, "fresh", &[int(&now), blobs(&keys), int(&grain), int(&extra)]).await?;
        found.iter().map(|row| Ok(PayloadKey::from_bytes(self.key(row, 0)?))).collect()
    }

    async fn get(&self, key: PayloadKey) -> StoreResult<Option<(Vec<u8>, bool)>> {
        let (now, grain) = (self.terms.clock.told(), self.terms.half_grain());
        let bytes = key.as_bytes().as_slice();
        let found = self.rows(Op::Get, "get", &[int(&now), blob(&bytes), int(&grain)]).await?;
        found.first().map(|row| Ok((self.cell(row, 0)?, self.cell(row, 1)?))).transpose()
    }

    async fn remove(&self, key: PayloadKey, body: &[u8]) -> StoreResult<()> {
        let key = key.as_bytes().as_slice();
        self.execute(Op::Put, "remove", &[blob(&key), blob(&body)]).await.map(drop)
    }

    async fn was_swept(&self, key: PayloadKey) -> StoreResult<bool> {
        let key = key.as_bytes().as_slice();
        self.first(Op::Get, "was_swept", &[blob(&key)]).await
    }

    async fn touch(&self, keys: &[PayloadKey]) -> StoreResult<()> {
        let (now, grain, keys) = (self.terms.clock.told(), self.terms.half_grain(), bytes_of(keys));
        self.execute(Op::Put, "touch", &[int(&now), blobs(&keys), int(&grain)]).await.map(drop)
    }

    async fn bodies(&self, keys: &[PayloadKey]) -> StoreResult<Vec<(PayloadKey, Vec<u8>)>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let keys = bytes_of(keys);
        let found = self.rows(Op::Get, "bodies", &[blobs(&keys)]).await?;
        found.iter().map(|row| Ok((PayloadKey::from_bytes(self.key(row, 0)?), self.cell(row, 1)?))).collect()
    }

    async fn list(
        &self,
        after: Option<Cursor>,
        [first, last]: [PayloadKey; 2],
        most: usize,
    ) -> StoreResult<Vec<PayloadInfo>> {
        let (used, key) = after.map_or((i64::MAX, first), |Cursor { used, row }| (count(used.0), row));
        let (key, first, last) = (key.as_bytes().as_slice(), first.as_bytes().as_slice(), last.as_bytes().as_slice());
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let parameters: Parameters<'_> = &[int(&used), blob(&key), blob(&first), blob(&last), int(&most)];
        let found = self.rows(Op::Get, "list", parameters).await?;
        found.iter().map(|row| self.info(row)).collect()
    }

    async fn put_inspected(&self, id: &str, body: &[u8]) -> StoreResult<()> {
        let now = self.terms.clock.told();
        let parameters: Parameters<'_> = &[int(&now), (&id as _, Type::TEXT), blob(&body)];
        self.execute(Op::Put, "put_inspected", parameters).await.map(drop)
    }

    async fn inspected(&self, id: &str) -> StoreResult<Option<Vec<u8>>> {
        let found = self.rows(Op::Get, "inspected", &[(&id, Type::TEXT)]).await?;
        found.first().map(|row| self.cell(row, 0)).transpose()
    }

    async fn trim_inspected(&self, most: usize) -> StoreResult<()> {
        let (now, most) = (self.terms.clock.told(), i64::try_from(most).unwrap_or(i64::MAX));
        let (bytes, age) = (count(self.terms.settings.max_inspected_bytes()), self.terms.keep_for());
        let parameters = [int(&now), int(&most), int(&bytes), int(&age)];
        self.execute(Op::Sweep, "trim_inspected", &parameters).await.map(drop)
    }

    async fn take_turn(&self, (name, seconds): (&str, i64)) -> StoreResult<bool> {
        let now = self.terms.clock.told();
        let parameters = [int(&now), (&name as _, Type::TEXT), int(&seconds)];
        Ok(self.execute(Op::Sweep, "take_turn", &parameters).await? > 0)
    }

    async fn sweep(&self, stale: Stale) -> StoreResult<(u64, u64)> {
        let (text, seconds) = match stale {
            Stale::Expired => ("sweep", self.terms.keep_for()),
            Stale::Unused => ("sweep_unused", self.terms.in_use_for()),
        };
        let now = self.terms.clock.told();
        let gone = self.write(Op::Sweep, text, &[int(&now), int(&seconds), int(&BATCH)]).await?;
        self.pair(&gone)
    }

    async fn sweep_summaries(&self) -> StoreResult<u64> {
        let (now, age) = (self.terms.clock.told(), self.terms.keep_for());
        let gone = self.write(Op::Sweep, "sweep_summaries", &[int(&now), int(&age)]).await?;
        gone.iter().map(|row| Ok(u64::from(self.cell::<bool>(row, 0)?))).sum()
    }

    async fn crowd_summaries(&self) -> StoreResult<u64> {
        let (now, unused) = (self.terms.clock.told(), self.terms.in_use_for());
        let most = count(self.terms.settings.max_summary_bytes());
        let crowded = self.write(Op::Sweep, "crowd_summaries", &[int(&now), int(&unused), int(&most)]).await?;
        Ok(crowded.len() as u64)
    }

    async fn sweep_notes(&self) -> StoreResult<()> {
        let now = self.terms.clock.told();
        self.execute(Op::Sweep, "sweep_notes", &[int(&now)]).await.map(drop)
    }

    async fn trim_swept(&self) -> StoreResult<()> {
        let (now, (most, age)) = (self.terms.clock.told(), TOMBSTONES);
        let (most, age) = (count(most), count(age.as_secs()));
        self.execute(Op::Sweep, "trim_swept", &[int(&now), int(&age), int(&most)]).await.map(drop)
    }

    async fn is_full(&self) -> StoreResult<bool> {
        let full = self.rows(Op::Get, "meta", &[(&"full", Type::TEXT)]).await?;
        let full: Option<i64> = full.first().map(|row| self.cell(row, 1)).transpose()?.flatten();
        Ok(full == Some(1))
    }

    async fn set_full(&self, is_full: bool) -> StoreResult<()> {
        self.execute(Op::Sweep, "set_full", &[int(&i64::from(is_full))]).await.map(drop)
    }

    async fn totals(&self) -> StoreResult<[u64; 8]> {
        let found = self.rows(Op::Get, "totals", &[]).await?;
        let row = found.first().ok_or_else(|| self.links.damaged())?;
        let mut totals = [0; 8];
        for (n, total) in totals.iter_mut().enumerate() {
            *total = self.number(row, n)?;
        }
        Ok(totals)
    }
}

impl Postgres {
    fn info(&self, row: &Row) -> StoreResult<PayloadInfo> {
        Ok(PayloadInfo {
            key: PayloadKey::from_bytes(self.key(row, 0)?),
            bytes: self.number(row, 1)?,
            stored_bytes: self.number(row, 2)?,
            created: Time(self.number(row, 3)?),
            used: Time(self.number(row, 4)?),
        })
    }

    /// Two numbers: of rows, and of bytes.
    fn pair(&self, rows: &[Row]) -> StoreResult<(u64, u64)> {
        let row = rows.first().ok_or_else(|| self.links.damaged())?;
        Ok((self.number(row, 0)?, self.number(row, 1)?))
    }
}

// === helpers ===

type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// A number, or none, as a parameter.
fn int<T: ToSql + Sync>(number: &T) -> Parameter<'_> {
    (number, Type::INT8)
}

fn blob<T: ToSql + Sync>(bytes: &T) -> Parameter<'_> {
    (bytes, Type::BYTEA)
}

fn blobs<T: ToSql + Sync>(all: &T) -> Parameter<'_> {
    (all, Type::BYTEA_ARRAY)
}

fn bytes_of(keys: &[PayloadKey]) -> Vec<&[u8]> {
    keys.iter().map(|key| key.as_bytes().as_slice()).collect()
}

impl Settings {
    /// How the names of the tables begin.
    fn table_prefix(&self) -> String {
        format!("abridge_{}", self.namespace_with('_'))
    }
}
